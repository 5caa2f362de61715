"""Reading what was written with a checksum: an object's bytes in any order, and judged when all of them have been seen."""

from __future__ import annotations

import io
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING

from ..config import Options
from ..errors import CorruptDataError, S3dlioError
from ..storage.base import Store
from ..transfer import compress
from ..transfer.checksum import Coverage, parsed
from ..transfer.file import ObjectReader
from ..view import BytesView, empty

__all__ = [
    "ArchiveReader",
    "Blocks",
    "CheckedReader",
    "WatchedReader",
    "is_archive",
    "is_small_record",
    "plain_file",
    "verify_archive",
]

PIECE_BYTES = 32 * 1024 * 1024  # read at once where all is read in order: comes in parallel ranges
SMALL_BYTES = 1024 * 1024
HEADER_BYTES = 30  # of a record in a zip archive, without its name
BLOCK_BYTES = 8 * 1024 * 1024
ARCHIVE = b"PK\x03\x04"
DIRECTORY_BIT = 0x10  # of a record's attributes in the directory

if TYPE_CHECKING:
    from typing import BinaryIO

    class _File(io.RawIOBase, BinaryIO):  # torch.load asks for an IO[bytes], which is known by its name
        ...
else:
    _File = io.RawIOBase


class WatchedReader(ObjectReader):
    """An `ObjectReader` that tells `progress` the bytes of each read."""

    def __init__(self, store: Store, key: str, options: Options, *, progress: Callable[[int], object] | None = None) -> None:
        self._progress = progress
        super().__init__(store, key, options)

    def readinto(self, buffer: object) -> int:
        position = self.tell()
        count = super().readinto(buffer)
        if count:
            self._note(position, memoryview(buffer).cast("B")[:count])  # type: ignore[arg-type]
        return count

    def read(self, size: int | None = -1) -> bytes:
        position = self.tell()
        data = super().read(size)
        self._note(position, memoryview(data))
        return data

    def _note(self, _position: int, data: memoryview, /) -> None:
        if self._progress is not None:
            self._progress(data.nbytes)


class CheckedReader(WatchedReader):
    """Knows the checksum of what went through it, in whatever order."""

    def __init__(
        self, store: Store, key: str, options: Options, *, algorithm: str, progress: Callable[[int], object] | None = None
    ) -> None:
        self._coverage = Coverage(algorithm)
        super().__init__(store, key, options, progress=progress)

    def _note(self, position: int, data: memoryview, /) -> None:
        self._coverage.add(position, data)
        super()._note(position, data)

    def verify(self, expected: str) -> None:
        """Compare with a checksum's text; what has not been read yet is read now. Raises CorruptDataError."""
        parsed(expected, self.uri)
        for start, end in self._coverage.gaps(len(self)):
            self.seek(start)
            buffer = memoryview(empty(min(SMALL_BYTES, end - start)))
            while (count := min(buffer.nbytes, end - self.tell())) > 0:
                self.readinto(buffer[:count])
        if self._coverage.text != expected:
            raise CorruptDataError(f"{self.uri} is damaged: its checksum is {self._coverage.text}, {expected} was written")


class ArchiveReader(WatchedReader):
    """Knows the CRCs of what was read of a zip archive, which has one of each record in its directory."""

    def __init__(self, store: Store, key: str, options: Options, *, progress: Callable[[int], object] | None = None) -> None:
        self._seen: dict[int, tuple[int, int]] = {}  # where a read began -> how many bytes, their CRC
        super().__init__(store, key, options, progress=progress)

    def _note(self, position: int, data: memoryview, /) -> None:
        if data.nbytes >= self._seen.get(position, (0, 0))[0]:
            self._seen[position] = data.nbytes, zlib.crc32(data)
        super()._note(position, data)

    def verify(self) -> None:
        """Compare the records with their CRCs; what was not read in one piece is read now. Raises CorruptDataError.

        What is no archive has no CRCs, and passes.
        """
        starts = sorted(self._seen)
        self.seek(0)
        if is_archive(self.read(len(ARCHIVE))):
            verify_archive(self, self.uri, lambda record: bool(record.file_size) and not self._is_right(record, starts))

    def _is_right(self, record: zipfile.ZipInfo, starts: Sequence[int]) -> bool:
        """Was the record read, and right? Its bytes begin soon after its header."""
        first = record.header_offset + HEADER_BYTES
        near = starts[bisect_left(starts, first) : bisect_left(starts, first + SMALL_BYTES)]
        return any(self._seen[start] == (record.file_size, record.CRC) for start in near)


