"""Compression: a table of codecs, each a stream in and a stream out, in constant memory.

What is written is one frame, or one gzip member, with a checksum of its content. What is read may be several of them, one
behind the other; a stream that ends within one is an error.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import ConfigError, CorruptDataError, MissingPackageError
from ..loading import gate

__all__ = [
    "CODECS",
    "Codec",
    "Compressor",
    "Decompressor",
    "beginning",
    "compressed",
    "decompressed",
    "detect",
    "find",
]

INPUT_BYTES = 1024 * 1024  # compressed in one call: what comes out is held at once
# Decompressed in one call. Constant bytes shrink 30,000 times, so it adapts to what comes out.
SMALLEST_PIECE, LARGEST_PIECE = 256, 16 * 1024
LITTLE_OUTPUT, MUCH_OUTPUT = 1024 * 1024, 8 * 1024 * 1024


class Compressor(Protocol):
    """A stream on its way: what `compress` returns so far, and `flush` at last, is the frame."""

    def compress(self, data: memoryview, /) -> bytes:
        """Take bytes; returns what is ready."""

    def flush(self) -> bytes:
        """End the frame; returns the rest of it."""


class Decompressor(Protocol):
    """One frame on its way back."""

    @property
    def eof(self) -> bool:
        """Has the frame ended?"""

    @property
    def unused_data(self) -> bytes | None:
        """What came behind its end."""

    def decompress(self, data: memoryview, /) -> bytes:
        """Take bytes; returns what is ready."""


@dataclass(frozen=True, slots=True)
class Codec:
    """A way to compress. `magic` is how its frames begin."""

    name: str
    magic: bytes
    levels: range
    default_level: int
    compressor: Callable[[int], Compressor]
    decompressor: Callable[[], Decompressor]


def _zstd_compressor(level: int) -> Compressor:
    return _package("zstandard").ZstdCompressor(level=level, write_checksum=True).compressobj()  # type: ignore[no-any-return]


def _zstd_decompressor() -> Decompressor:
    return _package("zstandard").ZstdDecompressor().decompressobj()  # type: ignore[no-any-return]


class _LZ4Compressor:
    """The codec's own object wants its frame begun, and begins it apart."""

    def __init__(self, level: int) -> None:
        frame = _package("lz4.frame")
        self._frame = frame.LZ4FrameCompressor(compression_level=level, content_checksum=True)
        self._header: bytes = self._frame.begin()

    def compress(self, data: memoryview, /) -> bytes:
        header, self._header = self._header, b""
        return header + bytes(self._frame.compress(data))

    def flush(self) -> bytes:
        header, self._header = self._header, b""
        return header + bytes(self._frame.flush())


def _lz4_decompressor() -> Decompressor:
    return _package("lz4.frame").LZ4FrameDecompressor()  # type: ignore[no-any-return]


def _package(name: str) -> Any:
    import importlib

    with gate:
        try:
            return importlib.import_module(name)
        except ImportError as exc:
            package = name.partition(".")[0]
            raise MissingPackageError(f"compression needs the package {package}: pip install 's3dlio[compress]'") from exc


GZIP_WINDOW = 31  # the largest window, 2**15 bytes, and 16 for the header and checksum of gzip

CODECS: dict[str, Codec | None] = {
    "none": None,
    "zstd": Codec("zstd", b"\x28\xb5\x2f\xfd", range(1, 23), 3, _zstd_compressor, _zstd_decompressor),
    "gzip": Codec(
        "gzip",
        b"\x1f\x8b\x08",
        range(10),
        6,
        lambda level: zlib.compressobj(level, zlib.DEFLATED, GZIP_WINDOW),
        lambda: zlib.decompressobj(GZIP_WINDOW),
    ),
    "lz4": Codec("lz4", b"\x04\x22\x4d\x18", range(17), 0, _LZ4Compressor, _lz4_decompressor),
}


def find(name: str, level: int | None) -> tuple[Codec | None, int]:
    """The codec of that name (None for "none") and the level, its default one for None. Raises ConfigError for others."""
    if not isinstance(name, str) or name not in CODECS:
        raise ConfigError(f"compression={name!r} is none of {', '.join(CODECS)}")
    codec = CODECS[name]
    if codec is None:
        return None, 0
    if level is None:
        return codec, codec.default_level
    if isinstance(level, bool) or not isinstance(level, int) or level not in codec.levels:
        raise ConfigError(f"compression_level={level!r} is none of {name}: {codec.levels[0]} to {codec.levels[-1]}")
    return codec, level


def detect(head: bytes) -> Codec | None:
    """The codec whose frames begin as `head` does, None for bytes that are not compressed."""
    return next((codec for codec in CODECS.values() if codec is not None and head.startswith(codec.magic)), None)


def compressed(compressor: Compressor, data: memoryview) -> Iterator[bytes]:
    """Compress a buffer; what is ready comes in pieces."""
    for start in range(0, data.nbytes, INPUT_BYTES):
        piece = compressor.compress(data[start : start + INPUT_BYTES])
        if piece:
            yield piece


def decompressed(codec: Codec, pieces: Iterable[memoryview], uri: str) -> Iterator[bytes]:
    """Decompress the frames that `pieces` hold together. Raises CorruptDataError, naming `uri`, for damaged or cut ones."""
    stream = _Stream(codec, uri)
    for piece in pieces:
        yield from stream.feed(piece)
    stream.finish()


class _Stream:
    """Frames, one behind the other."""

    def __init__(self, codec: Codec, uri: str) -> None:
        self._codec, self._uri = codec, uri
        self._frame: Decompressor | None = None  # None between frames
        self._size = SMALLEST_PIECE

    def feed(self, data: memoryview) -> Iterator[bytes]:
        while data.nbytes:
            piece, data = data[: self._size], data[self._size :]
            while piece.nbytes:
                output, piece = self._step(piece)
                self._adapt(len(output))
                if output:
                    yield output

    def _step(self, piece: memoryview) -> tuple[bytes, memoryview]:
        """What `piece` gives in the frame, and what of it lies behind the frame."""
        frame = self._frame or self._codec.decompressor()
        try:
            output = frame.decompress(piece)
        except Exception as exc:  # each codec has its own error, and some raise RuntimeError or EOFError
            raise CorruptDataError(f"cannot read {self._uri}: its {self._codec.name} data is damaged ({exc})") from exc
        self._frame = None if frame.eof else frame
        return output, memoryview((frame.eof and frame.unused_data) or b"")

    def _adapt(self, num_bytes: int) -> None:
        if num_bytes > MUCH_OUTPUT:
            self._size = max(SMALLEST_PIECE, self._size // 8)
        elif num_bytes < LITTLE_OUTPUT:
            self._size = min(LARGEST_PIECE, self._size * 2)

    def finish(self) -> None:
        if self._frame is not None:
            raise CorruptDataError(f"cannot read {self._uri}: its {self._codec.name} data ends within a frame")


def beginning(codec: Codec, head: bytes, num_bytes: int) -> bytes:
    """What the first bytes of an object give, `num_bytes` or few more of it; nothing where they are damaged."""
    found = b""
    try:
        for piece in _Stream(codec, "").feed(memoryview(head)):
            found += piece
            if len(found) >= num_bytes:  # all of it could be 30,000 times as long as `head`
                break
    except CorruptDataError:
        return b""
    return found
