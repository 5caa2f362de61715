"""`ResumableSampler`: a distributed sampler that needs no memory and can begin anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sized

from torch.utils.data import Sampler

from ..data.order import Deal, Order
from ..data.state import checked_state, state_of
from .dataset import tail_of
from .ranks import current_ranks

__all__ = ["ResumableSampler"]


class ResumableSampler(Sampler[int]):
    """The indices of this rank, in an order that is a pure function of (seed, epoch).

    Like a DistributedSampler, but in constant memory at any number of samples, and resumable at a global position by
    another number of ranks. Give it the DataLoader's `batch_size`: then whole batches are dealt. `drop_last` and `pad` are
    those of `ObjectStoreIterableDataset`; without either every sample comes exactly once. Call `set_epoch` before each
    epoch. A DataLoader asks a sampler ahead of what it delivers, so the state of a running epoch is kept by
    `s3dlio.torch.loader`; `start_at` restores it here.
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
        self.num_samples = len(data_source)
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0
        self.shuffle = shuffle
        self._tail = tail_of(drop_last=drop_last, pad=pad)
        self._told_ranks = (rank, world_size)
        self._start = 0
        self.deal()

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch that iterates next; a restored position stays when it belongs to this very epoch."""
        if epoch != self.epoch:
            self.start_at(epoch, 0)

    def start_at(self, epoch: int, position: int) -> None:
        """Let the next iteration begin at the global `position` of `epoch`; the one after it begins at 0."""
        self.deal(position)
        self.epoch, self._start = epoch, position

    def deal(self, start: int = 0) -> Deal:
        """How the epoch's positions from `start` on are dealt to this rank."""
        rank, num_ranks = current_ranks(*self._told_ranks)
        return Deal(self.num_samples, start, self.batch_size, num_ranks, rank, tail=self._tail)

    def __len__(self) -> int:
        """Samples of this rank in a whole epoch."""
        return self.deal().length

    def __iter__(self) -> Iterator[int]:
        start, self._start = self._start, 0
        order = Order(self.num_samples, self.shuffle, self.seed, self.epoch)
        for block in self.deal(start).blocks():
            yield from order.samples(block).tolist()

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
        self.start_at(*checked_state(state, shuffle=self.shuffle, num_samples=self.num_samples))
        self.seed = state["seed"]
