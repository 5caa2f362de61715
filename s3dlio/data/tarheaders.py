"""The headers of a tar archive: POSIX ustar and pax, and GNU tar's long names. The standard library decodes the blocks.

Source: IEEE Std 1003.1-2017, pax, "ustar Interchange Format" and "pax Interchange Format"; GNU tar manual, "Basic Tar
Format".
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from typing import NamedTuple

from ..errors import CorruptDataError, IncompleteReadError
from ..transfer.ahead import Forward

__all__ = ["Header", "headers", "padded"]

BLOCK = tarfile.BLOCKSIZE
LARGEST_EXTRA = 1024 * 1024  # bytes of a long name or of pax records, which are read into memory

_PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_EXTRA = (*_PAX, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_MAGICS = (tarfile.POSIX_MAGIC[:6], tarfile.GNU_MAGIC[:6])
_OCTAL = re.compile(rb" *[0-7]+[ \0]*")
_WITHOUT_DATA = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)


class Header(NamedTuple):
    """A regular file of an archive: the byte at which its headers start, its name, and the size of its data in bytes."""

    start: int
    name: str
    size: int


def padded(size: int) -> int:
    """`size` in whole blocks."""
    return -(-size // BLOCK) * BLOCK


def headers(file: Forward) -> Iterator[Header]:
    """The header of every regular file, from the position of `file` on, which then stands at the data.

    Whoever gets a header takes or skips `padded(size)` bytes. What follows an end mark is read as well, as in archives that
    were concatenated. Raises IncompleteReadError where the archive does not end in an end mark, and CorruptDataError.
    """
    extra: dict[str, str] = {}
    start, has_ended = file.position, False
    while file.left:
        at = file.position
        block = file.take_bytes(BLOCK)
        if len(block) < BLOCK:
            raise _truncated(file, at)
        has_ended = not any(block)
        if has_ended:
            extra, start = {}, file.position
            continue
        info = _decoded(file, block, at)
        if info.type in _EXTRA:
            extra |= _extra_of(file, info, at)
            continue
        size = _size(file, info, extra, start)
        if info.type in tarfile.REGULAR_TYPES:
            yield Header(start, extra.get("path", info.name), size)
        else:
            file.skip(padded(size))
        extra, start = {}, file.position
    if not has_ended:
        raise _truncated(file, file.position)


def _truncated(file: Forward, start: int) -> IncompleteReadError:
    return IncompleteReadError(f"{file.uri} is truncated: at byte {start} it ends without the end mark of an archive")


class _Block(NamedTuple):
    """What a header block says."""

    type: bytes
    name: str
    size: int


def _decoded(file: Forward, block: bytes, start: int) -> _Block:
    try:
        return _plain_file(block) or _block_of(tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape"))
    except tarfile.HeaderError as exc:
        raise CorruptDataError(f"{file.uri}: the block at byte {start} is no tar header ({exc})") from exc


def _block_of(info: tarfile.TarInfo) -> _Block:
    return _Block(info.type, info.name, info.size)


def _plain_file(block: bytes) -> _Block | None:
    """The block of a regular file without anything unusual, else None: five times as fast as the standard library."""
    magic, checksum = block[257:263], block[148:156]
    if block[156:157] != tarfile.REGTYPE or magic not in _MAGICS or not _OCTAL.fullmatch(block[124:136]):
        return None
    if not _OCTAL.fullmatch(checksum) or sum(block) - sum(checksum) + 8 * ord(" ") != int(checksum.strip(b" \0"), 8):
        return None
    name = block[:100].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0] if magic == tarfile.POSIX_MAGIC[:6] else b""
    return _Block(tarfile.REGTYPE, _text(prefix + b"/" + name if prefix else name), int(block[124:136].strip(b" \0"), 8))


def _size(file: Forward, block: _Block, extra: dict[str, str], start: int) -> int:
    """The size of a member's data."""
    if block.type == tarfile.GNUTYPE_SPARSE or any(name.startswith("GNU.sparse.") for name in extra):
        raise CorruptDataError(f"{file.uri}: the file at byte {start} is stored as a sparse file, which is not supported")
    if block.type in _WITHOUT_DATA:
        return 0
    size = block.size if "size" not in extra else _number(file, extra["size"], start)
    if not 0 <= size <= file.left:
        raise IncompleteReadError(
            f"{file.uri} is truncated: the member at byte {start} has {size} bytes of data, and {file.left} bytes are left"
        )
    return size


def _number(file: Forward, text: str, start: int) -> int:
    if not text.isdecimal():
        raise CorruptDataError(f"{file.uri}: the pax header at byte {start} is broken: {text[:40]!r} is no number")
    return int(text)


def _extra_of(file: Forward, info: _Block, start: int) -> dict[str, str]:
    """What a header before the header says of the member: its long name, or pax records."""
    if not 0 <= info.size <= min(LARGEST_EXTRA, file.left):
        raise CorruptDataError(f"{file.uri}: the header at byte {start} announces a name of {info.size} bytes")
    data = file.take_bytes(padded(info.size))[: info.size]
    if info.type == tarfile.GNUTYPE_LONGNAME:
        return {"path": _text(data.split(b"\0", 1)[0])}
    return _pax_records(file, data, start) if info.type in _PAX else {}


def _pax_records(file: Forward, data: bytes, start: int) -> dict[str, str]:
    """Each record is "length key=value" and a newline, the length that of the record itself."""
    records: dict[str, str] = {}
    position = 0
    while position < len(data):
        prefix = data[position : data.find(b" ", position) + 1]
        end = position + _number(file, _text(prefix[:-1]), start)
        keyword, equals, value = data[position + len(prefix) : end - 1].partition(b"=")
        if not equals or data[end - 1 : end] != b"\n":
            raise CorruptDataError(f"{file.uri}: the pax header at byte {start} is broken")
        records[_text(keyword)] = _text(value)
        position = end
    return records


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
