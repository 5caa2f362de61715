"""Bytes between file descriptors and memory: through the page cache (`Buffered`) or past it (`Direct`).

O_DIRECT moves whole blocks between a block-aligned place in the file and block-aligned memory. 4096 serves every device
whose logical block is 512 or 4096 bytes. What does not fit goes through an aligned buffer: one copy.
"""

from __future__ import annotations

import errno
import fcntl
import os
import warnings
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np

from ..view import PAGE, pages, room

__all__ = ["BUFFERED", "Buffered", "DIRECT", "Direct", "FileIO", "create", "sync_directories"]

BOUNCE_BYTES = 4 * 1024 * 1024
AT_HAND_BYTES = 512 * 1024  # more than that is copied faster by several threads
# A special file would block at opening; a regular one does not care.
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class FileIO(Protocol):
    """How a store reads and writes its open files."""

    def open_to_read(self, path: str, opened: list[int]) -> None:
        """Put the descriptor into `opened`, in one step: a ^C while a file is opened leaves none that nobody closes."""

    def read(self, fd: int, into: memoryview, offset: int) -> int:
        """Fill `into` from the file's `offset` on; fewer bytes only where the file ends."""

    def require_at_hand(self, fd: int, offset: int, length: int) -> None:
        """Raise BlockingIOError unless these bytes are in memory, so that reading them waits for no disk.

        Then the kernel has been asked to bring them. Another OSError says that they are many, or that it cannot be told.
        """

    def ask_for(self, fd: int, offset: int, length: int) -> None:
        """The same for bytes that are hardly in memory: always raises."""

    def prepare_to_write(self, fd: int, path: str) -> None: ...

    def write(self, fd: int, data: Sequence[memoryview], offset: int) -> None:
        """Write all buffers, one after the other, from `offset` on."""


class Buffered:
    """Plain reads and writes."""

    def open_to_read(self, path: str, opened: list[int]) -> None:
        _open(path, _READ_FLAGS, opened)

    def read(self, fd: int, into: memoryview, offset: int) -> int:
        done = 0
        while done < into.nbytes:
            count = os.preadv(fd, [into[done:] if done else into], offset + done)
            if count == 0:
                break
            done += count
        return done

    def require_at_hand(self, fd: int, offset: int, length: int) -> None:
        if _NOWAIT is None or not 0 < length <= AT_HAND_BYTES:
            raise _not_at_hand()
        try:
            os.preadv(fd, [bytearray(1)], offset + length - 1, _NOWAIT)  # the last byte comes into memory last
        except BlockingIOError:
            self.ask_for(fd, offset, length)

    def ask_for(self, fd: int, offset: int, length: int) -> None:
        if not 0 < length <= AT_HAND_BYTES:
            raise _not_at_hand()
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_WILLNEED)
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def prepare_to_write(self, fd: int, path: str) -> None:
        """Nothing to prepare."""

    def write(self, fd: int, data: Sequence[memoryview], offset: int) -> None:
        for buffer in data:
            while buffer.nbytes:
                count = os.pwrite(fd, buffer, offset)
                buffer, offset = buffer[count:], offset + count


