"""KeyList behaves as a list of str, and neither forked workers nor pickles pay for its length."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import s3dlio
from s3dlio.data.keys import KeyList
from tests.conftest import LocalPlace, Place

# What a listing can give: any text, and file names that are no UTF-8, which Python tells by surrogates.
names = st.one_of(st.text(max_size=12), st.binary(max_size=12).map(os.fsdecode))
lists = st.lists(names, max_size=8)
FEW = settings(max_examples=60, deadline=None)


@FEW
@given(lists, st.sampled_from(["", "s3://bucket/", "file://"]))
def test_a_key_list_holds_what_a_list_holds(suffixes: list[str], prefix: str) -> None:
    expected = [prefix + suffix for suffix in suffixes]
    keys = KeyList(expected, prefix=prefix)
    assert len(keys) == len(expected)
    assert list(keys) == expected
    assert [keys[index] for index in range(-len(expected), len(expected))] == expected * 2
    assert list(reversed(keys)) == expected[::-1]
    assert pickle.loads(pickle.dumps(keys)) == keys == KeyList(expected)
    assert all(name in keys and keys.index(name) == expected.index(name) for name in expected)


@FEW
@given(lists, st.slices(8))
def test_a_slice_is_that_of_a_list(expected: list[str], part: slice) -> None:
    assert KeyList(expected)[part] == expected[part]


@FEW
@given(lists, lists)
def test_key_lists_are_equal_when_their_names_are(ours: list[str], theirs: list[str]) -> None:
    assert (KeyList(ours) == KeyList(theirs)) == (ours == theirs)
    assert KeyList(ours) != ours


@pytest.mark.parametrize("index", [2, -3, 10**6])
def test_an_index_out_of_range_is_an_error_that_tells_the_length(index: int) -> None:
    with pytest.raises(IndexError, match=f"{index} .* 2 objects"):
        KeyList(["a", "b"])[index]


@pytest.mark.parametrize("wrong", [b"s3://bucket/key", 7, None, Path("a")])
def test_only_str_is_a_name(wrong: object) -> None:
    with pytest.raises(TypeError, match="a URI is a str"):
        KeyList(["s3://bucket/a", wrong])  # type: ignore[list-item]


def test_a_key_list_is_unhashable_as_a_list_is() -> None:
    with pytest.raises(TypeError):
        hash(KeyList(["a"]))


def test_the_text_of_a_key_list_is_short() -> None:
    assert len(repr(KeyList([f"s3://bucket/{number}" for number in range(100_000)]))) < 100
    assert repr(KeyList()) == "KeyList(0 names)"


def test_a_name_costs_its_own_bytes_and_one_offset() -> None:
    prefix = "s3://a-bucket/with/some/longer/prefix/"
    keys = KeyList([f"{prefix}{number:06}" for number in range(10_000)], prefix=prefix)
    assert keys.num_bytes == 10_000 * (6 + 8) + 8
    assert len(pickle.dumps(keys)) < keys.num_bytes + 300


def test_a_listing_is_sorted_by_bytes_without_markers_and_neighbours(place: Place) -> None:
    for name in ("data/b", "data/a/1", "data/é", "data/z", "data.bak/4", "data2/3"):
        place.put(name, b"x")
    s3dlio.mkdir(place.root + "data/empty/") if isinstance(place, LocalPlace) else place.put("data/empty/", b"")
    expected = [f"{place.root}data/{name}" for name in ("a/1", "b", "z", "é")]
    assert list(KeyList.from_listing(place.root + "data/")) == expected
    assert list(KeyList.from_listing(place.root + "data")) == expected
    assert list(KeyList.from_listing(place.root + "data/", "re:^[b-z]$")) == expected[1:3]


def test_an_empty_listing_is_an_error_that_names_the_uri_and_the_pattern(place: Place) -> None:
    place.put("data/a.bin", b"x")
    with pytest.raises(s3dlio.NotFoundError, match=r"data/ that match pattern='\*\.npz'") as caught:
        KeyList.from_listing(place.root + "data/", "*.npz")
    assert place.root + "data/" in str(caught.value)
    with pytest.raises(s3dlio.NotFoundError, match="nothing/here/"):
        KeyList.from_listing(place.root + "nothing/here/")


FORKED_WORKERS_TOUCH_ALL_NAMES = """
import gc, json, os, sys
from s3dlio.data.keys import KeyList

names = (f"s3://bucket/train/class-{number % 1000:04}/{number:08}.jpg" for number in range(1_000_000))
keys = {"KeyList": KeyList, "list": list}[sys.argv[1]](names)
gc.freeze()

def private_mb():
    with open("/proc/self/smaps_rollup") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:")) / 1024

readers = []
for _ in range(2):
    reader, writer = os.pipe()
    readers.append(reader)
    if os.fork() == 0:
        before = private_mb()
        touched = []  # one in a thousand stays alive, all are touched
        for number, name in enumerate(keys):
            if number % 1000 == 0:
                touched.append(name)
        os.write(writer, json.dumps([len(touched), private_mb() - before]).encode())
        os._exit(0)
    os.close(writer)
print(json.dumps([json.loads(open(reader).read()) for reader in readers]))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="needs Linux's account of private memory")
@pytest.mark.parametrize(("kind", "stays_shared"), [("KeyList", True), ("list", False)])
def test_forked_workers_share_a_million_names(
    run_python: Callable[..., subprocess.CompletedProcess[str]], kind: str, stays_shared: bool
) -> None:
    """Touching every name makes less than 50 MB private; the same measure sees that a list of str does not stay shared."""
    done = run_python(FORKED_WORKERS_TOUCH_ALL_NAMES, kind)
    assert done.returncode == 0, done.stderr
    workers = json.loads(done.stdout)
    assert [num_touched for num_touched, _ in workers] == [1000, 1000]
    assert all((extra < 50) == stays_shared for _, extra in workers), workers


def test_names_are_picked_as_if_asked_for_one_by_one() -> None:
    names = ["s3://b/p/x", "s3://b/p/ü", "s3://b/p/", "s3://b/p/\udcff"]
    keys = KeyList(names, prefix="s3://b/")
    assert list(keys.pick([3, 0, 1, 1])) == [names[3], names[0], names[1], names[1]]
    assert list(keys) == names
    with pytest.raises(IndexError):
        list(keys.pick([4]))
