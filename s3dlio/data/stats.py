"""Where the time of a loader went: the answer to "why is my loader slow".

Durations are measured on a clock that runs only while the consumer waits for the loader. What a request does while the
consumer computes costs nobody anything, and is not counted.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

from ..storage.base import retries
from ..transfer.read import Arrival
from ..view import BytesView
from .bad_samples import Skipped

__all__ = ["Stats"]

MAX_REPORTED = 1000  # skipped samples whose names are kept

_ADVICE = {
    "consumer": "the loader waits for you: your own code between two items is what limits",
    "first byte": "requests wait for their first byte: raise prefetch, use larger objects, or look at the server's load",
    "body": "bytes are on their way nearly all the time: network, disk or this process's CPU limits; use more processes",
    "nothing": "nothing was read yet",
}


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
        *("_bodies", "_consumed", "_first_bytes", "_left", "_num_bytes", "_num_errors", "_num_objects", "_num_skipped"),
        *("_retries", "_skipped", "_waited", "entered"),
    )

    def __init__(self) -> None:
        self.entered: float | None = None  # when the consumer came to wait; None while it is away
        self._left: float | None = None  # when it went away
        self._waited = 0.0  # seconds, of the waits that are over
        self._consumed = 0.0
        self._first_bytes = 0.0  # sums over objects
        self._bodies = 0.0
        self._num_objects = self._num_bytes = self._num_errors = 0
        self._num_skipped = 0
        self._skipped: list[Skipped] = []
        self._retries = _Span()

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

    def arrived(self, arrival: Arrival, outcome: BytesView | Exception) -> None:
        """The consumer goes away with an object, or with its error."""
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
        self.leave()

    def ended(self) -> None:
        """The epoch is over: what the process tries again from now on is not its concern."""
        self._retries.end()

    def skipped(self, skipped: Skipped) -> None:
        """A sample was skipped."""
        self._num_skipped += 1
        if len(self._skipped) < MAX_REPORTED:
            self._skipped.append(skipped)

    def report(self) -> dict[str, Any]:
        """The account as `PyBytesAsyncDataLoader.stats` gives it."""
        waited = self.clock()
        requested = self._first_bytes + self._bodies
        share = self._first_bytes / requested if requested else 0.0
        parts = {"consumer": self._consumed, "first byte": waited * share, "body": waited * (1.0 - share)}
        arrived = self._num_objects + self._num_errors
        dominant = max(parts, key=lambda name: parts[name]) if arrived else "nothing"
        seconds = waited + self._consumed
        return {
            "objects": self._num_objects,
            "bytes": self._num_bytes,
            "errors": self._num_errors,
            "retries": self._retries.count(),
            "seconds": seconds,
            "bytes_per_second": self._num_bytes / seconds if seconds else 0.0,
            "waiting_for_first_byte_seconds": parts["first byte"],
            "waiting_for_body_seconds": parts["body"],
            "waiting_for_consumer_seconds": parts["consumer"],
            "first_byte_seconds_per_object": self._first_bytes / arrived if arrived else 0.0,
            "body_seconds_per_object": self._bodies / arrived if arrived else 0.0,
            "dominant": dominant,
            "advice": _ADVICE[dominant],
            "num_skipped": self._num_skipped,
            "skipped": [skipped._asdict() for skipped in self._skipped],
        }
