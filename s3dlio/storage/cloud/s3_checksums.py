"""Checksums of bodies: the one that goes with a request, and what an answer says of its own.

Source: "Checking object integrity", Amazon S3 User Guide. Of the CRCs, CRC-32C has an instruction on every processor of
today and costs a sixth of zlib's CRC-32; it needs the package crc32c.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from ... import crc32c
from .http import Head

__all__ = ["BodyChecksum", "checksum_of", "is_intact", "upload_algorithm"]


class BodyChecksum(NamedTuple):
    """The CRC of a body as S3 writes it: big-endian, in base64."""

    algorithm: str  # CRC32C or CRC32
    value: str

    @property
    def header(self) -> tuple[str, str]:
        return f"x-amz-checksum-{self.algorithm.lower()}", self.value


def upload_algorithm() -> str:
    """What bodies are sent with."""
    return "CRC32C" if crc32c.find() else "CRC32"


def checksum_of(buffers: Sequence[memoryview]) -> BodyChecksum:
    """The checksum of all bytes, one buffer after the other."""
    update, value = crc32c.find() or zlib.crc32, 0
    for buffer in buffers:
        value = update(buffer, value)
    return BodyChecksum(upload_algorithm(), _encoded(value))


def _encoded(value: int) -> str:
    return base64.b64encode(value.to_bytes(4, "big")).decode()


def is_intact(head: Head, memory: memoryview) -> bool:
    """Compare with a checksum of the whole object, where the answer has one that is cheap. `-N` marks one of parts."""
    castagnoli, crc32 = head.get("x-amz-checksum-crc32c"), head.get("x-amz-checksum-crc32")
    sha256 = head.get("x-amz-checksum-sha256")
    if not (castagnoli or crc32 or sha256) or (head.get("x-amz-checksum-type") or "").upper() == "COMPOSITE":
        return True
    if castagnoli and "-" not in castagnoli and (update := crc32c.find()):
        return castagnoli == _encoded(update(memory, 0))
    if crc32 and "-" not in crc32:
        return crc32 == _encoded(zlib.crc32(memory))
    if sha256 and "-" not in sha256:
        return sha256 == base64.b64encode(hashlib.sha256(memory).digest()).decode()
    return True
