"""`Forward`: the bytes of an object front to back, fetched in blocks ahead of whoever takes them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future

from .. import runtime
from ..config import Options
from ..errors import ChangedError
from ..storage.base import ObjectInfo, Read, Store
from ..view import BytesView, empty
from . import plan

__all__ = ["BLOCK_BYTES", "Forward"]

BLOCK_BYTES = 4 * 1024 * 1024
BLOCKS_AHEAD = 4


class Forward:
    """Take the bytes of one version of an object one after the other, from byte `start` on.

    At most `BLOCKS_AHEAD` blocks of `BLOCK_BYTES` are on their way or here, besides what was taken. The first of them is
    asked for at once, without waiting for it; its answer tells size and version. Not for use by several threads at once.
    """

    def __init__(self, store: Store, key: str, options: Options, *, start: int = 0) -> None:
        self.uri = store.root + key
        self.position = start  # of the next byte to be taken
        self._store = store
        self._key = key
        self._options = options
        self._version: ObjectInfo | None = None  # of the object, since its first block came
        self._begin()

    def _begin(self) -> None:
        """Ask for the block at the position, of the version that is known already if one is."""
        self._owner = os.getpid()
        self._info: ObjectInfo | None = None  # None: that block was not waited for
        self._block = empty(0, self.uri)
        self._memory = memoryview(self._block)
        self._used = 0  # of the block
        self._pieces: Iterator[tuple[int, int]] = iter(())
        self._coming: deque[tuple[int, Future[tuple[ObjectInfo, BytesView]]]] = deque()
        start = self.position
        if self._version and start >= self._version.size:  # an answer to "nothing" need not tell a version
            self._info = self._version
            return
        match = self._version.etag if self._version else None
        self._ask(start, (start // BLOCK_BYTES + 1) * BLOCK_BYTES - start, match)

    def _ask(self, start: int, length: int, match: str | None) -> None:
        store, key, uri = self._store, self._key, self.uri
        self._coming.append((length, runtime.io.submit(lambda: _fetched(store, key, uri, start, length, match))))

    @property
    def size(self) -> int:
        """Bytes of the whole object; waits for the first block."""
        return self._told().size

    @property
    def etag(self) -> str | None:
        """Of the version that is read; waits for the first block."""
        return self._told().etag

    @property
    def left(self) -> int:
        """Bytes that are not yet taken."""
        return max(0, self.size - self.position)

    def take(self, count: int) -> BytesView:
        """The next `count` bytes, fewer at the end: a slice of the block where they lie in one, else a copy."""
        count = min(count, self.left)
        if count and self._used == self._block.nbytes:
            self._advance()
        if self._used + count <= self._block.nbytes:
            part: BytesView = self._block[self._used : self._used + count]
            self._used += count
            self.position += count
            return part
        joined = empty(count, self.uri)
        self._copy(memoryview(joined))
        return joined

    def take_bytes(self, count: int) -> bytes:
        """`take` for a few bytes that are looked at: a copy."""
        end = self._used + count
        if end <= self._block.nbytes and self._owner == os.getpid():
            part = self._memory[self._used : end].tobytes()
            self._used = end
            self.position += count
            return part
        return self.take(count).tobytes()

    def skip(self, count: int) -> None:
        """Leave `count` bytes out, as far as there are any; what lies beyond the blocks ahead is not fetched."""
        count = min(count, self.left)
        if count > self._block.nbytes - self._used + BLOCKS_AHEAD * BLOCK_BYTES:
            self.close()
            self.position += count
            self._begin()
            return
        while count:
            if self._used == self._block.nbytes:
                self._advance()
            some = min(count, self._block.nbytes - self._used)
            self._used += some
            self.position += some
            count -= some

    @property
    def is_one_block(self) -> bool:
        """Is the object so short that its first block holds it? Waits for that block."""
        return self.size <= BLOCK_BYTES

    def close(self) -> None:
        """Begin no further requests; what is on its way ends by itself."""
        self._pieces = iter(())
        if self._owner == os.getpid():  # in a forked child the lock of a future may be taken for ever
            for _, future in self._coming:
                future.cancel()
        self._coming.clear()

    def _told(self) -> ObjectInfo:
        if self._owner != os.getpid():  # the threads that would bring the blocks are not in a forked child
            self._begin()
        if self._info is None:
            info, self._block = self._coming[0][1].result()  # who asks again after an error gets it again
            self._coming.popleft()
            self._check(info)
            self._info = self._version = info
            self._memory = memoryview(self._block)
            self._pieces = plan.split(self.position + self._block.nbytes, self._info.size, BLOCK_BYTES)
            self._look_ahead()
        return self._info

    def _check(self, info: ObjectInfo, *, is_whole: bool = True) -> None:
        known = self._version or info
        if (info.etag, info.size) != (known.etag, known.size) or not is_whole:
            raise ChangedError(f"{self.uri} was replaced while it was read: read it again")

    def _look_ahead(self) -> None:
        assert self._info is not None
        while len(self._coming) < BLOCKS_AHEAD and (piece := next(self._pieces, None)):
            self._ask(*piece, self._info.etag)

    def _advance(self) -> None:
        """Go on to the next block."""
        length, future = self._coming.popleft()
        info, block = future.result()
        self._check(info, is_whole=block.nbytes == length)
        self._block, self._memory, self._used = block, memoryview(block), 0
        self._look_ahead()

    def _copy(self, into: memoryview) -> None:
        done = 0
        while done < into.nbytes:
            if self._used == self._block.nbytes:
                self._advance()
            some = min(into.nbytes - done, self._block.nbytes - self._used)
            into[done : done + some] = self._memory[self._used : self._used + some]
            self._used += some
            self.position += some
            done += some


def _fetched(store: Store, key: str, uri: str, start: int, length: int, match: str | None) -> tuple[ObjectInfo, BytesView]:
    landed: list[BytesView] = []

    def into(_: ObjectInfo, count: int) -> memoryview:
        landed.append(empty(count, uri))
        return memoryview(landed[-1])

    info, data = store.read(Read(key, start, length, into, match))
    return info, landed[-1][: data.nbytes] if landed else empty(0, uri)