def is_archive(head: bytes) -> bool:
    """Do these first bytes begin a zip archive?"""
    return head.startswith(ARCHIVE)


def is_small_record(record: zipfile.ZipInfo) -> bool:
    """Is it the pickle or another record beside the tensors?"""
    return "/data/" not in record.filename


def verify_archive(file: IO[bytes], uri: str, is_read: Callable[[zipfile.ZipInfo], bool]) -> None:
    """Check the directory of what `torch.save` wrote, and the CRCs of those records that `is_read` picks.

    The directory itself has no checksum, and torch returns memory that nobody has filled where it lies about how a record
    is stored. Raises CorruptDataError.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
            is_script = any(record.filename.endswith("/constants.pkl") for record in records)  # its code is compressed
            for record in records:
                if not is_script:
                    _require_plain(record)
                if is_read(record):
                    archive.read(record)
    except S3dlioError:
        raise
    except Exception as exc:  # a damaged directory raises nearly anything
        raise CorruptDataError(f"cannot load {uri}: it is damaged, or torch.save has not written it ({exc!r:.300})") from exc


def _require_plain(record: zipfile.ZipInfo) -> None:
    """torch.save stores records as they are. An empty one has the CRC 0."""
    is_plain = record.compress_type == zipfile.ZIP_STORED and record.file_size == record.compress_size
    is_file = not record.is_dir() and not record.external_attr & DIRECTORY_BIT
    if not is_plain or not is_file or (record.file_size == 0 and record.CRC):
        raise zipfile.BadZipFile(f"the directory does not tell how {record.filename} was stored")


class Blocks(_File):
    """A seekable file in memory, made of blocks, so that it grows without copying and its size need not be known."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: list[BytesView] = []
        self._size = 0
        self._position = 0

    def append(self, data: bytes) -> None:
        """Write at the end."""
        source = memoryview(data)
        while source.nbytes:
            offset = self._size % BLOCK_BYTES
            if not offset:
                self._blocks.append(empty(BLOCK_BYTES))
            count = min(source.nbytes, BLOCK_BYTES - offset)
            self._blocks[-1][offset : offset + count] = source[:count]
            self._size, source = self._size + count, source[count:]

    def readinto(self, buffer: object) -> int:
        into = memoryview(buffer).cast("B") if memoryview(buffer).nbytes else memoryview(bytearray())  # type: ignore[arg-type]
        into = into[: max(0, self._size - self._position)]
        done = 0
        while done < into.nbytes:
            index, offset = divmod(self._position + done, BLOCK_BYTES)
            part = memoryview(self._blocks[index])[offset:][: into.nbytes - done]
            into[done : done + part.nbytes] = part
            done += part.nbytes
        self._position += done
        return done

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence])
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def plain_file(reader: ObjectReader) -> ObjectReader | Blocks:
    """The file itself at its start, or what it holds when it is compressed: decompressed into memory, all of it.

    Besides the result that takes one piece of the object (32 MiB). Raises CorruptDataError.
    """
    codec = compress.detect(reader.read(8))
    reader.seek(0)
    if codec is None:
        return reader
    blocks = Blocks()
    for data in compress.decompressed(codec, _in_order(reader), reader.uri):
        blocks.append(data)
    return blocks


def _in_order(reader: ObjectReader) -> Iterator[memoryview]:
    buffer = memoryview(empty(min(PIECE_BYTES, len(reader))))
    while count := reader.readinto(buffer):
        yield buffer[:count]
