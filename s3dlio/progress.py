"""Progress on request: a bar on stderr while bytes move, and one line at the end that says how many, how long, how fast."""

from __future__ import annotations

import sys
import time
from types import TracebackType

__all__ = ["Progress"]

REDRAW_SECONDS = 0.1
WIDTH = 30


class Progress:
    """Use as a context manager around a transfer, and tell it the bytes by `advance`. Silent unless `shown`.

    The bar is drawn on a terminal only. The line at the end (not after an exception) names the bytes, the seconds, the
    MB/s (10**6 bytes) and the rank, when there is one. `total` is the number of bytes, where it is known.
    """

    def __init__(self, action: str, *, shown: bool, total: int | None = None, rank: int | None = None) -> None:
        self.done = 0
        self.total = total
        self._action = action if rank is None else f"rank {rank}: {action}"
        self._shown = shown
        self._draws = shown and sys.stderr.isatty()
        self._started = self._drawn = time.monotonic()

    def advance(self, num_bytes: int) -> None:
        """So many bytes more have moved."""
        self.done += num_bytes
        now = time.monotonic()
        if self._draws and now - self._drawn >= REDRAW_SECONDS:
            self._drawn = now
            self._write("\r" + self._bar())

    def _bar(self) -> str:
        if not self.total:
            return f"{self._action} {self.done / 1e6:.1f} MB"
        share = min(1.0, self.done / self.total)
        return f"{self._action} [{'#' * int(share * WIDTH):{WIDTH}}] {share:4.0%}"

    def summary(self) -> str:
        """The line at the end."""
        seconds = max(time.monotonic() - self._started, 1e-9)
        return f"{self._action}: {self.done} bytes in {seconds:.2f} s, {self.done / 1e6 / seconds:.1f} MB/s"

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    def __enter__(self) -> Progress:
        self._started = self._drawn = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        if self._draws:
            self._write("\r" + " " * (len(self._bar()) + 8) + "\r")
        if self._shown and kind is None:
            self._write(self.summary() + "\n")
