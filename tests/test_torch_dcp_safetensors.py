"""Distributed checkpoints as safetensors: torch's own reader and the library read ours, and we what torch wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch as library
import torch
import torch.distributed.checkpoint as torch_dcp
from torch.distributed.checkpoint.api import CheckpointException

import s3dlio
from s3dlio.torch import SafetensorsReader, SafetensorsWriter, dcp
from tests.conftest import LocalPlace, Place
from tests.test_torch_dcp import assert_same, blank

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")


def state() -> dict[str, Any]:
    torch.manual_seed(0)
    layers = {f"layer{number}": torch.randn(300, 500 + number) for number in range(5)}
    return {**layers, "half": torch.randn(9).to(torch.float16), "turned": torch.randn(4, 6).t()}


def save(saved: dict[str, Any], uri: str, **options: Any) -> None:
    torch_dcp.save(saved, storage_writer=SafetensorsWriter(uri, **options))


def load(like: dict[str, Any], uri: str) -> dict[str, Any]:
    loaded = blank(like)
    torch_dcp.load(loaded, storage_reader=SafetensorsReader(uri))
    return loaded


def test_the_library_reads_the_files_that_the_index_names(place: Place, tmp_path: Path) -> None:
    save(state(), place.root + "model", files_per_rank=3)
    names = [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
    assert place.keys() == [*(f"model/{name}" for name in names), "model/model.safetensors.index.json"]
    index = json.loads(place.get("model/model.safetensors.index.json") or b"")
    assert index["weight_map"].keys() == state().keys()
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in state().values())
    for name in names:
        (tmp_path / name).write_bytes(place.get(f"model/{name}") or b"")
        held = library.load_file(tmp_path / name)
        assert held.keys() == {key for key, file in index["weight_map"].items() if file == name}
        assert_same(held, {key: state()[key].contiguous() for key in held})
    assert_same(load(state(), place.root + "model"), state())


def test_torch_reads_ours_and_we_read_what_torch_wrote(local_place: LocalPlace) -> None:
    saved = {name: tensor.contiguous() for name, tensor in state().items()}
    save(saved, local_place.root + "ours")
    loaded = blank(saved)
    torch_dcp.load(loaded, storage_reader=torch_dcp.HuggingFaceStorageReader(str(local_place.folder / "ours")))
    assert_same(loaded, saved)
    for distributed in (False, True):
        folder = local_place.folder / f"theirs-{distributed}"
        writer = torch_dcp.HuggingFaceStorageWriter(str(folder), save_distributed=distributed)
        torch_dcp.save(saved, storage_writer=writer)
        assert_same(load(saved, local_place.root + folder.name), saved)


def test_what_the_format_does_not_hold_is_refused(tmp_path: Path) -> None:
    for bad in (7, torch.zeros(2, dtype=torch.complex128)):
        with pytest.raises(CheckpointException, match="safetensors"):
            save({"good": torch.zeros(2), "bad": bad}, f"file://{tmp_path}/model")
    assert list(tmp_path.rglob("*")) == []


def test_a_model_that_stands_there_is_replaced_on_request_alone(place: Place) -> None:
    save(state(), place.root + "model", files_per_rank=3)
    before = place.keys()
    with pytest.raises(CheckpointException, match="overwrite=False"):
        save({"new": torch.ones(3)}, place.root + "model")
    assert place.keys() == before
    save({"new": torch.ones(3)}, place.root + "model", overwrite=True)
    assert place.keys() == ["model/model-00001-of-00001.safetensors", "model/model.safetensors.index.json"]
    assert load({"new": torch.zeros(3)}, place.root + "model")["new"].tolist() == [1.0] * 3


def test_a_save_that_fails_beside_another_one_leaves_the_files_of_that(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their files have the same names."""
    finish = SafetensorsWriter.finish

    def late(writer: SafetensorsWriter, **facts: Any) -> None:
        monkeypatch.setattr(SafetensorsWriter, "finish", finish)
        dcp.save({"weight": torch.ones(3)}, place.root + "model", format="safetensors")
        finish(writer, **facts)

    monkeypatch.setattr(SafetensorsWriter, "finish", late)
    with pytest.raises(s3dlio.PreconditionFailedError, match="written by somebody else"):
        dcp.save({"weight": torch.zeros(3)}, place.root + "model", format="safetensors")
    assert load({"weight": torch.zeros(3)}, place.root + "model")["weight"].tolist() == [1.0] * 3


def test_a_writer_that_is_used_again_removes_nothing_elsewhere(tmp_path: Path) -> None:
    for _ in range(2):
        writer = SafetensorsWriter(tmp_path / "a", files_per_rank=2, overwrite=True)
        torch_dcp.save(state(), storage_writer=writer)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "model-00002-of-00002.safetensors").write_bytes(b"the user's")
    torch_dcp.save({"weight": torch.ones(3)}, storage_writer=writer, checkpoint_id=tmp_path / "b")
    assert (tmp_path / "b" / "model-00002-of-00002.safetensors").read_bytes() == b"the user's"


def test_a_save_that_fails_leaves_no_index(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError("no more")

    monkeypatch.setattr("s3dlio.torch.dcp.safetensors.write_tensor", fail)
    with pytest.raises(CheckpointException, match="no more"):
        save(state(), place.root + "model")
    assert s3dlio.list(place.root) == []


def test_a_file_that_is_missing_or_an_index_that_is_damaged_is_an_error(tmp_path: Path) -> None:
    save(state(), f"file://{tmp_path}/model")
    index, [data] = tmp_path / "model" / "model.safetensors.index.json", list(tmp_path.rglob("*.safetensors"))
    data.rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointException, match=data.name):
        load(state(), f"file://{tmp_path}/model")
    for bad in ("{", "[]", '{"weight_map": {"a": "../b"}}'):
        index.write_text(bad)
        with pytest.raises(CheckpointException, match="damaged"):
            load(state(), f"file://{tmp_path}/model")
    index.unlink()
    with pytest.raises(CheckpointException, match="no safetensors files"):
        load(state(), f"file://{tmp_path}/model")
