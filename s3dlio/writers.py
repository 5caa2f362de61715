"""The guides' streaming writers: `PyWriterOptions`, and one `create_..._writer` per scheme."""

from __future__ import annotations

from .errors import ConfigError
from .objects import resolve
from .transfer import compress
from .transfer.checksum import Checksum, best_algorithm
from .transfer.write import PART_BYTES, ObjectWriter
from .uri import parse

__all__ = [
    "PyWriterOptions",
    "StreamingWriter",
    "create_azure_writer",
    "create_direct_filesystem_writer",
    "create_filesystem_writer",
    "create_gcs_writer",
    "create_s3_writer",
]


class PyWriterOptions:
    """How a streaming writer works. Each attribute is checked when it is set; a wrong one raises ConfigError (a ValueError).

    `compression`: none, zstd, gzip or lz4. `compression_level`: 1 to 22 for zstd, 0 to 9 for gzip, 0 to 16 for lz4; None is
    the codec's default (3, 6, 0). `chunk_size`: bytes of a part, made larger where the store wants larger ones.
    """

    def __init__(self) -> None:
        self._compression = "none"
        self._compression_level: int | None = None
        self._chunk_size = PART_BYTES

    @property
    def compression(self) -> str:
        """The codec's name."""
        return self._compression

    @compression.setter
    def compression(self, name: str) -> None:
        compress.find(name, self._compression_level)
        self._compression = name

    @property
    def compression_level(self) -> int | None:
        """The codec's level, None for its default one."""
        return self._compression_level

    @compression_level.setter
    def compression_level(self, level: int | None) -> None:
        compress.find("zstd" if self._compression == "none" else self._compression, level)  # as the guide has it: 1 to 22
        self._compression_level = level

    @property
    def chunk_size(self) -> int:
        """Bytes of a part."""
        return self._chunk_size

    @chunk_size.setter
    def chunk_size(self, num_bytes: int) -> None:
        if isinstance(num_bytes, bool) or not isinstance(num_bytes, int) or num_bytes < 1:
            raise ConfigError(f"chunk_size={num_bytes!r} is no number of bytes from 1")
        self._chunk_size = num_bytes

    def with_compression(self, compression: str, level: int | None = None) -> PyWriterOptions:
        """Set codec and level together; returns these options."""
        compress.find(compression, level)
        self._compression, self._compression_level = compression, level
        return self

    def with_buffer_size(self, num_bytes: int) -> PyWriterOptions:
        """Set `chunk_size`; returns these options."""
        self.chunk_size = num_bytes
        return self

    def __repr__(self) -> str:
        return (
            f"PyWriterOptions(compression={self._compression!r}, compression_level={self._compression_level!r}, "
            f"chunk_size={self._chunk_size})"
        )


class StreamingWriter(ObjectWriter):
    """An `ObjectWriter` under its other verbs. `finalize` publishes the object and returns the facts about it."""

    def write_chunk(self, data: object) -> int:
        """The same as `write`."""
        return self.write(data)


def _create(scheme: str, uri: str, options: PyWriterOptions | None) -> StreamingWriter:
    if parse(uri).scheme != scheme:
        raise ConfigError(f"{uri} is not on {scheme}://: take the create_..._writer of its scheme")
    chosen = PyWriterOptions() if options is None else options
    codec, level = compress.find(chosen.compression, chosen.compression_level)
    store, key = resolve(uri)
    checksum = Checksum(best_algorithm())
    return StreamingWriter(store, key, part_bytes=chosen.chunk_size, codec=codec, level=level, checksum=checksum)


def create_s3_writer(uri: str, options: PyWriterOptions | None = None) -> StreamingWriter:
    """A writer of the object `uri` on `s3://`, which appears by `finalize` or at the end of a `with` block.

    >>> writer = s3dlio.create_s3_writer("s3://bucket/file.bin.zst", options)
    >>> writer.write(b"first")
    >>> writer.finalize()["bytes_written"]
    5
    """
    return _create("s3", uri, options)


def create_azure_writer(uri: str, options: PyWriterOptions | None = None) -> StreamingWriter:
    """A writer of the object `uri` on `az://`. See `create_s3_writer`."""
    return _create("az", uri, options)


def create_gcs_writer(uri: str, options: PyWriterOptions | None = None) -> StreamingWriter:
    """A writer of the object `uri` on `gs://`. See `create_s3_writer`."""
    return _create("gs", uri, options)


def create_filesystem_writer(uri: str, options: PyWriterOptions | None = None) -> StreamingWriter:
    """A writer of the file `uri` on `file://`, synced to disk before it appears. See `create_s3_writer`."""
    return _create("file", uri, options)


def create_direct_filesystem_writer(uri: str, options: PyWriterOptions | None = None) -> StreamingWriter:
    """A writer of the file `uri` on `direct://`, past the page cache. See `create_s3_writer`."""
    return _create("direct", uri, options)
