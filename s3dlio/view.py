"""Where bytes land: `BytesView`, and the pool of buffers behind it.

Receiving into fresh memory costs more CPU than the transfer itself, because every page faults once. So a block is used
again as soon as nobody but the pool refers to it. That is asked of the interpreter's own reference count, which is
right for every alias (numpy, torch, JAX, pyarrow, memoryview), while a weak reference on the view would die under living
aliases, since numpy collapses chains of bases.

Memory: the pool keeps at most `S3DLIO_BUFFER_POOL_MB` (256 MiB) of blocks in sight, in use or idle. What is beyond that,
or smaller than 32 KiB, is ordinary memory that is freed with its last reference.
"""

from __future__ import annotations

import builtins
import ctypes
import pickle
import sys
import threading
from collections import OrderedDict, deque
from functools import lru_cache
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from . import config
from .runtime import after_fork

__all__ = [
    "ALIGNMENT",
    "Bytes",
    "BytesView",
    "PAGE",
    "POOLED",
    "as_buffer",
    "copy_of",
    "empty",
    "fresh",
    "pages",
    "room",
    "size_class",
]

PAGE = 4096
ALIGNMENT = 64
POOLED = 32 * 1024  # smaller buffers come cheaper from the allocator than from the pool

Bytes = NDArray[np.uint8]


