"""Globs and prefixes, against a reference that is too simple to be wrong."""

from __future__ import annotations

import glob
import re
import uuid

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import s3dlio
from s3dlio.errors import ConfigError
from s3dlio.listing import matcher, walk
from s3dlio.uri import sort_key

NAMES = st.text("ab/.-[]!^&~|\\*?", max_size=7)


def tokens_of(pattern: str) -> list[str]:
    """Wildcards, sets and single characters."""
    found = []
    while pattern:
        closing = pattern.find("]", 3 if pattern[1:2] == "!" else 2) if pattern[0] == "[" else -1
        length = next((len(word) for word in ("**/", "**") if pattern.startswith(word)), closing + 1 or 1)
        found.append(pattern[:length])
        pattern = pattern[length:]
    return found


def is_match(tokens: list[str], key: str) -> bool:
    """Try every way in which the tokens can consume the key."""
    if not tokens:
        return not key
    token, rest = tokens[0], tokens[1:]
    if token == "**":
        return any(is_match(rest, key[count:]) for count in range(len(key) + 1))
    if token == "**/":
        starts = [0, *(count + 1 for count, character in enumerate(key) if character == "/")]
        return any(is_match(rest, key[start:]) for start in starts)
    if token == "*":
        segment = len(key.partition("/")[0])
        return any(is_match(rest, key[count:]) for count in range(segment + 1))
    return bool(key) and is_one(token, key[0]) and is_match(rest, key[1:])


def is_one(token: str, character: str) -> bool:
    if token == "?":
        return character != "/"
    if len(token) == 1:
        return token == character
    negated = token[1] == "!"
    members = token[1 + negated : -1]
    return character != "/" and (character in members) != negated


def is_range(pattern: str) -> bool:
    """Sets with a range of characters have an example test of their own."""
    return any("-" in token and len(token) > 2 for token in tokens_of(pattern))


@given(NAMES, NAMES)
@example("[[]", "[")
@example("[]]", "]")
@example("[!]]", "a")
@example("[^a]", "^")
@example("[a&&b]", "&")
@example("[~~]", "~")
@example("[a||b]", "|")
@example("[\\]", "\\")
@example("[/]", "/")
@example("[]", "[]")
@example("[!]", "[!]")
@example("[!!]", "a")
@example("[!a]", "/")
@example("**/a", "a")
@example("a/**", "a/b/c")
def test_globs_match_what_the_reference_matches(pattern: str, key: str) -> None:
    if is_range(pattern):
        return
    by_name = "/" not in pattern and "**" not in pattern
    subject = re.sub(r"(?s).*/(?=.)", "", key) if by_name else key
    if by_name and key.endswith("/"):
        return  # a marker's last segment keeps its slash; see basename
    assert matcher(pattern)(key) == is_match(tokens_of(pattern), subject)


@given(st.text("ab/[]*?!", max_size=8).filter(lambda key: not key.endswith("/")))
def test_an_escaped_name_matches_itself_alone(key: str) -> None:
    matches = matcher(glob.escape(key))
    assert matches(key)
    assert not matches(key + "x")


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("[a-c].txt", ["a.txt", "x/b.txt"], ["d.txt", "-.txt"]),
        ("[!a-c]", ["d", "-"], ["a", "/"]),
        ("[a-]", ["a", "-"], ["b"]),
        ("[+--]", ["+", ",", "-"], ["."]),
        ("[ab", ["[ab"], ["a"]),
        ("*.npz", ["a.npz", "x/y/.npz"], ["a.npz2", "a.npz/b"]),
        ("x/*.npz", ["x/a.npz"], ["a.npz", "y/x/a.npz", "x/y/a.npz"]),
        ("**/*.npz", ["a.npz", "x/y/a.npz"], ["a.txt"]),
        ("x/**/a", ["x/a", "x/y/a", "x/y/z/a"], ["x/ya", "y/x/a"]),
        ("re:^a.*[0-9]$", ["a1", "ab/c/2"], ["ba1"]),
        ("re:", ["anything"], []),
        ("a\nb*", ["a\nbc"], ["ab"]),
        ("", [], ["a"]),
    ],
)
def test_examples(pattern: str, matching: list[str], other: list[str]) -> None:
    matches = matcher(pattern)
    assert [key for key in matching if not matches(key)] == []
    assert [key for key in other if matches(key)] == []


@pytest.mark.parametrize("pattern", ["re:(", "re:[", "[b-a]", "re:*"])
def test_a_pattern_that_cannot_be_read_is_named(pattern: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        matcher(pattern)
    assert repr(pattern) in str(caught.value)


def test_no_pattern_matches_everything() -> None:
    assert matcher(None)("any/thing")


KEYS = st.sets(st.text("ab/.é", min_size=1, max_size=6), max_size=12)


@given(KEYS, st.text("ab/.", max_size=3), st.booleans())
def test_a_listing_is_what_lies_at_or_under_the_name(keys: set[str], prefix: str, recursive: bool) -> None:
    root = f"memory://{uuid.uuid4().hex}/"
    s3dlio.put_many([(root + key, b"") for key in keys])
    base = prefix if prefix.endswith("/") or not prefix else prefix + "/"
    expected = {key for key in keys if key == prefix and base != prefix}
    for key in keys:
        if key.startswith(base):
            rest = key[len(base) :]
            if recursive or (rest and "/" not in rest):
                expected.add(key)
            elif "/" in rest:
                expected.add(base + rest.partition("/")[0] + "/")
    found = s3dlio.list(root + prefix, recursive=recursive)
    assert found == [root + key for key in sorted(expected, key=sort_key)]
    assert {uri for uri, _ in walk(root + prefix, recursive=recursive)} == set(found)


@given(KEYS, st.text("ab/.", max_size=3))
def test_a_recursive_delete_removes_what_the_listing_shows(keys: set[str], prefix: str) -> None:
    root = f"memory://{uuid.uuid4().hex}/"
    s3dlio.put_many([(root + key, b"") for key in keys])
    doomed = set(s3dlio.list(root + prefix, recursive=True))
    s3dlio.delete(root + prefix, recursive=True)
    assert set(s3dlio.list(root, recursive=True)) == {root + key for key in keys} - doomed
