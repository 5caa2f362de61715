"""Flipped bits where no checksum of the format looks: the directory of an archive, its pickle, the end of `.metadata`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import s3dlio
from s3dlio import errors
from s3dlio.torch import dcp
from s3dlio.torch.dcp import metadata
from s3dlio.torch.safetensors import save_file
from tests.conftest import Place

STATE = {"a": torch.arange(16.0), "b": torch.arange(16.0) + 100}
ENTRY_BYTES = 46  # of a record in the directory, without its name
METHOD, SIZE, ATTRIBUTES = 10, 24, 38


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    s3dlio.save_checkpoint(f"file://{tmp_path}/model.pt", STATE)
    return tmp_path / "model.pt"


def flipped(data: bytes, byte: int, bit: int) -> bytes:
    return data[:byte] + bytes([data[byte] ^ 1 << bit]) + data[byte + 1 :]


def entry_of(data: bytes, name: bytes) -> int:
    """Where the directory's entry of a record begins."""
    return data.rindex(name) - ENTRY_BYTES


def is_right(found: Any) -> bool:
    return found.keys() == STATE.keys() and all(torch.equal(found[name], STATE[name]) for name in STATE)


def places(data: bytes) -> Iterator[int]:
    """The entry of a tensor, that of the version, and the end of the archive."""
    for name in (b"archive/data/1", b"archive/version"):
        start = entry_of(data, name)
        yield from range(start, start + ENTRY_BYTES + len(name))
    yield from range(data.rindex(b"PK\x05\x06"), len(data))


def test_a_directory_that_lies_is_damage_and_nothing_else(saved: Path) -> None:
    data = saved.read_bytes()
    refused = 0
    for byte in places(data):
        for bit in range(8):
            saved.write_bytes(flipped(data, byte, bit))
            try:
                assert is_right(s3dlio.load_checkpoint_with_validation(f"file://{saved}")), (byte, bit)
            except errors.CorruptDataError:
                refused += 1
    assert refused > 400


@pytest.mark.parametrize(("byte", "bit"), [(METHOD, 3), (ATTRIBUTES, 4), (SIZE, 6)])
def test_plain_loading_looks_at_the_directory_too(saved: Path, byte: int, bit: int) -> None:
    """torch would return memory that nobody has filled."""
    data = saved.read_bytes()
    saved.write_bytes(flipped(data, entry_of(data, b"archive/data/1") + byte, bit))
    with pytest.raises(errors.CorruptDataError, match=r"model\.pt: it is damaged"):
        s3dlio.load_checkpoint(f"file://{saved}")


@pytest.mark.parametrize("load", [s3dlio.load_checkpoint, s3dlio.load_checkpoint_with_validation])
def test_nobody_is_advised_to_trust_a_damaged_pickle(saved: Path, load: Any) -> None:
    data = saved.read_bytes()
    saved.write_bytes(flipped(data, data.index(b"_rebuild_tensor_v2"), 1))
    with pytest.raises(errors.CorruptDataError, match="CRC"):
        load(f"file://{saved}")


def test_a_damaged_shard_is_told_by_its_checksum(tmp_path: Path) -> None:
    base = f"file://{tmp_path}/d/"
    s3dlio.save_distributed_shard(base + "shard.bin", STATE, 0, 1, save_id="x")
    s3dlio.finalize_distributed_checkpoint(base, 1, save_id="x")
    shard = tmp_path / "d" / "shard.bin.x"
    data = shard.read_bytes()
    for name in (b"archive/version", b"archive/data.pkl"):
        shard.write_bytes(flipped(data, data.rindex(name) + 3, 0))
        for weights_only in (True, False):
            with pytest.raises(errors.CorruptDataError, match=r"shard\.bin\.x is damaged"):
                s3dlio.load_checkpoint(base, weights_only=weights_only)


def test_a_damaged_checksum_of_metadata_is_damage(tmp_path: Path) -> None:
    dcp.save({"w": torch.arange(4.0)}, f"file://{tmp_path}/d")
    path = tmp_path / "d" / ".metadata"
    data = path.read_bytes()
    for digits in (b"zzzzzzzz", b"\xff" * 8, b" " + data[-7:]):
        path.write_bytes(data[:-8] + digits)
        with pytest.raises(errors.CorruptDataError, match="its checksum differs"):
            metadata.load(path.read_bytes(), "file:///d/.metadata")


@pytest.mark.parametrize("value", [np.arange(3), np.float64(1.5), np.random.RandomState(1).get_state()])
def test_what_numpy_made_is_refused_with_the_cure(tmp_path: Path, value: Any) -> None:
    uri = f"file://{tmp_path}/n.pt"
    s3dlio.save_checkpoint(uri, {"value": value})
    with pytest.raises(errors.UnsafePickleError, match=r"holds numpy.*torch\.from_numpy.*float\(x\)"):
        s3dlio.load_checkpoint(uri)


def test_what_cannot_be_loaded_by_its_name_says_how(tmp_path: Path) -> None:
    root = f"file://{tmp_path}/"
    s3dlio.save_distributed_shard(root + "d/shard.bin", STATE, 0, 1, save_id="x")
    s3dlio.finalize_distributed_checkpoint(root + "d", 1, save_id="x")
    dcp.save({"w": torch.arange(4.0)}, root + "dcp")
    dcp.save({"w": torch.arange(4.0)}, root + "hf", format="safetensors")
    with pytest.raises(errors.S3dlioError, match=r"load_distributed_shard\('file://.*/d/', 0\)"):
        s3dlio.load_checkpoint(root + "d/shard.bin")
    with pytest.raises(errors.NotFoundError):
        s3dlio.load_checkpoint(root + "d/other.bin")
    with pytest.raises(errors.S3dlioError, match=r"load it by s3dlio\.torch\.dcp\.load \("):
        s3dlio.load_checkpoint(root + "dcp/")
    with pytest.raises(errors.S3dlioError, match=r"s3dlio\.torch\.dcp\.load with format"):
        s3dlio.load_checkpoint(root + "hf/")
    with pytest.raises(TypeError, match="there is no checkpoint yet"):
        s3dlio.load_checkpoint(s3dlio.latest_checkpoint(root + "none/"))  # type: ignore[arg-type]


def test_an_empty_state_of_safetensors_comes_back(tmp_path: Path) -> None:
    dcp.save({}, f"file://{tmp_path}/d", format="safetensors")
    dcp.load({}, f"file://{tmp_path}/d", format="safetensors")


def test_what_was_cut_short_is_no_checkpoint(place: Place) -> None:
    """As a killed torch.save, or a copy that was broken off, leaves it."""
    s3dlio.save_checkpoint(place.root + "whole.pt", STATE)
    save_file(STATE, place.root + "whole.safetensors")
    for name in ("whole.pt", "whole.safetensors"):
        data = place.get(name) or b""
        for length in (100, len(data) - 30):
            place.put(f"{length}-{name}", data[:length])
    found = {checkpoint.uri for checkpoint in s3dlio.list_checkpoints(place.root)}
    assert found == {place.root + "whole.pt", place.root + "whole.safetensors"}
