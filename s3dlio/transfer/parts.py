"""An upload on its way: parts in the I/O threads, as many at once as the store likes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, wait
from functools import partial

from .. import runtime
from ..storage.base import ObjectInfo, Store

__all__ = ["Parts"]


class Parts:
    """Sends parts and sees that all of them arrive, or that none is left. Used by one thread at a time."""

    def __init__(self, store: Store, key: str) -> None:
        self._upload = store.begin_upload(key)
        self._window = store.limits.parallel_parts
        self._running: deque[Future[None]] = deque()
        self._is_over = False
        self._owner = os.getpid()

    def send(self, number: int, offset: int, data: Sequence[memoryview]) -> None:
        """Begin to store a part, after an earlier one has ended if too many are on their way. Raises an earlier one's error.

        The buffers must stay as they are until `wait` or `complete`.
        """
        if self._window == 1:
            self._upload.part(number, offset, data)
            return
        if len(self._running) >= self._window:
            self._running.popleft().result()
        self._running.append(runtime.io.submit(partial(self._upload.part, number, offset, data)))

    def wait(self) -> None:
        """Wait until all parts are stored. Raises the first error."""
        while self._running:
            self._running.popleft().result()

    def complete(self, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        """Publish the object when all parts are stored."""
        self.wait()
        info = self._upload.complete(if_absent=if_absent, if_match=if_match)
        self._is_over = True
        return info

    def drop(self) -> None:
        """Abort the upload, once nothing of it is on its way any more.

        Harmless after `complete`, when called again, and in a forked child, which has none of the threads.
        """
        if self._is_over or os.getpid() != self._owner:
            return
        for task in self._running:
            task.cancel()
        wait(self._running)
        self._running.clear()
        self._upload.abort()
        self._is_over = True  # not before: an interrupted abort may be asked for again
