"""Streams of a known number of samples: dealt to ranks and workers, and resumed exactly.

`DealtStream` is all of such a stream but the reading. Its subclasses turn sample numbers into samples.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, Self

from torch.utils.data import IterableDataset

from ..data.options import true_or_false, whole_number
from ..data.order import Deal, Indices, Order, Tail
from ..data.state import checked_share, checked_state, is_share, share_of, state_of
from ..data.turns import Lasting
from .cursor import MAX_SEED, Cursor
from .ranks import current_ranks, current_worker

__all__ = ["DealtStream", "Progress", "check_dealing", "tail_of"]


class DealtStream(IterableDataset[Any]):
    """A stream of `num_samples` samples, each once per epoch over all ranks and DataLoader workers.

    When an item fails, its iterator raises the error again and again: the position stays before it, and a state that is
    taken then goes on with it. A subclass calls `_deal_out` when it is made, and reads in `_read`.
    """

    _cursor: Cursor
    batch_size: int | None
    shuffle: bool

    def _deal_out(
        self,
        num_samples: int,
        *,
        shuffle: bool,
        seed: int,
        batch_size: int | None,
        tail: Tail,
        rank: int | None,
        world_size: int | None,
    ) -> None:
        check_dealing(batch_size, shuffle, seed, MAX_SEED)
        current_ranks(rank, world_size)  # contradictions are errors here, not in a worker
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.shuffle = shuffle
        self._tail = tail
        self._told_ranks = (rank, world_size)
        self._ranks_of_parent: tuple[int, int] | None = None
        self._cursor = Cursor(seed)
        self._running: Progress | None = None
        self._restored: Progress | None = None  # by a share

    def _read(self, samples: Iterator[int], taken: int, before: Iterator[int]) -> Iterator[Any]:
        """The samples of these numbers, one for each, in this order; `taken` of this process come before them.

        `before` are the numbers of what came before, the last one first: for who looks for a good sample to repeat.
        """
        raise NotImplementedError

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
        return self._cursor.epoch if self._restored is None else self._restored.epoch

    @property
    def start(self) -> int:
        """The global position where it begins. Raises RuntimeError for a restored share within a batch of several ranks."""
        return self._cursor.start if self._restored is None else self._restored.position()

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch that iterates next: its number gives its order. Reaches workers that outlive an epoch, too."""
        if epoch < 0:
            raise ValueError(f"epoch={epoch} must not be negative")
        if epoch != self.epoch:
            self._restored = None
        self._cursor.set_epoch(epoch)
        self._running = None

    def start_at(self, epoch: int, position: int) -> None:
        """Let the next iteration begin at the global `position` of `epoch`."""
        self.deal(position)
        self._cursor.set(epoch, position)
        self._running = self._restored = None

    def deal(self, start: int = 0) -> Deal:
        """How the epoch's positions from `start` on are dealt to this rank."""
        told = self._told_ranks
        if self._ranks_of_parent is not None and current_worker() is not None:
            told = self._ranks_of_parent
        rank, num_ranks = current_ranks(*told)
        return Deal(self.num_samples, start, self.batch_size or 1, num_ranks, rank, tail=self._tail)

    def __bool__(self) -> bool:
        """There is at least one sample, or there would be no stream."""
        return True

    def __len__(self) -> int:
        """Samples of this rank per epoch; known only when `batch_size` is told, as workers else have tails of their own."""
        if self.batch_size is None:
            raise TypeError("the number of batches is known only when the dataset is told batch_size")
        return self.deal().length

    def __iter__(self) -> Iterator[Any]:
        restored, self._restored = self._restored, None
        if restored is None:
            epoch, start, was_taken = self._cursor.take()
            restored = Progress(epoch, self.deal(start).for_worker(*_worker()))
            if was_taken:
                return Lasting(_refusal(epoch, start))
        elif (restored.deal.worker, restored.deal.num_workers) != _worker():
            raise ValueError("what one process took cannot go on in DataLoader workers: use s3dlio.torch.position_from()")
        self._running = restored
        # A DataLoader drops the batch in which an item fails, so going on after it would lose samples that nobody has seen.
        return Lasting(self._samples(Order(self.num_samples, self.shuffle, self.seed, restored.epoch), restored))

    def _samples(self, order: Order, progress: Progress) -> Generator[Any]:
        indices = (index for block in progress.positions() for index in order.samples(block).tolist())
        before = (order.samples([position]).item() for position in progress.deal.before(progress.num_taken))
        for sample in self._read(indices, progress.num_taken, before):
            progress.num_taken += 1
            yield sample

    def state_dict(self) -> dict[str, int]:
        """(version, seed, shuffle, epoch, global position, number of samples), taken at equal steps on all ranks.

        Counts the samples that were handed out in this process, so it is exact without workers. Raises RuntimeError within
        a batch of several ranks, where there is no one position. In a DataLoader worker it is the share of this worker,
        which a StatefulDataLoader collects, and which `s3dlio.torch.position_from` makes a state.
        """
        running = self._running or self._restored
        if current_worker() is not None:
            return self._share(running or Progress(self.epoch, self.deal(self._cursor.start).for_worker(*_worker())))
        epoch, position = (self.epoch, self._cursor.start) if running is None else (running.epoch, running.position())
        return state_of(seed=self.seed, shuffle=self.shuffle, epoch=epoch, position=position, num_samples=self.num_samples)

    def progress_dict(self) -> dict[str, int]:
        """`state_dict()`; within a batch of several ranks, the share of this process, which as many ranks can load."""
        running = self._running or self._restored
        return self._share(running) if running and running.is_within_a_step else self.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration go on where `state` was taken. Raises ValueError when it belongs to other data."""
        if is_share(state):
            epoch, position, taken = checked_share(state, self._share(Progress(0, self.deal().for_worker(*_worker()))))
            restored = Progress(epoch, self.deal(position).for_worker(*_worker()), taken)
            self._cursor.restored_elsewhere(epoch, state["seed"])
            self._restored = restored
        else:
            epoch, position = checked_state(state, shuffle=self.shuffle, num_samples=self.num_samples)
            self.deal(position)  # a position beyond the end is an error here
            self.seed = state["seed"]
            self._cursor.restore(epoch, position)
            self._restored = None
        self._running = None

    def _share(self, progress: Progress) -> dict[str, int]:
        is_told = self.batch_size is not None
        return progress.share(seed=self.seed, shuffle=self.shuffle, is_batch_size_told=is_told)

    def __copy__(self) -> Self:
        """The same stream with an epoch and a position of its own; what it reads is shared."""
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__, _cursor=Cursor(self.seed), _running=None, _restored=None)
        twin._cursor.set(self.epoch, self.start)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """A spawned worker has no process group: it learns the rank that this process has now. Nobody else goes by it."""
        return {**self.__dict__, "_ranks_of_parent": current_ranks(*self._told_ranks), "_running": None}


@dataclass(slots=True)
class Progress:
    """How far an iterator of an epoch has come: `num_taken` samples of what is dealt to it."""

    epoch: int
    deal: Deal
    num_taken: int = 0

    def positions(self) -> Iterator[Indices]:
        """The positions that are left, in blocks."""
        skip = self.num_taken
        for block in self.deal.blocks():
            if skip < block.size:
                yield block[skip:]
            skip = max(0, skip - block.size)

    @property
    def is_within_a_step(self) -> bool:
        """Whether several ranks have no common position now."""
        is_over = self.num_taken == self.deal.length
        return self.deal.num_ranks > 1 and not is_over and self.num_taken % self.deal.batch_size > 0

    def position(self) -> int:
        """The global position. Raises RuntimeError within a batch of several ranks."""
        num_steps, rest = divmod(self.num_taken, self.deal.batch_size)
        if self.num_taken == self.deal.length:
            return self.deal.position_after(self.deal.num_steps)
        if self.is_within_a_step:
            raise RuntimeError("take the state between batches: within one, several ranks have no common position")
        return self.deal.position_after(num_steps) + rest

    def share(self, *, seed: int, shuffle: bool, is_batch_size_told: bool) -> dict[str, int]:
        """The share of this process."""
        facts = {"seed": seed, "shuffle": shuffle, "epoch": self.epoch, "is_batch_size_told": is_batch_size_told}
        return share_of(self.deal, self.num_taken, **facts)  # type: ignore[arg-type]


def check_dealing(batch_size: int | None, shuffle: bool, seed: int, largest_seed: int | None = None) -> None:
    """Raise ConfigError for what is not of its type or too small: here, not in a worker."""
    if batch_size is not None:
        whole_number("batch_size", batch_size, 1)
    true_or_false("shuffle", shuffle)
    whole_number("seed", seed, 0, largest_seed)


def tail_of(*, drop_last: bool, pad: bool) -> Tail:
    """What happens to the last samples, fewer than a batch for every rank."""
    drop_last, pad = true_or_false("drop_last", drop_last), true_or_false("pad", pad)
    if drop_last and pad:
        raise ValueError("drop_last and pad contradict each other: the last samples are left out or filled up")
    return "drop" if drop_last else "pad" if pad else "exact"


def _worker() -> tuple[int, int]:
    return current_worker() or (0, 1)


def _refusal(epoch: int, start: int) -> Generator[Any]:
    """Fails at its first item: an error of `__iter__` itself would end a worker that outlives an epoch without a word."""
    raise RuntimeError(
        f"this dataset was restored at position {start} of epoch {epoch} and was iterated since: call set_epoch() before "
        "each epoch, or use s3dlio.torch.loader(), which does"
    )
    yield
