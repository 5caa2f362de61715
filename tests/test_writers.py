"""The guides' streaming writers: cases O22 to O25, O41 and O44 on them."""

from __future__ import annotations

import gc
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import crc32c
import numpy as np
import pytest

import s3dlio
from s3dlio import errors
from s3dlio.writers import StreamingWriter

from .conftest import LocalPlace, Place, S3Place, eventually
from .test_compress import THEIRS

MIB = 1024 * 1024
CREATE: dict[str, Callable[..., StreamingWriter]] = {
    "s3": s3dlio.create_s3_writer,
    "file": s3dlio.create_filesystem_writer,
    "direct": s3dlio.create_direct_filesystem_writer,
}

pytestmark = pytest.mark.filterwarnings("ignore:the file system of direct")


@pytest.fixture(params=CREATE)
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(scheme: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if scheme == "s3":
        place: S3Place = request.getfixturevalue("s3_place")
        return place
    return LocalPlace(scheme, tmp_path)


def options(compression: str = "none", level: int | None = None) -> s3dlio.PyWriterOptions:
    return s3dlio.PyWriterOptions().with_compression(compression, level)


def test_the_example_of_the_guide(scheme: str, place: Place) -> None:
    options = s3dlio.PyWriterOptions()
    options.compression = "zstd"
    options.compression_level = 3
    options.chunk_size = 4 * 1024 * 1024
    chunk1, chunk2 = b"1" * 3_000_000, random.Random(1).randbytes(9_000_000)
    writer = CREATE[scheme](place.root + "file.bin.zst", options)
    writer.write(chunk1)
    writer.write(chunk2)
    stats = writer.finalize()
    assert stats["bytes_written"] == 12_000_000
    stored = place.get("file.bin.zst")
    assert stored is not None
    assert THEIRS["zstd"](stored) == chunk1 + chunk2
    assert stats["stored_bytes"] == len(stored)
    assert stats["etag"] == s3dlio.stat(place.root + "file.bin.zst")["etag"]
    assert stats["checksum"] == f"crc32c:{crc32c.crc32c(stored):08x}"


@pytest.mark.parametrize(("compression", "level"), [("zstd", 3), ("zstd", 22), ("lz4", None), ("gzip", None)])
def test_one_frame_a_second_finalize_and_a_late_write(
    compression: str, level: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O24: 10 writes of 4 MiB are one frame; the level 22 on less, since it is slow."""
    piece = (b"0123456789abcdef" * (1 << 16) if level == 22 else random.Random(1).randbytes(1 << 20)) * (
        1 if level == 22 else 4
    )
    writer = s3dlio.create_filesystem_writer(f"file://{tmp_path}/k", options(compression, level))
    for _ in range(10):
        assert writer.write(piece) == len(piece)
    stats = writer.finalize()
    stored = (tmp_path / "k").read_bytes()
    assert THEIRS[compression](stored) == piece * 10
    frame = (
        b"\x28\xb5\x2f\xfd" if compression == "zstd" else b"\x1f\x8b\x08" if compression == "gzip" else b"\x04\x22\x4d\x18"
    )
    assert stored.startswith(frame)
    (tmp_path / "k").unlink()
    assert writer.finalize() == stats
    writer.close()
    assert not (tmp_path / "k").exists(), "a second finalize writes nothing"
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"late")
    assert stats["bytes_written"] == 10 * len(piece)
    assert stats["stored_bytes"] == len(stored)


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_an_exception_publishes_nothing_and_stays_what_it_is(scheme: str, place: Place, compression: str) -> None:
    """O22: 20 MiB written, then the user's own error, without finalize; the writer is collected."""
    mine = KeyError("mine")

    def pieces() -> Iterator[bytes]:
        generator = random.Random(2)
        for _ in range(20):
            yield generator.randbytes(MIB)
        raise mine

    def save() -> None:
        writer = CREATE[scheme](place.root + "k", options(compression))
        for piece in pieces():
            writer.write(piece)
        writer.finalize()

    with pytest.raises(KeyError) as caught:
        save()
    assert caught.value is mine
    mine.__traceback__ = caught.value.__traceback__ = None
    del caught
    gc.collect()
    assert not s3dlio.exists(place.root + "k")
    if isinstance(place, S3Place):
        assert eventually(lambda: place.uploads() == [])
    writer = CREATE[scheme](place.root + "k", options(compression))
    writer.write(bytes(6 * MIB))
    writer.abort()
    with pytest.raises(errors.S3dlioError, match="aborted"):
        writer.finalize()
    assert place.keys() == [] or eventually(lambda: place.keys() == [])


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd", "lz4"])
def test_empty_output_is_an_object_and_replaces_the_old_one(scheme: str, place: Place, compression: str) -> None:
    """O23."""
    place.put("k", b"old")
    stats = CREATE[scheme](place.root + "k", options(compression)).finalize()
    assert stats["bytes_written"] == 0
    assert s3dlio.stat(place.root + "k")["size"] == stats["stored_bytes"]
    stored = place.get("k")
    assert stored == b"" if compression == "none" else THEIRS[compression](stored or b"") == b""


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize(
    "data",
    [np.arange(12.0).reshape(3, 4), memoryview(np.arange(5, dtype="f")), bytearray(9)],
    ids=["2-D", "floats", "bytearray"],
)
def test_any_buffer_counts_as_its_bytes(scheme: str, place: Place, data: object, compression: str) -> None:
    """O25."""
    expected = bytes(memoryview(data).cast("B"))  # type: ignore[arg-type]
    writer = CREATE[scheme](place.root + "k", options(compression))
    assert writer.write_chunk(data) == len(expected)
    for wrong in ("text", 3, None):
        with pytest.raises(TypeError):
            writer.write(wrong)
    assert writer.finalize()["bytes_written"] == len(expected)
    stored = place.get("k")
    assert stored is not None
    assert (THEIRS[compression](stored) if compression != "none" else stored) == expected


def test_many_odd_pieces_past_the_page_cache(tmp_path: Path) -> None:
    """O44: 10 x 999 bytes."""
    with s3dlio.create_direct_filesystem_writer(f"direct://{tmp_path}/k") as writer:
        for number in range(10):
            writer.write(bytes([number]) * 999)
    assert (tmp_path / "k").read_bytes() == b"".join(bytes([number]) * 999 for number in range(10))


def test_temporary_file_in_the_targets_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """O41: TMPDIR elsewhere plays no part."""
    monkeypatch.setenv("TMPDIR", "/nonexistent")
    writer = s3dlio.create_filesystem_writer(f"file://{tmp_path}/d/k", options("gzip"))
    writer.write(random.Random(1).randbytes(9 * MIB))
    (temporary,) = (tmp_path / "d").iterdir()
    assert temporary.name.startswith(".k.s3dlio-")
    writer.finalize()
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["k"]


class TestOptions:
    @pytest.mark.parametrize("name", ["brotli", "ZSTD", "", None, 7])
    def test_a_wrong_codec_is_refused_when_it_is_assigned(self, name: object) -> None:
        chosen = s3dlio.PyWriterOptions()
        with pytest.raises(ValueError, match="none, zstd, gzip, lz4"):
            chosen.compression = name  # type: ignore[assignment]
        assert chosen.compression == "none"

    def test_a_wrong_level_is_refused_when_it_is_assigned(self) -> None:
        chosen = s3dlio.PyWriterOptions()
        for level in (23, 0, -1, True, "3"):
            with pytest.raises(ValueError, match="compression_level"):
                chosen.compression_level = level  # type: ignore[assignment]
        chosen.compression_level = 22
        with pytest.raises(ValueError, match="gzip"):
            chosen.compression = "gzip"
        chosen.compression_level = 9
        chosen.compression = "gzip"
        assert "gzip" in repr(chosen)

    @pytest.mark.parametrize("size", [0, -1, 1.5, True, "8"])
    def test_a_wrong_chunk_size_is_refused(self, size: object) -> None:
        with pytest.raises(ValueError, match="chunk_size"):
            s3dlio.PyWriterOptions().chunk_size = size  # type: ignore[assignment]

    def test_the_builder_returns_the_options(self) -> None:
        chosen = s3dlio.PyWriterOptions()
        assert chosen.with_compression("zstd", 5).with_buffer_size(1 << 20) is chosen
        assert (chosen.compression, chosen.compression_level, chosen.chunk_size) == ("zstd", 5, 1 << 20)

    def test_the_writer_of_another_scheme_is_refused(self) -> None:
        for create in (s3dlio.create_azure_writer, s3dlio.create_gcs_writer, *CREATE.values()):
            with pytest.raises(errors.ConfigError, match="memory://"):
                create("memory://b/k")


def test_without_crc32c_the_checksum_is_named_crc32(tmp_path: Path, no_crc32c: None) -> None:
    writer = s3dlio.create_filesystem_writer(f"file://{tmp_path}/k")
    writer.write(b"123456789")
    assert writer.finalize()["checksum"] == f"crc32:{zlib.crc32(b'123456789'):08x}"
