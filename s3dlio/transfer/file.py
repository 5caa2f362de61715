"""`ObjectReader`: an object as a seekable binary file, read in ranges of one version."""

from __future__ import annotations

import io
import os
from operator import index
from typing import TYPE_CHECKING

from ..config import Options
from ..errors import ChangedError
from ..storage.base import ObjectInfo, Read, Store
from ..view import BytesView, empty
from . import read as transfer

__all__ = ["ObjectReader"]

if TYPE_CHECKING:
    from typing import BinaryIO

    class _File(io.RawIOBase, BinaryIO):  # torch.load and its like ask for an IO[bytes], which is known by its name
        ...
else:
    _File = io.RawIOBase

READ_AHEAD_BYTES = 1024 * 1024
TAIL_BYTES = 256 * 1024
LINE_BYTES = 8192  # looked at together for a newline


class ObjectReader(_File):
    """Read an object without downloading it first.

    Small reads come from two windows in memory: the object's end, where archives keep their directory, and the bytes
    around the last small read. A large `readinto` goes straight into the caller's memory, in parallel ranges, except for
    what a window holds already; so an archive that is read front to back crosses the wire about once. All of it comes
    from one version: ChangedError when the object is replaced. Not for use by several threads at once.
    """

    def __init__(self, store: Store, key: str, options: Options) -> None:
        super().__init__()
        self.uri = store.root + key
        self._store = store
        self._key = key
        self._options = options
        self._position = 0
        self._window_start = 0
        self._window = empty(0)
        self._tail_start = 0
        self._tail = empty(0)
        self._info = self._open()

    def _open(self) -> ObjectInfo:
        """One request brings the beginning, the size and the version; a short object is then here as a whole."""
        info, self._window = self._request(0, READ_AHEAD_BYTES, None)
        self._tail_start = info.size
        return info

    def _request(self, start: int, length: int, match: str | None) -> tuple[ObjectInfo, BytesView]:
        landed: list[BytesView] = []

        def into(_: ObjectInfo, count: int) -> memoryview:
            landed.append(empty(count, self.uri))
            return memoryview(landed[-1])

        info, _ = self._store.read(Read(self._key, start, length, into, match))
        return info, landed[-1]

    def __len__(self) -> int:
        return self._info.size

    def __bool__(self) -> bool:
        """A file is true, however short it is."""
        return True

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to `offset` from the start (0), the position (1) or the end (2); returns the new position."""
        self._require_open()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._info.size}.get(whence)
        if base is None or base + index(offset) < 0:
            raise ValueError(f"cannot seek in {self.uri} to {offset} (whence {whence})")
        self._position = base + index(offset)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """The next `size` bytes, all that are left when it is negative or None; fewer only at the end."""
        self._require_open()
        left = max(0, self._info.size - self._position)
        count = left if size is None or size < 0 else min(size, left)
        found = self._in_window(self._position, count)
        if found is not None:
            self._position += count
            return found.tobytes()
        buffer = bytearray(count)
        self.readinto(buffer)
        return bytes(buffer)

    def readline(self, size: int | None = -1) -> bytes:
        """The bytes up to and with the next newline, at most `size` of them unless that is negative or None."""
        self._require_open()
        limit = self._info.size if size is None or size < 0 else size
        line = bytearray()
        while len(line) < limit and self._position < self._info.size and not line.endswith(b"\n"):
            ahead = self._ahead(limit - len(line))
            part = ahead[: ahead.find(b"\n") + 1 or len(ahead)]
            line += part
            self._position += len(part)
        return bytes(line)

    def _ahead(self, count: int) -> bytes:
        """Some of the next bytes, `count` at most, without moving; at least one."""
        if self._in_window(self._position, 1) is None:
            self._load_window(self._position)
        part = bytearray(min(count, LINE_BYTES))
        return bytes(part[: self._copy(memoryview(part), self._position)])

    def readall(self) -> bytes:
        return self.read(-1)

    def readinto(self, buffer: object) -> int:
        """Fill `buffer` (a writable contiguous buffer) from the position on; returns the number of bytes."""
        self._require_open()
        memory = memoryview(buffer).cast("B") if memoryview(buffer).nbytes else memoryview(bytearray())  # type: ignore[arg-type]
        into = memory[: max(0, min(memory.nbytes, self._info.size - self._position))]
        done = 0
        while done < into.nbytes:
            done += self._next_bytes(into[done:], self._position + done)
        self._position += done
        return done

    def _next_bytes(self, into: memoryview, position: int) -> int:
        """Put at least one byte at the front of `into`; returns how many."""
        if count := self._copy(into, position):
            return count
        if into.nbytes >= READ_AHEAD_BYTES:
            transfer.fill(self._store, self._info, into, position, self._options)
            return into.nbytes
        self._load_window(position)
        return self._copy(into, position)

    def _copy(self, into: memoryview, position: int) -> int:
        """Copy what a window holds from `position` on; returns the number of bytes."""
        for start, window in ((self._window_start, self._window), (self._tail_start, self._tail)):
            offset = position - start
            if 0 <= offset < window.nbytes:
                count = min(into.nbytes, window.nbytes - offset)
                into[:count] = memoryview(window)[offset : offset + count]
                return count
        return 0

    def _in_window(self, position: int, count: int) -> BytesView | None:
        for start, window in ((self._window_start, self._window), (self._tail_start, self._tail)):
            offset = position - start
            if offset >= 0 and offset + count <= window.nbytes:
                part: BytesView = window[offset : offset + count]
                return part
        return None

    def _load_window(self, position: int) -> None:
        """Fetch the window that begins at `position`, or the object's tail when that lies in it."""
        tail = max(0, self._info.size - TAIL_BYTES)
        if position >= tail and not self._tail.nbytes:
            self._tail_start, self._tail = tail, self._checked(tail, self._info.size - tail)
            return
        end = self._tail_start if position < self._tail_start else self._info.size
        self._window_start = position
        self._window = self._checked(position, min(READ_AHEAD_BYTES, end - position))

    def _checked(self, start: int, length: int) -> BytesView:
        info, view = self._request(start, length, self._info.etag)
        if (info.etag, info.size, view.nbytes) != (self._info.etag, self._info.size, length):
            raise ChangedError(f"{self.uri} was replaced while it was read: open it again")
        return view

    def _require_open(self) -> None:
        if self.closed:
            raise ValueError(f"read from {self.uri} after it was closed")

    def close(self) -> None:
        """Let go of the windows."""
        self._window = self._tail = empty(0)
        super().close()
