"""Shared memory that goes back to the worker which sent it, and to nobody while anyone may look at it."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch

from s3dlio.torch import arenas
from s3dlio.torch.collate import ViewBatch
from s3dlio.view import copy_of

NUM_BYTES = 100_000
WAIT = 60  # seconds


def content(number: int) -> bytes:
    return bytes([number % 251]) * NUM_BYTES


def _send(orders: Connection) -> None:
    """A worker: for each number a batch of two views that hold it, and what it keeps for the next one."""
    while (number := orders.recv()) is not None:
        data = content(number)
        orders.send(ViewBatch([copy_of(data, f"k{number}"), copy_of(data)]))
        orders.send(kept())


def kept() -> list[int]:
    return [arena.memory.size for arena in arenas._arenas._kept]


class Worker:
    def __init__(self, orders: Connection) -> None:
        self._orders = orders
        self.kept: list[int] = []

    def batch(self, number: int) -> ViewBatch:
        self._orders.send(number)
        assert self._orders.poll(WAIT)
        batch: ViewBatch = self._orders.recv()
        assert self._orders.poll(WAIT)
        self.kept = self._orders.recv()
        return batch


@pytest.fixture(params=["fork", "spawn"])
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    context: Any = multiprocessing.get_context(request.param)
    ours, theirs = context.Pipe()
    process = context.Process(target=_send, args=(theirs,), daemon=True)
    process.start()
    yield Worker(ours)
    ours.send(None)
    process.join(WAIT)
    assert process.exitcode == 0


def test_one_arena_serves_all_batches_that_are_dropped_in_time(worker: Worker) -> None:
    for number in range(20):
        batch = worker.batch(number)
        assert [bytes(view) for view in batch] == [content(number)] * 2
        assert [view.uri for view in batch] == [f"k{number}", ""]
        del batch
    assert len(worker.kept) == 1


def test_what_is_held_is_never_written_to(worker: Worker) -> None:
    held = [worker.batch(number)[number % 2] for number in range(20)]
    assert [bytes(view) for view in held] == [content(number) for number in range(20)]
    assert len(worker.kept) == 20


@pytest.mark.parametrize("shape", ["slice", "array", "tensor", "memoryview"])
def test_whatever_shares_the_memory_holds_it(worker: Worker, shape: str) -> None:
    batch = worker.batch(1)
    part: Any = {
        "slice": lambda view: view[10:20],
        "array": lambda view: np.asarray(view)[10:20],
        "tensor": lambda view: torch.from_numpy(np.asarray(view))[10:20],
        "memoryview": lambda view: memoryview(view)[10:20],
    }[shape](batch[1])
    del batch
    for number in range(2, 6):
        worker.batch(number)
    assert bytes(part) == content(1)[:10]
    del part
    worker.batch(6)
    assert len(worker.kept) == 2


def test_a_forked_child_may_go_on_looking_at_what_its_parent_lets_go_of(worker: Worker) -> None:
    batch = worker.batch(1)
    go, told = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.read(go[0], 1)
        os.write(told[1], bytes(batch[0])[:1] + bytes(batch[1])[-1:])
        os._exit(0)
    del batch
    for number in range(2, 6):
        worker.batch(number)
    os.write(go[1], b"x")
    assert os.read(told[0], 2) == bytes([1, 1])
    assert os.waitpid(child, 0)[1] == 0
    for descriptor in (*go, *told):
        os.close(descriptor)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "KEPT_BYTES", 1024 * 1024)
    own = arenas._Arenas()
    held = [own.take(200_000) for _ in range(20)]
    assert sum(arena.memory.size for arena in own._kept) <= 1024 * 1024
    assert {id(arena.memory) for arena in own._kept} <= {id(arena.memory) for arena in held}
    larger = own.take(2 * 1024 * 1024)
    assert larger.memory.size > 2 * 1024 * 1024
    assert larger.memory[-1] == arenas.IN_USE
    assert all(arena is not larger for arena in own._kept)


def test_free_ones_of_other_sizes_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "KEPT_BYTES", 1024 * 1024)
    own = arenas._Arenas()
    first, second = own.take(300_000), own.take(400_000)
    first.memory[-1] = arenas.FREE
    third = own.take(500_000)
    assert [arena.memory.size for arena in own._kept] == [second.memory.size, third.memory.size]
    third.memory[-1] = arenas.FREE
    assert own.take(500_000).storage is third.storage


def test_another_sharing_strategy_takes_other_memory() -> None:
    """PyTorch moves what it shares by descriptors before it sends it by name: who wrote to the old place would crash."""
    context: Any = multiprocessing.get_context("fork")
    process = context.Process(target=_change_strategies)
    process.start()
    process.join(WAIT)
    assert process.exitcode == 0


def _change_strategies() -> None:
    for number, strategy in enumerate(["file_descriptor", "file_system", "file_descriptor"]):
        torch.multiprocessing.set_sharing_strategy(strategy)
        for _ in range(2):
            pieces = ForkingPickler.dumps(ViewBatch([copy_of(content(number))]))
            batch = ForkingPickler.loads(pieces)
            assert bytes(batch[0]) == content(number)
            del batch
        assert len(kept()) == 1


def test_batches_of_any_size_may_be_arguments_of_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "KEPT_BYTES", NUM_BYTES)
    context: Any = multiprocessing.get_context("spawn")
    process = context.Process(target=_expect, args=([ViewBatch([copy_of(content(number))]) for number in range(4)],))
    process.start()
    process.join(WAIT)
    assert process.exitcode == 0


def _expect(batches: list[ViewBatch]) -> None:
    assert [bytes(batch[0]) for batch in batches] == [content(number) for number in range(4)]


def test_a_batch_travels_where_shared_memory_is_short(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: int) -> Any:
        raise RuntimeError("unable to allocate shared memory(shm)")

    monkeypatch.setattr(arenas, "_arenas", arenas._Arenas())
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", full)
    batch = ForkingPickler.loads(ForkingPickler.dumps(ViewBatch([copy_of(content(1), "k")])))
    assert bytes(batch[0]) == content(1)
    assert batch[0].uri == "k"
    assert "no shared memory" in caplog.text


def test_of_little_shared_memory_little_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "_num_bytes_of_all", lambda: 64 * 1024 * 1024)
    own = arenas._Arenas()
    for _ in range(10):
        own.take(1024 * 1024)
    assert sum(arena.memory.size for arena in own._kept) <= 4 * 1024 * 1024


RECEIVED_WHILE_FORKING = """
import os
due, views = [], []
os.register_at_fork(before=lambda: views.extend(action() for action in due))  # first of all, so it runs last
import torch
from s3dlio.torch import arenas
arena = arenas.take(100_000)
due.append(lambda: arenas.received(arena.storage))
child = os.fork()
views.clear()
if not child:
    os._exit(int(arena.memory[-1] != arenas.IN_USE))
status = os.waitpid(child, 0)[1]
raise SystemExit(int(status != 0 or arena.memory[-1] != arenas.IN_USE))
"""


def test_what_comes_while_the_process_forks_is_let_go_of_by_neither() -> None:
    """Another thread may receive it when the hooks before the fork have run; then parent and child look at it."""
    subprocess.run([sys.executable, "-c", RECEIVED_WHILE_FORKING], check=True, timeout=WAIT)
