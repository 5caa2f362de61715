"""Writing: one request for what is small, parts for what is large, nothing visible before the end."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .. import runtime
from ..errors import S3dlioError
from ..storage.base import ObjectInfo, Store, Upload
from ..view import BytesView, as_buffer, empty
from . import plan

__all__ = ["ObjectWriter", "put"]

if TYPE_CHECKING:
    import io
    from typing import BinaryIO

    class _File(io.RawIOBase, BinaryIO):  # torch.save and its like ask for an IO[bytes], which is known by its name
        ...
else:
    _File = object

PART_BYTES = 8 * 1024 * 1024


def put(store: Store, key: str, data: memoryview) -> ObjectInfo:
    """Write a whole object: one request, or parts where it exceeds what the store takes in one."""
    if data.nbytes <= store.limits.max_put:
        return store.put(key, data)
    with ObjectWriter(store, key) as writer:
        writer.write(data)
    assert writer.info is not None
    return writer.info


class ObjectWriter(_File):
    """A binary file object that becomes the object `key` when it is closed, and nothing otherwise.

    Memory is constant: one part that is being filled, plus `parallel_parts` of the store on their way. A large buffer is
    sent straight from the caller's memory, and sent before `write` returns. An exception in the `with` block, `abort()`,
    garbage collection and exit drop all that was written and leave what stood under the name untouched.
    """

    def __init__(self, store: Store, key: str, *, part_bytes: int = PART_BYTES) -> None:
        self.uri = store.root + key
        self.info: ObjectInfo | None = None
        self._store = store
        self._key = key
        self._part_bytes = max(part_bytes, store.limits.min_part)
        self._buffer: BytesView | None = None
        self._pending = 0  # bytes in the buffer
        self._written = 0  # bytes given by the caller
        self._sent = 0  # bytes in parts
        self._num_parts = 0
        self._upload: Upload | None = None
        self._drop: weakref.finalize[Any, Any] | None = None
        self._is_open = True

    def write(self, data: object) -> int:
        """Append the bytes of any buffer; returns their number. Raises ValueError after `close`."""
        if not self._is_open:
            raise ValueError(f"write to {self.uri} after it was closed")
        source = as_buffer(data)
        count = source.nbytes
        try:
            self._write(source)
        except BaseException:
            self.abort()
            raise
        self._written += count
        return count

    def _write(self, source: memoryview) -> None:
        parts = list(self._cut(source))
        if parts:
            self._send(parts)
            self._pending = 0
            source = source[sum(part[-1].nbytes for _, _, part in parts) :]
        if source.nbytes:
            if self._buffer is None or self._pending == 0:
                self._buffer = empty(self._size_of_next())
            self._buffer[self._pending : self._pending + source.nbytes] = source
            self._pending += source.nbytes

    def _cut(self, source: memoryview) -> Iterator[tuple[int, int, Sequence[memoryview]]]:
        """The parts that `source` completes: (number, offset, buffers), the first of them with what is pending."""
        pending = self._pending
        while pending + source.nbytes >= (size := self._size_of_next()):
            head, source = source[: size - pending], source[size - pending :]
            self._num_parts += 1
            yield self._num_parts, self._sent, [*self._pending_bytes(pending), head]
            self._sent += size
            pending = 0

    def _pending_bytes(self, count: int) -> list[memoryview]:
        return [memoryview(self._buffer)[:count]] if count and self._buffer is not None else []

    def _size_of_next(self) -> int:
        limits = self._store.limits
        return plan.part_size(
            self._num_parts + 1, smallest=self._part_bytes, max_parts=limits.max_parts, max_part=limits.max_part
        )

    def _send(self, parts: Sequence[tuple[int, int, Sequence[memoryview]]]) -> None:
        """Store parts, several at once where the store likes that, and wait for all of them."""
        if self._upload is None:
            self._upload = self._store.begin_upload(self._key)
            self._drop = weakref.finalize(self, self._upload.abort)
        upload = self._upload
        window = min(self._store.limits.parallel_parts, len(parts))
        for _, result in runtime.each(lambda part: upload.part(*part), parts, window=window):
            if isinstance(result, BaseException):
                raise result

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
        """Publish the object, durably. Again is harmless; after a failed `write` it raises."""
        if not self._is_open:
            if self.info is None:
                raise S3dlioError(f"{self.uri} was not published: writing it was aborted; write it again")
            return
        try:
            self.info = self._publish()
        except BaseException:
            self.abort()
            raise
        self._end()

    def _publish(self) -> ObjectInfo:
        rest = self._pending_bytes(self._pending)
        if self._upload is None:
            return self._store.put(self._key, rest[0] if rest else memoryview(b""), durable=True)
        if rest:
            self._num_parts += 1
            self._send([(self._num_parts, self._sent, rest)])
        return self._upload.complete()

    def abort(self) -> None:
        """Drop all that was written. Harmless when called again or after `close`."""
        if self._drop is not None:
            self._drop()
        self._end()

    def _end(self) -> None:
        self._is_open = False
        self._buffer = None
        if self._drop is not None:
            self._drop.detach()

    def __enter__(self) -> ObjectWriter:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
