"""The writer: any chunking gives the same object, in bounded memory, and nothing is visible before the end."""

from __future__ import annotations

import gc
import io
import threading
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import s3dlio
from s3dlio.errors import S3dlioError
from s3dlio.storage.base import Limits
from s3dlio.storage.memory import MemoryStore, MemoryUpload
from s3dlio.transfer.write import PART_BYTES, ObjectWriter, put

from .conftest import Place


class NotingUpload(MemoryUpload):
    def __init__(self, store: SmallParts, key: str) -> None:
        super().__init__(store, key)
        self.numbers: list[tuple[int, int, int]] = []
        self.ended: str | None = None
        self.fail_at: int | None = None

    def part(self, number: int, offset: int, data: Sequence[memoryview]) -> None:
        if number == self.fail_at:
            raise S3dlioError("the store broke")
        self.numbers.append((number, offset, sum(buffer.nbytes for buffer in data)))
        super().part(number, offset, data)

    def abort(self) -> None:
        self.ended = self.ended or "aborted"
        super().abort()


class SmallParts(MemoryStore):
    """A store with an object store's limits, scaled down to bytes."""

    limits = Limits(parallel_ranges=True, parallel_parts=3, min_part=10, max_part=1000, max_parts=100, max_put=1000)

    def __init__(self) -> None:
        super().__init__("memory://small/")
        self.uploads: list[NotingUpload] = []
        self.fail_at: int | None = None

    def begin_upload(self, key: str) -> NotingUpload:
        self.uploads.append(NotingUpload(self, key))
        self.uploads[-1].fail_at = self.fail_at
        return self.uploads[-1]


@given(st.lists(st.binary(max_size=60), max_size=20), st.integers(1, 40))
def test_any_chunking_gives_the_same_object(chunks: list[bytes], part_bytes: int) -> None:
    store = SmallParts()
    with ObjectWriter(store, "k", part_bytes=part_bytes) as writer:
        for done, chunk in enumerate(chunks):
            assert writer.tell() == sum(map(len, chunks[:done]))
            assert writer.write(chunk) == len(chunk)
    assert store._objects["k"].data == b"".join(chunks)
    for upload in store.uploads:
        parts = sorted(upload.numbers)
        assert [number for number, _, _ in parts] == list(range(1, len(parts) + 1))
        assert all(length >= 10 for _, _, length in parts[:-1])
        assert all(offset + length == following for (_, offset, length), (_, following, _) in pairwise(parts))


@given(st.integers(0, 2_800))
def test_parts_grow_so_that_their_number_is_never_exceeded(num_writes: int) -> None:
    store = SmallParts()
    with ObjectWriter(store, "k", part_bytes=10) as writer:
        for _ in range(num_writes):
            writer.write(b"0123456789")
    assert len(store._objects["k"].data) == 10 * num_writes
    assert sum(len(upload.numbers) for upload in store.uploads) <= 100


def test_put_uses_parts_beyond_what_one_request_takes() -> None:
    store = SmallParts()
    for size in (1_000, 1_001, 5_000):
        assert put(store, "k", memoryview(bytes(size))).size == size
    assert len(store.uploads) == 2


class TestTheObjectAppearsAtTheEnd:
    def test_small_output_is_one_put(self) -> None:
        store = SmallParts()
        with ObjectWriter(store, "k", part_bytes=100) as writer:
            writer.write(b"x" * 99)
            assert "k" not in store._objects
        assert store.uploads == []
        assert store._objects["k"].data == b"x" * 99

    def test_no_byte_makes_an_empty_object(self, place: Place) -> None:
        place.put("k", b"old")
        with s3dlio.open_writer(place.root + "k"):
            pass
        assert place.get("k") == b""

    def test_nothing_is_listed_while_it_is_written(self, place: Place) -> None:
        writer = s3dlio.open_writer(place.root + "k")
        writer.write(bytes(PART_BYTES + 1))
        assert s3dlio.list(place.root, recursive=True) == []
        writer.close()
        assert s3dlio.list(place.root, recursive=True) == [place.root + "k"]
        assert s3dlio.stat(place.root + "k")["etag"] == writer.info.etag  # type: ignore[union-attr]

    def test_large_parts_are_sent_from_the_callers_memory(self, place: Place) -> None:
        data = np.random.default_rng(3).bytes(3 * PART_BYTES + 12_345)
        with s3dlio.open_writer(place.root + "k") as writer:
            writer.write(data[:100])
            writer.write(memoryview(data)[100:])
            assert writer._pending < PART_BYTES
        assert place.get("k") == data

    def test_the_buffer_may_be_reused_as_soon_as_write_returns(self, place: Place) -> None:
        buffer, expected = bytearray(3_000_000), []
        with s3dlio.open_writer(place.root + "k") as writer:
            for number in range(7):
                buffer[:] = bytes([number]) * len(buffer)
                writer.write(buffer)
                expected.append(bytes(buffer))
        assert place.get("k") == b"".join(expected)


