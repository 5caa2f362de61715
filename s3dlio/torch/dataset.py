"""Datasets of whole objects: by index (`ObjectStoreMapDataset`) and as a stream (`ObjectStoreIterableDataset`).

Both hold names and options only, so that they pickle for spawned workers and are shared by forked ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from .. import bulk, objects
from ..data.bad_samples import Filler, OnError, Skipped, checked_on_error
from ..data.keys import KeyList
from ..data.order import Deal, Order, Tail
from ..view import BytesView
from . import collate as _collate  # noqa: F401 - teaches PyTorch what a batch of views is
from .bad_samples import Board, filled
from .cursor import Cursor
from .ranks import current_ranks, current_worker
from .state import checked_state, state_of

__all__ = ["ObjectStoreIterableDataset", "ObjectStoreMapDataset", "tail_of"]

Transform = Callable[[BytesView], Any]


class ObjectStoreMapDataset(Dataset[Any]):
    """The objects under a prefix, by index, in the order of their names.

    `uri` is listed once, here: markers are left out and an empty result is a NotFoundError. `pattern` is a glob (or
    `re:...`) on the key below `uri`. An item is a `BytesView` (with its `.uri`), or `transform(view)`. A DataLoader asks
    for a whole batch at once, and its objects are then read in parallel, `max_in_flight` at most. Batches of views
    collate to a list without a collate function of your own.

    `on_error` says what happens to a sample that cannot be read or transformed, when a batch is read at once: `"raise"`,
    `"skip"` (a copy of a good sample of the batch stands in its place), or a function of (uri, error) that says True for
    skip. `num_skipped` and `skipped` tell of them, from all workers; a batch without a good sample raises.

    >>> dataset = ObjectStoreMapDataset("s3://bucket/train/", pattern="*.npz")
    >>> loader = DataLoader(dataset, batch_size=32, num_workers=4, shuffle=True)
    """

    def __init__(
        self,
        uri: str,
        pattern: str | None = None,
        transform: Transform | None = None,
        *,
        max_in_flight: int = bulk.DEFAULT_WORKERS,
        on_error: OnError = "raise",
    ) -> None:
        self._keep(KeyList.from_listing(uri, pattern), transform, max_in_flight, on_error)

    @classmethod
    def from_prefix(cls, uri: str, **options: Any) -> ObjectStoreMapDataset:
        """The same as the constructor."""
        return cls(uri, **options)

    @classmethod
    def from_uris(
        cls,
        uris: Iterable[str],
        transform: Transform | None = None,
        *,
        max_in_flight: int = bulk.DEFAULT_WORKERS,
        on_error: OnError = "raise",
    ) -> ObjectStoreMapDataset:
        """A dataset of these objects, in this order, without listing anything."""
        dataset = cls.__new__(cls)
        dataset._keep(_keys_of(uris), transform, max_in_flight, on_error)
        return dataset

    def _keep(self, keys: KeyList, transform: Transform | None, max_in_flight: int, on_error: OnError) -> None:
        self.uris = keys
        self._transform = transform
        self._max_in_flight = max_in_flight
        self._on_error = checked_on_error(on_error)
        self._board = None if on_error == "raise" else Board()

    @property
    def num_skipped(self) -> int:
        """Samples that were skipped until now, by all workers in all epochs."""
        return 0 if self._board is None else self._board.num_skipped

    @property
    def skipped(self) -> list[Skipped]:
        """Them, with their errors and what was repeated instead: the first ones of each worker."""
        return [] if self._board is None else self._board.skipped()

    def __len__(self) -> int:
        return len(self.uris)

    def __getitem__(self, index: int) -> Any:
        current_worker()
        return _transformed(objects.get(self.uris[index]), self._transform)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        current_worker()
        names = [self.uris[index] for index in indices]
        if self._board is not None:
            arrivals = bulk.arrivals(names, window=self._max_in_flight)
            return list(filled(arrivals, self._transformed, Filler(self._on_error, self._board.add), None))
        return [self._transformed(view) for view in bulk.get_many(names, self._max_in_flight)]

    def _transformed(self, view: BytesView) -> Any:
        return _transformed(view, self._transform)

    def __repr__(self) -> str:
        return f"ObjectStoreMapDataset({self.uris!r})"


class ObjectStoreIterableDataset(IterableDataset[Any]):
    """The objects under a prefix as a stream: each once per epoch, over all ranks and DataLoader workers.

    The order is a pure function of `seed` and the epoch (with `shuffle`; else that of the names); call `set_epoch` before
    each epoch as for a DistributedSampler, or let `s3dlio.torch.loader` do it. Told the loader's `batch_size`, whole
    batches are dealt and the global order is the same for any number of workers; without it each sample still comes
    once, in an order that depends on the workers.

    The last samples, fewer than a batch for every rank, are dealt as evenly as possible; `pad=True` repeats samples until
    all ranks have the same number, `drop_last=True` leaves them out. Either keeps the ranks of a collective in step.

    `on_error` is that of ObjectStoreMapDataset; without `batch_size` the batch of a bad sample is the whole stream.

    `prefetch` objects at most are in flight or ready. Rank and world size are those of torch.distributed, or of the
    launcher's RANK and WORLD_SIZE, unless told.

    `state_dict()` is (version, seed, epoch, position); it restores exactly, also with another number of ranks or
    workers. With workers the main process must count what was delivered: `s3dlio.torch.loader` does.
    """

    def __init__(
        self,
        uri: str,
        pattern: str | None = None,
        transform: Transform | None = None,
        *,
        shuffle: bool = False,
        seed: int = 0,
        batch_size: int | None = None,
        drop_last: bool = False,
        pad: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        prefetch: int = 32,
        on_error: OnError = "raise",
    ) -> None:
        self._keep(
            KeyList.from_listing(uri, pattern),
            transform,
            shuffle=shuffle,
            seed=seed,
            batch_size=batch_size,
            tail=tail_of(drop_last=drop_last, pad=pad),
            rank=rank,
            world_size=world_size,
            prefetch=prefetch,
            on_error=on_error,
        )

    @classmethod
    def from_prefix(cls, uri: str, **options: Any) -> ObjectStoreIterableDataset:
        """The same as the constructor."""
        return cls(uri, **options)

    def _keep(
        self,
        keys: KeyList,
        transform: Transform | None,
        *,
        shuffle: bool,
        seed: int,
        batch_size: int | None,
        tail: Tail,
        rank: int | None,
        world_size: int | None,
        prefetch: int,
        on_error: OnError,
    ) -> None:
        if prefetch < 1:
            raise ValueError(f"prefetch={prefetch}: at least one object must be in flight")
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: a batch holds at least one sample")
        self.uris = keys
        self.batch_size = batch_size
        self._transform = transform
        self.shuffle = shuffle
        self._tail: Tail = tail
        self._told_ranks = (rank, world_size)
        self._ranks_of_parent: tuple[int, int] | None = None
        current_ranks(rank, world_size)  # contradictions are errors here, not in a worker
        self._prefetch = prefetch
        self._on_error = checked_on_error(on_error)
        self._board = None if on_error == "raise" else Board()
        self._cursor = Cursor(seed)
        self._running: _Progress | None = None

    @property
    def num_skipped(self) -> int:
        """Samples that were skipped until now, by all workers in all epochs."""
        return 0 if self._board is None else self._board.num_skipped

    @property
    def skipped(self) -> list[Skipped]:
        """Them, with their errors and what was repeated instead: the first ones of each worker."""
        return [] if self._board is None else self._board.skipped()

    @property
    def seed(self) -> int:
        """The seed of the order; a restored state brings its own."""
        return self._cursor.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._cursor.seed = seed

    @property
    def epoch(self) -> int:
        """The epoch that iterates next."""
        return self._cursor.epoch

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch that iterates next: its number gives its order. Reaches workers that outlive an epoch, too."""
        if epoch < 0:
            raise ValueError(f"epoch={epoch} must not be negative")
        self._cursor.set_epoch(epoch)
        self._running = None

    def start_at(self, epoch: int, position: int) -> None:
        """Let the next iteration begin at the global `position` of `epoch`."""
        self.deal(position)
        self._cursor.set(epoch, position)
        self._running = None

    def deal(self, start: int = 0) -> Deal:
        """How the epoch's positions from `start` on are dealt to this rank."""
        told = self._told_ranks
        if self._ranks_of_parent is not None and current_worker() is not None:
            told = self._ranks_of_parent
        rank, num_ranks = current_ranks(*told)
        return Deal(len(self.uris), start, self.batch_size or 1, num_ranks, rank, tail=self._tail)

    def __bool__(self) -> bool:
        """There is at least one object, or there would be no dataset."""
        return True

    def __len__(self) -> int:
        """Samples of this rank per epoch; known only when `batch_size` is told, as workers else have tails of their own."""
        if self.batch_size is None:
            raise TypeError("the number of batches is known only when the dataset is told batch_size")
        return self.deal().length

    def __iter__(self) -> Iterator[Any]:
        worker, num_workers = current_worker() or (0, 1)
        epoch, start, was_taken = self._cursor.take()
        deal = self.deal(start).for_worker(worker, num_workers)
        self._running = progress = _Progress(epoch, deal)
        order = Order(len(self.uris), self.shuffle, self.seed, epoch)
        return _refusal(epoch, start) if was_taken else self._samples(order, progress)

    def _samples(self, order: Order, progress: _Progress) -> Iterator[Any]:
        indices = (index for block in progress.deal.blocks() for index in order.samples(block).tolist())
        arrivals = bulk.arrivals(self.uris.pick(indices), window=self._prefetch)
        filler = Filler(self._on_error, self._board.add if self._board else None)
        for sample in filled(arrivals, self._transformed, filler, self.batch_size):
            progress.num_samples += 1
            yield sample

    def _transformed(self, view: BytesView) -> Any:
        return _transformed(view, self._transform)

    def state_dict(self) -> dict[str, int]:
        """(version, seed, shuffle, epoch, global position, number of samples), taken at equal steps on all ranks.

        Counts the samples that were handed out in this process, so it is exact without workers. Raises RuntimeError within
        a batch of several ranks, where there is no one position.
        """
        if current_worker() is not None:
            raise RuntimeError("a DataLoader worker sees a part of the job only: take the state of s3dlio.torch.loader()")
        running = self._running
        epoch, position = (self.epoch, self._cursor.start) if running is None else (running.epoch, running.position())
        num_samples = len(self.uris)
        return state_of(seed=self.seed, shuffle=self.shuffle, epoch=epoch, position=position, num_samples=num_samples)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration go on where `state` was taken. Raises ValueError when it belongs to other data."""
        self.start_at(*checked_state(state, shuffle=self.shuffle, num_samples=len(self.uris)))
        self.seed = state["seed"]

    def __copy__(self) -> ObjectStoreIterableDataset:
        """The same stream with an epoch and a position of its own; the names are shared."""
        twin = type(self).__new__(type(self))
        board = None if self._board is None else Board()
        twin.__dict__.update(self.__dict__, _cursor=Cursor(self.seed), _running=None, _board=board)
        twin._cursor.set(self.epoch, self._cursor.start)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """A spawned worker has no process group: it learns the rank that this process has now. Nobody else goes by it."""
        return {**self.__dict__, "_ranks_of_parent": current_ranks(*self._told_ranks), "_running": None}


def _refusal(epoch: int, start: int) -> Iterator[Any]:
    """Fails at its first item: an error of `__iter__` itself would end a worker that outlives an epoch without a word."""
    raise RuntimeError(
        f"this dataset was restored at position {start} of epoch {epoch} and was iterated since: call set_epoch() before "
        "each epoch, or use s3dlio.torch.loader(), which does"
    )
    yield


class _Progress:
    """How far an iterator of an epoch has come."""

    def __init__(self, epoch: int, deal: Deal) -> None:
        self.epoch = epoch
        self.deal = deal
        self.num_samples = 0

    def position(self) -> int:
        num_steps, rest = divmod(self.num_samples, self.deal.batch_size)
        if self.num_samples == self.deal.length:
            return self.deal.position_after(self.deal.num_steps)
        if rest and self.deal.num_ranks > 1:
            raise RuntimeError("take the state between batches: within one, several ranks have no common position")
        return self.deal.position_after(num_steps) + rest


def tail_of(*, drop_last: bool, pad: bool) -> Tail:
    """What happens to the last samples, fewer than a batch for every rank."""
    if drop_last and pad:
        raise ValueError("drop_last and pad contradict each other: the last samples are left out or filled up")
    return "drop" if drop_last else "pad" if pad else "exact"


def _keys_of(uris: Iterable[str]) -> KeyList:
    if isinstance(uris, str):
        raise TypeError(f"expected a list of URIs, not the single URI {uris!r}")
    keys = KeyList(uris)
    if not len(keys):
        raise ValueError("the list of URIs is empty: a dataset needs at least one object")
    return keys


def _transformed(view: BytesView, transform: Transform | None) -> Any:
    """The sample. An exception of the user's own transform says which object it was about."""
    if transform is None:
        return view
    try:
        return transform(view)
    except Exception as exc:
        exc.add_note(f"while transforming {view.uri}")
        raise
