"""Bad samples in datasets: what the workers of a DataLoader skip is known to the main process as well."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from typing import Any, Protocol

from ..data.bad_samples import Filler, OnError, Skipped, checked_on_error
from ..runtime import after_fork

__all__ = ["Board", "Named", "Skipping", "transform_of"]

TEXT_BYTES = 256 * 1024  # all that is kept of names and errors
MAX_ERROR = 300
_HEAD = struct.Struct("=QQ")  # how many were skipped, and the bytes of text that follow: one line of JSON for each


class Board:
    """Who was skipped and why, in a file without a name that processes share: all are counted, the first ones named.

    Forked and spawned children write to the board of their parent, however many there are and whichever DataLoader began
    them; a plain copy is a board of its own. One writer at a time holds a record lock, which belongs to its process: the
    system takes it back from one that is killed, so that nobody waits for ever.
    """

    def __init__(self, file: int | None = None) -> None:
        self._file = _unnamed_file() if file is None else file
        weakref.finalize(self, os.close, self._file).atexit = False

    def add(self, skipped: Skipped) -> None:
        """Write it down."""
        text = json.dumps(skipped._replace(error=skipped.error[:MAX_ERROR])).encode() + b"\n"
        with self._alone():
            count, length = self._head()
            if length + len(text) <= TEXT_BYTES:
                os.pwrite(self._file, text, _HEAD.size + length)
                length += len(text)
            os.pwrite(self._file, _HEAD.pack(count + 1, length), 0)  # after the text: a writer may be killed between the two

    @property
    def num_skipped(self) -> int:
        """How many samples were skipped until now, in all workers and epochs."""
        with self._alone():
            return self._head()[0]

    def skipped(self) -> list[Skipped]:
        """What is known of them, in the order in which they were written down."""
        with self._alone():
            text = os.pread(self._file, self._head()[1], _HEAD.size)
        return [Skipped(*json.loads(line)) for line in text.splitlines()]

    def _head(self) -> tuple[int, int]:
        count, length = _HEAD.unpack(os.pread(self._file, _HEAD.size, 0).ljust(_HEAD.size, b"\0"))
        return count, length

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with _here.lock:  # a record lock does not keep two threads apart
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX)
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    def __reduce__(self) -> tuple[Any, ...]:
        child = get_spawning_popen()
        if child is None:
            with self._alone():
                return _copied, (os.pread(self._file, _HEAD.size + TEXT_BYTES, 0),)
        sent = _here.sent.setdefault(child, {})  # a descriptor is sent once, however often this is pickled for the child
        if self._file not in sent:
            sent[self._file] = DupFd(self._file)
        return _inherited, (sent[self._file],)


class _Here:
    """What a process knows of its boards."""

    def __init__(self) -> None:
        self.inherited: dict[int, Board] = {}  # by descriptor, for good
        self._forget()
        after_fork(self._forget)

    def _forget(self) -> None:
        self.lock = threading.RLock()  # one that an interrupt has left taken opens to its own thread
        self.sent: weakref.WeakKeyDictionary[Any, dict[int, Any]] = weakref.WeakKeyDictionary()  # by child


_here = _Here()


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("s3dlio-skipped")
    with tempfile.TemporaryFile() as file:  # where Linux's own are not
        return os.dup(file.fileno())


def _copied(content: bytes) -> Board:
    board = Board()
    os.pwrite(board._file, content, 0)
    return board


def _inherited(file: Any) -> Board:
    number = file.detach()
    if number not in _here.inherited:
        _here.inherited[number] = Board(number)
    return _here.inherited[number]


class Skipping:
    """A dataset that tells of the samples which its `on_error` let pass."""

    _board: Board | None = None

    @property
    def num_skipped(self) -> int:
        """Samples that were skipped until now, by all workers in all epochs."""
        return 0 if self._board is None else self._board.num_skipped

    @property
    def skipped(self) -> list[Skipped]:
        """Those samples, with their errors and what was repeated instead: the first ones."""
        return [] if self._board is None else self._board.skipped()

    def _skip(self, on_error: OnError) -> None:
        """Check the choice, and keep it."""
        self._on_error = checked_on_error(on_error)
        self._board = None if on_error == "raise" else Board()

    def _tell_of(self, skipped: Iterable[Skipped]) -> None:
        """Write down what was skipped elsewhere."""
        if self._board is not None:
            for one in skipped:
                self._board.add(one)

    def _filled(
        self,
        arrivals: Iterable[tuple[Named, Any]],
        transformed: Callable[[Any], Any] | None = None,
        batch_size: int | None = None,
        taken: int = 0,
        before: Callable[[], Iterable[tuple[Named, Any]]] | None = None,
    ) -> Iterator[Any]:
        """A sample for each arrival: where one is bad, a good one of its batch (None: of all of them) is repeated.

        `taken` samples came before the first arrival, so that it may stand within a batch; `before` reads those of them that
        are of its batch, the last one first.
        """

        def attempted(arrivals: Iterable[tuple[Named, Any]]) -> Iterator[tuple[Named, Any]]:
            for arrival, outcome in arrivals:
                yield arrival, outcome if transformed is None else _attempted(outcome, transformed)
                del outcome

        def earlier() -> Iterator[tuple[str, Any]]:
            return ((arrival.uri, sample) for arrival, sample in attempted(before() if before else ()))

        filler = Filler(self._on_error, self._board.add if self._board else None, earlier)
        for number, (arrival, sample) in enumerate(attempted(arrivals), taken + 1):
            yield from filler.add(arrival.uri, sample, getattr(arrival, "part", ""))
            del sample
            if batch_size is not None and number % batch_size == 0:
                filler.end_batch()
        filler.end_batch()


class Named(Protocol):
    """What is known of a sample. One that is a part of an object has a `part` besides."""

    uri: str


def _attempted(outcome: Any, transformed: Callable[[Any], Any]) -> Any:
    if isinstance(outcome, Exception):
        return outcome
    try:
        return transformed(outcome)
    except Exception as exc:
        return exc


def transform_of(sample: Any, transform: Callable[[Any], Any], name: str) -> Any:
    """`transform(sample)`. An exception of the user's own function says what it was about, and is no end of the epoch."""
    try:
        return transform(sample)
    except StopIteration as exc:
        raise RuntimeError(f"the transform raised StopIteration for {name}") from exc
    except Exception as exc:
        exc.add_note(f"while transforming {name}")
        raise
