"""Whole objects and ranges in parallel requests: every byte once, of one version, or an error."""

from __future__ import annotations

import dataclasses
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import s3dlio
from s3dlio.config import MIB, Options
from s3dlio.storage.base import Limits, ObjectInfo, Outcome, Read, ReadResult, read_each
from s3dlio.storage.memory import MemoryStore
from s3dlio.transfer import read as transfer

from .conftest import LocalPlace, Place

CHUNK = 4096
OPTIONS = Options(range_threshold_bytes=10_000, chunk_bytes=CHUNK, range_concurrency=3)
CONTENT = np.random.default_rng(7).bytes(50_001)


class Faulty(MemoryStore):
    """A store whose reads can be tampered with, and that notes them."""

    def __init__(self) -> None:
        super().__init__(f"memory://{uuid.uuid4().hex}/")
        self.reads: list[tuple[int, int | None, str | None]] = []
        self.before_read: Callable[[int, Read], object] = lambda number, read: None
        self.change: Callable[[int, ReadResult], ReadResult] = lambda number, result: result
        self._numbers = iter(range(1 << 30))
        self._noting = threading.Lock()

    def read(self, read: Read) -> ReadResult:
        with self._noting:
            number = next(self._numbers)
            self.reads.append((read.start, read.length, read.match))
        self.before_read(number, read)
        return self.change(number, super().read(read))

    def read_many(self, reads: Any, *, window: int) -> Iterator[Outcome]:
        return read_each(self, reads, window=window)


@pytest.fixture
def store() -> Faulty:
    store = Faulty()
    store.put("k", memoryview(CONTENT))
    return store


@given(st.binary(max_size=300), st.integers(0, 400), st.none() | st.integers(0, 400), st.integers(1, 50), st.integers(1, 90))
def test_a_range_is_the_slice_whatever_the_chunks(
    data: bytes, offset: int, length: int | None, chunk: int, threshold: int
) -> None:
    store = Faulty()
    store.put("k", memoryview(data))
    options = Options(range_threshold_bytes=threshold, chunk_bytes=chunk, range_concurrency=2)
    expected = data[offset:] if length is None else data[offset : offset + length]
    assert transfer.fetch_range(store, "k", offset, length, options) == expected
    assert transfer.fetch(store, "k", options) == data
    assert transfer.fetch_many([(store, "k")] * 3, window=2, options=options) == [data] * 3


@given(st.integers(0, 12_000), st.none() | st.integers(0, 12_000))
def test_get_range_on_disk_is_the_slice(shared_disk: list[str], offset: int, length: int | None) -> None:
    for uri in shared_disk:
        expected = CONTENT[:10_000][offset:] if length is None else CONTENT[:10_000][offset : offset + length]
        assert s3dlio.get_range(uri, offset, length) == expected


