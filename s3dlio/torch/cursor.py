"""Where the next epoch begins: (epoch, start position), seen by the main process and by its workers at once."""

from __future__ import annotations

from typing import Any

import torch

from .ranks import current_worker

__all__ = ["Cursor"]

_EPOCH, _START, _USED, _SEED = range(4)
MAX_SEED = 2**63 - 1


class Cursor:
    """A few numbers in shared memory, so that workers that outlive an epoch learn of the next one.

    Written by the main process between epochs. `take` gives the numbers to the iterator of an epoch; a start position
    that was restored counts for one epoch only, and `take` says so when workers would begin there again, because the
    next epoch was not named.
    """

    def __init__(self, seed: int = 0) -> None:
        cells = torch.zeros(4, dtype=torch.int64)
        self._cells = cells.share_memory_()  # type: ignore[no-untyped-call]
        self.seed = seed

    @property
    def seed(self) -> int:
        return int(self._cells[_SEED])

    @seed.setter
    def seed(self, seed: int) -> None:
        if not 0 <= seed <= MAX_SEED:
            raise ValueError(f"seed={seed} lies outside of [0, 2**63)")
        self._cells[_SEED] = seed

    @property
    def epoch(self) -> int:
        return int(self._cells[_EPOCH])

    @property
    def start(self) -> int:
        return int(self._cells[_START])

    def set_epoch(self, epoch: int) -> None:
        """Name the next epoch. The position of a restored state stays when it belongs to this very epoch."""
        if epoch != self.epoch:
            self.set(epoch, 0)

    def set(self, epoch: int, start: int) -> None:
        self._cells[_EPOCH] = epoch
        self._cells[_START] = start
        self._cells[_USED] = 0

    def take(self) -> tuple[int, int, bool]:
        """(epoch, start, was this start taken before?) for an iterator that begins now, here or in a worker."""
        epoch, start = self.epoch, self.start
        worker = current_worker()
        if worker is None:
            self._cells[_START] = 0
        elif start and worker[0] == 0:
            was_taken = bool(self._cells[_USED])
            self._cells[_USED] = 1
            return epoch, start, was_taken
        return epoch, start, False

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not self._cells.is_shared():  # came through a plain pickle, not through multiprocessing
            self._cells = self._cells.share_memory_()
