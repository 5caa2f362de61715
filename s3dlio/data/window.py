"""Shuffling a stream whose length nobody knows: within windows, by a position that is a few integers.

The stream is cut into windows of equal length, except that the first one is shorter, at random in each epoch, so that items
which a border parts in one epoch are together in another. Within a window the order is `Order`, a pure function of seed and
number. So nothing of the buffer has to be saved: a position says which window it is in, and what has come of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from .options import whole_number
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
        self._source = source
        self._window = whole_number("window", window, 1)
        self._seed = whole_number("seed", seed, 0, None)
        self._epoch = 0
        self._position = 0  # items of the epoch that were taken
        self._start = 0  # the item at which the window of the position begins
        self._at_start: dict[str, Any] | None = None  # the source's state there
        self._is_restored = False
        self._is_begun = False
        self._num_begun = 0  # iterations

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
        self._num_begun += 1  # what runs still does not move the position any more

    def __iter__(self) -> Iterator[T]:
        if self._is_begun and not self._is_restored:
            self.set_epoch(self._epoch + 1)
        self._is_begun, self._is_restored = True, False
        self._num_begun += 1
        return self._shuffled(self._num_begun, self._epoch, self._position, self._start, self._items_from_start())

    def _shuffled(self, iteration: int, epoch: int, position: int, start: int, items: Iterator[T]) -> Iterator[T]:
        skip = position - start
        for number in itertools.count(self._number_of(epoch, start)):
            some = list(itertools.islice(items, self._length_of(epoch, number)))
            if not some:
                return
            # Of several iterations at once, the state is that of the one that was begun last, here and in the source.
            after = self._source.state_dict() if isinstance(self._source, HasState) else None
            order = self._order(epoch, len(some), 1 + number)
            for index in order.samples(range(skip, len(some))).tolist():
                position += 1
                if iteration == self._num_begun:
                    self._position = position
                    if position == start + len(some):
                        self._start, self._at_start = position, after
                yield some[index]
            start, skip = start + len(some), 0

    def _items_from_start(self) -> Iterator[T]:
        """The source from the window of the position on; it begins when it is first asked."""
        if self._at_start is not None and isinstance(self._source, HasState):
            self._source.load_state_dict(self._at_start)
            return iter(self._source)
        return itertools.islice(iter(self._source), self._start, None)

    def _first_length(self, epoch: int) -> int:
        """Of the first window of the epoch: from 1 to `window`."""
        return int(self._order(epoch, self._window, 0).samples([0])[0]) + 1

    def _order(self, epoch: int, length: int, number: int) -> Order:
        """One of the 2**32 orders that an epoch has."""
        return Order(length, shuffle=True, seed=self._seed, epoch=(epoch << 32) + number)

    def _length_of(self, epoch: int, number: int) -> int:
        return self._window if number else self._first_length(epoch)

    def _number_of(self, epoch: int, start: int) -> int:
        """Which window begins at item `start`."""
        return 0 if start == 0 else 1 + (start - self._first_length(epoch)) // self._window

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
        self._num_begun += 1
