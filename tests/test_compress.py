"""Codecs: one frame that other programs read, whatever is damaged is an error, and memory is bounded."""

from __future__ import annotations

import gzip
import random
import sys
from collections.abc import Callable

import lz4.frame
import pytest
import zstandard

import s3dlio
from s3dlio.errors import ConfigError, CorruptDataError, MissingPackageError
from s3dlio.transfer import compress

from .conftest import Place

CODECS = ("zstd", "gzip", "lz4")
DATA = random.Random(1).randbytes(300_000) + bytes(3_000_000) + b"end"
THEIRS: dict[str, Callable[[bytes], bytes]] = {
    "zstd": lambda data: zstandard.ZstdDecompressor().stream_reader(data).read(),
    "gzip": gzip.decompress,
    "lz4": lz4.frame.decompress,
}


def encoded(name: str, data: bytes, level: int | None = None) -> bytes:
    codec, level = compress.find(name, level)
    assert codec is not None
    compressor = codec.compressor(level)
    return b"".join([*compress.compressed(compressor, memoryview(data)), compressor.flush()])


def decoded(name: str, data: bytes, piece: int = 1 << 20) -> bytes:
    codec, _ = compress.find(name, None)
    assert codec is not None
    pieces = (memoryview(data)[start : start + piece] for start in range(0, len(data), piece))
    return b"".join(compress.decompressed(codec, pieces, "memory://b/k"))


@pytest.mark.parametrize("name", CODECS)
class TestEveryCodec:
    @pytest.mark.parametrize("data", [b"", b"x", DATA], ids=len)
    def test_what_was_written_comes_back_and_others_read_it(self, name: str, data: bytes) -> None:
        stored = encoded(name, data)
        found = compress.detect(stored)
        assert found is not None
        assert found.name == name
        assert decoded(name, stored) == data
        assert THEIRS[name](stored) == data

    @pytest.mark.parametrize("piece", [1000, 1 << 20])
    def test_frames_one_behind_the_other_are_all_read(self, name: str, piece: int) -> None:
        stored = encoded(name, DATA) + encoded(name, b"") + encoded(name, b"more")
        assert decoded(name, stored, piece) == DATA + b"more"

    def test_a_stream_that_ends_within_a_frame_is_an_error(self, name: str) -> None:
        stored = encoded(name, DATA)
        for cut in (1, 10, len(stored) // 2, len(stored) - 1):
            with pytest.raises(CorruptDataError, match=r"memory://b/k"):
                decoded(name, stored[:cut])

    def test_a_flipped_bit_and_bytes_behind_the_frame_are_errors(self, name: str) -> None:
        stored = bytearray(encoded(name, DATA))
        stored[150_000] ^= 1
        with pytest.raises(CorruptDataError, match=rf"memory://b/k: its {name} data is damaged"):
            decoded(name, bytes(stored))
        with pytest.raises(CorruptDataError, match="damaged"):
            decoded(name, encoded(name, b"x") + b"garbage")

    def test_each_level_works_and_those_beyond_are_refused(self, name: str) -> None:
        codec = compress.CODECS[name]
        assert codec is not None
        for level in (codec.levels[0], codec.levels[-1]):
            assert decoded(name, encoded(name, DATA[:1000], level)) == DATA[:1000]
        for wrong in (codec.levels[-1] + 1, codec.levels[0] - 1, True, "3", 1.5):
            with pytest.raises(ConfigError, match="compression_level"):
                compress.find(name, wrong)  # type: ignore[arg-type]

    def test_pieces_are_bounded_however_well_they_compress(self, name: str) -> None:
        """100 MB of zeros come in pieces, after the first ones have shown how they shrink."""
        codec, _ = compress.find(name, None)
        assert codec is not None
        stored = encoded(name, bytes(100_000_000))
        sizes = [len(piece) for piece in compress.decompressed(codec, [memoryview(stored)], "")]
        assert sum(sizes) == 100_000_000
        assert max(sizes) < 65_000_000

    def test_the_beginning_goes_as_far_as_the_bytes(self, name: str) -> None:
        codec = compress.CODECS[name]
        assert codec is not None
        beginning = compress.beginning(codec, encoded(name, DATA)[:280_000], 1000)
        assert len(beginning) >= 1000
        assert DATA.startswith(beginning)
        assert compress.beginning(codec, codec.magic + b"garbage" * 10, 1000) == b""

    def test_the_beginning_of_what_shrank_much_is_not_all_of_it(self, name: str) -> None:
        codec = compress.CODECS[name]
        assert codec is not None
        beginning = compress.beginning(codec, encoded(name, bytes(60_000_000))[:280_000], 1000)
        assert 1000 <= len(beginning) < 20_000_000

    def test_open_writer_compresses_and_keeps_the_name(self, name: str, place: Place) -> None:
        with s3dlio.open_writer(place.root + "k.bin", compression=name) as writer:
            for start in range(0, len(DATA), 100_000):
                writer.write(DATA[start : start + 100_000])
        assert place.keys() == ["k.bin"]
        stored = place.get("k.bin")
        assert stored is not None
        assert THEIRS[name](stored) == DATA
        assert len(stored) < 400_000


def test_what_is_not_compressed_is_not_taken_for_it() -> None:
    assert all(compress.detect(head) is None for head in (b"", b"PK\x03\x04", b"\x1f\x8b", b"text"))


@pytest.mark.parametrize(("name", "module"), [("zstd", "zstandard"), ("lz4", "lz4.frame")])
def test_a_missing_package_is_named_with_its_extra(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackageError, match=r"pip install 's3dlio\[compress\]'"):
        s3dlio.open_writer("memory://compress/k", compression=name)


@pytest.mark.parametrize("name", ["brotli", "ZSTD", "", None, 3])
def test_an_unknown_codec_is_refused(name: object) -> None:
    with pytest.raises(ConfigError, match="none, zstd, gzip, lz4"):
        s3dlio.open_writer("memory://compress/k", compression=name)  # type: ignore[arg-type]
