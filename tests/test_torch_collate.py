"""Views in tensors, in batches, and on their way out of a DataLoader's workers."""

from __future__ import annotations

import gc
import pickle
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, default_collate
from torch.utils.data._utils.pin_memory import pin_memory

import s3dlio
from s3dlio import BytesView, ObjectStoreIterableDataset, ObjectStoreMapDataset
from s3dlio.torch.collate import SMALL_BATCH_BYTES, ViewBatch
from tests.conftest import Place, eventually

SIZES = random.Random(7).sample(range(1, 30_000), 24)


def content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """Objects of unequal lengths, of which eight are more than a small batch, and one that is empty."""
    root = f"file://{tmp_path}/"
    s3dlio.put_many((f"{root}{index:02}", content(size)) for index, size in enumerate([*SIZES, 0]))
    return root


def worker_batches(dataset: Any, batch_size: int | None = 8) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=batch_size, num_workers=2, multiprocessing_context="fork", timeout=60)


def num_descriptors() -> int:
    """How many are open, once the queues of loaders that have ended have closed theirs, which their threads do."""
    gc.collect()
    assert eventually(lambda: not any(thread.name == "QueueFeederThread" for thread in threading.enumerate()))
    return psutil.Process().num_fds()


def address(view: BytesView) -> int:
    return int(view.__array_interface__["data"][0])


def arena(view: BytesView) -> object:
    """The array whose memory a view is part of."""
    owner: Any = view
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return owner


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_default_collate_gives_lists_of_views_of_unequal_lengths(prefix: str, num_workers: int) -> None:
    context = "fork" if num_workers else None
    dataset = ObjectStoreMapDataset(prefix)
    batches = list(DataLoader(dataset, batch_size=8, num_workers=num_workers, multiprocessing_context=context))
    assert [len(batch) for batch in batches] == [8, 8, 8, 1]
    assert all(type(view) is BytesView for batch in batches for view in batch)
    views = [view for batch in batches for view in batch]
    assert [view.uri for view in views] == list(dataset.uris)
    assert [bytes(view) for view in views] == [content(size) for size in [*SIZES, 0]]


def test_views_within_a_sample_are_collated_too(prefix: str) -> None:
    view = s3dlio.get(f"{prefix}00")
    batch = default_collate([(view, 1, {"again": view}), (view, 2, {"again": view})])
    assert batch[0] == [view, view]
    assert batch[1].tolist() == [1, 2]
    assert batch[2]["again"] == [view, view]


def test_what_a_worker_sends_is_writable_aligned_and_fits_torch(prefix: str) -> None:
    """Warnings are errors here, and torch warns of memory that is not writable."""
    views = [view for batch in worker_batches(ObjectStoreMapDataset(prefix)) for view in batch]
    for view in views[:-1]:
        assert address(view) % 64 == 0
        tensor = torch.frombuffer(view, dtype=torch.uint8)
        tensor[0] = 7
        assert view[0] == 7
    assert [bytes(view[1:]) for view in views] == [content(size)[1:] for size in [*SIZES, 0]], "no view shares a byte"


def test_a_batch_travels_as_one_piece_of_shared_memory_that_ends_with_its_last_view(prefix: str) -> None:
    dataset = ObjectStoreMapDataset.from_uris(list(ObjectStoreMapDataset(prefix).uris)[:24])
    list(worker_batches(dataset))
    before = num_descriptors()
    batches = list(worker_batches(dataset))
    assert all(sum(view.nbytes for view in batch) > SMALL_BATCH_BYTES for batch in batches)
    assert all(len({id(arena(view)) for view in batch}) == 1 for batch in batches)
    assert num_descriptors() == before + 3
    last = batches[0][5]
    del batches
    assert num_descriptors() == before + 1
    assert last == content(SIZES[5])
    del last
    assert num_descriptors() == before


