"""Numbered objects, and the numbers back from what a DataLoader delivers. In a module, so that spawned workers find it."""

from __future__ import annotations

import errno
import gc
import os
import struct
import threading
from collections.abc import Iterable
from typing import Any

import psutil
import pytest
from crc32c import crc32c

import s3dlio


def fill(root: str, count: int) -> str:
    """`count` objects whose bytes are their numbers, in the order of their names; returns their prefix."""
    prefix = f"{root}train/"
    s3dlio.put_many((f"{prefix}{number:05}", str(number).encode()) for number in range(count))
    return prefix


def framed(data: bytes) -> bytes:
    """A record as TensorFlow writes it."""

    def masked(piece: bytes) -> bytes:
        crc = crc32c(piece)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def number(view: Any) -> int:
    return int(bytes(view))


def numbers(batches: Iterable[Any]) -> list[list[int]]:
    """Of each batch the numbers of its views."""
    return [[number(view) for view in batch] for batch in batches]


def flat(batches: Iterable[Iterable[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


def failure_of(loader: Any, kind: type[Exception]) -> str:
    """The text of the `kind` of error that iterating a DataLoader raises."""
    iterator = iter(loader)
    with pytest.raises(kind) as caught:
        list(iterator)
    if loader.num_workers:
        iterator._shutdown_workers()  # left to the garbage collector, it waits 5 s for each worker (torch 2.13)
    return str(caught.value)


def threads_and_descriptors() -> tuple[int, int]:
    """Of this process, but for the threads of the pools: those grow up to their limits as the machine's load has it."""
    gc.collect()
    process = psutil.Process()
    num_pooled = sum(thread.name.startswith("s3dlio-") for thread in threading.enumerate())
    return process.num_threads() - num_pooled, process.num_fds()


def drop_cached(path: str, start: int = 0) -> None:
    """Have the bytes of a file, from `start` on, come from its disk when they are read next."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, start, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def nothing_at_hand(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have every look at a file say that it is not in memory, which the kernel does not promise; the places looked at."""
    looked: list[int] = []
    preadv = os.preadv

    def refusing(fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if not flags:
            return preadv(fd, buffers, offset)
        looked.append(offset)
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "preadv", refusing)
    return looked
