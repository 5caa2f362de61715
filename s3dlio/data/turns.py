"""Iterators whose failures are heard: an epoch never ends early without a word.

A generator that has raised is over, and its next `next()` says StopIteration, as if all items had been handed out.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

from ..errors import S3dlioError
from ..runtime import check_owner

__all__ = ["InTurn", "Lasting", "busy"]

T = TypeVar("T")


def busy() -> S3dlioError:
    """The error of a thread, or task, that comes while another one is inside."""
    return S3dlioError("this iterator is waited for by another thread or task: use it from one thread at a time")


class Lasting(Iterator[T], Generic[T]):
    """The items of a generator. What it raises, it raises again at every further `next()`.

    It belongs to the process that made it: a forked child gets an S3dlioError, as its threads and sockets are not there;
    unless the generator `survives_forks`, because it asks for what is lost again.
    """

    def __init__(self, items: Generator[T], *, survives_forks: bool = False) -> None:
        self._items = items
        self._owner = None if survives_forks else os.getpid()
        self._error: BaseException | None = None

    def __next__(self) -> T:
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._owner is not None:
            check_owner(self._owner)
        try:
            return next(self._items)
        except StopIteration:
            raise
        except BaseException as exc:
            if (
                isinstance(exc, ValueError) and inspect.getgeneratorstate(self._items) != inspect.GEN_CLOSED
            ):  # "already executing": it is not over
                raise busy() from exc
            self._error = exc
            raise

    def close(self) -> None:
        """Leave it early."""
        self._items.close()


class InTurn(Iterator[T], Generic[T]):
    """The items of a generator of items and errors. An error is raised at its turn, and the next item comes after it.

    What the generator itself raises is its end, and is raised again at every further `next()`.
    """

    def __init__(self, outcomes: Generator[T | Exception]) -> None:
        self._outcomes = Lasting(outcomes)

    def __next__(self) -> T:
        outcome = next(self._outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def close(self) -> None:
        """Leave it early."""
        self._outcomes.close()
