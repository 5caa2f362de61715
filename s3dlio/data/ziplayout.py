"""The records of a zip archive of stored files, as bytes: pure arithmetic, in which 4 GiB are but a number.

Source: PKWARE, APPNOTE.TXT 6.3.10, sections 4.3 and 4.5. Fields are those that numpy.savez writes; data is aligned by an
extra field of the local header (0xd935, which Android's zipalign uses for it).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ..errors import CorruptDataError

__all__ = ["LocalHeader", "StoredFile", "directory", "local_header", "parsed_local_header"]

LIMIT_32 = 0xFFFFFFFF
LIMIT_16 = 0xFFFF
PLAIN, ZIP64 = 20, 45  # the version of the format that a reader needs, times ten
DATE = 1 << 5 | 1  # 1980-01-01
MODE = 0o100600 << 16
ALIGNMENT_FIELD = 0xD935
UTF8 = 1 << 11

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR64 = struct.Struct("<4sLQL")
_END = struct.Struct("<4s4H2LH")

FIXED_BYTES = _LOCAL.size
"""Of a local header: what comes before the name."""


class StoredFile(NamedTuple):
    """A file of the archive, not compressed: name, CRC-32, size in bytes, and where its local header begins."""

    name: str
    crc: int
    size: int
    offset: int


def _is_large(file: StoredFile) -> bool:
    return file.size >= LIMIT_32


def local_header(file: StoredFile, alignment: int = 1) -> bytes:
    """What stands before the data, which then begins at a multiple of `alignment` (at most 64) in the archive."""
    name = file.name.encode()
    extra = struct.pack("<2H2Q", 1, 16, file.size, file.size) if _is_large(file) else b""
    bare = file.offset + _LOCAL.size + len(name) + len(extra)
    if bare % alignment:
        padding = -(bare + 6) % alignment
        extra += struct.pack("<3H", ALIGNMENT_FIELD, 2 + padding, alignment) + bytes(padding)
    version = ZIP64 if _is_large(file) else PLAIN
    size = LIMIT_32 if _is_large(file) else file.size
    return (
        _LOCAL.pack(b"PK\3\4", version, _flags(file), 0, 0, DATE, file.crc, size, size, len(name), len(extra)) + name + extra
    )


class LocalHeader(NamedTuple):
    """What a local header says besides sizes: flags, method of compression, and the lengths of what follows it."""

    flags: int
    method: int
    name_length: int
    extra_length: int


def parsed_local_header(fixed: bytes) -> LocalHeader:
    """A local header, from its first `FIXED_BYTES`. Raises CorruptDataError when they are none."""
    if len(fixed) < FIXED_BYTES or fixed[:4] != b"PK\3\4":
        raise CorruptDataError("a file of the archive does not begin where its directory says")
    _, _, flags, method, *_, name, extra = _LOCAL.unpack(fixed)
    return LocalHeader(flags, method, name, extra)


def _flags(file: StoredFile) -> int:
    return 0 if file.name.isascii() else UTF8


def _central_header(file: StoredFile) -> bytes:
    name = file.name.encode()
    large: list[int] = [file.size, file.size] if _is_large(file) else []
    large += [file.offset] if file.offset >= LIMIT_32 else []
    extra = struct.pack(f"<2H{len(large)}Q", 1, 8 * len(large), *large) if large else b""
    version = ZIP64 if large else PLAIN
    size = LIMIT_32 if _is_large(file) else file.size
    offset = min(file.offset, LIMIT_32)
    fixed = _CENTRAL.pack(
        *(b"PK\1\2", version | 3 << 8, version, _flags(file), 0, 0, DATE, file.crc, size, size),
        *(len(name), len(extra), 0, 0, 0, MODE, offset),
    )
    return fixed + name + extra


def directory(files: list[StoredFile], offset: int) -> bytes:
    """What ends the archive: the central directory, which begins at byte `offset`, and its end records."""
    headers = b"".join(map(_central_header, files))
    count, size = len(files), len(headers)
    end64 = b""
    if offset >= LIMIT_32 or size >= LIMIT_32 or count >= LIMIT_16:
        end64 = _END64.pack(b"PK\6\6", _END64.size - 12, ZIP64 | 3 << 8, ZIP64, 0, 0, count, count, size, offset)
        end64 += _LOCATOR64.pack(b"PK\6\7", 0, offset + size, 1)
    short = min(count, LIMIT_16)
    end = _END.pack(b"PK\5\6", 0, 0, short, short, min(size, LIMIT_32), min(offset, LIMIT_32), 0)
    return headers + end64 + end
