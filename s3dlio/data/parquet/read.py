"""Row groups on their way: several are read and decoded at once, and each is handed out at its turn."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Generator, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from ... import runtime
from ...config import Options
from ...errors import S3dlioError
from ...storage.base import Store
from ...view import empty
from ..turns import InTurn
from .cut import Cut
from .drive import ALONE_BYTES, by_polling, by_threads
from .feed import Feed, begun
from .room import Room

__all__ = ["outcomes", "stream"]

SMALL_BYTES = 512 * 1024  # reads shorter than this are driven by the calling thread
SMALL_AT_ONCE = 4  # times as many of them: while it computes, or waits for a row group to be decoded, it sends none

T = TypeVar("T")


def stream(store: Store, cuts: Iterator[Cut], finish: Callable[[Cut], T], *, prefetch: int, options: Options) -> InTurn[T]:
    """`outcomes`, of which a failed one raises at its turn, and the next one comes after it."""
    return InTurn(outcomes(store, cuts, finish, prefetch=prefetch, options=options))


def outcomes(
    store: Store,
    cuts: Iterator[Cut],
    finish: Callable[[Cut], T],
    *,
    prefetch: int,
    options: Options,
    left: Collection[object] = (),
) -> Generator[T | Exception]:
    """`finish` of row groups, in the order of `cuts`, while further ones are read and decoded in other threads.

    What could not be had is its error, at its turn. At most `prefetch` of them are on their way, or here and not yet taken;
    `cuts` is advanced only as far. While one is decoded it takes its memory twice, so only as many are at once as `Room`
    allows, and of large ones one or two less are read ahead. Whoever puts something into `left` ends it from another thread,
    within a second. Raises S3dlioError in a forked child.
    """
    owner = os.getpid()
    first = begun(cuts)
    if first is None:
        return
    in_ranges = options.range_enabled and store.limits.parallel_ranges
    if isinstance(first, Cut):
        prefetch = _places(first, prefetch)
    feed = Feed(itertools.chain([first], cuts), prefetch, options.chunk_bytes if in_ranges else None, left)
    window, drive = max(prefetch, options.range_concurrency), by_threads
    if isinstance(first, Cut) and first.mean_bytes() < SMALL_BYTES:
        window, drive = SMALL_AT_ONCE * window, by_polling
    del first
    here: dict[int, Future[T]] = {}
    while not feed.is_over:  # driven again when all that the window had room for has failed to begin
        room = Room()
        finished = partial(_finished, finish=finish, room=room)
        ended = drive(store, feed, finished, window)
        try:
            for cut, future in ended:
                if not cut.is_over:  # of several reads, the first to fail ends it
                    cut.is_over = True
                    here[id(cut)] = future
                del cut, future
                while feed.order and (isinstance(feed.order[0], S3dlioError) or id(feed.order[0]) in here):
                    runtime.check_owner(owner)
                    yield _taken(feed.order[0], here)
                    del feed.order[0]
            while feed.order:  # nothing runs: these could not be begun
                yield _taken(feed.order[0], here)
                del feed.order[0]
        finally:
            room.is_closed = True
            ended.close()
            for future in here.values():
                future.cancel()


def _places(first: Cut, prefetch: int) -> int:
    """How many like `first` may be on their way, so that their memory and that of decoding are those of `prefetch`.

    One that is being decoded takes the place of two, and what Arrow's allocator keeps grows with large ones.
    """
    if not first.is_large:
        return prefetch
    num_spared = 2 if prefetch > 3 and first.layout.decoded_bytes >= ALONE_BYTES else 1
    return max(1, prefetch - num_spared)


def _taken(begun: Cut | S3dlioError, here: dict[int, Future[Any]]) -> Any:
    if isinstance(begun, S3dlioError):
        return begun
    future = here.pop(id(begun))
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, Exception):
        return error
    raise error


def _finished(cut: Cut, *, finish: Callable[[Cut], T], room: Room) -> T:
    cut.complete()
    with room.taken(cut.layout.decoded_bytes):
        result = finish(cut)
        cut.view = empty(0)  # what was decoded is not kept until its turn
    return result