class Direct:
    """O_DIRECT. Where the file system refuses it, plain reads and writes, with one warning per directory."""

    def open_to_read(self, path: str, opened: list[int]) -> None:
        try:
            _open(path, _READ_FLAGS | _O_DIRECT, opened)
        except OSError as exc:
            if exc.errno != errno.EINVAL:
                raise
            if os.path.isfile(path):  # of a directory every file system says EINVAL
                _warn_that_buffered(os.path.dirname(path))
            _open(path, _READ_FLAGS, opened)

    def read(self, fd: int, into: memoryview, offset: int) -> int:
        done = 0
        if offset % PAGE == 0 and _address(into) % PAGE == 0:
            whole = room(into)
            aligned = whole if whole.nbytes % PAGE == 0 else into[: into.nbytes // PAGE * PAGE]
            done = min(_read_blocks(fd, aligned, offset), into.nbytes)
            if done < min(aligned.nbytes, into.nbytes):
                return done
        return done + self._read_through_bounce(fd, into[done:], offset + done)

    def require_at_hand(self, fd: int, offset: int, length: int) -> None:
        raise _not_at_hand()  # it is read from the disk in any case

    ask_for = require_at_hand

    def _read_through_bounce(self, fd: int, into: memoryview, offset: int) -> int:
        done = 0
        while done < into.nbytes:
            lead = (offset + done) % PAGE
            num_blocks = min(BOUNCE_BYTES, lead + into.nbytes - done + PAGE - 1) // PAGE
            bounce = pages(num_blocks * PAGE)
            count = min(_read_blocks(fd, bounce, offset + done - lead) - lead, into.nbytes - done)
            if count <= 0:
                break
            into[done : done + count] = bounce[lead : lead + count]
            done += count
        return done

    def prepare_to_write(self, fd: int, path: str) -> None:
        try:
            _set_direct(fd, True)
        except OSError as exc:
            if exc.errno != errno.EINVAL:
                raise
            _warn_that_buffered(os.path.dirname(path))

    def write(self, fd: int, data: Sequence[memoryview], offset: int) -> None:
        if not _is_direct(fd):
            BUFFERED.write(fd, data, offset)
            return
        for block in _blocks(data):
            whole = block.nbytes // PAGE * PAGE
            if offset % PAGE:
                whole = 0
            BUFFERED.write(fd, [block[:whole]], offset)
            if whole < block.nbytes:
                self._write_rest(fd, block[whole:], offset + whole)
            offset += block.nbytes

    def _write_rest(self, fd: int, rest: memoryview, offset: int) -> None:
        """The end of a file, or a part that starts within a block: the page cache carries these few bytes."""
        _set_direct(fd, False)
        try:
            BUFFERED.write(fd, [rest], offset)
        finally:
            _set_direct(fd, True)


BUFFERED = Buffered()
DIRECT = Direct()
_O_DIRECT = getattr(os, "O_DIRECT", 0)
_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)


def _open(path: str, flags: int, opened: list[int]) -> None:
    opened.extend(map(os.open, (path,), (flags,)))  # Python looks for signals only after that


def _not_at_hand() -> OSError:
    return OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def _read_blocks(fd: int, into: memoryview, offset: int) -> int:
    """Fill whole blocks. A count that is no multiple of the block is the file's end: reading on there is an error."""
    done = 0
    while done < into.nbytes:
        count = os.preadv(fd, [into[done:]], offset + done)
        done += count
        if count == 0 or count % PAGE:
            break
    return done


def _blocks(data: Iterable[memoryview]) -> Iterable[memoryview]:
    """The bytes of all buffers as aligned memory: a buffer as it is where it fits, else bounced block by block."""
    buffers = list(data)
    if len(buffers) == 1 and _address(buffers[0]) % PAGE == 0:
        yield buffers[0]
        return
    bounce = pages(BOUNCE_BYTES)
    filled = 0
    for buffer in buffers:
        while buffer.nbytes:
            count = min(buffer.nbytes, BOUNCE_BYTES - filled)
            bounce[filled : filled + count] = buffer[:count]
            buffer, filled = buffer[count:], filled + count
            if filled == BOUNCE_BYTES:
                yield bounce
                filled = 0
    if filled:
        yield bounce[:filled]


def _address(memory: memoryview) -> int:
    address: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0] if memory.nbytes else 0
    return address


def _is_direct(fd: int) -> bool:
    return bool(_O_DIRECT and fcntl.fcntl(fd, fcntl.F_GETFL) & _O_DIRECT)


def _set_direct(fd: int, direct: bool) -> None:
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags | _O_DIRECT if direct else flags & ~_O_DIRECT)


@lru_cache(maxsize=256)
def _warn_that_buffered(directory: str) -> None:
    warnings.warn(
        f"the file system of direct://{directory} refuses O_DIRECT: its files go through the page cache, as with file://",
        RuntimeWarning,
        stacklevel=2,
    )


def create(path: str, directory: str) -> tuple[int, str]:
    """A new file whose mode follows the umask, and the parent that was there before; missing ones are made."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666), directory
    except FileNotFoundError:
        known = directory
        while known != os.path.dirname(known) and not os.path.isdir(known):
            known = os.path.dirname(known)
        os.makedirs(directory, exist_ok=True)
        return os.open(path, flags, 0o666), known


def sync_directories(lowest: str, highest: str) -> None:
    """Make the names durable that were given in a directory, and above it, where directories were made, up to `highest`."""
    path = lowest
    while True:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        if path in (highest, os.path.dirname(path)):
            return
        path = os.path.dirname(path)