def test_a_small_batch_needs_no_descriptor(prefix: str) -> None:
    dataset = ObjectStoreMapDataset.from_uris([f"{prefix}{SIZES.index(min(SIZES)):02}", f"{prefix}24"] * 20)
    list(worker_batches(dataset))
    before = num_descriptors()
    batches = list(worker_batches(dataset))
    assert num_descriptors() == before
    assert all(type(view) is BytesView and view.flags.writeable for batch in batches for view in batch)
    assert [view.nbytes for batch in batches for view in batch] == [min(SIZES), 0] * 20


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", [ObjectStoreMapDataset, ObjectStoreIterableDataset])
def test_without_automatic_batching_views_come_one_by_one(prefix: str, kind: Any, num_workers: int) -> None:
    dataset = kind(prefix)
    context = "fork" if num_workers else None
    loader = DataLoader(dataset, batch_size=None, num_workers=num_workers, multiprocessing_context=context)
    views = list(loader)
    assert all(type(view) is BytesView and view.flags.writeable for view in views)
    assert {view.uri: bytes(view) for view in views} == {
        f"{prefix}{index:02}": content(size) for index, size in enumerate([*SIZES, 0])
    }


def test_tensors_that_a_transform_makes_are_stacked(prefix: str) -> None:
    def first_bytes(view: BytesView) -> torch.Tensor:
        return torch.frombuffer(view, dtype=torch.uint8)[:1].clone()

    dataset = ObjectStoreMapDataset(prefix, pattern="0*", transform=first_bytes)
    for loader in (DataLoader(dataset, batch_size=5), worker_batches(dataset, 5)):
        batches = list(loader)
        assert [batch.shape for batch in batches] == [(5, 1), (5, 1)]
        assert torch.cat(batches).ravel().tolist() == [content(size)[0] for size in SIZES[:10]]


def test_a_batch_of_views_survives_a_plain_pickle_and_is_a_list(prefix: str) -> None:
    (batch,) = DataLoader(ObjectStoreMapDataset(prefix, pattern="0*"), batch_size=10)
    assert isinstance(batch, list)
    again = pickle.loads(pickle.dumps(batch))
    assert type(again) is ViewBatch
    assert again == batch
    assert [view.uri for view in again] == [view.uri for view in batch]


def test_a_view_is_a_tensors_memory_without_a_warning(place: Place) -> None:
    place.put("k", bytes(range(64)))
    view = s3dlio.get(f"{place.root}k")
    assert address(view) % 64 == 0
    tensor = torch.frombuffer(view, dtype=torch.int64)
    assert tensor.data_ptr() == address(view)
    assert tensor.tolist() == torch.arange(64, dtype=torch.uint8).view(torch.int64).tolist()


def test_writing_to_a_tensor_changes_no_other_view(place: Place) -> None:
    place.put("k", bytes(64))
    ours, theirs = s3dlio.get(f"{place.root}k"), s3dlio.get(f"{place.root}k")
    torch.frombuffer(ours, dtype=torch.float32).fill_(1.5)
    assert theirs == bytes(64)
    assert ours != bytes(64)
    assert place.get("k") == bytes(64) == s3dlio.get(f"{place.root}k")


def test_a_tensor_keeps_the_memory_of_its_view(place: Place) -> None:
    """The block of a view that is gone is used again, but not while a tensor lives in it."""
    place.put("k", b"\x01" * 8192)
    place.put("other", b"\x02" * 8192)
    tensor = torch.frombuffer(s3dlio.get(f"{place.root}k"), dtype=torch.uint8)
    for _ in range(20):
        s3dlio.get(f"{place.root}other")
    assert tensor.eq(1).all()


