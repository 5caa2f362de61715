"""`Epochs`: which epoch iterates next, where it begins, and how far the iteration that was begun last has come.

Several iterations of one loader may run at once. The loader's own state is that of the one that was begun last; the others
go on by themselves, and change nothing of it.
"""

from __future__ import annotations

__all__ = ["Epochs", "Run"]


class Epochs:
    """The epoch of a loader: the running one, or the next one between epochs. Positions are global."""

    def __init__(self, epoch: int = 0, position: int = 0) -> None:
        self.go_to(epoch, position)

    def go_to(self, epoch: int, position: int) -> None:
        """Let the next iteration begin at `position` of `epoch`; the one after it begins at 0."""
        self.epoch = epoch
        self.position = position  # what was delivered of the running or next epoch
        self.start = position  # where the next iteration begins
        self._running: Run | None = None

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`; nothing happens when it is the current one."""
        if epoch < 0:
            raise ValueError(f"epoch={epoch} must not be negative")
        if epoch != self.epoch:
            self.go_to(epoch, 0)

    def begin(self) -> Run:
        """Begin an iteration. A position that was restored counts for one only."""
        self.position, self.start = self.start, 0
        self._running = run = Run(self, self.epoch, self.position)
        return run

    def is_last(self, run: Run) -> bool:
        """Is this the iteration that was begun last?"""
        return self._running is run


class Run:
    """One iteration: `epoch`, and the position `start` at which it begins."""

    def __init__(self, epochs: Epochs, epoch: int, start: int) -> None:
        self._epochs = epochs
        self.epoch = epoch
        self.start = start

    def reached(self, position: int) -> None:
        """All before `position` was delivered."""
        if self._epochs.is_last(self):
            self._epochs.position = position

    def ended(self) -> None:
        """The epoch is over: the next one is another."""
        if self._epochs.is_last(self):
            self._epochs.go_to(self.epoch + 1, 0)
