"""Iterators after a failure: an epoch never ends early without a word, in no process and in no thread."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.utils.data import DataLoader

import s3dlio
from s3dlio import ObjectStoreIterableDataset, ObjectStoreMapDataset, PyDataset, bulk
from s3dlio.data.iterators import PyObjectDataLoaderSyncIter
from s3dlio.data.options import LoaderOptions
from s3dlio.data.stats import Stats
from s3dlio.data.turns import Lasting
from s3dlio.torch import ParquetDataset, loader

from .conftest import LocalPlace, Place
from .objects import fill, number
from .parquet_files import file_of, table

pytestmark = pytest.mark.filterwarnings("ignore:the file system of direct")


def objects_of(place: Place) -> Iterable[Any]:
    return ObjectStoreIterableDataset(fill(place.root + "objects/", 60), transform=number, prefetch=4)


def row_groups_of(place: Place, **options: Any) -> Iterable[Any]:
    for name in range(3):
        place.put(f"train/{name}.parquet", file_of(table(name)))
    return s3dlio.create_async_loader(place.root + "train/", {"format": "parquet", "prefetch": 3, **options})


def batches_of(place: Place) -> Iterable[Any]:
    row_groups_of(place)
    return ParquetDataset(place.root + "train/", columns=["label"], prefetch=3)


def said_in_a_child(items: Iterator[Any]) -> list[str]:
    """What two calls of next() raise in a forked child, which is killed when it hangs."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 and later warn of a fork beside threads
        pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        try:
            os.write(writer, f"{error_of(items)}\n{error_of(items)}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    return said.splitlines()


def error_of(items: Iterator[Any]) -> str:
    try:
        next(items)
    except BaseException as exc:
        return repr(exc)
    return "an item"


@pytest.mark.parametrize("make", [objects_of, row_groups_of, batches_of])
def test_an_inherited_iterator_says_so_in_the_child(place: Place, make: Callable[[Place], Iterable[Any]]) -> None:
    whole = make(place)
    items = iter(whole)
    next(items)
    said = said_in_a_child(items)
    assert ["belongs to the process that made it" in line for line in said] == [True, True], said
    assert 1 + sum(1 for _ in items) == len(list(make(place)))  # the parent goes on


def said_after(items: Iterator[Any], num_calls: int) -> list[str]:
    """What `num_calls` calls of next() give: "item", or the name of the error."""
    said = []
    for _ in range(num_calls):
        try:
            next(items)
            said.append("item")
        except Exception as exc:
            said.append(type(exc).__name__)
    return said


def damage(place: Place, name: int) -> None:
    """Row groups of this file fail, now that its footer is known."""
    place.put(f"train/{name}.parquet", file_of(table(name + 5)))


@pytest.mark.parametrize("decode", ["raw", "batch"])
@pytest.mark.parametrize("prefetch", [1, 3, 32])
def test_a_parquet_loader_goes_on_after_a_failed_row_group(local_place: LocalPlace, prefetch: int, decode: str) -> None:
    loader = row_groups_of(local_place, prefetch=prefetch, decode=decode)
    damage(local_place, 1)
    expected = ["item"] * 4 + ["ChangedError"] * 4 + ["item"] * 4 + ["StopIteration"] * 2
    assert said_after(iter(loader), 14) == expected


def test_a_state_after_an_error_begins_with_what_has_failed(local_place: LocalPlace) -> None:
    loader: Any = row_groups_of(local_place)
    damage(local_place, 1)
    items = iter(loader)
    assert said_after(items, 5)[-1] == "ChangedError"
    assert loader.state_dict()["position"] == 4
    assert said_after(items, 4)[-1] == "item"
    assert loader.state_dict()["position"] == 9


@pytest.mark.parametrize("num_workers", [None, 0, 1])
def test_a_stream_that_has_failed_does_not_end(local_place: LocalPlace, num_workers: int | None) -> None:
    batches: Any = batches_of(local_place)
    damage(local_place, 1)
    objects: Any = objects_of(local_place)
    s3dlio.delete(objects.uris[4])
    fork = {"num_workers": num_workers, "multiprocessing_context": "fork", "timeout": 60} if num_workers else {}
    for stream, error in ((batches, "ChangedError"), (objects, "NotFoundError")):
        items = iter(stream if num_workers is None else DataLoader(stream, batch_size=None, **fork))
        assert said_after(items, 7) == ["item"] * 4 + [error] * 3
        if num_workers is None:
            assert stream.state_dict()["position"] == 4


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_that_has_failed_does_not_end(local_place: LocalPlace, num_workers: int) -> None:
    prefix = fill(local_place.root + "objects/", 12)
    streams = [ObjectStoreIterableDataset(prefix, batch_size=2), ObjectStoreMapDataset(prefix)]
    s3dlio.delete(streams[0].uris[4])
    fork = {"num_workers": num_workers, "multiprocessing_context": "fork", "timeout": 60} if num_workers else {}
    for dataset in streams:
        batches = loader(dataset, 2, **fork)
        assert said_after(iter(batches), 5) == ["item"] * 2 + ["NotFoundError"] * 3
        assert batches.state_dict()["position"] == 4


def test_running_out_of_memory_is_not_skipped(local_place: LocalPlace) -> None:
    def transform(view: Any) -> int:
        if number(view) == 2:
            raise MemoryError("too large")
        return number(view)

    dataset = ObjectStoreIterableDataset(fill(local_place.root + "objects/", 5), transform=transform, on_error="skip")
    with pytest.raises(MemoryError):
        list(dataset)


@pytest.mark.parametrize("kind", [ObjectStoreMapDataset, ObjectStoreIterableDataset])
def test_a_transform_cannot_end_the_epoch(local_place: LocalPlace, kind: Callable[..., Any]) -> None:
    def transform(view: Any) -> int:
        if number(view) == 2:
            raise StopIteration
        return number(view)

    dataset = kind(fill(local_place.root + "objects/", 5), transform=transform)
    with pytest.raises(RuntimeError, match="the transform raised StopIteration for"):
        list(DataLoader(dataset, batch_size=2))


@pytest.mark.parametrize("how", ["next", "collect_batch", "stream"])
def test_a_second_thread_is_told_so_and_harms_nothing(local_place: LocalPlace, how: str) -> None:
    names = PyDataset(fill(local_place.root + "objects/", 6)).keys()
    entered, leave = threading.Event(), threading.Event()

    def slow() -> Iterator[str]:
        for place, uri in enumerate(names):
            if place == 3:
                entered.set()
                assert leave.wait(30)
            yield uri

    items: Any
    if how == "stream":
        items = Lasting(bulk.arrivals(slow(), window=1))
    else:
        items = PyObjectDataLoaderSyncIter(slow(), LoaderOptions.of({"prefetch": 1}), Stats(), in_order=True)
    take = (lambda: items.collect_batch(6)) if how == "collect_batch" else lambda: list(items)
    with ThreadPoolExecutor(1) as threads:
        taken = threads.submit(take)
        assert entered.wait(30)
        try:
            with pytest.raises(s3dlio.S3dlioError, match="one thread at a time"):
                items.collect_batch(1) if how == "collect_batch" else next(items)
        finally:
            leave.set()
        assert len(taken.result(30)) == 6
