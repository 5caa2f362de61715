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


class Stats:
    """The account of one epoch, kept by its iterator. Costs well under a microsecond per object."""

    def __init__(self) -> None:
        self._waited = 0.0  # seconds, of the waits that are over
        self._entered: float | None = None  # when the consumer came to wait
        self._left: float | None = None  # when it went away with an item
        self._consumed = 0.0
        self._first_bytes = 0.0  # sums over objects
        self._bodies = 0.0
        self._num_objects = self._num_bytes = self._num_errors = 0
        self._num_skipped = 0
        self._skipped: list[Skipped] = []
        self._retries = 0

    def clock(self) -> float:
        """Seconds that the consumer has waited for the loader until now."""
        entered = self._entered
        return self._waited if entered is None else self._waited + perf_counter() - entered

    def enter(self) -> None:
        """The consumer comes to wait."""
        self._entered = now = perf_counter()
        if self._left is not None:
            self._consumed += now - self._left
        self._retries -= retries.count

    def leave(self) -> None:
        """The consumer goes away."""
        assert self._entered is not None
        self._left = now = perf_counter()
        self._waited += now - self._entered
        self._entered = None
        self._retries += retries.count

    def arrived(self, arrival: Arrival, outcome: BytesView | Exception) -> None:
        """An object is here, or has failed."""
        heard_at = arrival.ended_at if arrival.heard_at is None else arrival.heard_at
        self._first_bytes += heard_at - arrival.asked_at
        self._bodies += arrival.ended_at - heard_at
        if isinstance(outcome, Exception):
            self._num_errors += 1
        else:
            self._num_objects += 1
            self._num_bytes += outcome.size

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
            "retries": self._retries + (retries.count if self._entered is not None else 0),
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