class BytesView(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """Bytes that own their memory: one-dimensional, writable, 64-byte aligned, shared without copies.

    `len`, slices, `bytes(view)`, `memoryview(view)`, `np.frombuffer(view, dtype)` and `torch.frombuffer(view,
    dtype=...)` work as on any buffer, all but `bytes` without a copy; a slice is a view of the same memory and an index
    gives an int. `==`, `!=` and truth are those of bytes, so a view is unhashable. Arithmetic, `view`, `astype` and
    `reshape` give plain arrays. `uri` says where the bytes came from ("" when they have no origin); it survives pickling.
    """

    __slots__ = ("uri",)
    # numpy gives joins of several arrays (concatenate, stack) the class of the highest priority: let it be ndarray.
    __array_priority__ = -1.0
    uri: str

    if TYPE_CHECKING:  # numpy's stubs tell of the buffer protocol from Python 3.12 on only

        def __buffer__(self, flags: int, /) -> builtins.memoryview: ...

    def __array_finalize__(self, source: Any) -> None:
        self.uri = getattr(source, "uri", "")

    @property
    def byte_count(self) -> int:
        """The number of bytes, as `len(view)`."""
        return self.size

    def __bytes__(self) -> bytes:
        return self.tobytes()

    def to_bytes(self) -> bytes:
        """Copy the bytes into a `bytes` object."""
        return self.tobytes()

    def memoryview(self) -> builtins.memoryview:
        """The same memory as a memoryview of format 'B'; no copy."""
        return builtins.memoryview(self)

    def __bool__(self) -> bool:
        return self.size > 0

    def __eq__(self, other: object) -> bool:
        theirs = _plain_bytes(other)
        return NotImplemented if theirs is None else bool(np.array_equal(_plain(self), theirs))

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    __hash__ = None

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            part = super().__getitem__(index)
            return part if part.flags.c_contiguous else _plain(part)
        if isinstance(index, SupportsIndex) and not isinstance(index, np.ndarray):
            return int(super().__getitem__(index))
        return _plain(self)[index]

    def __contains__(self, item: object) -> bool:
        if isinstance(item, SupportsIndex):
            return bool(np.any(_plain(self) == item))
        return bytes(item) in self.tobytes()  # type: ignore[call-overload]

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        if out is not None:
            kwargs["out"] = tuple(map(_plain_if_view, out))
        return getattr(ufunc, method)(*map(_plain_if_view, inputs), **kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return function(*_plain_inside(args), **_plain_inside(kwargs))

    def view(self, *args: Any, **kwargs: Any) -> Any:
        return _plain(self).view(*args, **kwargs)

    def astype(self, *args: Any, **kwargs: Any) -> Any:
        return _plain(self).astype(*args, **kwargs)

    def reshape(self, *args: Any, **kwargs: Any) -> Any:
        return _plain(self).reshape(*args, **kwargs)

    def __repr__(self) -> str:
        origin = f", uri={self.uri!r}" if self.uri else ""
        return f"BytesView({self.size} bytes{origin})"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    @property
    def is_bytes(self) -> bool:
        """False for what numpy made of a view behind its back, such as an array of its argsort: plain in all but name."""
        return self.ndim == 1 and self.dtype == np.uint8

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        if not self.is_bytes:
            return _plain(self).__reduce_ex__(protocol)
        out_of_band = int(protocol) >= 5 and self.flags.c_contiguous
        return copy_of, (pickle.PickleBuffer(self) if out_of_band else self.tobytes(), self.uri)

    def __copy__(self) -> BytesView:
        return copy_of(self, self.uri)

    def __deepcopy__(self, memo: dict[int, Any] | None, /) -> BytesView:
        return copy_of(self, self.uri)


def _plain(view: Bytes) -> Bytes:
    return np.ndarray.view(view, np.ndarray)


def _plain_if_view(value: Any) -> Any:
    return _plain(value) if isinstance(value, BytesView) else value


def _plain_inside(value: Any) -> Any:
    """The arguments of a numpy function with every view in them as a plain array."""
    if isinstance(value, list | tuple):
        return type(value)(map(_plain_inside, value)) if type(value) in (list, tuple) else value
    if isinstance(value, dict):
        return {name: _plain_inside(inner) for name, inner in value.items()}
    return _plain_if_view(value)


def _plain_bytes(value: object) -> Bytes | None:
    if isinstance(value, BytesView):
        return _plain(value)
    try:
        return np.frombuffer(as_buffer(value), np.uint8)
    except TypeError:
        return None


def as_buffer(data: object) -> memoryview:
    """The bytes of any buffer as a flat memoryview: no copy when it is contiguous, whatever its shape or item type.

    Raises TypeError for what is no buffer, str and numbers among them.
    """
    try:
        memory = memoryview(data)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"data must be bytes or another buffer (bytearray, memoryview, numpy array, BytesView), not "
            f"{type(data).__name__}; encode a str, and pass a tensor as tensor.numpy()"
        ) from None
    if memory.nbytes == 0:
        return memoryview(b"")
    if not memory.c_contiguous:
        return memoryview(memory.tobytes())
    return memory if memory.ndim == 1 and memory.format == "B" else memory.cast("B")


class _Block:
    """Pool memory: the array that owns it, and the part of it that begins at a page."""

    __slots__ = ("memory", "owner", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.owner = np.empty(size + PAGE, np.uint8)
        self.memory = _aligned(self.owner, size, PAGE)


def _num_references(block: _Block) -> int:
    """How many refer to the owner of the block, this call included."""
    return sys.getrefcount(block.owner)


class _Pool:
    """Blocks by size class. A block is taken when its reference count says that only the pool holds it."""

    PROBES = 8

    def __init__(self) -> None:
        self.forget()
        after_fork(self.forget)

    def forget(self) -> None:
        """Let go of every block: those in use go on as ordinary memory."""
        self._classes: dict[int, OrderedDict[_Block, None]] = {}
        self._misses: dict[int, int] = {}  # how often in a row no block of a size was free
        self._order: deque[_Block] = deque()
        self._num_bytes = 0
        self._lock = threading.RLock()  # again by the same thread: a collection may run anyone's finalizer, anywhere

    def take(self, num_bytes: int) -> Bytes:
        """`num_bytes` uninitialised bytes that begin at a page."""
        size = size_class(num_bytes)
        with self._lock:
            blocks = self._classes.get(size) or OrderedDict[_Block, None]()
            num_misses = self._misses.get(size, 0)
            self._misses[size] = num_misses + 1
            # Where all that is taken is kept, a long search for each is in vain.
            for _ in range(min(len(blocks), self.PROBES if num_misses < self.PROBES else 1)):
                block = next(iter(blocks))
                blocks.move_to_end(block)
                if _num_references(block) == _REFS_OF_A_FREE_BLOCK:
                    self._misses[size] = 0
                    return block.memory[:num_bytes]  # refers to the owner before the lock is let go
        block = _Block(size)
        self._remember(block, config.pool_bytes())
        return block.memory[:num_bytes]

    def _remember(self, block: _Block, limit: int) -> None:
        if block.size > limit:
            return
        with self._lock:
            self._classes.setdefault(block.size, OrderedDict())[block] = None
            self._order.append(block)
            self._num_bytes += block.size
            while self._num_bytes > limit:
                oldest = self._order.popleft()
                self._num_bytes -= oldest.size
                del self._classes[oldest.size][oldest]


@lru_cache(maxsize=4096)
def size_class(num_bytes: int) -> int:
    """Whole pages, in steps of at most an eighth, so that objects of similar size share blocks."""
    step = max(PAGE, 1 << max(0, num_bytes.bit_length() - 4))
    return -(-num_bytes // step) * step


def _aligned(owner: Bytes, num_bytes: int, alignment: int) -> Bytes:
    offset = -_address(owner) % alignment
    return owner[offset:][:num_bytes]  # in two steps: an empty slice begins where its array does


def _address(owner: Bytes) -> int:
    """Where the memory of a writable array begins; three times as fast as asking numpy."""
    return ctypes.addressof(ctypes.c_char.from_buffer(owner.data))


def _count_of_a_free_block() -> int:
    """What `_num_references` says of a block that only the pool knows; -1 where it cannot tell a view of it.

    Measured, because interpreters differ in the references that they count (3.14 borrows some), and some without a
    global lock defer counting.
    """
    block = _Block(PAGE)
    free = _num_references(block)
    view = block.memory[:1]
    in_use = _num_references(block)
    del view
    is_exact = in_use == free + 1 and _num_references(block) == free
    return free if is_exact and getattr(sys, "_is_gil_enabled", lambda: True)() else -1


_REFS_OF_A_FREE_BLOCK = _count_of_a_free_block()
_pool = _Pool()


def empty(num_bytes: int, uri: str = "") -> BytesView:
    """A writable view of `num_bytes` uninitialised bytes: page-aligned from `POOLED` bytes on, else 64-byte aligned."""
    if num_bytes >= POOLED:
        memory = _pool.take(num_bytes)
    else:
        memory = _aligned(np.empty(num_bytes + ALIGNMENT, np.uint8), num_bytes, ALIGNMENT)
    view: BytesView = memory.view(BytesView)
    view.uri = uri
    return view


def fresh(num_bytes: int, uri: str = "") -> BytesView:
    """The same, never of the pool: for large memory that goes back to the system with its last reference."""
    view: BytesView = _Block(num_bytes).memory.view(BytesView)
    view.uri = uri
    return view


def pages(num_bytes: int) -> memoryview:
    """Uninitialised memory that begins at a page, as block devices want it."""
    return _pool.take(num_bytes).data


def copy_of(data: object, uri: str = "") -> BytesView:
    """A view of a fresh copy of the bytes of `data`."""
    source = as_buffer(data)
    view = empty(source.nbytes, uri)
    memoryview(view)[:] = source
    return view


def room(view: memoryview) -> memoryview:
    """`view` grown to whole pages where its memory was made by `empty` and starts at a page, else `view` as it is.

    Block devices transfer whole blocks, so an unaligned length needs room for the rest of its last block. A slice of a
    view does not grow: the bytes behind it are somebody's.
    """
    owner = view.obj
    if not isinstance(owner, BytesView) or isinstance(owner.base, BytesView) or view.nbytes != owner.nbytes:
        return view
    base = owner.base
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    start = owner.__array_interface__["data"][0]
    grown = -(-view.nbytes // PAGE) * PAGE
    if start % PAGE or not isinstance(base, np.ndarray):
        return view
    offset = start - base.__array_interface__["data"][0]
    return base.data[offset : offset + grown] if offset + grown <= base.nbytes else view
