"""`Room`: how much memory the decoding of row groups may take at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Room"]

DECODING_BYTES = 48 * 1024 * 1024  # decoded at once, besides a single row group that is larger
LOOK_AGAIN = 0.1  # seconds between two looks at whether anybody still waits


class Room:
    """Memory that decoding takes beyond its result: for as many row groups at once as fit, and for one in any case."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._used = 0
        self.is_closed = False  # set without the lock: a collector, or a forked child, must not wait for it

    @contextmanager
    def taken(self, num_bytes: int) -> Iterator[None]:
        """Wait for so much room. Raises RuntimeError when nobody wants the result any more."""
        with self._changed:
            while self._used and self._used + num_bytes > DECODING_BYTES and not self.is_closed:
                self._changed.wait(LOOK_AGAIN)
            if self.is_closed:
                raise RuntimeError("left early")
            self._used += num_bytes
        try:
            yield
        finally:
            with self._changed:
                self._used -= num_bytes
                self._changed.notify_all()
