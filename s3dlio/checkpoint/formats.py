"""Does an object look like a checkpoint? Told by its first bytes, so that a log beside it is never taken for one."""

from __future__ import annotations

from ..transfer import compress

__all__ = ["COMPRESSED_HEAD_BYTES", "HEAD_BYTES", "is_checkpoint", "is_compressed", "is_safetensors"]

HEAD_BYTES = 512
COMPRESSED_HEAD_BYTES = 256 * 1024  # zstd gives nothing before a whole block of at most 128 KiB
# The number that torch.save wrote first before it wrote zip archives.
_LEGACY = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
_ZIP_RECORD = b"PK\x03\x04"


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


def is_safetensors(head: bytes) -> bool:
    """Do they begin a safetensors file? The length of a JSON header in eight bytes, then the header."""
    return 2 <= int.from_bytes(head[:8], "little") <= 100_000_000 and head[8:10] in (b'{"', b"{}")
