"""TFRecord files: what was written comes back, from any position, and damage names its file and byte."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from s3dlio import TFRecordFile, TFRecordReader, create_tfrecord_index
from s3dlio.data import shards
from s3dlio.data.keys import KeyList
from s3dlio.data.tfrecord import read_tfrecord_index
from s3dlio.errors import (
    ChangedError,
    ConfigError,
    CorruptDataError,
    IncompleteReadError,
    MissingPackageError,
    NotFoundError,
)
from s3dlio.transfer import ahead

from .conftest import MemoryPlace, Place

DATA = [b"", b"a", b"b" * 90, b"c" * 500, b"", b"d" * 7]  # of blocks of 100 bytes


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    """Records lie in a block, cross its border, and span several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ahead, "BLOCK_BYTES", 100)
        yield


def masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15) | (crc << 17)) + 0xA282EAD8 & 0xFFFFFFFF


def framed(data: bytes) -> bytes:
    """A record as TensorFlow writes it."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(length)) + data + struct.pack("<I", masked(data))


def file_of(records: list[bytes]) -> bytes:
    return b"".join(map(framed, records))


def entries_of(records: list[bytes]) -> list[tuple[int, int]]:
    offset, entries = 0, []
    for data in records:
        entries.append((offset, len(data) + 16))
        offset += len(data) + 16
    return entries


def contents(records: object) -> list[bytes]:
    return [bytes(record) for record in records]  # type: ignore[attr-defined]


def test_the_checksum_of_these_tests_is_crc_32c() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of RFC 3720


def test_records_of_several_files_come_in_order(place: Place) -> None:
    place.put("a", file_of(DATA))
    place.put("empty", b"")
    place.put("b", file_of(DATA[::-1]))
    reader = TFRecordReader([place.root + name for name in ("a", "empty", "b")])
    records = list(reader)
    assert contents(records) == DATA + DATA[::-1]
    assert [record.uri for record in records] == [place.root + "a"] * 6 + [place.root + "b"] * 6
    assert contents(reader) == DATA + DATA[::-1]


@given(st.lists(st.binary(max_size=250), max_size=8), st.data())
def test_a_reader_goes_on_from_any_position(records: list[bytes], data: st.DataObject) -> None:
    place = MemoryPlace()
    place.put("a", file_of(records))
    place.put("b", file_of(records[:3]))
    uris = [place.root + "a", place.root + "b"]
    expected = records + records[:3]
    count = data.draw(st.integers(0, len(expected)))
    reader = TFRecordReader(uris)
    begun = iter(reader)
    assert contents(next(begun) for _ in range(count)) == expected[:count]
    resumed = TFRecordReader(uris)
    resumed.load_state_dict(reader.state_dict())
    assert resumed.state_dict() == reader.state_dict()
    assert contents(resumed) == expected[count:]
    assert contents(resumed) == expected
    assert resumed.state_dict()["num_items"] == len(expected)


def test_a_state_at_the_end_of_a_file_goes_on_with_the_next(place: Place) -> None:
    place.put("a", file_of(DATA))
    reader = TFRecordReader([place.root + "a", place.root + "a"])
    begun = iter(reader)
    for _ in DATA:
        next(begun)
    resumed = TFRecordReader([place.root + "a", place.root + "a"])
    resumed.load_state_dict(reader.state_dict())
    assert contents(resumed) == DATA


def test_resuming_reads_nothing_of_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    place = MemoryPlace()
    place.put("a", file_of(DATA * 50))
    reader = TFRecordReader(place.root + "a")
    begun = iter(reader)
    for _ in range(6 * 50 - 1):
        next(begun)
    asked: list[int] = []
    fetched = ahead._fetched
    monkeypatch.setattr(ahead, "_fetched", lambda *read: asked.append(read[3]) or fetched(*read))  # type: ignore[func-returns-value]
    resumed = TFRecordReader(place.root + "a")
    resumed.load_state_dict(reader.state_dict())
    assert contents(resumed) == DATA[-1:]
    assert min(asked) == len(file_of(DATA * 50)) - len(framed(DATA[-1]))


@pytest.mark.parametrize(
    "change", [{"version": 1}, {"num_files": 3}, {"offset": -1}, {"file": None}, {"num_items": "1"}], ids=str
)
def test_a_state_of_something_else_is_refused(change: dict[str, object]) -> None:
    reader = TFRecordReader("memory://b/k")
    with pytest.raises(ValueError):
        reader.load_state_dict({**reader.state_dict(), **change})  # type: ignore[dict-item]


class TestIterators:
    """Names that come one by one, perhaps without an end."""

    @pytest.fixture
    def names(self, place: Place) -> list[str]:
        for name in "abc":
            place.put(name, file_of([name.encode() * 9, name.encode()]))
        return [place.root + name for name in "abc"]

    def test_names_are_taken_when_their_files_are_opened(self, names: list[str]) -> None:
        taken: list[str] = []
        reader = TFRecordReader(taken.append(name) or name for name in itertools.cycle(names))  # type: ignore[func-returns-value]
        first = [bytes(record) for record in itertools.islice(reader, 8)]
        assert first == [b"a" * 9, b"a", b"b" * 9, b"b", b"c" * 9, b"c", b"a" * 9, b"a"]
        assert 4 <= len(taken) <= 4 + shards.FILES_AHEAD

    def test_another_epoch_has_them_all(self, names: list[str]) -> None:
        reader = TFRecordReader(iter(names))
        assert len(list(itertools.islice(reader, 3))) == 3
        assert len(contents(reader)) == len(contents(reader)) == 6
        assert list(reader.uris) == names

    @pytest.mark.parametrize("num_taken", range(7))
    def test_a_state_goes_on(self, names: list[str], num_taken: int) -> None:
        reader, later = TFRecordReader(iter(names)), TFRecordReader(iter(names))
        records = iter(reader)
        first = [bytes(next(records)) for _ in range(num_taken)]
        later.load_state_dict(reader.state_dict())
        assert first + contents(later) == contents(TFRecordReader(names))

    def test_a_state_is_of_the_same_names(self, names: list[str]) -> None:
        reader = TFRecordReader(iter(names))
        records = iter(reader)
        for _ in range(3):
            next(records)
        for others, complaint in (
            (names[::-1], "other names"),
            (names[:1], "at file 2, and there are 1"),
            ([], "there are 0"),
        ):
            with pytest.raises(ValueError, match=complaint):
                TFRecordReader(iter(others)).load_state_dict(reader.state_dict())
        with pytest.raises(ValueError, match="taken on an iterator of files, and there are 3 files now"):
            TFRecordReader(names).load_state_dict(reader.state_dict())

    def test_a_failure_of_the_iterator_comes_at_its_turn_and_is_never_an_end(self, names: list[str]) -> None:
        def broken() -> Iterator[str]:
            yield from names[:2]
            raise OSError("no more names")

        reader = TFRecordReader(broken())
        for _ in range(2):
            records = iter(reader)
            assert [bytes(next(records)) for _ in range(4)] == [b"a" * 9, b"a", b"b" * 9, b"b"]
            for _ in range(2):
                with pytest.raises(OSError, match="no more names"):
                    next(records)

    def test_a_name_that_is_none_comes_at_its_turn(self, names: list[str]) -> None:
        records = iter(TFRecordReader([*names[:2], "nonsense://x/y", names[2]], on_error="skip"))
        assert [bytes(next(records)) for _ in range(4)] == [b"a" * 9, b"a", b"b" * 9, b"b"]
        with pytest.raises(ConfigError, match="nonsense"):
            next(records)

    def test_many_names_are_not_copied(self) -> None:
        keys = KeyList(f"memory://b/{number}" for number in range(1000))
        assert TFRecordReader(keys).uris is keys


def test_a_state_is_of_files_with_the_same_names_in_the_same_order(place: Place) -> None:
    for name in ("old/1", "old/2", "new/1", "new/2"):
        place.put(name, file_of(DATA[int(name[-1]) :]))
    reader = TFRecordReader([place.root + "old/1", place.root + "old/2"])
    begun = iter(reader)
    next(begun)
    moved = TFRecordReader([place.root + "new/1", place.root + "new/2"])
    moved.load_state_dict(reader.state_dict())
    assert contents(moved) == DATA[2:] + DATA[2:]
    for names in (["old/2", "old/1"], ["old/1", "old/3"]):
        with pytest.raises(ValueError, match="files of other names, or in another order"):
            TFRecordReader([place.root + name for name in names]).load_state_dict(reader.state_dict())


def test_a_state_beyond_the_files_end_is_an_error() -> None:
    place = MemoryPlace()
    place.put("a", file_of(DATA))
    reader = TFRecordReader(place.root + "a")
    reader.load_state_dict({**reader.state_dict(), "offset": 10_000})
    with pytest.raises(ChangedError, match=place.root):
        list(reader)


def flip(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :]


THIRD = entries_of(DATA)[2][0]


@pytest.mark.parametrize("at", [0, 7, 8, 12, 101, 102, 105])
def test_a_flipped_bit_anywhere_names_file_and_byte(place: Place, at: int) -> None:
    place.put("bad", flip(file_of(DATA), THIRD + at))
    records = iter(TFRecordReader(place.root + "bad"))
    assert contents(next(records) for _ in range(2)) == DATA[:2]
    with pytest.raises(CorruptDataError, match=f"{place.root}bad .*byte {THIRD} "):
        next(records)
    with pytest.raises(CorruptDataError, match=f"{place.root}bad .*byte {THIRD} "):
        create_tfrecord_index(place.root + "bad", place.root + "bad.idx")
    assert place.get("bad.idx") is None


def test_without_verify_the_data_comes_as_it_is() -> None:
    place = MemoryPlace()
    place.put("bad", flip(file_of(DATA), THIRD + 12))
    assert [len(record) for record in TFRecordReader(place.root + "bad", verify=False)] == list(map(len, DATA))
    assert create_tfrecord_index(place.root + "bad", verify=False) == len(DATA)
    assert read_tfrecord_index(place.root + "bad.idx") == entries_of(DATA)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("length", [1, 11, 12, 15, 105])
def test_a_truncated_file_names_the_byte_where_its_last_record_begins(length: int, verify: bool) -> None:
    place = MemoryPlace()
    place.put("short", file_of(DATA)[: THIRD + length])
    records = iter(TFRecordReader(place.root + "short", verify=verify))
    assert contents(next(records) for _ in range(2)) == DATA[:2]
    with pytest.raises(IncompleteReadError, match=f"{place.root}short .*byte {THIRD} "):
        next(records)


def test_a_huge_length_allocates_nothing() -> None:
    length = struct.pack("<Q", 1 << 62)
    place = MemoryPlace()
    place.put("huge", framed(b"x") + length + struct.pack("<I", masked(length)) + b"data")
    with pytest.raises(IncompleteReadError, match="byte 17 "):
        list(TFRecordReader(place.root + "huge"))


def test_a_missing_file_raises_at_its_turn(place: Place) -> None:
    place.put("a", file_of(DATA))
    records = iter(TFRecordReader([place.root + "a", place.root + "missing"]))
    assert contents(next(records) for _ in DATA) == DATA
    with pytest.raises(NotFoundError, match="missing"):
        next(records)


def test_an_index_is_one_line_for_each_record(place: Place) -> None:
    place.put("in/a", file_of(DATA))
    place.put("in/b", file_of(DATA[1:3]))
    assert create_tfrecord_index(place.root + "in/a", place.root + "out/a.idx") == len(DATA)
    assert create_tfrecord_index(tfrecord_path=place.root + "in/b") == 2
    assert place.get("out/a.idx") == b"0 16\n16 17\n33 106\n139 516\n655 16\n671 23"
    assert place.get("in/b.idx") == b"0 17\n17 106"
    assert read_tfrecord_index(place.root + "out/a.idx") == entries_of(DATA)


def test_an_index_goes_from_one_scheme_to_another(place: Place) -> None:
    place.put("a", file_of(DATA))
    other = MemoryPlace()
    assert create_tfrecord_index(input_path=place.root + "a", output_path=other.root + "idx") == len(DATA)
    assert other.get("idx") is not None


def test_two_names_of_one_argument_are_not_both_taken() -> None:
    with pytest.raises(TypeError, match="output_path"):
        create_tfrecord_index("memory://b/a", "memory://b/b", index_path="memory://b/c")
    with pytest.raises(TypeError, match="input_path"):
        create_tfrecord_index()


@pytest.mark.parametrize("how", ["index", "entries", "none"])
def test_records_by_number(place: Place, how: str) -> None:
    uri = place.root + "a"
    place.put("a", file_of(DATA))
    create_tfrecord_index(uri)
    index: dict[str, Any] = {"index": uri + ".idx", "entries": entries_of(DATA), "none": None}
    file = TFRecordFile(uri, index[how])
    assert len(file) == len(DATA)
    assert contents(file.get_many([3, 0, 5, 3])) == [DATA[number] for number in (3, 0, 5, 3)]
    assert bytes(file[-1]) == DATA[-1]
    with pytest.raises(IndexError):
        file[6]


def test_a_wrong_index_and_a_damaged_record_are_errors() -> None:
    place = MemoryPlace()
    place.put("a", flip(file_of(DATA), THIRD + 20))
    file = TFRecordFile(place.root + "a", entries_of(DATA))
    assert bytes(file[3]) == DATA[3]
    with pytest.raises(CorruptDataError, match=f"byte {THIRD} "):
        file[2]
    with pytest.raises(CorruptDataError, match="another size"):
        TFRecordFile(place.root + "a", [(0, 17)])[0]
    with pytest.raises(IncompleteReadError, match="byte 671 "):
        TFRecordFile(place.root + "a", [(671, 24)])[0]
    place.put("idx", b"no index")
    with pytest.raises(CorruptDataError, match="idx"):
        TFRecordFile(place.root + "a", place.root + "idx")


def test_without_crc32c_the_error_names_the_extra(no_crc32c: None) -> None:
    with pytest.raises(MissingPackageError, match=r"s3dlio\[tfrecord\]"):
        TFRecordReader("memory://b/k")
    TFRecordReader("memory://b/k", verify=False)


def opened_for_the_first_record(uris: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    opened: list[object] = []
    monkeypatch.setattr(shards, "Forward", lambda *args, **kwargs: opened.append(args) or ahead.Forward(*args, **kwargs))  # type: ignore[func-returns-value]
    begun = iter(TFRecordReader(uris))
    assert next(begun) == b"one"
    return len(opened)


def test_the_heads_of_many_small_files_or_of_one_large_file_are_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    place = MemoryPlace()
    place.put("small", framed(b"one"))
    place.put("large", file_of([b"one", *DATA]))
    assert len(list(TFRecordReader([place.root + "small"] * 20))) == 20
    assert opened_for_the_first_record([place.root + "small"] * 20, monkeypatch) == 1 + shards.FILES_AHEAD
    assert opened_for_the_first_record([place.root + "large"] * 20, monkeypatch) == 2


def test_leaving_early_and_beginning_again() -> None:
    place = MemoryPlace()
    place.put("a", file_of(DATA))
    reader = TFRecordReader(place.root + "a")
    for _ in range(3):
        assert bytes(next(iter(reader))) == DATA[0]


def test_damage_is_told_again_and_ends_no_iteration(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"no record at all, but long enough to be one")
    records = iter(TFRecordReader(f"file://{tmp_path}/a"))
    for _ in range(2):
        with pytest.raises(CorruptDataError, match="/a"):
            next(records)


def test_iterations_at_once_are_independent_and_the_state_is_that_of_the_later_one(tmp_path: Path) -> None:
    data = [b"%d" % index for index in range(6)]
    (tmp_path / "a.tfrecord").write_bytes(file_of(data))
    reader = TFRecordReader(f"file://{tmp_path}/a.tfrecord")
    first, second = iter(reader), iter(reader)
    assert [bytes(next(first)) for _ in range(3)] == data[:3]
    assert bytes(next(second)) == data[0]
    assert bytes(next(first)) == data[3]
    assert reader.state_dict()["num_items"] == 1
    assert contents(second) == data[1:]
    assert contents(first) == data[4:]
    assert reader.state_dict()["num_items"] == 6
