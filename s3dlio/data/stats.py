"""Where the time of a loader went: the answer to "why is my loader slow".

Durations are measured on a clock that runs only while the consumer waits for the loader. What a request does while the
consumer computes costs nobody anything, and is not counted.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, Protocol

from ..storage.base import retries
from .bad_samples import Tally

__all__ = ["ParquetStats", "Stats", "Timed"]

_ADVICE = {
    "consumer": "the loader waits for you: your own code between two items is what limits",
    "first byte": "requests wait for their first byte: raise prefetch, use larger objects, or look at the server's load",
    "body": "bytes are on their way nearly all the time: network, disk or this process's CPU limits; use more processes",
    "decoding": "row groups are decoded nearly all the time: use more processes, fewer columns, or decode='raw'",
    "nothing": "nothing was read yet",
}


class Timed(Protocol):
    """A sample on its way, and when it was asked for, first heard of (None: never), and here: by the clock of its Stats."""

    uri: str
    asked_at: float
    heard_at: float | None
    ended_at: float


class _Span:
    """The part of `retries` between two moments."""

    def __init__(self) -> None:
        self._first = retries.count
        self._last: int | None = None

    def end(self) -> None:
        self._last = retries.count if self._last is None else self._last

    def count(self) -> int:
        return (retries.count if self._last is None else self._last) - self._first


class Stats:
    """The account of one epoch, kept by its iterator. Costs well under a microsecond per object."""

    __slots__ = (
        *("_bodies", "_consumed", "_first_bytes", "_left", "_num_bytes", "_num_errors", "_num_objects"),
        *("_retries", "_waited", "entered", "tally"),
    )

    def __init__(self) -> None:
        self.entered: float | None = None  # when the consumer came to wait; None while it is away
        self._left: float | None = None  # when it went away
        self._waited = 0.0  # seconds, of the waits that are over
        self._consumed = 0.0
        self._first_bytes = 0.0  # sums over objects
        self._bodies = 0.0
        self._num_objects = self._num_bytes = self._num_errors = 0
        self._retries = _Span()
        self.tally = Tally()

    def clock(self) -> float:
        """Seconds that the consumer has waited for the loader until now."""
        entered = self.entered
        return self._waited if entered is None else self._waited + perf_counter() - entered

    def leave(self) -> None:
        """The consumer, which came at `entered`, goes away."""
        entered, self.entered = self.entered, None
        assert entered is not None
        if self._left is not None:
            self._consumed += entered - self._left
        self._left = now = perf_counter()
        self._waited += now - entered

    def count(self, arrival: Timed, outcome: Any) -> None:
        """The consumer has got an object, or its error."""
        asked_at, heard_at, ended_at = arrival.asked_at, arrival.heard_at, arrival.ended_at
        if heard_at is None:
            heard_at = ended_at
        self._first_bytes += heard_at - asked_at
        self._bodies += ended_at - heard_at
        if isinstance(outcome, Exception):
            self._num_errors += 1
        else:
            self._num_objects += 1
            self._num_bytes += outcome.size

    def ended(self) -> None:
        """The epoch is over: what the process tries again from now on is not its concern."""
        self._retries.end()

    def _requests(self) -> dict[str, float]:
        """What the requests spent their time on, in seconds, summed over objects."""
        return {"first byte": self._first_bytes, "body": self._bodies}

    def report(self) -> dict[str, Any]:
        """The account as `PyBytesAsyncDataLoader.stats` gives it."""
        waited, arrived = self.clock(), self._num_objects + self._num_errors
        requests = self._requests()
        total = sum(requests.values())
        shares = {name: part / total for name, part in requests.items()} if total else {"body": 1.0}
        parts = {name: waited * shares.get(name, 0.0) for name in requests} | {"consumer": self._consumed}
        dominant = max(parts, key=lambda name: parts[name]) if arrived else "nothing"
        seconds = waited + self._consumed
        return {
            "objects": self._num_objects,
            "bytes": self._num_bytes,
            "errors": self._num_errors,
            "retries": self._retries.count(),
            "seconds": seconds,
            "bytes_per_second": self._num_bytes / seconds if seconds else 0.0,
            **{f"waiting_for_{_key(name)}_seconds": part for name, part in parts.items()},
            **{f"{_key(name)}_seconds_per_object": part / max(1, arrived) for name, part in requests.items()},
            "dominant": dominant,
            "advice": _ADVICE[dominant],
            "num_skipped": self.tally.num_skipped,
            "skipped": [skipped._asdict() for skipped in self.tally.skipped()],
        }


def _key(name: str) -> str:
    return name.replace(" ", "_")


class ParquetStats(Stats):
    """The account of a Parquet loader, whose objects are row groups: `rows` besides, and the time of decoding.

    `bytes` are those that were read. What is decoded while other row groups are on their way is shared out like the rest.
    """

    __slots__ = ("_decoding", "_num_rows")

    def __init__(self) -> None:
        super().__init__()
        self._decoding = 0.0
        self._num_rows = 0

    def count(self, arrival: Any, outcome: Any) -> None:
        """The consumer has got a row group, or its error."""
        self._decoding += arrival.decoded_at - arrival.ended_at
        if isinstance(outcome, Exception):
            super().count(arrival, outcome)
        else:
            self._num_rows += arrival.num_rows
            super().count(arrival, arrival)  # whose size is what was read, whatever became of it

    def _requests(self) -> dict[str, float]:
        return super()._requests() | {"decoding": self._decoding}

    def report(self) -> dict[str, Any]:
        """The account as `ParquetLoader.stats` gives it."""
        return {"rows": self._num_rows} | super().report()
