"""Writing: one request for what is small, parts for what is large, nothing visible before the end."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .. import runtime
from ..errors import S3dlioError
from ..storage.base import ObjectInfo, Store
from ..view import BytesView, as_buffer, empty
from . import plan
from .checksum import Checksum
from .compress import Codec, compressed
from .parts import Parts

__all__ = ["ObjectWriter", "PART_BYTES", "is_one_request", "put"]

if TYPE_CHECKING:
    from typing import BinaryIO

    class _File(io.BufferedIOBase, BinaryIO):  # torch.save and its like ask for an IO[bytes], which is known by its name
        ...
else:
    _File = io.BufferedIOBase

PART_BYTES = 8 * 1024 * 1024


def is_one_request(store: Store, data: memoryview) -> bool:
    """Does the store take the object in one request?"""
    return data.nbytes <= store.limits.max_put


def put(store: Store, key: str, data: memoryview, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
    """Write a whole object: one request, or parts where it exceeds what the store takes in one."""
    if is_one_request(store, data):
        return store.put(key, data, if_absent=if_absent, if_match=if_match)
    with ObjectWriter(store, key, if_absent=if_absent, if_match=if_match) as writer:
        writer.write(data)
    assert writer.info is not None
    return writer.info


class ObjectWriter(_File):
    """A binary file object that becomes the object `key` when it is closed, and nothing otherwise.

    Memory is constant: one part that is being filled, plus `parallel_parts` of the store on their way. A large buffer is
    sent straight from the caller's memory, and sent before `write` returns. An exception in the `with` block, `abort()`,
    garbage collection and exit drop all that was written and leave what stood under the name untouched.

    With a `codec` what is stored is one frame of it; with a `checksum` that one goes over the stored bytes. `progress` is
    told the number of bytes of each `write`.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        *,
        part_bytes: int = PART_BYTES,
        if_absent: bool = False,
        if_match: str | None = None,
        codec: Codec | None = None,
        level: int = 0,
        checksum: Checksum | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> None:
        self.uri = store.root + key
        self.info: ObjectInfo | None = None
        self._store = store
        self._key = key
        self._part_bytes = max(part_bytes, store.limits.min_part)
        self._buffer: BytesView | None = None
        self._pending = 0  # bytes in the buffer
        self._written = 0  # bytes given by the caller
        self._stored = 0  # bytes of the object so far
        self._compressor = None if codec is None else codec.compressor(level)
        self._checksum = checksum
        self._progress = progress
        self._sent = 0  # bytes in parts
        self._num_parts = 0
        self._parts: Parts | None = None
        self._if_absent, self._if_match = if_absent, if_match
        self._owner = os.getpid()
        self._is_open = True
        self._has_failed = False

    def write(self, data: object) -> int:
        """Append the bytes of any buffer; returns their number. Raises ValueError after `close`."""
        if not self._is_open:
            raise ValueError(f"write to {self.uri} after it was closed")
        self._require_owner()
        source = as_buffer(data)
        try:
            if self._compressor is None:
                self._store_bytes(source)
            else:
                for piece in compressed(self._compressor, source):
                    self._store_bytes(memoryview(piece))
            self._written += source.nbytes
            if self._progress is not None:
                self._progress(source.nbytes)
        except BaseException:
            self._fail()
            raise
        return source.nbytes

    def _store_bytes(self, source: memoryview) -> None:
        """Put bytes of the object on their way."""
        if self._checksum is not None:
            self._checksum.update(source)
        self._stored += source.nbytes
        if source.nbytes < self._size_of_next():
            self._copy(source)
        else:
            self._send_by_reference(source)

    def _require_owner(self) -> None:
        if os.getpid() != self._owner:
            raise S3dlioError(f"the writer of {self.uri} belongs to the process that made it: open another one in this one")

    def _fail(self) -> None:
        self._has_failed = True
        self.abort()

    def __del__(self) -> None:
        """A file object of the standard library would close itself here, and so publish what nobody finished."""

    def _copy(self, source: memoryview) -> None:
        """Collect a small buffer; a part that is full goes its way while the caller goes on."""
        while source.nbytes:
            size = self._size_of_next()
            if self._buffer is None:
                self._buffer = empty(size)
            count = min(source.nbytes, size - self._pending)
            self._buffer[self._pending : self._pending + count] = source[:count]
            self._pending, source = self._pending + count, source[count:]
            if self._pending == size:
                self._send(self._take_pending())

    def _send_by_reference(self, source: memoryview) -> None:
        """Send parts of the caller's own memory, the first one behind what is pending; all are sent on return."""
        while self._pending + source.nbytes >= (size := self._size_of_next()):
            count = size - self._pending
            self._send([*self._take_pending(), source[:count]])
            source = source[count:]
        if self._parts is not None:
            self._parts.wait()
        self._copy(source)

    def _take_pending(self) -> list[memoryview]:
        """What is pending, to be sent; the next bytes go into another buffer."""
        pending = [memoryview(self._buffer)[: self._pending]] if self._pending and self._buffer is not None else []
        self._buffer, self._pending = None, 0
        return pending

    def _size_of_next(self) -> int:
        limits = self._store.limits
        return plan.part_size(
            self._num_parts + 1, smallest=self._part_bytes, max_parts=limits.max_parts, max_part=limits.max_part
        )

    def _send(self, data: Sequence[memoryview]) -> None:
        if self._parts is None:
            self._parts = Parts(self._store, self._key)
            runtime.when_collected(self, self._parts.drop)
        self._num_parts += 1
        self._parts.send(self._num_parts, self._sent, data)
        self._sent += sum(buffer.nbytes for buffer in data)

    def flush(self) -> None:
        """Nothing: what was written is held or sent already, and is published by `close` alone."""

    def tell(self) -> int:
        """The number of bytes written so far."""
        return self._written

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    @property
    def closed(self) -> bool:
        return not self._is_open

    def close(self) -> None:
        """Publish the object, durably. Again, or after `abort`, is harmless; after a failed `write` it raises."""
        if not self._is_open:
            if self._has_failed:
                raise S3dlioError(f"{self.uri} was not published, because writing it failed: write it again")
            return
        self._require_owner()
        try:
            self.info = self._publish()
        except BaseException:
            self._fail()
            raise
        self._end()

    def _publish(self) -> ObjectInfo:
        if self._compressor is not None:
            self._store_bytes(memoryview(self._compressor.flush()))
        rest = self._take_pending()
        if self._parts is None:
            data = rest[0] if rest else memoryview(b"")
            return self._store.put(self._key, data, if_absent=self._if_absent, if_match=self._if_match, durable=True)
        if rest:
            self._send(rest)
        return self._parts.complete(if_absent=self._if_absent, if_match=self._if_match)

    def finalize(self) -> dict[str, Any]:
        """Close the writer; returns the facts about the object, the same ones when it is called again.

        A dict of `bytes_written` (given by the caller), `stored_bytes` (of the object, so fewer when it is compressed),
        `etag` and `checksum` (of the stored bytes, as `algorithm:hexadecimal`), which are None where they are not known.
        Raises S3dlioError after a failure or `abort`, since nothing was published then.
        """
        self.close()
        if self.info is None:
            raise S3dlioError(f"{self.uri} was not published, because writing it was aborted: write it again")
        checksum = None if self._checksum is None else self._checksum.text
        etag = self.info.etag
        return {"bytes_written": self._written, "stored_bytes": self._stored, "etag": etag, "checksum": checksum}

    def abort(self) -> None:
        """Drop all that was written. Harmless when called again or after `close`."""
        self._end()
        if self._parts is not None:
            self._parts.drop()

    def _end(self) -> None:
        self._is_open = False
        self._buffer = None

    def __enter__(self) -> ObjectWriter:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
