"""What a loader hands out: items one by one, in batches, and without blocking an event loop."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterator
from concurrent.futures import Future
from threading import RLock
from time import perf_counter
from typing import Any, Generic, Self, TypeVar

from .. import bulk
from ..runtime import after_fork, calls, inherited
from ..view import BytesView
from .bad_samples import Before, Filler, OnError
from .options import LoaderOptions, whole_number
from .stats import Stats, Timed
from .turns import busy

__all__ = ["AsyncItems", "Batches", "Items", "PyObjectDataLoaderSyncIter"]

T = TypeVar("T")

_running: weakref.WeakSet[Items[Any]] = weakref.WeakSet()


class Items(Iterator[T], Generic[T]):
    """What came of each position of an epoch, one by one. A failed one raises when it is its turn; then the next one comes.

    `arrivals` gives (what is known of it, the item or its error), and takes note of `left`. Use it from one thread at a
    time: a second one gets an S3dlioError. `close` may be called by another. Left early by whatever way, it drops its
    requests at once.
    """

    def __init__(
        self,
        arrivals: Generator[tuple[Timed, T | Exception]],
        stats: Stats,
        on_error: OnError,
        left: list[None],
        before: Before | None = None,
    ) -> None:
        self.left = left
        self._stats = stats
        self._filler = None if on_error == "raise" else Filler(on_error, stats.tally.add, before)
        self._ready: deque[T | Exception] = deque()  # what is here and not yet handed out
        self._fatal: BaseException | None = None  # what ended the iteration itself
        self._guard = RLock()  # one that an interrupt has left taken opens to its own thread
        self._arrivals = arrivals
        _running.add(self)

    def __next__(self) -> T:
        item = self.pull()
        self.delivered()
        return item

    def pull(self) -> T:
        """The next item, for somebody who hands it on and then says that it was `delivered`."""
        if not self._guard.acquire(False):
            raise busy()
        try:
            self._refuse_to_reenter()
            if self._filler is not None or self._ready:
                return self._next_ready()
            outcome = self._next_arrival()[1]
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        finally:
            self._guard.release()

    def _refuse_to_reenter(self) -> None:
        """The guard lets its own thread in again, as from a signal handler that runs while this one waits."""
        if getattr(self._arrivals, "gi_running", False):
            raise StopIteration if self.left else busy()  # or another thread is in `close`

    def delivered(self) -> None:
        """The item that was pulled last has reached the consumer."""

    def _next_arrival(self) -> tuple[Timed, T | Exception]:
        stats = self._stats
        stats.entered = perf_counter()
        try:
            arrived = next(self._arrivals)
        except BaseException as exc:
            raise self._end(exc) from None
        finally:
            stats.leave()
        stats.count(*arrived)
        return arrived

    def _end(self, exc: BaseException) -> BaseException:
        """What to raise when the iteration itself has ended: after an error of its own that one, again and again."""
        self._stats.ended()
        if isinstance(exc, GeneratorExit) or (self.left and isinstance(exc, ValueError)):
            return StopIteration()  # another thread has called `close`, or is in it: "generator already executing"
        if not isinstance(exc, StopIteration):
            self._fatal = exc
        return self._fatal or exc

    def _next_ready(self) -> T:
        while not self._ready:
            assert self._filler is not None
            try:
                arrival, outcome = self._next_arrival()
            except StopIteration:
                self._filler.end_batch()
                raise
            self._ready.extend(self._filler.add(arrival.uri, outcome, getattr(arrival, "part", "")))
        item = self._ready.popleft()
        if isinstance(item, Exception):
            raise item
        return item

    def close(self) -> None:
        """Stop: drop all requests and their connections. From another thread it takes effect within a second."""
        self.left.append(None)
        self._stats.ended()
        with contextlib.suppress(ValueError):  # another thread is inside: it will see for itself
            self._arrivals.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def orphan(self) -> None:
        """In a forked child: its requests are those of the parent, so it fails instead of waiting for them."""
        self._of_parent = self._arrivals  # closing it is not the child's business, and a thread may have been inside
        self._arrivals = _refusal()
        self._guard = RLock()


class PyObjectDataLoaderSyncIter(Items[BytesView]):
    """The objects of one epoch. Made by a `PyBytesAsyncDataLoader`; an item is a `BytesView` with its `.uri`.

    A failed object raises when it is its turn, naming its URI; the iteration then goes on with the next one. Use it from
    one thread at a time: a second one gets an S3dlioError. `close` may be called by another. Left early by whatever way, it
    drops its requests at once.
    """

    def __init__(self, names: Iterator[str], options: LoaderOptions, stats: Stats, *, in_order: bool) -> None:
        left: list[None] = []
        arrivals: Generator[tuple[Any, BytesView | Exception]] = bulk.arrivals(
            names, window=options.prefetch, in_order=in_order, options=options.of_reads(), clock=stats.clock, left=left
        )
        super().__init__(arrivals, stats, options.on_error, left)

    __next__ = Items.pull  # nobody counts what was delivered

    def collect_batch(self, n: int) -> list[BytesView]:
        """Wait for `n` further items, or as many as are left: an empty list is the end.

        When an object has failed, the good ones before it are handed out first, and the next call raises. Where bad
        samples are skipped, a good one of the same batch is repeated for each.
        """
        n = whole_number("n", n, 1, None)
        batch: list[BytesView] = []
        try:
            return self._collected(batch, n)
        except BaseException:  # an interrupt, or what comes before the first item: nothing that is here is lost
            self._ready.extendleft(reversed(batch))
            raise

    def _collected(self, batch: list[BytesView], n: int) -> list[BytesView]:
        if not self._guard.acquire(False):
            raise busy()
        try:
            self._refuse_to_reenter()
            self._collect(batch, n)
        except StopIteration:
            pass
        except Exception as exc:
            if not batch:
                raise
            self._ready.appendleft(exc.with_traceback(None))  # which would keep this iterator alive
        finally:
            self._guard.release()
        return batch

    def _collect(self, batch: list[BytesView], n: int) -> None:
        while self._ready and len(batch) < n:
            batch.append(self.pull())
        if self._filler is None:
            self._collect_arrivals(batch, n)
            return
        self._filler.begin_batch()
        try:
            for _ in range(n - len(batch) - self._filler.num_waiting):
                arrival, outcome = self._next_arrival()
                batch.extend(self._filler.add(arrival.uri, outcome))
        except StopIteration:
            self._filler.end_batch()
            raise
        self._filler.end_batch()

    def _collect_arrivals(self, batch: list[BytesView], n: int) -> None:
        """As `pull` would, but the consumer comes and goes once for all of them."""
        stats, failure = self._stats, None
        stats.entered = perf_counter()
        try:
            while len(batch) < n and failure is None:
                arrival, outcome = next(self._arrivals)
                stats.count(arrival, outcome)
                if isinstance(outcome, Exception):
                    failure = outcome
                else:
                    batch.append(outcome)
        except BaseException as exc:
            raise self._end(exc) from None
        finally:
            stats.leave()
        if failure is not None:
            raise failure


def _refusal() -> Generator[Any]:
    raise inherited()
    yield


@after_fork
def _orphan_all() -> None:
    for items in list(_running):
        items.orphan()


class Batches(Iterator[list[BytesView]]):
    """Lists of `n` items each; the last one may be shorter, and so is one before an error."""

    def __init__(self, items: PyObjectDataLoaderSyncIter, n: int) -> None:
        self._items = items
        self._n = n

    @property
    def left(self) -> list[None]:
        return self._items.left

    def __next__(self) -> list[BytesView]:
        batch = self._items.collect_batch(self._n)
        if not batch:
            raise StopIteration
        return batch

    pull = __next__

    def delivered(self) -> None:
        """Nobody counts batches."""

    def close(self) -> None:
        """Stop, as `PyObjectDataLoaderSyncIter.close` does."""
        self._items.close()


_END = object()


class AsyncItems(AsyncIterator[Any]):
    """The same items for `async for`. Each wait runs in a thread of the async twins, one at a time.

    A second task that asks while the first one waits gets an S3dlioError: else both would be given the same item.
    """

    def __init__(self, items: Items[Any] | Batches) -> None:
        self._items = items
        self._step: Future[Any] | None = None
        self._is_waited_for = False
        # A thread that waits for an item that nobody wants any more ends within a second.
        weakref.finalize(self, items.left.append, None).atexit = False

    async def __anext__(self) -> Any:
        import asyncio  # loaded already, since its loop runs this

        if self._is_waited_for:
            raise busy()
        self._is_waited_for = True
        try:
            step = self._step = self._step or calls.submit(functools.partial(_pulled, self._items))
            await asyncio.wrap_future(_end_of(step))  # cancelled, it leaves the step for the next call
        finally:
            self._is_waited_for = False
        self._step = None
        item = step.result()
        if item is _END:
            raise StopAsyncIteration
        self._items.delivered()
        return item

    async def aclose(self) -> None:
        """Stop, as `PyObjectDataLoaderSyncIter.close` does."""
        self._items.close()


def _pulled(items: Items[Any] | Batches) -> Any:
    try:
        return items.pull()
    except StopIteration:
        return _END


def _end_of(step: Future[Any]) -> Future[None]:
    """Done when `step` is; cancelling it does not reach `step`."""
    end: Future[None] = Future()

    def tell(_: Future[Any]) -> None:
        if end.set_running_or_notify_cancel():
            end.set_result(None)

    step.add_done_callback(tell)
    return end
