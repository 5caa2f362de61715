"""When to try again, and how hard: pure decisions, no I/O.

A pause grows exponentially with full jitter (a random part of it), so that many clients spread out; a server's
Retry-After is a lower bound. What the server asks to slow down counts against time, not against the number of attempts,
and also lowers how much the whole process asks of that server at once: additive increase, multiplicative decrease.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from ...errors import S3dlioError, ThrottledError
from ..base import retries

__all__ = ["Attempts", "Crowd", "Failure", "Named", "Pace", "Policy", "Question", "Verdict"]


class Verdict(Enum):
    """What a failed attempt means for the next one."""

    FINAL = "trying again cannot help"
    RETRY = "it may go better after a pause"
    UNREACHED = "no connection could be made: for a short while that may pass"
    THROTTLED = "the server asks to slow down"
    CORRECTED = "something was put right (region, clock, credentials, a stale connection): again, at once"


class Failure(Exception):
    """A failed attempt: what happened, whose error it becomes, and what it means for the next attempt."""

    def __init__(
        self,
        verdict: Verdict,
        reason: str,
        *,
        kind: type[S3dlioError] = S3dlioError,
        remedy: str = "",
        retry_after: float = 0.0,
    ) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason
        self.kind = kind
        self.remedy = remedy
        self.retry_after = retry_after


class Question(Exception):
    """An answer cannot be judged without that of another call: `judge` is given it (None: not found) and decides."""

    def __init__(self, call: Any, judge: Callable[[Any], Any]) -> None:
        super().__init__()
        self.call = call
        self.judge = judge


@dataclass(frozen=True, slots=True)
class Policy:
    """Bounds of one operation. Times in seconds."""

    max_attempts: int = 6
    operation_timeout: float = 60.0  # no retry begins later than this
    connect_timeout: float = 10.0  # unreachable servers are given up after this
    stall_timeout: float = 20.0  # an attempt without a byte for this long has failed
    first_pause: float = 0.1
    longest_pause: float = 10.0
    max_corrections: int = 5


class Named(Protocol):
    """An operation, as far as an error text needs to know it."""

    @property
    def action(self) -> str: ...

    @property
    def uri(self) -> str: ...


class Attempts:
    """The history of one operation."""

    __slots__ = ("_operation", "_policy", "num_corrections", "num_counted", "num_failed", "started")

    def __init__(self, policy: Policy, operation: Named) -> None:
        self._policy = policy
        self._operation = operation
        self.started: float | None = None
        self.num_failed = 0
        self.num_counted = 0  # those that use up attempts
        self.num_corrections = 0

    def begin(self, now: float) -> None:
        """The first attempt begins: time that was spent waiting for a place does not count."""
        if self.started is None:
            self.started = now

    def pause_after(self, failure: Failure, now: float) -> float:
        """Seconds to wait before the next attempt. Raises the operation's error when there is to be none."""
        verdict = failure.verdict
        self.num_failed += verdict is not Verdict.CORRECTED
        if verdict is Verdict.CORRECTED:
            self.num_corrections += 1
            if self.num_corrections <= self._policy.max_corrections:
                return 0.0
        if verdict is not Verdict.THROTTLED:
            self.num_counted += 1
        pause = max(self._jittered(max(1, self.num_failed)), failure.retry_after)
        if verdict is Verdict.FINAL or self.num_counted >= self._policy.max_attempts or self._is_late(verdict, now + pause):
            raise self.error(failure, now) from failure
        retries.add()
        return pause

    def _jittered(self, num_failed: int) -> float:
        bound = min(self._policy.longest_pause, self._policy.first_pause * 2.0 ** min(num_failed - 1, 30))
        return random.uniform(0.0, bound)  # noqa: S311 - spreads clients, protects nothing

    def _is_late(self, verdict: Verdict, resume: float) -> bool:
        bound = self._policy.operation_timeout
        if verdict is Verdict.UNREACHED:
            bound = min(bound, self._policy.connect_timeout)
        return resume - (self.started or 0.0) > bound

    def error(self, failure: Failure, now: float) -> S3dlioError:
        """The error that the caller of the operation sees."""
        kind = ThrottledError if failure.verdict is Verdict.THROTTLED else failure.kind
        tries = f"; {self.num_failed} attempts in {now - (self.started or 0.0):.1f} s" if self.num_failed > 1 else ""
        remedy = f" ({failure.remedy})" if failure.remedy else ""
        return kind(f"cannot {self._operation.action} {self._operation.uri}: {failure.reason}{tries}{remedy}")


class Crowd(Protocol):
    """Many attempts that one thread drives. While its consumer is at work it is parked, and keeps nobody out."""

    num_running: int
    is_parked: bool


def _num_parked(crowd: Crowd) -> int:
    return crowd.num_running if crowd.is_parked else 0


@dataclass(slots=True)
class Pace:
    """How much the process asks of one server at once; shared by all threads.

    `limit` requests may run at a time, those of parked crowds apart. It halves when the server asks to slow down, at most
    once a second, and grows by one per `limit` good answers, up to `max_connections`. `max_bytes_per_second` (0: none)
    bounds bodies in both directions.
    """

    max_connections: int
    max_bytes_per_second: float = 0.0
    limit: float = field(init=False)
    num_running: int = field(init=False, default=0)
    _process: int = field(init=False, default=0)  # how often it was forked: what places are marked with
    crowds: list[Crowd] = field(init=False, default_factory=list)
    _halved_at: float = field(init=False, default=0.0)
    _paid_until: float = field(init=False, default=0.0)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.limit = float(self.max_connections)

    def renew(self) -> None:
        """In a forked child nothing runs yet, and no lock is held by anybody who could let go of it."""
        self._lock = threading.Lock()
        self.num_running = 0
        self._process += 1
        self.crowds.clear()

    def enter(self, place: list[int]) -> bool:
        """Take a place, if there is one: `place` is not empty from then on."""
        with self._lock:
            limit = max(1, int(self.limit))
            if self.num_running >= limit and self.num_running - sum(map(_num_parked, self.crowds)) >= limit:
                return False
            # In this order no interrupt comes between the two: it could only after a call.
            self.num_running += 1
            place.append(self._process)
            return True

    def leave(self, place: list[int]) -> None:
        """Leave a place, if it is still taken: `place` is empty from then on. One of before a fork is gone already."""
        with self._lock:
            self.num_running -= place.count(self._process)
            place.clear()

    @property
    def is_slowed(self) -> bool:
        """Does less run at a time than could, because the server asked for it?"""
        return self.limit < self.max_connections

    def succeeded(self) -> None:
        with self._lock:
            self.limit = min(self.limit + 1.0 / self.limit, float(self.max_connections))

    def throttled(self, now: float) -> None:
        with self._lock:
            if now - self._halved_at >= 1.0:
                self._halved_at = now
                self.limit = max(1.0, min(self.limit, float(self.num_running)) / 2)

    def debt(self, num_bytes: int, now: float | None = None) -> float:
        """Account for transferred bytes; the seconds to wait before more may flow."""
        if not self.max_bytes_per_second:
            return 0.0
        now = time.monotonic() if now is None else now
        with self._lock:
            self._paid_until = max(self._paid_until, now) + num_bytes / self.max_bytes_per_second
            return self._paid_until - now
