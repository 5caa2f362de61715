"""What happens to a sample that cannot be had: it ends the epoch, or a good one of its batch is repeated in its place.

A position is never left out, so that the order, the length of an epoch and the state of a resumed one stay what they are,
and the ranks of a job stay in step. Where nobody knows how many samples there are, as in a file of records, a bad one is
passed over: its position is consumed, and nothing comes in its place.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, TypeAlias

from ..errors import AccessDeniedError, ConfigError, MissingPackageError, OutOfSpaceError, S3dlioError

__all__ = ["BadSampleWarning", "Before", "Filler", "OnError", "Skipped", "Skips", "Tally", "checked_on_error"]

MAX_REPORTED = 1000  # skipped samples whose names are kept

OnError: TypeAlias = Literal["raise", "skip"] | Callable[[str, Exception], bool]
"""`"raise"`; `"skip"`; or a function of the sample's URI and its error that says True for "skip it"."""

Before: TypeAlias = Callable[[], Iterable[tuple[str, Any]]]

# The next sample would fail as this one did: what is wrong is the job, not the sample.
NEVER_SKIPPED = (AccessDeniedError, ConfigError, MemoryError, MissingPackageError, OutOfSpaceError)


class BadSampleWarning(UserWarning):
    """A sample was skipped: another one was repeated in its place, or, in a file of records, nothing. Or a file was."""


class Skipped(NamedTuple):
    """A sample that was skipped, why, and which one was repeated in its place: "" for none."""

    uri: str
    error: str
    repeated: str


class Tally:
    """The skipped samples of one process: all are counted, the first ones kept."""

    def __init__(self) -> None:
        self.num_skipped = 0
        self._skipped: list[Skipped] = []

    def add(self, skipped: Skipped) -> None:
        """Write one down."""
        self.num_skipped += 1
        if len(self._skipped) < MAX_REPORTED:
            self._skipped.append(skipped)

    def skipped(self) -> list[Skipped]:
        """The first `MAX_REPORTED` of them."""
        return list(self._skipped)


def checked_on_error(on_error: OnError) -> OnError:
    """`on_error` itself. Raises ConfigError when it is none of the choices."""
    if callable(on_error) or (isinstance(on_error, str) and on_error in ("raise", "skip")):
        return on_error
    raise ConfigError(f"on_error={on_error!r} is neither 'raise' nor 'skip' nor a function of (uri, error)")


class Filler:
    """The samples of one batch after another, in which good ones stand for bad ones.

    `add` gives the samples that can be handed out now, in the order of their positions: none while a batch has only bad
    ones, and several when its first good one comes. The sample that is repeated is copied, so that no two of a batch share
    memory. `report` learns of each skipped one.

    `before` gives (URI, sample or exception) of what came before the first position in its batch, the last one first. It is
    asked when the first position is bad: so a resumed epoch repeats what one that was never left repeats.
    """

    def __init__(
        self, on_error: OnError, report: Callable[[Skipped], None] | None = None, before: Before | None = None
    ) -> None:
        self._on_error = on_error
        self._report = report
        self._before = before
        self._good: tuple[str, Any] | None = None
        self._bad: list[tuple[str, str, Exception]] = []  # that wait for the batch's first good one

    @property
    def num_waiting(self) -> int:
        """How many bad ones wait for a good one."""
        return len(self._bad)

    def add(self, uri: str, outcome: Any, part: str = "") -> list[Any]:
        """What became of the next position: a sample, or the exception that it met. Raises what is not to be skipped.

        `part` says which part of the object it is, where an object has several samples.
        """
        if isinstance(outcome, Exception):
            _check(self._on_error, uri, outcome)
            self._bad.append((uri, part, outcome))
            self._look_back()
            return [] if self._good is None else self._filled(*self._good)
        if self._on_error != "raise":  # nothing is kept that is not needed
            self._good, self._before = (uri, outcome), None
        return [*self._filled(uri, outcome), outcome] if self._bad else [outcome]

    def _look_back(self) -> None:
        before, self._before = self._before, None
        if before is not None:
            self._good = next(((uri, outcome) for uri, outcome in before() if not isinstance(outcome, Exception)), None)

    def _filled(self, uri: str, sample: Any) -> list[Any]:
        copies = []
        while self._bad:
            bad, part, error = self._bad.pop(0)
            reason = f"{part}: {error}" if part else str(error)
            warnings.warn(f"skipped {bad} ({reason}); {uri} is repeated in its place", BadSampleWarning, stacklevel=2)
            if self._report is not None:
                self._report(Skipped(bad, reason, uri))
            copies.append(copy.deepcopy(sample))
        return copies

    def begin_batch(self) -> None:
        """What came before is of another batch. Bad ones of a batch that an error has broken off wait for this one."""
        self._good = self._before = None

    def end_batch(self) -> None:
        """The batch is over. Raises S3dlioError when none of its samples was good."""
        self._good = self._before = None
        if self._bad:
            bad, self._bad = self._bad, []
            last = bad[-1][2]
            names = ", ".join(f"{part} of {uri}" if part else uri for uri, part, _ in bad[:3]) + (
                " …" if len(bad) > 3 else ""
            )
            raise S3dlioError(f"no sample of a batch of {len(bad)} is good: {names}; the last error: {last}") from last


def _check(on_error: OnError, uri: str, error: Exception) -> None:
    """Raise the error unless it is to be skipped."""
    if on_error == "raise":
        raise error
    if on_error == "skip":
        if isinstance(error, NEVER_SKIPPED):
            raise error
    elif not on_error(uri, error):
        raise error


class Skips:
    """What a reader of records does with bad ones: a position is consumed, and nothing comes in its place.

    `tally` tells of them, and `report` learns of each.
    """

    def __init__(self, on_error: OnError, report: Callable[[Skipped], None] | None = None) -> None:
        self.on_error = checked_on_error(on_error)
        self.tally = Tally()
        self._report = report

    def skip(self, uri: str, error: Exception, *, is_whole: bool = False) -> None:
        """Pass over what met this error, a part of an object or all of it. Raises the error when it is not to be skipped."""
        _check(self.on_error, uri, error)
        warnings.warn(f"skipped {'' if is_whole else 'a part of '}{uri} ({error})", BadSampleWarning, stacklevel=2)
        skipped = Skipped(uri, str(error), "")
        self.tally.add(skipped)
        if self._report is not None:
            self._report(skipped)
