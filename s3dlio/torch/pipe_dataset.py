"""`PipeDataset`: a graph of DataPipes as a stream that a StatefulDataLoader resumes exactly.

A DataLoader wraps a pipe so that its state is not seen, and a StatefulDataLoader then reads again, from the beginning,
what it has to leave out; torchdata 0.11 counts these items twice, so that a run that is resumed again loses some.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, IterDataPipe
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
from torch.utils.data.graph import traverse_dps
from torch.utils.data.graph_settings import apply_random_seed, apply_sharding, apply_shuffle_settings, get_all_graph_pipes

from ..data.bad_samples import Skipped
from ..data.epochs import checked_epoch
from ..data.order import seed_of_epoch
from ..data.state import require_dict
from ..data.turns import Lasting
from .bad_samples import Skipping
from .cursor import Cursor
from .ranks import current_ranks, current_worker
from .shared_pipe import SharedPipe

__all__ = ["PipeDataset"]

VERSION = 1
_SHARING = ("num_ranks", "worker", "num_workers")


class PipeDataset(IterableDataset[Any]):
    """The items of `pipe`, shared between ranks and workers, with an epoch and an exact state.

    `shuffle` is that of a DataLoader: None leaves the pipes as they were made. Whatever draws at random in the graph by
    PyTorch's protocol (`shuffle`, `sample`, our own pipes) is seeded by (`seed`, epoch); call `set_epoch` before each epoch.

    `state_dict()` is the share of this process: the number of items that it gave in this epoch. A pipe of
    `s3dlio.torch.datapipes` at the end of the graph goes on there without reading again; of another graph the items before
    are made again and left out, so what it does has to be a function of its input and the seed.

    >>> pipe = ReadObjects("s3://bucket/train/").map(decode).shuffle()
    >>> loader = StatefulDataLoader(PipeDataset(pipe, seed=1), batch_size=32, num_workers=4)
    """

    def __init__(
        self,
        pipe: IterDataPipe[Any],
        *,
        shuffle: bool | None = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        if not isinstance(pipe, IterDataPipe):
            raise TypeError(f"expected an IterDataPipe, not {type(pipe).__name__}")
        current_ranks(rank, world_size)
        self.pipe = apply_shuffle_settings(pipe, shuffle)
        self._told_ranks = (rank, world_size)
        self._ranks_of_parent: tuple[int, int] | None = None
        self._cursor = Cursor(seed)
        self._running: _Place | None = None
        self._restored: dict[str, Any] | None = None

    @property
    def seed(self) -> int:
        """The seed of the order; a restored state brings its own."""
        return self._cursor.seed

    @property
    def epoch(self) -> int:
        """The epoch that iterates next."""
        return self._cursor.epoch if self._restored is None else int(self._restored["epoch"])

    @property
    def num_skipped(self) -> int:
        """Bad samples that the `on_error` of the pipes let pass until now, in all workers and epochs."""
        return sum(pipe.num_skipped for pipe in self._skipping())

    @property
    def skipped(self) -> list[Skipped]:
        """Those samples, with their errors: the first ones."""
        return [skipped for pipe in self._skipping() for skipped in pipe.skipped]

    def _skipping(self) -> list[Skipping]:
        return [pipe for pipe in get_all_graph_pipes(traverse_dps(self.pipe)) if isinstance(pipe, Skipping)]

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch that iterates next. Reaches workers that outlive an epoch, too."""
        epoch = checked_epoch(epoch)
        if epoch != self.epoch:
            self._restored = None
        self._cursor.set_epoch(epoch)
        self._running = None

    def __iter__(self) -> Iterator[Any]:
        state, self._restored = self._restored, None
        epoch = self._cursor.take()[0] if state is None else state["epoch"]
        self._share(epoch)
        self._running = place = _Place(epoch, 0 if state is None else state["taken"])
        of_pipe = {} if state is None else state.get("pipe") or {}
        if isinstance(self.pipe, SharedPipe):
            self.pipe.load_state_dict(of_pipe)
        return Lasting(self._items(place, 0 if of_pipe else place.num_taken))

    def _share(self, epoch: int) -> None:
        """Tell the pipes what PyTorch's DataLoader tells them."""
        num_ranks, rank, num_workers, worker = self._where()
        apply_sharding(self.pipe, num_ranks, rank, SHARDING_PRIORITIES.DISTRIBUTED)
        apply_sharding(self.pipe, num_workers, worker, SHARDING_PRIORITIES.MULTIPROCESSING)
        apply_random_seed(self.pipe, torch.Generator().manual_seed(seed_of_epoch(self.seed, epoch) >> 1))

    def _where(self) -> tuple[int, int, int, int]:
        worker = current_worker()
        told = self._ranks_of_parent if worker and self._ranks_of_parent else self._told_ranks
        rank, num_ranks = current_ranks(*told)
        number, num_workers = worker or (0, 1)
        return num_ranks, rank, num_workers, number

    def _items(self, place: _Place, num_again: int) -> Generator[Any]:
        """The items that are left; the first `num_again` of the pipe are made again and left out."""
        for item in itertools.islice(self.pipe, num_again, None):
            place.num_taken += 1
            yield item

    def state_dict(self) -> dict[str, Any]:
        """Where this process is, in plain numbers."""
        num_ranks, _, num_workers, worker = self._where()
        running, restored = self._running, self._restored
        if restored is not None:
            return restored
        epoch, taken = (self.epoch, 0) if running is None else (running.epoch, running.num_taken)
        return {
            "version": VERSION,
            "seed": self.seed,
            "epoch": epoch,
            "taken": taken,
            **dict(zip(_SHARING, (num_ranks, worker, num_workers), strict=True)),
            "pipe": self.pipe.state_dict() if taken and isinstance(self.pipe, SharedPipe) else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on where `state` was taken. Raises ValueError when it was shared in another way."""
        require_dict(state)
        here = self.state_dict()
        if not here.keys() - {"pipe"} <= state.keys() or state["version"] != VERSION:
            raise ValueError("this is no state of a PipeDataset of this version")
        for name in _SHARING:
            if state[name] != here[name]:
                raise ValueError(f"the state was taken with {name}={state[name]}, and here it is {here[name]}")
        self._cursor.restored_elsewhere(state["epoch"], state["seed"])
        self._restored, self._running = dict(state), None

    def __getstate__(self) -> dict[str, Any]:
        """A spawned worker has no process group: it learns the rank that this process has now."""
        return {**self.__dict__, "_ranks_of_parent": current_ranks(*self._told_ranks), "_running": None}


class _Place:
    """How far an iterator of an epoch has come."""

    def __init__(self, epoch: int, num_taken: int) -> None:
        self.epoch = epoch
        self.num_taken = num_taken
