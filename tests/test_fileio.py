"""O_DIRECT: really set, any size and place, and a fallback that says so."""

from __future__ import annotations

import errno
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import s3dlio
from s3dlio.storage import fileio
from s3dlio.storage.fileio import BOUNCE_BYTES, BUFFERED, DIRECT, FileIO
from s3dlio.view import PAGE, empty

from .conftest import LocalPlace
from .objects import drop_cached

CONTENT = np.random.default_rng(1).bytes(BOUNCE_BYTES + 3 * PAGE + 77)
O_DIRECT_IN_FDINFO = 0o40000


def flags_of(fd: int) -> int:
    """What the kernel says of an open file."""
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    return next(int(line.split()[1], 8) for line in lines if line.startswith("flags:"))


def refuses_direct(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return True
    return False


@pytest.fixture
def disk(tmp_path: Path) -> LocalPlace:
    """A folder on a file system that takes O_DIRECT, as direct://."""
    place = LocalPlace("direct", tmp_path)
    place.put("probe", b"x")
    assert not refuses_direct(tmp_path / "probe"), "run the tests with TMPDIR on a disk that takes O_DIRECT"
    (tmp_path / "probe").unlink()
    return place


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Every preadv and pwrite as (name, flags of the file, bytes)."""
    made: list[tuple[str, int, int]] = []
    preadv, pwrite = os.preadv, os.pwrite

    def noted_preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        made.append(("read", flags_of(fd), sum(len(buffer) for buffer in buffers)))
        return preadv(fd, buffers, offset)

    def noted_pwrite(fd: int, data: memoryview, offset: int) -> int:
        made.append(("write", flags_of(fd), len(data)))
        return pwrite(fd, data, offset)

    monkeypatch.setattr(os, "preadv", noted_preadv)
    monkeypatch.setattr(os, "pwrite", noted_pwrite)
    return made


def direct_calls(calls: list[tuple[str, int, int]]) -> Iterator[bool]:
    return (bool(flags & O_DIRECT_IN_FDINFO) for _, flags, _ in calls)


class TestTheFlagIsSet:
    @pytest.mark.parametrize(
        "verb",
        [
            s3dlio.get,
            lambda uri: s3dlio.get_range(uri, 1_000, 5_000),
            lambda uri: s3dlio.get_many([uri, uri]),
            lambda uri: s3dlio.open_reader(uri).read(),
        ],
        ids=["get", "get_range", "get_many", "open_reader"],
    )
    def test_reads_go_past_the_page_cache(
        self, disk: LocalPlace, calls: list[tuple[str, int, int]], verb: Callable[[str], object]
    ) -> None:
        disk.put("k", CONTENT[:10_000])
        verb(disk.root + "k")
        assert calls
        assert all(direct_calls(calls))

    def test_plain_reads_do_not(self, disk: LocalPlace, calls: list[tuple[str, int, int]]) -> None:
        disk.put("k", CONTENT[:10_000])
        s3dlio.get("file" + disk.root.removeprefix("direct") + "k")
        assert calls
        assert not any(direct_calls(calls))

    def test_whole_blocks_are_written_past_the_page_cache_and_the_rest_through_it(
        self, disk: LocalPlace, calls: list[tuple[str, int, int]]
    ) -> None:
        s3dlio.put_bytes(disk.root + "k", CONTENT[:10_000])
        assert [(size, bool(flags & O_DIRECT_IN_FDINFO)) for _, flags, size in calls] == [(8192, True), (1808, False)]

    def test_a_writer_of_many_pieces_writes_blocks(self, disk: LocalPlace, calls: list[tuple[str, int, int]]) -> None:
        with s3dlio.open_writer(disk.root + "k") as writer:
            for number in range(10):
                writer.write(CONTENT[999 * number : 999 * (number + 1)])
        assert disk.get("k") == CONTENT[:9990]
        assert [(size, bool(flags & O_DIRECT_IN_FDINFO)) for _, flags, size in calls] == [(8192, True), (1798, False)]

    def test_an_aligned_object_is_read_without_a_copy(self, disk: LocalPlace, monkeypatch: pytest.MonkeyPatch) -> None:
        disk.put("k", CONTENT)
        monkeypatch.setattr(fileio.Direct, "_read_through_bounce", lambda *_: 0)
        assert s3dlio.get(disk.root + "k") == CONTENT


@pytest.mark.parametrize("size", [0, 1, 511, 512, 4095, 4096, 4097, 10_000, BOUNCE_BYTES, BOUNCE_BYTES + 1, len(CONTENT)])
def test_any_size_is_written_and_read_exactly(disk: LocalPlace, size: int) -> None:
    s3dlio.put_bytes(disk.root + "k", CONTENT[:size])
    assert (disk.get("k"), s3dlio.stat(disk.root + "k")["size"]) == (CONTENT[:size], size)
    assert s3dlio.get(disk.root + "k") == CONTENT[:size]
    assert s3dlio.get_many([disk.root + "k"])[0] == CONTENT[:size]


class TestAtHand:
    @pytest.fixture
    def threads(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The threads that have read bytes, one entry for each read."""
        found: list[str] = []
        read = fileio.Buffered.read

        def noted(io: fileio.Buffered, fd: int, into: memoryview, offset: int) -> int:
            found.append(threading.current_thread().name)
            return read(io, fd, into, offset)

        monkeypatch.setattr(fileio.Buffered, "read", noted)
        return found

    @pytest.fixture
    def uris(self, disk: LocalPlace) -> list[str]:
        for number in range(8):
            disk.put(f"k{number}", CONTENT[number : number + 100_000])
        return [f"file{disk.root.removeprefix('direct')}k{number}" for number in range(8)]

    def test_what_is_in_memory_is_read_by_who_asks(self, uris: list[str], threads: list[str]) -> None:
        assert s3dlio.get_many(uris) == [CONTENT[number : number + 100_000] for number in range(8)]
        assert threads == [threading.current_thread().name] * 8

    def test_what_is_not_or_not_to_its_end_is_asked_for_first(
        self, uris: list[str], threads: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number, uri in enumerate(uris):
            drop_cached(uri.removeprefix("file://"), 50_000 * (number % 2))
        asked: list[tuple[int, int, int]] = []
        fadvise = os.posix_fadvise

        def noted(fd: int, offset: int, length: int, advice: int) -> None:
            asked.append((offset, length, len(threads)))
            fadvise(fd, offset, length, advice)

        monkeypatch.setattr(os, "posix_fadvise", noted)
        assert s3dlio.get_many(uris, workers=4) == [CONTENT[number : number + 100_000] for number in range(8)]
        assert threads == [threading.current_thread().name] * 8
        assert [length for _, length, _ in asked] == [100_000] * 8
        assert [num_read for _, _, num_read in asked] == [0, 0, 0, 0, 1, 2, 3, 4]  # a window of them ahead of the first read

    def test_where_it_cannot_be_told_threads_read(
        self, uris: list[str], threads: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looks, preadv = [], os.preadv

        def refusing(fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
            if flags:
                looks.append(fd)
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
            return preadv(fd, buffers, offset)

        monkeypatch.setattr(os, "preadv", refusing)
        assert s3dlio.get_many(uris * 40) == [CONTENT[number : number + 100_000] for number in range(8)] * 40
        assert all(name.startswith("s3dlio-io") for name in threads)
        assert len(looks) == 9  # before the reads 0, 2, 6, 14, 30, 62, 126, 191, 256

    def test_what_is_large_is_read_by_threads(self, disk: LocalPlace, threads: list[str]) -> None:
        disk.put("large", CONTENT[: fileio.AT_HAND_BYTES + 1])
        s3dlio.get_many([f"file{disk.root.removeprefix('direct')}large"] * 3)
        assert len(threads) == 3
        assert all(name.startswith("s3dlio-io") for name in threads)

    def test_errors_name_their_object(self, uris: list[str]) -> None:
        os.unlink(uris[5].removeprefix("file://"))
        with pytest.raises(s3dlio.NotFoundError, match="k5"):
            s3dlio.get_many(uris)

    def test_what_vanishes_after_it_was_asked_for_is_not_found(
        self, uris: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = uris[3].removeprefix("file://")
        drop_cached(path)
        monkeypatch.setattr(os, "posix_fadvise", lambda *_: os.unlink(path))
        with pytest.raises(s3dlio.NotFoundError, match="k3"):
            s3dlio.get_many(uris)


@pytest.mark.parametrize("io", [BUFFERED, DIRECT], ids=["buffered", "direct"])
class TestBytes:
    @pytest.fixture
    def fd(self, io: FileIO, disk: LocalPlace) -> Iterator[int]:
        disk.put("k", CONTENT)
        opened: list[int] = []
        io.open_to_read(str(disk.folder / "k"), opened)
        yield opened[0]
        os.close(opened[0])

    @pytest.mark.parametrize("start", [0, 1, 4095, 4096, 8192, BOUNCE_BYTES - 1, len(CONTENT) - 10, len(CONTENT)])
    def test_a_read_fills_its_destination_and_nothing_else(self, io: FileIO, fd: int, start: int) -> None:
        for length in (0, 1, 100, 4096, 9000, BOUNCE_BYTES + 5):
            for lead in (0, 64, 1):
                around = empty(lead + length + 2 * PAGE)
                around[:] = 0xEE
                count = io.read(fd, memoryview(around)[lead : lead + length], start)
                assert count == len(CONTENT[start : start + length])
                assert around[lead : lead + count] == CONTENT[start : start + count]
                assert around[:lead] == b"\xee" * lead
                assert around[lead + length :] == b"\xee" * (2 * PAGE)

    def test_a_slice_of_a_view_is_filled_and_nothing_behind_it(self, io: FileIO, fd: int) -> None:
        view = empty(4 * PAGE)
        view[:] = 0xEE
        assert io.read(fd, memoryview(view[:5000]), 0) == 5000
        assert view == CONTENT[:5000] + b"\xee" * (4 * PAGE - 5000)
        view[:] = 0xEE
        assert io.read(fd, memoryview(view[PAGE:-PAGE][:10]), 0) == 10
        assert view == b"\xee" * PAGE + CONTENT[:10] + b"\xee" * (3 * PAGE - 10)

    @pytest.mark.parametrize("offset", [0, 1, 4096, 5000])
    @pytest.mark.parametrize(
        "sizes", [[10], [4096], [4096, 1], [1, 4096], [0, 5, 0], [3000] * 5, [BOUNCE_BYTES + 1, 7, 4095]], ids=str
    )
    def test_a_write_puts_all_buffers_at_their_place(
        self, io: FileIO, disk: LocalPlace, offset: int, sizes: list[int]
    ) -> None:
        data = CONTENT[: sum(sizes)]
        ends = np.cumsum(sizes)
        path = disk.folder / "w"
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            io.prepare_to_write(fd, str(path))
            io.write(fd, [memoryview(data)[end - size : end] for end, size in zip(ends, sizes, strict=True)], offset)
        finally:
            os.close(fd)
        assert path.read_bytes() == bytes(offset) + data

    def test_an_aligned_buffer_is_written(self, io: FileIO, disk: LocalPlace) -> None:
        view = empty(10_000)
        view[:] = np.frombuffer(CONTENT[:10_000], np.uint8)
        s3dlio.put_bytes(disk.root + "w", view)
        assert disk.get("w") == CONTENT[:10_000]


class TestWhereItIsRefused:
    """The kernel says EINVAL, as some file systems do: plain reads and writes, and one warning per directory."""

    @pytest.fixture
    def refusing(self, disk: LocalPlace, monkeypatch: pytest.MonkeyPatch) -> LocalPlace:
        plain_open = os.open

        def refusing_open(path: str, flags: int, mode: int = 0o777) -> int:
            if flags & os.O_DIRECT:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
            return plain_open(path, flags, mode)

        def refusing_set(fd: int, direct: bool) -> None:
            if direct:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

        monkeypatch.setattr(os, "open", refusing_open)
        monkeypatch.setattr(fileio, "_set_direct", refusing_set)
        return disk

    def test_everything_works_and_one_warning_names_the_directory(self, refusing: LocalPlace) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for number in range(3):
                s3dlio.put_bytes(f"{refusing.root}k{number}", CONTENT[:10_000])
                assert s3dlio.get(f"{refusing.root}k{number}") == CONTENT[:10_000]
            assert s3dlio.get_range(refusing.root + "k0", 4097, 3000) == CONTENT[4097:7097]
        assert [str(warning.message).partition(" refuses")[0] for warning in caught] == [
            f"the file system of direct://{refusing.folder}"
        ]

    def test_a_warning_made_an_error_leaves_nothing_behind(self, refusing: LocalPlace) -> None:
        before = os.listdir("/dev/fd")
        with pytest.raises(RuntimeWarning, match="O_DIRECT"):
            s3dlio.put_bytes(refusing.root + "k", b"x")
        assert refusing.keys() == []
        refusing.put("k", b"x")
        with pytest.raises(RuntimeWarning, match="O_DIRECT"):
            s3dlio.get(refusing.root + "k")
        assert os.listdir("/dev/fd") == before

    def test_a_directory_or_device_is_no_reason_to_warn(self, refusing: LocalPlace) -> None:
        for uri in (refusing.root, "direct:///dev/zero"):
            with pytest.raises(s3dlio.NotFoundError):
                s3dlio.get(uri)


def test_a_directory_read_as_an_object_is_not_found_and_no_sign_of_a_file_system_without_o_direct(
    local_place: LocalPlace,
) -> None:
    local_place.put("folder/key", b"data")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(s3dlio.NotFoundError, match="is a directory"):
            s3dlio.get(local_place.root + "folder")
