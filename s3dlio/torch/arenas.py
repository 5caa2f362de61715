"""Shared memory for what leaves a worker, used again as soon as its receiver has let go of it.

Fresh memory costs more than copying into it. The last byte of an arena says whether it is in use: the sender sets it, and
the receiver clears it when the last view of the arena is gone. What a receiver never gets stays in use until the sender
ends. A forked child may go on looking at what its parent has received, so those arenas are not used again.
"""

from __future__ import annotations

import os
import threading
import weakref
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.multiprocessing import get_sharing_strategy

from ..runtime import after_fork
from ..view import Bytes, size_class

__all__ = ["Arena", "KEPT_BYTES", "received", "take"]

KEPT_BYTES = 64 * 1024 * 1024  # of a process at most, in use or not; what is larger is used once
SHARE_OF_ALL = 16  # of a file system of shared memory that is small, as containers have it, only such a part is kept
FREE, IN_USE = 0, 1


class Arena(NamedTuple):
    """Shared memory, by the name that PyTorch sends it by and as bytes."""

    storage: torch.UntypedStorage
    memory: Bytes

    @classmethod
    def of(cls, storage: torch.UntypedStorage) -> Arena:
        return cls(storage, torch.empty(0, dtype=torch.uint8).set_(storage).numpy())


class _Arenas:
    """Those that this process has made and may use again."""

    def __init__(self) -> None:
        self._forget()
        after_fork(self._forget)

    def _forget(self) -> None:
        self._kept: list[Arena] = []
        self._strategy = ""  # how PyTorch shares those that are kept
        self._lock = threading.Lock()

    def take(self, num_bytes: int) -> Arena:
        size = size_class(num_bytes + 1)
        with self._lock:
            strategy = get_sharing_strategy()  # type: ignore[no-untyped-call]
            if self._strategy != strategy:  # PyTorch would move what is kept to other memory before it sends it
                self._kept, self._strategy = [], strategy
            fitting = (arena for arena in self._kept if arena.memory.size == size and arena.memory[-1] == FREE)
            arena = next(fitting, None) or self._made(size)
            arena.memory[-1] = IN_USE
        return arena

    def _made(self, size: int) -> Arena:
        limit = min(KEPT_BYTES, _num_bytes_of_all() // SHARE_OF_ALL)
        arena = Arena.of(torch.UntypedStorage._new_shared(size))  # type: ignore[no-untyped-call]
        if size <= limit:
            self._make_room(limit - size)
            self._kept.append(arena)
        return arena

    def _make_room(self, limit: int) -> None:
        """Forget arenas until the others have `limit` bytes at most: the free ones first, then the oldest."""
        by_age = sorted(self._kept, key=lambda arena: arena.memory[-1] == IN_USE)
        while sum(arena.memory.size for arena in by_age) > limit:
            del by_age[0]
        self._kept = by_age


@lru_cache(maxsize=1)
def _num_bytes_of_all() -> int:
    """How large the file system of shared memory is, where it is one: 64 MiB in a container that was told nothing."""
    try:
        status = os.statvfs("/dev/shm")  # noqa: S108 - where Linux has it
    except OSError:
        return KEPT_BYTES * SHARE_OF_ALL
    return status.f_blocks * status.f_frsize


_arenas = _Arenas()
_received: dict[int, tuple[weakref.ref[Any], Bytes]] = {}
# Afterwards once more: another thread may have received something between the first time and the fork itself.
os.register_at_fork(before=_received.clear, after_in_parent=_received.clear, after_in_child=_received.clear)


def take(num_bytes: int) -> Arena:
    """Shared memory of at least so many bytes and one more, to be sent to one other process.

    Raises RuntimeError, as PyTorch does, where there is not so much.
    """
    return _arenas.take(num_bytes)


def received(storage: torch.UntypedStorage) -> Bytes:
    """The memory that another process has taken and sent: its own again when no view of this array is left."""
    memory = Arena.of(storage).memory
    reference = weakref.ref(memory, _let_go)
    _received[id(reference)] = reference, Arena.of(storage).memory
    return memory


def _let_go(reference: weakref.ref[Any]) -> None:
    known = _received.pop(id(reference), None)
    if known is not None:  # else the process has been forked meanwhile
        known[1][-1] = FREE
