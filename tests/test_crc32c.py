"""CRC-32C: by its package, or an error that says what to install."""

from __future__ import annotations

import pytest

from s3dlio import crc32c
from s3dlio.checkpoint import blocks
from s3dlio.errors import MissingPackageError


def test_the_check_value_of_the_standard_also_in_pieces() -> None:
    update = crc32c.load("this test needs crc32c", "torch")
    assert update(b"123456789") == update(memoryview(b"6789"), update(b"12345")) == 0xE3069283
    assert crc32c.find() is update


def test_without_the_package_the_error_says_what_needs_it_and_names_the_extra(no_crc32c: None) -> None:
    assert crc32c.find() is None
    with pytest.raises(MissingPackageError, match=r"^reading needs it: pip install 's3dlio\[tfrecord\]'$"):
        crc32c.load("reading needs it", "tfrecord")
    with pytest.raises(MissingPackageError, match=r"checksums of checkpoints .*s3dlio\[torch\]"):
        blocks.crc32c(b"")
