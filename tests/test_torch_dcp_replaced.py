"""A distributed checkpoint that is replaced while it is loaded: one save or the other, or an error, never both."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.planner import LoadPlan

from s3dlio.checkpoint import safetensors as layout
from s3dlio.errors import ChangedError, S3dlioError
from s3dlio.torch import SafetensorsReader, StorageReader, dcp
from tests.conftest import LocalPlace, Place


def save(uri: str, value: float, format: str) -> None:
    state = {name: torch.full((3000,), value) for name in "ab"}
    dcp.save(state, uri, format=format, files_per_rank=2, overwrite=True)


def load(uri: str) -> set[float]:
    state = {name: torch.zeros(3000) for name in "ab"}
    dcp.load(state, uri, format="safetensors")
    return {value for tensor in state.values() for value in tensor.tolist()}


def test_safetensors_replaced_after_their_headers(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = place.root + "d"
    save(uri, 1, "safetensors")
    assert load(uri) == {1}
    set_up = SafetensorsReader.set_up_storage_reader

    def replacing(*args: Any, **options: Any) -> None:
        save(uri, 2, "safetensors")
        set_up(*args, **options)

    monkeypatch.setattr(SafetensorsReader, "set_up_storage_reader", replacing)
    with pytest.raises(ChangedError, match="was replaced while it was read"):
        load(uri)


def test_safetensors_replaced_between_two_headers(local_place: LocalPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = local_place.root + "d"
    save(uri, 1, "safetensors")
    read, calls = layout.read_header, itertools.count()

    def replacing(*args: Any) -> Any:
        is_first = next(calls) == 0
        header = read(*args)
        if is_first:
            save(uri, 2, "safetensors")
        return header

    monkeypatch.setattr(layout, "read_header", replacing)
    with pytest.raises(S3dlioError, match="was replaced while it was read"):
        load(uri)


@pytest.mark.parametrize(("kind", "format"), [(StorageReader, "torch"), (SafetensorsReader, "safetensors")])
def test_ranks_that_saw_different_saves_load_neither(
    local_place: LocalPlace, kind: type[StorageReader], format: str
) -> None:
    uri = local_place.root + "d"

    def plan() -> LoadPlan:
        reader.read_metadata()
        return reader.prepare_local_plan(LoadPlan([]))

    reader = kind(uri)
    save(uri, 1, format)
    before = [plan(), plan()]
    assert len(reader.prepare_global_plan(before)) == 2
    save(uri, 2, format)
    with pytest.raises(ChangedError, match="was replaced while ranks began to load it"):
        reader.prepare_global_plan([before[0], plan()])
