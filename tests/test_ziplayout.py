"""The records of an archive, judged by zipfile; sizes over 4 GiB are but numbers in them."""

from __future__ import annotations

import io
import zipfile
import zlib

import pytest

from s3dlio.data.ziplayout import FIXED_BYTES, StoredFile, directory, local_header, parsed_local_header
from s3dlio.errors import CorruptDataError

GIB = 1 << 30


class Sparse(io.RawIOBase):
    """A file of a few pieces in a sea of zeros, of any size."""

    def __init__(self, size: int, pieces: dict[int, bytes]) -> None:
        self.size, self.pieces, self.position = size, pieces, 0

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self.position = offset + (0, self.position, self.size)[whence]
        return self.position

    def tell(self) -> int:
        return self.position

    def read(self, count: int = -1) -> bytes:
        count = self.size - self.position if count < 0 else min(count, self.size - self.position)
        assert count < 1 << 20, "nobody reads the data"
        part = bytearray(count)
        for start, piece in self.pieces.items():
            for index in range(max(start, self.position), min(start + len(piece), self.position + count)):
                part[index - self.position] = piece[index - start]
        self.position += count
        return bytes(part)


def archive_of(sizes: dict[str, int], alignment: int = 1) -> Sparse:
    """An archive whose files are all zeros, except that their CRC is told as 7."""
    pieces, files, offset = {}, [], 0
    for name, size in sizes.items():
        files.append(StoredFile(name, 7, size, offset))
        header = local_header(files[-1], alignment)
        pieces[offset] = header
        offset += len(header) + size
    end = directory(files, offset)
    return Sparse(offset + len(end), {**pieces, offset: end})


@pytest.mark.parametrize("first", [0, 10, 4 * GIB - 300, 4 * GIB - 2, 4 * GIB - 1, 4 * GIB, 50 * GIB])
@pytest.mark.parametrize("second", [136, 4 * GIB + 5])
def test_archives_of_any_size_are_read_by_zipfile(first: int, second: int) -> None:
    sizes = {"x.npy": first, "y.npy": second, "ü.npy": 5}
    with zipfile.ZipFile(archive_of(sizes)) as archive:  # type: ignore[type-var]
        found = archive.infolist()
        for info in found:
            archive.open(info).close()  # compares the local header's name
    assert {info.filename: info.file_size for info in found} == sizes
    assert all(info.CRC == 7 and info.compress_size == info.file_size for info in found)
    assert [info.header_offset for info in found][:2] == [0, found[1].header_offset]
    assert found[1].header_offset > first


def is_zip64(archive: Sparse) -> bool:
    return any(b"PK\6\6" in piece or b"\1\0\x10\0" in piece for piece in archive.pieces.values())


def test_zip64_records_are_there_when_they_are_needed_and_only_then() -> None:
    assert not is_zip64(archive_of({"x": 4 * GIB - 300, "y": 136}))
    large = archive_of({"x": 4 * GIB, "y": 136})
    with zipfile.ZipFile(large) as archive:  # type: ignore[type-var]
        x, y = archive.infolist()
    assert (x.extract_version, y.extract_version) == (45, 45)  # the size of one, the offset of the other
    assert len(x.extra) == 20
    assert len(y.extra) == 12
    assert is_zip64(large)


@pytest.mark.parametrize("alignment", [1, 8, 64])
@pytest.mark.parametrize("size", [0, 5, 4 * GIB])
def test_data_begins_at_a_multiple_of_the_alignment(alignment: int, size: int) -> None:
    for offset in range(0, 130, 13):
        for name in ("x.npy", "a longer name.npy"):
            header = local_header(StoredFile(name, 0, size, offset), alignment)
            assert (offset + len(header)) % alignment == 0
            found = parsed_local_header(header[:FIXED_BYTES])
            assert FIXED_BYTES + found.name_length + found.extra_length == len(header)


def test_small_archives_pass_zipfiles_own_test() -> None:
    data = b"some data"
    file = StoredFile("a", zlib.crc32(data), len(data), 0)
    begin = local_header(file, 64) + data
    archive = zipfile.ZipFile(io.BytesIO(begin + directory([file], len(begin))))
    assert archive.testzip() is None
    assert archive.read("a") == data
    assert archive.infolist()[0].date_time == (1980, 1, 1, 0, 0, 0)


def test_what_is_no_local_header_is_refused() -> None:
    for fixed in (b"", b"PK\3\4", bytes(FIXED_BYTES)):
        with pytest.raises(CorruptDataError):
            parsed_local_header(fixed)