class TestEnds:
    @pytest.mark.parametrize("size", [5, 500])
    def test_an_exception_passes_unchanged_and_publishes_nothing(self, size: int) -> None:
        store = SmallParts()
        store.put("k", memoryview(b"old"))
        mine = KeyError("mine")

        def save() -> None:
            with ObjectWriter(store, "k", part_bytes=10) as writer:
                writer.write(bytes(size))
                raise mine

        with pytest.raises(KeyError) as caught:
            save()
        assert caught.value is mine
        assert store._objects["k"].data == b"old"
        assert [upload.ended for upload in store.uploads] == ["aborted"] * (size > 10)

    def test_garbage_collection_aborts(self) -> None:
        store = SmallParts()
        writer = ObjectWriter(store, "k", part_bytes=10)
        writer.write(bytes(100))
        del writer
        gc.collect()
        assert store.uploads[0].ended == "aborted"
        assert store._objects == {}

    def test_a_failed_part_aborts_and_close_says_so(self) -> None:
        store = SmallParts()
        store.fail_at = 3
        writer = ObjectWriter(store, "k", part_bytes=10)
        with pytest.raises(S3dlioError, match="broke"):
            writer.write(bytes(100))
        assert store.uploads[0].ended == "aborted"
        with pytest.raises(S3dlioError, match=r"memory://small/k was not published"):
            writer.close()
        with pytest.raises(ValueError, match="after it was closed"):
            writer.write(b"x")
        assert store._objects == {}

    def test_a_failed_last_part_aborts_at_close(self) -> None:
        store = SmallParts()
        store.fail_at = 3
        writer = ObjectWriter(store, "k", part_bytes=10)
        writer.write(bytes(25))
        with pytest.raises(S3dlioError, match="broke"):
            writer.close()
        assert store.uploads[0].ended == "aborted"

    def test_abort_and_close_can_be_repeated(self, place: Place) -> None:
        writer = s3dlio.open_writer(place.root + "k")
        writer.write(b"x")
        writer.close()
        writer.close()
        writer.abort()
        assert writer.closed
        assert place.get("k") == b"x"
        writer = s3dlio.open_writer(place.root + "k")
        writer.write(b"y")
        writer.abort()
        writer.abort()
        assert place.get("k") == b"x"
        with pytest.raises(ValueError, match="closed"):
            writer.write(b"z")

    @pytest.mark.parametrize("data", ["text", 7, None, ["x"]], ids=repr)
    def test_what_is_no_buffer_is_refused_and_the_writer_goes_on(self, place: Place, data: object) -> None:
        with s3dlio.open_writer(place.root + "k") as writer:
            writer.write(b"a")
            with pytest.raises(TypeError, match=type(data).__name__):
                writer.write(data)
            writer.write(b"b")
        assert place.get("k") == b"ab"


class TestAsAFile:
    @pytest.mark.parametrize(
        "data",
        [np.arange(6, dtype=np.float32), memoryview(np.arange(6, dtype=np.float64)), np.ones((3, 4), np.int16)],  # type: ignore[arg-type]
        ids=["floats", "memoryview of doubles", "2-D"],
    )
    def test_write_returns_the_number_of_bytes_not_of_items(self, place: Place, data: np.ndarray) -> None:  # type: ignore[type-arg]
        with s3dlio.open_writer(place.root + "k") as writer:
            assert writer.write(data) == data.nbytes
            assert writer.tell() == data.nbytes
        assert place.get("k") == data.tobytes()

    def test_it_says_what_it_can(self, place: Place) -> None:
        with s3dlio.open_writer(place.root + "k") as writer:
            assert (writer.writable(), writer.readable(), writer.seekable(), writer.closed) == (True, False, False, False)
            assert writer.flush() is None
            assert writer.uri == place.root + "k"
        assert writer.closed

    def test_others_can_write_into_it(self, place: Place) -> None:
        import zipfile

        with s3dlio.open_writer(place.root + "k.zip") as writer, zipfile.ZipFile(writer, "w") as archive:  # type: ignore[arg-type]
            archive.writestr("a", b"1" * 1000)
        content = place.get("k.zip")
        assert content is not None
        assert zipfile.ZipFile(io.BytesIO(content)).read("a") == b"1" * 1000

    def test_writers_in_threads_do_not_mix(self, place: Place) -> None:
        def write(number: int) -> None:
            with s3dlio.open_writer(f"{place.root}k{number}") as writer:
                for _ in range(40):
                    writer.write(bytes([number]) * 250_000)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number in range(4):
            assert place.get(f"k{number}") == bytes([number]) * 10_000_000
