"""`ResumableSampler`: a distributed sampler that needs no memory and can begin anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sized

from torch.utils.data import Sampler

from ..data.order import Deal, Order
from ..data.state import checked_share, checked_state, state_of
from .ranks import current_ranks
from .resumable import Progress, check_dealing, tail_of

__all__ = ["ResumableSampler"]


class ResumableSampler(Sampler[int]):
    """The indices of this rank, in an order that is a pure function of (seed, epoch).

    Like a DistributedSampler, but in constant memory at any number of samples, and resumable at a global position by
    another number of ranks. Give it the DataLoader's `batch_size`: then whole batches are dealt. `drop_last` and `pad` are
    those of `ObjectStoreIterableDataset`; without either every sample comes exactly once. Call `set_epoch` before each
    epoch. A DataLoader asks a sampler ahead of what it delivers, so the state of a running epoch is kept by
    `s3dlio.torch.loader`, or by torchdata's StatefulDataLoader; `start_at` restores it here.
    """

    def __init__(
        self,
        data_source: Sized,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        pad: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        check_dealing(batch_size, shuffle, seed)
        self.num_samples = len(data_source)
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0
        self.shuffle = shuffle
        self._tail = tail_of(drop_last=drop_last, pad=pad)
        self._told_ranks = (rank, world_size)
        self._start = 0
        self._named = 0  # a later epoch than a restored one comes after it, as in Cursor.restore
        self.deal()

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch that iterates next; a restored position stays when it belongs to this very epoch."""
        self._named = epoch
        if epoch != self.epoch:
            self.start_at(epoch, 0)

    def start_at(self, epoch: int, position: int) -> None:
        """Let the next iteration begin at the global `position` of `epoch`; the one after it begins at 0."""
        self.deal(position)
        self.epoch, self._start, self._named = epoch, position, epoch

    def deal(self, start: int = 0) -> Deal:
        """How the epoch's positions from `start` on are dealt to this rank."""
        rank, num_ranks = current_ranks(*self._told_ranks)
        return Deal(self.num_samples, start, self.batch_size, num_ranks, rank, tail=self._tail)

    def __len__(self) -> int:
        """Samples of this rank in a whole epoch."""
        return self.deal().length

    def __iter__(self) -> Iterator[int]:
        return _Indices(self)

    def _begin(self) -> Progress:
        """The start of an iteration; a restored position counts for one only."""
        start, self._start = self._start, 0
        epoch, self.epoch = self.epoch, max(self.epoch, self._named)
        return Progress(epoch, self.deal(start))

    def state_dict(self) -> dict[str, int]:
        """Where the next iteration begins: (version, seed, epoch, global position, number of samples)."""
        return state_of(
            seed=self.seed,
            shuffle=self.shuffle,
            epoch=self.epoch,
            position=self._start,
            num_samples=self.num_samples,
        )

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore `state`. Raises ValueError when it belongs to other data."""
        epoch, position = checked_state(state, shuffle=self.shuffle, num_samples=self.num_samples)
        self.deal(position)
        self.epoch, self._start, self.seed = epoch, position, state["seed"]


class _Indices(Iterator[int]):
    """One iteration of a sampler. It begins when it is first asked, as a DataLoader makes some that it never asks.

    Its state is the share that was taken of the sampler: a StatefulDataLoader keeps the one of the last batch delivered.
    """

    def __init__(self, sampler: ResumableSampler) -> None:
        self._sampler = sampler
        self._progress: Progress | None = None
        self._left: Iterator[int] = iter(())

    def _begin(self, progress: Progress) -> Progress:
        sampler = self._sampler
        order = Order(sampler.num_samples, sampler.shuffle, sampler.seed, progress.epoch)
        self._left = (index for block in progress.positions() for index in order.samples(block).tolist())
        self._progress = progress
        return progress

    def __next__(self) -> int:
        progress = self._progress or self._begin(self._sampler._begin())
        index = next(self._left)
        progress.num_taken += 1
        return index

    def state_dict(self) -> dict[str, int]:
        """What was taken so far."""
        sampler = self._sampler
        progress = self._progress or Progress(sampler.epoch, sampler.deal(sampler._start))
        return progress.share(seed=sampler.seed, shuffle=sampler.shuffle, is_batch_size_told=sampler.batch_size > 1)

    def load_state_dict(self, share: dict[str, int]) -> None:
        """Go on where `share` was taken, by as many ranks. Raises ValueError when it belongs to another dealing."""
        *_, taken = checked_share(share, self.state_dict())
        self._sampler.load_state_dict({name: share[name] for name in self._sampler.state_dict()})
        progress = self._sampler._begin()
        progress.num_taken = taken
        self._begin(progress)
