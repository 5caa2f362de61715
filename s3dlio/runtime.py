"""What a process owns: I/O threads, the async twins, and what a forked child must drop.

Several pools, because a pool must never wait on itself: `io` runs leaf requests only, `calls` whole verbs for the async
twins, `decoders` compute, as many as pay, and `lone_decoder` what is too large for several at once. Their threads are
daemons, made when needed and at most `limit` of them, so that an exit never waits for a stalled disk or server. A ^C waits
for the requests that run, each of which has its own bound, and begins no others.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import functools
import itertools
import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any, Generic, ParamSpec, TypeVar

from . import config
from .errors import S3dlioError

__all__ = [
    "LATER",
    "Later",
    "PATIENCE",
    "Threads",
    "after_fork",
    "calls",
    "check_owner",
    "decoders",
    "each",
    "inherited",
    "io",
    "lone_decoder",
    "twin",
    "when_collected",
]

EXIT_TIMEOUT = 10.0
LOOK_AGAIN = 0.05  # seconds between two looks at what still runs
LOOK_FOR_LEAVING = 0.25  # seconds between two looks at whether another thread has ended the whole
MOST_DECODERS = 4  # each keeps what its allocator had for one thing, for the next one
PATIENCE = 0.5  # seconds that leaving early waits for requests that run and whose memory is their own

_NOTHING: Any = object()  # instead of an item


class Later(Enum):
    """Says of an item that it is to be done later, in the same thread."""

    LATER = 1


LATER = Later.LATER

log = logging.getLogger("s3dlio")

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")

_dropped_after_fork: list[Callable[[], None]] = []


def after_fork(drop: Callable[[], None]) -> Callable[[], None]:
    """Register `drop` to run in each forked child, before any other code of the package does. Usable as a decorator."""
    _dropped_after_fork.append(drop)
    return drop


def _run_drops() -> None:
    for drop in _dropped_after_fork:
        drop()


os.register_at_fork(after_in_child=_run_drops)


def check_owner(owner: int) -> None:
    """Raise S3dlioError in a child that inherited, by a fork, what only the threads and sockets of `owner` go on with."""
    if os.getpid() != owner:
        raise inherited()


def inherited() -> S3dlioError:
    """The error of such a child."""
    return S3dlioError("this iterator belongs to the process that made it: make a new one in the child")


class Threads:
    """A per-process pool of at most `limit()` daemon threads; a forked child starts with an empty one."""

    def __init__(self, name: str, limit: Callable[[], int]) -> None:
        self._name = name
        self._limit = limit
        self._forget()
        after_fork(self._forget)

    def _forget(self) -> None:
        self._tasks: SimpleQueue[Callable[[], object]] = SimpleQueue()
        # A token for each thread that waits. Not a semaphore: an interrupt in its Python code could leave its lock taken.
        self._idle: deque[None] = deque()
        self._lock = threading.Lock()
        self._num_threads = 0

    def start(self, task: Callable[[], object]) -> None:
        """Run `task`, which must not raise, in one of the threads."""
        try:
            self._idle.pop()
        except IndexError:
            self._grow()
        self._tasks.put(task)

    def submit(self, task: Callable[[], T]) -> Future[T]:
        """Run `task` in one of the threads."""
        future: Future[T] = Future()
        self.start(functools.partial(_fulfil, future, task))
        return future

    def _grow(self) -> None:
        with self._lock:
            if self._num_threads >= self._limit():
                return
            name = f"s3dlio-{self._name}-{self._num_threads + 1}"
            try:
                threading.Thread(target=self._work, name=name, daemon=True).start()
            except RuntimeError:  # the system gives no more threads
                if not self._num_threads:
                    raise
                return
            self._num_threads += 1

    def _work(self) -> None:
        tasks, idle = self._tasks, self._idle
        while True:
            try:
                task = tasks.get_nowait()
            except Empty:
                idle.append(None)
                task = tasks.get()
            task()
            del task  # else an idle thread would keep the last result alive


def _fulfil(future: Future[T], task: Callable[[], T]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(task())
        except BaseException as exc:
            future.set_exception(exc)


io = Threads("io", lambda: config.snapshot().worker_threads)
calls = Threads("call", lambda: 64)
decoders = Threads("decode", lambda: min(MOST_DECODERS, os.cpu_count() or 1))
lone_decoder = Threads("decode-large", lambda: 1)


def each(
    function: Callable[[Item], T],
    items: Iterable[Item],
    *,
    window: int,
    patience: float | None = None,
    left: Collection[object] | None = None,
    begin: Callable[[Item], T | Exception | Later | None] | None = None,
) -> Iterator[tuple[Item, T | BaseException]]:
    """Call `function` on every item in the I/O threads and yield (item, result or exception) as they end.

    `begin`, if told, is asked first, in the caller's thread: for the result, or an error, if it can be had without waiting;
    for LATER, to have `function` called in the caller's thread when nothing more can be begun; or for None.

    At most `window` items are begun and not yet consumed, and `items` is advanced only as far, so that memory is
    bounded by the window; an iterator that has ended is asked again after each result. When the iterator is left early
    nothing new begins, and what runs is waited for: nobody writes into a caller's buffer after that. Who has no such
    buffers may tell a `patience`, such as PATIENCE, in seconds: what runs longer then ends by itself. Another thread that
    puts something into `left` ends it, by GeneratorExit. Raises S3dlioError in a forked child, which has no such threads.
    """
    pending = iter(items)
    if window == 1:
        for item in pending:
            yield item, _attempt(function, item, Exception)
        return
    crew = _Crew(function)
    num_running, postponed = 0, deque[Item]()
    outcome: tuple[Item, T | BaseException]
    try:
        while True:
            check_owner(crew.owner)
            has_room = num_running + len(postponed) < window
            item = next(pending, _NOTHING) if has_room else _NOTHING  # it may have paused before
            if item is not _NOTHING:
                result = None if begin is None else begin(item)
                if result is None:
                    crew.begin(item)
                    num_running += 1
                    continue
                if result is LATER:
                    postponed.append(item)
                    continue
                outcome = crew.exchanged((item, result))
                del result
            elif postponed:
                item = postponed.popleft()
                outcome = crew.exchanged((item, _attempt(function, item, Exception)))
            elif num_running:
                outcome = crew.first(left)
                num_running -= 1
            else:
                return
            del item
            yield outcome
            del outcome
    finally:
        crew.stop(math.inf if patience is None else patience)


class _Crew(Generic[Item, T]):
    """The I/O threads that work for one `each`."""

    def __init__(self, function: Callable[[Item], T]) -> None:
        self.owner = os.getpid()
        self._function = function
        self._ended: SimpleQueue[tuple[Item, T | BaseException]] = SimpleQueue()
        self._running: set[object] = set()
        self._stopped: list[None] = []  # filled to stop; like `_running`, safe against an interrupt at any place

    def begin(self, item: Item) -> None:
        io.start(functools.partial(self._run, item))

    def _run(self, item: Item) -> None:
        token, skip = object(), RuntimeError("left early")
        self._running.add(token)  # before it looks whether it may: who stops looks at `_running` afterwards
        # Whatever is not put here would be waited for without end, so an exit raised in a thread counts, too.
        outcome = skip if self._stopped else _attempt(self._function, item, BaseException)
        self._running.discard(token)
        self._ended.put((item, outcome))

    def exchanged(self, outcome: tuple[Item, T | BaseException]) -> tuple[Item, T | BaseException]:
        """What ended first: this, or what a thread has ended, which would wait for all that come without one otherwise."""
        if self._ended.empty():
            return outcome
        self._ended.put(outcome)
        return self._ended.get()

    def first(self, left: Collection[object] | None) -> tuple[Item, T | BaseException]:
        """What ends next. Raises GeneratorExit, as into a generator that is closed, once there is anything in `left`."""
        if left is None:
            return self._ended.get()
        while not left:
            with contextlib.suppress(Empty):
                return self._ended.get(timeout=LOOK_FOR_LEAVING)
        raise GeneratorExit("left early")

    def stop(self, patience: float) -> None:
        """Begin nothing more, and wait for what runs."""
        self._stopped.append(None)
        until = time.monotonic() + patience
        # A forked child that collects the frame of an `each` has none of the threads.
        while self._running and os.getpid() == self.owner and time.monotonic() < until:
            with contextlib.suppress(Empty):
                self._ended.get(timeout=LOOK_AGAIN)


def _attempt(function: Callable[[Item], T], item: Item, kind: type[BaseException]) -> T | BaseException:
    try:
        return function(item)
    except kind as exc:
        return exc


class _Reaper:
    """Runs what is to happen when an object is collected: not in the collector, which may hold any lock, but in a thread.

    What is left at exit runs then. A forked child inherits none of it.
    """

    def __init__(self) -> None:
        self._forget()
        after_fork(self._forget)
        atexit.register(self._run_all)

    def _forget(self) -> None:
        self._due: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._watched: dict[int, Callable[[], None]] = {}
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._owner = os.getpid()

    def watch(self, owner: object, action: Callable[[], None]) -> None:
        number = next(self._numbers)
        self._watched[number] = action
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="s3dlio-reaper", daemon=True)
            self._thread.start()
        weakref.finalize(owner, self._collected, number, self._owner).atexit = False

    def _collected(self, number: int, owner: int) -> None:
        if os.getpid() == owner and (action := self._watched.pop(number, None)) is not None:
            self._due.put(action)

    def _work(self) -> None:
        due = self._due
        while True:
            _run_quietly(due.get())

    def _run_all(self) -> None:
        """At exit: what is watched still, and what the thread has not come to yet."""
        for action in list(self._watched.values()):
            self._due.put(action)
        self._watched.clear()
        if self._thread is not None:
            done = threading.Event()
            self._due.put(done.set)
            done.wait(EXIT_TIMEOUT)


def _run_quietly(action: Callable[[], None]) -> None:
    """Nobody waits for this action, so its failure is told to the log."""
    try:
        action()
    except Exception as exc:
        log.warning("an upload that nobody finished could not be dropped: %s", exc)


_reaper = _Reaper()


def when_collected(owner: object, action: Callable[[], None]) -> None:
    """Run `action` in a thread soon after `owner` was collected, or at exit. It must not refer to `owner`."""
    _reaper.watch(owner, action)


def twin(verb: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """The coroutine function that runs the blocking `verb` in a thread.

    It works in any running loop. Cancelling it stops the waiting at once; a request already on its way ends by itself.
    """

    @functools.wraps(verb)
    async def asynchronous(*args: P.args, **kwargs: P.kwargs) -> T:
        import asyncio  # loaded already, since its loop runs this

        context = contextvars.copy_context()
        return await asyncio.wrap_future(calls.submit(lambda: context.run(verb, *args, **kwargs)))

    asynchronous.__name__ = asynchronous.__qualname__ = f"{verb.__name__}_async"
    asynchronous.__doc__ = f"Run `{verb.__name__}` without blocking the event loop: same arguments, result and errors."
    return asynchronous
