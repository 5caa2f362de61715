"""Checked by mypy --strict, never run: a training as a typed program writes it."""

from __future__ import annotations

from typing import Any, assert_type

import torch
from torch.utils.data import DataLoader

import s3dlio
import s3dlio.torch


def to_tensor(view: s3dlio.BytesView) -> torch.Tensor:
    return torch.frombuffer(view, dtype=torch.uint8)


def map_style() -> None:
    dataset = s3dlio.ObjectStoreMapDataset(uri="file:///data/train/", pattern="*.npz", transform=to_tensor)
    assert_type(len(dataset), int)
    chosen = s3dlio.ObjectStoreMapDataset.from_uris(["file:///data/a"])
    for data in (dataset, chosen):
        for _ in DataLoader(data, batch_size=32, num_workers=4, shuffle=True):
            pass


def iterable() -> None:
    dataset = s3dlio.ObjectStoreIterableDataset(uri="file:///data/train/", shuffle=True, batch_size=32)
    dataset.set_epoch(1)
    for _ in DataLoader(dataset, batch_size=32, num_workers=4):
        pass


def resumable(state: dict[str, int]) -> dict[str, int]:
    dataset = s3dlio.ObjectStoreMapDataset("file:///data/train/")
    batches = s3dlio.torch.loader(dataset, batch_size=32, shuffle=True, num_workers=4)
    assert_type(batches, s3dlio.torch.Loader)
    batches.load_state_dict(state)
    for _ in batches:
        pass
    return batches.state_dict()


def checkpoint(model: torch.nn.Module) -> Any:
    with s3dlio.open_writer("file:///data/model.pt") as file:
        torch.save(model.state_dict(), file)
    with s3dlio.open_reader("file:///data/model.pt") as reader:
        return torch.load(reader, weights_only=True)
