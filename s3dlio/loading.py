"""Imports that happen while a program runs, and forks: one lock for both.

A module that another thread is just importing stays locked for ever in a forked child, since that thread is not there to
finish it. So whatever the package imports late it imports under this lock, and a fork waits for it, `WAIT` seconds at most.
"""

from __future__ import annotations

import logging  # noqa: F401 - first: its own hook at forks takes a lock that imports need, and has to run after ours
import os
import threading

__all__ = ["Gate", "gate"]

WAIT = 30.0


class Gate:
    """Use as a context manager around a late import. May be entered again by the same thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_held_for_fork = False
        os.register_at_fork(before=self._before, after_in_parent=self._after, after_in_child=self._after_in_child)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def _before(self) -> None:
        self._is_held_for_fork = self._lock.acquire(timeout=WAIT)

    def _after(self) -> None:
        if self._is_held_for_fork:
            self._lock.release()

    def _after_in_child(self) -> None:
        self._lock = threading.RLock()


gate = Gate()