@pytest.fixture(scope="module")
def shared_disk(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("disk")
    LocalPlace("file", folder).put("k", CONTENT[:10_000])
    return [f"file://{folder}/k", f"direct://{folder}/k"]


def test_ranges_around_every_chunk_border_of_a_large_object(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    size, chunk = 16 * MIB + 1, 8 * MIB
    data = (np.arange(size) % 251).astype(np.uint8).tobytes()
    place.put("k", data)
    monkeypatch.setenv("S3DLIO_CHUNK_SIZE", str(chunk))
    monkeypatch.setenv("S3DLIO_RANGE_THRESHOLD_MB", "1")
    uri = place.root + "k"
    for border in (chunk, 2 * chunk, MIB):
        for start, length in ((border - 1, 2), (border - 1, 1), (border, 1), (border - MIB, 2 * MIB + 1)):
            assert s3dlio.get_range(uri, start, length) == data[start : start + length]
    assert s3dlio.get_range(uri, 2 * chunk - 1) == data[-2:]
    assert s3dlio.get(uri) == data


class TestRequests:
    def test_a_short_object_costs_one_request_and_no_stat(self, store: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
        store.put("k", memoryview(b"short"))
        monkeypatch.setattr(store, "stat", None)
        assert transfer.fetch(store, "k", OPTIONS) == b"short"
        assert store.reads == [(0, 10_000, None)]

    def test_the_rest_of_a_long_one_follows_in_ranges_of_that_version(self, store: Faulty) -> None:
        assert transfer.fetch(store, "k", OPTIONS) == CONTENT
        etag = store.stat("k").etag
        assert store.reads[0] == (0, 10_000, None)
        assert sorted(store.reads[1:])[0] == (10_000, 3 * CHUNK - 10_000, etag)
        assert {match for _, _, match in store.reads[1:]} == {etag}
        assert sum(length or 0 for _, length, _ in store.reads) == len(CONTENT)

    @pytest.mark.parametrize("switched_off", [True, False])
    def test_one_request_where_ranges_are_off_or_do_not_pay(self, store: Faulty, switched_off: bool) -> None:
        options = dataclasses.replace(OPTIONS, range_enabled=not switched_off)
        store.limits = MemoryStore.limits if switched_off else Limits(parallel_ranges=False)
        assert transfer.fetch(store, "k", options) == CONTENT
        assert transfer.fetch_range(store, "k", 5, 40_000, options) == CONTENT[5:40_005]
        assert store.reads == [(0, None, None), (5, 40_000, None)]

    def test_no_more_ranges_in_flight_than_told(self, store: Faulty) -> None:
        lock, running, most = threading.Lock(), 0, 0

        def enter(number: int, read: Read) -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)

        def leave(number: int, result: ReadResult) -> ReadResult:
            nonlocal running
            with lock:
                running -= 1
            return result

        store.before_read, store.change = enter, leave
        transfer.fetch(store, "k", OPTIONS)
        assert 1 <= most <= 3


class TestChanges:
    """Never bytes of two versions."""

    OLD, NEW = bytes(50_000), b"\1" * 50_000

    def replace(self, store: Faulty, key: str = "k") -> None:
        MemoryStore.put(store, key, memoryview(self.NEW))

    @pytest.mark.parametrize("when", [1, 2, 5])
    def test_an_object_replaced_once_is_read_anew(self, store: Faulty, when: int) -> None:
        for read in (
            lambda: transfer.fetch(store, "k", OPTIONS),
            lambda: transfer.fetch_many([(store, "k")], window=2, options=OPTIONS)[0],
            lambda: transfer.fetch_range(store, "k", 0, None, OPTIONS),
        ):
            store.put("k", memoryview(self.OLD))
            store._numbers = iter(range(1 << 30))
            store.before_read = lambda number, _: self.replace(store) if number == when else None
            assert read() in (self.OLD, self.NEW)

    def test_an_object_replaced_again_and_again_is_an_error(self, store: Faulty) -> None:
        store.before_read = lambda number, read: self.replace(store) if read.start else None
        for read in (
            lambda: transfer.fetch(store, "k", OPTIONS),
            lambda: transfer.fetch_many([(store, "k")], window=2, options=OPTIONS),
            lambda: transfer.fetch_range(store, "k", 0, None, OPTIONS),
        ):
            with pytest.raises(s3dlio.ChangedError, match=f"{store.root}k"):
                read()

    def test_a_server_that_ignores_the_condition_is_found_out(self, store: Faulty) -> None:
        def other_version(number: int, result: ReadResult) -> ReadResult:
            if number == 0:
                return result
            return ReadResult(result.info._replace(etag="other"), result.data)

        store.change = other_version
        with pytest.raises(s3dlio.ChangedError, match=f"{store.root}k"):
            transfer.fetch(store, "k", OPTIONS)

    def test_a_part_that_tells_another_size_is_found_out(self, store: Faulty) -> None:
        def other_size(number: int, result: ReadResult) -> ReadResult:
            return ReadResult(result.info._replace(size=49_999), result.data) if number == 3 else result

        store.change = other_size
        assert transfer.fetch(store, "k", OPTIONS) == CONTENT  # read anew
        store.change = lambda number, result: other_size(3 if number % 4 else 0, result)
        with pytest.raises(s3dlio.ChangedError, match=f"{store.root}k"):
            transfer.fetch(store, "k", OPTIONS)


class TestShortBodies:
    def test_a_short_part_is_an_error_that_tells_the_bytes(self, store: Faulty) -> None:
        store.change = lambda number, result: ReadResult(result.info, result.data[:-1]) if number == 2 else result
        with pytest.raises(s3dlio.IncompleteReadError, match=rf"{store.root}k: bytes \d+-\d+ came incomplete"):
            transfer.fetch(store, "k", OPTIONS)

    def test_a_short_first_answer_is_completed(self, store: Faulty) -> None:
        store.change = lambda number, result: ReadResult(result.info, result.data[:77]) if number == 0 else result
        assert transfer.fetch(store, "k", OPTIONS) == CONTENT

    def test_a_failed_part_fails_the_whole(self, store: Faulty) -> None:
        def fail(number: int, read: Read) -> None:
            if number == 4:
                raise s3dlio.ThrottledError(f"{store.root}k: slow down")

        store.before_read = fail
        with pytest.raises(s3dlio.ThrottledError, match="slow down"):
            transfer.fetch(store, "k", OPTIONS)

    def test_the_first_failure_of_many_begins_nothing_new(self, store: Faulty) -> None:
        store.put("small", memoryview(b"x"))
        places: list[tuple[Any, str]] = [(store, "missing")] + [(store, "small")] * 500
        with pytest.raises(s3dlio.NotFoundError, match="missing"):
            transfer.fetch_many(places, window=1, options=OPTIONS)
        assert len(store.reads) == 1


def test_the_destination_is_one_buffer(store: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parallel ranges land in place: each destination lies within the one view that is returned."""
    spans: list[tuple[int, int]] = []

    def note(number: int, result: ReadResult) -> ReadResult:
        spans.append((np.frombuffer(result.data, np.uint8).__array_interface__["data"][0], result.data.nbytes))
        return result

    store.change = note
    view = transfer.fetch(store, "k", OPTIONS)
    start = view.__array_interface__["data"][0]
    assert sorted(spans)[0][0] == start
    assert sum(length for _, length in spans) == len(view)
    assert all(start <= place and place + length <= start + len(view) for place, length in spans)


def test_info_of_an_object_is_plain_data() -> None:
    with pytest.raises(AttributeError):
        ObjectInfo("k", 1).size = 2  # type: ignore[misc]
