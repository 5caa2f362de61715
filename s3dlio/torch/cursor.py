"""Where the next epoch begins: (epoch, start position), seen by the main process and by its workers at once."""

from __future__ import annotations

from typing import Any

import torch

from .ranks import current_worker

__all__ = ["Cursor", "MAX_SEED"]

_NAMED, _WAITS, _EPOCH, _START, _USED, _SEED = range(6)
MAX_SEED = 2**63 - 1


class Cursor:
    """A few numbers in shared memory, so that workers that outlive an epoch learn of the next one.

    Written by the main process between epochs. A restored (epoch, start) waits for the next iteration and counts for that
    one only; the iteration after it has the epoch that was named last, or, as long as none was, the restored one. `take`
    gives the numbers to the iterator of an epoch, and says so when workers would begin at a restored position again,
    because the next epoch was not named.
    """

    def __init__(self, seed: int = 0) -> None:
        cells = torch.zeros(6, dtype=torch.int64)
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
        """The epoch that iterates next."""
        return int(self._cells[_EPOCH if self._cells[_WAITS] else _NAMED])

    @property
    def start(self) -> int:
        """The position where it begins."""
        return int(self._cells[_START]) if self._cells[_WAITS] else 0

    def set_epoch(self, epoch: int) -> None:
        """Name the next epoch. The position of a restored state stays when it belongs to this very epoch."""
        if epoch != self.epoch:
            self._cells[_WAITS] = 0
        self._cells[_NAMED] = epoch

    def set(self, epoch: int, start: int) -> None:
        """Name the next epoch and let it begin at `start`."""
        self._cells[_NAMED] = epoch
        self.restore(epoch, start)

    def restore(self, epoch: int, start: int) -> None:
        """Let the next iteration begin at `start` of `epoch`. A later epoch that was named already comes after it.

        (A StatefulDataLoader restores when it is iterated, after the epoch was named: at the end of one epoch that is
        the next.)
        """
        self._cells[_EPOCH] = epoch
        self._cells[_START] = start
        self._cells[_USED] = 0
        self._cells[_WAITS] = 1
        self._name_at_least(epoch)

    def restored_elsewhere(self, epoch: int, seed: int) -> None:
        """Tell the main process, from a worker, which epoch its workers were told to go on with. All tell the same."""
        self.seed = seed
        self._cells[_WAITS] = 0
        self._name_at_least(epoch)

    def _name_at_least(self, epoch: int) -> None:
        self._cells[_NAMED] = max(epoch, int(self._cells[_NAMED]))

    def take(self) -> tuple[int, int, bool]:
        """(epoch, start, was this start taken before?) for an iterator that begins now, here or in a worker."""
        epoch, start = self.epoch, self.start
        worker = current_worker()
        if worker is None:
            self._cells[_WAITS] = 0
        elif start and worker[0] == 0:
            was_taken = bool(self._cells[_USED])
            self._cells[_USED] = 1
            return epoch, start, was_taken
        return epoch, start, False

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not self._cells.is_shared():  # came through a plain pickle, not through multiprocessing
            self._cells = self._cells.share_memory_()
