"""Does an object look like a checkpoint? Told by its first bytes, so that a log beside it is never taken for one."""

from __future__ import annotations

import re

from ..transfer import compress

__all__ = [
    "COMPRESSED_HEAD_BYTES",
    "END_BYTES",
    "HEAD_BYTES",
    "is_checkpoint",
    "is_compressed",
    "is_cut_short",
    "is_safetensors",
    "is_whole_archive",
    "needs_end",
]

HEAD_BYTES = 512
END_BYTES = 1024  # 22 of the record, and a comment
COMPRESSED_HEAD_BYTES = 256 * 1024  # zstd gives nothing before a whole block of at most 128 KiB
# The number that torch.save wrote first before it wrote zip archives.
_LEGACY = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
_ZIP_RECORD = b"PK\x03\x04"
_ZIP_END = b"PK\x05\x06"
_DATA_END = re.compile(rb'"data_offsets"\s*:\s*\[\s*\d+\s*,\s*(\d+)\s*\]')


def is_compressed(head: bytes) -> bool:
    """Does telling what it is need the first `COMPRESSED_HEAD_BYTES`, and not `HEAD_BYTES` alone?"""
    return compress.detect(head) is not None


def is_checkpoint(head: bytes) -> bool:
    """Do these first bytes begin something that torch.save or safetensors wrote, compressed or not?"""
    codec = compress.detect(head)
    if codec is not None:
        head = compress.beginning(codec, head, HEAD_BYTES)
    return head.startswith(_LEGACY) or _is_torch_archive(head) or is_safetensors(head)


def _is_torch_archive(head: bytes) -> bool:
    """The first record of an archive of torch.save is its pickle."""
    if not head.startswith(_ZIP_RECORD):
        return False
    length = int.from_bytes(head[26:28], "little")
    return head[30 : 30 + length].endswith(b"/data.pkl")


def needs_end(head: bytes) -> bool:
    """Does telling whether it is whole need the last `END_BYTES`, too?"""
    return _is_torch_archive(head)


def is_whole_archive(end: bytes) -> bool:
    """Do these last bytes hold the record that ends a zip archive? A save that was killed has left none."""
    return _ZIP_END in end


def is_cut_short(head: bytes, size: int) -> bool:
    """Do the first bytes of safetensors tell that more than `size` bytes belong to it? Where its header ends in them."""
    end = 8 + int.from_bytes(head[:8], "little")
    if not is_safetensors(head) or size < end:
        return is_safetensors(head)
    ends = [int(number) for number in _DATA_END.findall(head[8:end])] if end <= len(head) else []
    return size < end + max(ends, default=0)


def is_safetensors(head: bytes) -> bool:
    """Do they begin a safetensors file? The length of a JSON header in eight bytes, then the header."""
    return 2 <= int.from_bytes(head[:8], "little") <= 100_000_000 and head[8:10] in (b'{"', b"{}")
