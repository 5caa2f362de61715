"""Shuffling a stream whose length nobody knows: within windows, by a position that is a few integers.

The stream is cut into windows of equal length, except that the first one is shorter, at random in each epoch, so that items
which a border parts in one epoch are together in another. Within a window the order is `Order`, a pure function of seed and
number. So nothing of the buffer has to be saved: a position says which window it is in, and what has come of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from .order import Order

__all__ = ["HasState", "ShuffleWindow"]

VERSION = 1
_NUMBERS = ("seed", "epoch", "window", "position", "start")

T = TypeVar("T")


@runtime_checkable
class HasState(Protocol):
    """An iterable that can go on from a position, as `TFRecordReader` and `TarReader` can."""

    def state_dict(self) -> dict[str, Any]:
        """The position, in plain numbers."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on from there."""


class ShuffleWindow(Generic[T]):
    """Iterate over `source` in an order that is random within windows of `window` items.

    Memory: one window of items. Each iteration is an epoch with an order of its own, which seed and epoch decide.
    `state_dict()` between two items says where; `load_state_dict` lets the next iteration go on there exactly. It reads
    again at most the window that it is in, if the source has a state of its own, and else from the source's beginning.

    >>> for record in ShuffleWindow(TFRecordReader(uris), window=10_000, seed=1):
    ...     train(record)
    """

    def __init__(self, source: Iterable[T], *, window: int, seed: int = 0) -> None:
        if window < 1:
            raise ValueError(f"window={window}: a window holds at least one item")
        if seed < 0:
            raise ValueError(f"seed={seed} is negative")
        self._source = source
        self._window = window
        self._seed = seed
        self._epoch = 0
        self._position = 0  # items of the epoch that were taken
        self._start = 0  # the item at which the window of the position begins
        self._at_start: dict[str, Any] | None = None  # the source's state there
        self._is_restored = False
        self._is_begun = False

    @property
    def epoch(self) -> int:
        """The epoch that iterates next."""
        return self._epoch + (self._is_begun and not self._is_restored)

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch that iterates next. A restored position stays when it belongs to this very epoch."""
        if epoch < 0:
            raise ValueError(f"epoch={epoch} is negative")
        if self._is_restored and epoch == self._epoch:
            return
        self._epoch, self._position, self._start, self._at_start = epoch, 0, 0, None
        self._is_restored = self._is_begun = False

    def __iter__(self) -> Iterator[T]:
        if self._is_begun and not self._is_restored:
            self.set_epoch(self._epoch + 1)
        self._is_begun, self._is_restored = True, False
        return self._shuffled()

    def _shuffled(self) -> Iterator[T]:
        skip = self._position - self._start
        items = self._items_from_start()
        for number in itertools.count(self._number_of(self._start)):
            some = list(itertools.islice(items, self._length_of(number)))
            if not some:
                return
            after = self._source.state_dict() if isinstance(self._source, HasState) else None
            order = self._order(len(some), 1 + number)
            for index in order.samples(range(skip, len(some))).tolist():
                self._position += 1
                if self._position == self._start + len(some):
                    self._start, self._at_start = self._position, after
                yield some[index]
            skip = 0

    def _items_from_start(self) -> Iterator[T]:
        if self._at_start is not None and isinstance(self._source, HasState):
            self._source.load_state_dict(self._at_start)
            return iter(self._source)
        return itertools.islice(iter(self._source), self._start, None)

    @property
    def _first_length(self) -> int:
        """Of the first window of the epoch: from 1 to `window`."""
        return int(self._order(self._window, 0).samples([0])[0]) + 1

    def _order(self, length: int, number: int) -> Order:
        """One of the 2**32 orders that an epoch has."""
        return Order(length, shuffle=True, seed=self._seed, epoch=(self._epoch << 32) + number)

    def _length_of(self, number: int) -> int:
        return self._window if number else self._first_length

    def _number_of(self, start: int) -> int:
        """Which window begins at item `start`."""
        return 0 if start == 0 else 1 + (start - self._first_length) // self._window

    def state_dict(self) -> dict[str, Any]:
        """The position after the last item that was taken: plain numbers, and the source's own state if it has one."""
        return {
            "version": VERSION,
            "seed": self._seed,
            "epoch": self._epoch,
            "window": self._window,
            "position": self._position,
            "start": self._start,
            "source": self._at_start,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on from there. Raises ValueError when the order is not that of the state."""
        if state.get("version") != VERSION:
            raise ValueError(f"this state has version {state.get('version')}, this s3dlio reads version {VERSION}")
        for name in _NUMBERS:
            if not isinstance(state.get(name), int) or state[name] < 0:
                raise ValueError(f"this state has {name}={state.get(name)!r}, where a number from 0 on belongs")
        if (state["seed"], state["window"]) != (self._seed, self._window):
            raise ValueError(
                f"the state was taken with seed={state['seed']} and window={state['window']}, and here they are "
                f"{self._seed} and {self._window}: the orders differ"
            )
        self._epoch, self._position, self._start = state["epoch"], state["position"], state["start"]
        self._at_start = state["source"]
        self._is_restored = True
