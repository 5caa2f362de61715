"""What came of row groups: items or errors at their turns, with where they are from and when they came."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator
from time import perf_counter
from typing import Any

from ... import config
from ..bad_samples import OnError
from ..epochs import Run
from ..iterators import Items
from ..order import Deal, Order
from ..stats import Stats
from ..turns import busy
from .cut import Cut
from .groups import RowGroups
from .read import outcomes

__all__ = ["RowGroupArrival", "RowGroupItems", "arrivals"]

Finish = Callable[[Cut], Any]


class RowGroupArrival:
    """A row group on its way, and when, by `clock`, it was asked for, first heard of (None: never), here, and decoded."""

    __slots__ = ("asked_at", "clock", "decoded_at", "ended_at", "heard_at", "num_rows", "rg_idx", "size", "uri")

    def __init__(self, groups: RowGroups, number: int, clock: Callable[[], float]) -> None:
        self.uri, self.rg_idx = groups.place_of(number)
        self.num_rows = groups.num_rows(number)
        self.size = 0  # bytes that are read for it
        self.clock = clock
        self.asked_at = self.ended_at = self.decoded_at = clock()
        self.heard_at: float | None = None

    @property
    def part(self) -> str:
        """Which part of the file it is, for people."""
        return f"row group {self.rg_idx}"

    def hear(self) -> None:
        """One of its reads is heard of."""
        if self.heard_at is None:
            self.heard_at = self.clock()

    def land(self) -> None:
        """All bytes are here."""
        self.ended_at = self.clock()

    def finish(self, cut: Cut, finish: Finish) -> Any:
        """Decode them."""
        item = finish(cut)
        self.decoded_at = self.clock()
        return item

    def fail(self) -> None:
        """It is an error."""
        self.decoded_at = self.clock()
        if self.heard_at is None or self.ended_at < self.heard_at:
            self.ended_at = self.decoded_at


class _Cuts(Iterator[Cut]):
    """The row groups of these numbers, begun when asked for. One that cannot be begun ends nothing."""

    def __init__(self, groups: RowGroups, numbers: Iterator[int], decode: str, clock: Callable[[], float]) -> None:
        self._groups = groups
        self._numbers = numbers
        self._decode = decode
        self._clock = clock
        self.begun: deque[RowGroupArrival] = deque()  # and not handed out, in order

    def __next__(self) -> Cut:
        number = next(self._numbers)
        arrival = RowGroupArrival(self._groups, number, self._clock)
        self.begun.append(arrival)
        cut = self._groups.cut(number, self._decode)
        cut.arrival, arrival.size = arrival, cut.num_bytes
        return cut


def arrivals(
    groups: RowGroups,
    numbers: Iterator[int],
    finish: Finish,
    *,
    decode: str,
    prefetch: int,
    clock: Callable[[], float] = perf_counter,
    left: Collection[object] = (),
) -> Generator[tuple[RowGroupArrival, Any]]:
    """What is known of each row group, and the item that `finish` makes of it, or the error, in the order of `numbers`.

    `finish` and `decode` go together, as in `items.FINISHERS`; `prefetch` and `left` are those of
    `read.outcomes`. Nothing is begun before the first one is asked for.
    """
    cuts = _Cuts(groups, numbers, decode, clock)

    def timed(cut: Cut) -> Any:
        return cut.arrival.finish(cut, finish)

    items = outcomes(groups.store(), cuts, timed, prefetch=prefetch, options=config.snapshot(), left=left)
    try:
        for outcome in items:
            arrival = cuts.begun.popleft()
            if isinstance(outcome, Exception):
                arrival.fail()
            yield arrival, outcome
            del outcome
    finally:
        items.close()


class RowGroupItems(Items[Any]):
    """The row groups of one iteration of a ParquetLoader, whose position is counted as they reach the consumer.

    `arrivals` gives those of row group numbers, and may be told another `prefetch`; `order` gives the numbers of positions,
    `deal` the positions.
    """

    def __init__(
        self,
        arrivals: Callable[..., Generator[tuple[RowGroupArrival, Any]]],
        order: Order,
        deal: Deal,
        run: Run,
        stats: Stats,
        on_error: OnError,
        left: list[None],
    ) -> None:
        numbers = (number for block in deal.blocks() for number in order.samples(block).tolist())

        def before() -> Iterator[tuple[str, Any]]:
            passed = (order.samples([position]).item() for position in deal.before(0))
            earlier = arrivals(passed, prefetch=1)  # mostly the first one is good, and others are on their way already
            return ((arrival.uri, outcome) for arrival, outcome in earlier)

        super().__init__(arrivals(numbers), stats, on_error, left, before)
        self._run = run
        self._deal = deal
        self._num_steps = 0  # positions whose item, or error, was pulled

    def pull(self) -> Any:
        """The next item, for somebody who hands it on and then says that it was `delivered`."""
        if not self._guard.acquire(False):  # here already: a thread that is refused makes no step
            raise busy()
        try:
            return self._counted()
        finally:
            self._guard.release()

    def _counted(self) -> Any:
        try:
            item = super().pull()
        except StopIteration:
            if not self.left:
                self._run.ended()
            raise
        except Exception:
            self._num_steps += 1
            raise
        self._num_steps += 1
        return item

    def delivered(self) -> None:
        """The item that was pulled last has reached the consumer. An error does not: a state then begins with it."""
        self._run.reached(self._deal.position_after(self._num_steps))