def test_offsets_and_item_types_that_do_not_fit_are_torchs_own_errors(place: Place) -> None:
    place.put("k", bytes(range(64)))
    view = s3dlio.get(f"{place.root}k")
    assert torch.frombuffer(view[8:], dtype=torch.uint8)[0] == 8
    assert torch.frombuffer(view, dtype=torch.uint8, offset=6)[0] == 6
    with pytest.raises(ValueError, match="multiple of element size"):
        torch.frombuffer(view, dtype=torch.complex128, offset=6)
    with pytest.raises(ValueError, match="offset"):
        torch.frombuffer(view, dtype=torch.uint8, offset=64)
    place.put("empty", b"")
    with pytest.raises(ValueError, match="length"):
        torch.frombuffer(s3dlio.get(f"{place.root}empty"), dtype=torch.uint8)
    assert torch.from_numpy(s3dlio.get(f"{place.root}empty").view("f4")).numel() == 0


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "make", [lambda view: np.full_like(view, 0.5, dtype=np.float32), lambda view: view.argsort(), np.asanyarray]
)
def test_arrays_made_of_a_view_arrive_as_they_are(tmp_path: Path, num_workers: int, make: Callable[[Any], Any]) -> None:
    """numpy gives some of them the view's class, which must not make bytes of their numbers."""
    data = np.random.default_rng(1).integers(0, 256, 100, np.uint8)
    s3dlio.put_bytes(f"file://{tmp_path}/k", data)
    dataset = s3dlio.ObjectStoreMapDataset(f"file://{tmp_path}/", transform=make)
    context = "fork" if num_workers else None
    (batch,) = DataLoader(dataset, batch_size=2, num_workers=num_workers, multiprocessing_context=context)
    assert np.array_equal(np.asarray(batch[0]), np.asarray(make(data)))
    assert np.array_equal(pickle.loads(pickle.dumps(make(s3dlio.get(f"file://{tmp_path}/k")))), make(data))


def test_tensors_of_a_batch_share_its_memory(prefix: str) -> None:
    for loader in (
        DataLoader(ObjectStoreMapDataset(prefix), batch_size=25),
        worker_batches(ObjectStoreMapDataset(prefix), 25),
    ):
        (batch,) = loader
        tensors = batch.tensors()
        assert [tensor.numpy().tobytes() for tensor in tensors] == [bytes(view) for view in batch]
        tensors[0].fill_(7)
        assert bytes(batch[0]) == bytes([7]) * SIZES[0]


def test_a_pinned_batch_is_one_pinned_piece_and_its_views_stay_views(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without an accelerator, with ordinary memory in the place of pinned memory."""
    batches = list(DataLoader(ObjectStoreMapDataset(prefix), batch_size=25))
    (batch,) = batches
    pin: Any = pin_memory
    assert pin(batches)[0] is batch or torch.accelerator.is_available()

    pieces: list[torch.Tensor] = []

    def piece(length: int) -> torch.Tensor:
        pieces.append(torch.empty(length, dtype=torch.uint8))
        return pieces[-1]

    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr("s3dlio.torch.collate._pinned_memory", piece)
    pinned = pin({"data": batch, "name": ["x"]})["data"]
    assert [(bytes(view), view.uri) for view in pinned] == [(bytes(view), view.uri) for view in batch]
    tensors = pinned.tensors()
    assert [tensor.numpy().tobytes() for tensor in tensors] == [bytes(view) for view in batch]
    (whole,) = pieces
    assert {tensor.untyped_storage().data_ptr() for tensor in tensors} == {whole.untyped_storage().data_ptr()}
    assert all(tensor.data_ptr() % 64 == whole.data_ptr() % 64 for tensor in tensors if len(tensor))
    assert [bytes(view) for view in pickle.loads(pickle.dumps(pinned))] == [bytes(view) for view in batch]


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator:UserWarning")
def test_a_data_loader_pins_batches_of_views_where_there_is_a_device_for_it(prefix: str) -> None:
    for batch in DataLoader(ObjectStoreMapDataset(prefix), batch_size=8, num_workers=1, pin_memory=True):
        for view, tensor in zip(batch, batch.tensors(), strict=True):
            assert tensor.is_pinned() == (torch.cuda.is_available() and len(tensor) > 0)
            assert tensor.numpy().tobytes() == bytes(view)
