"""`create_async_loader`: row groups of Parquet files as a stream, or whole objects.

A row group is the unit of reading, of shuffling, of sharing between ranks and of resuming. How it is read is told in
`parquet_read.py`; what is remembered of files, in `parquet_index.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

from .. import config
from ..errors import ConfigError
from ..view import BytesView, copy_of
from .bad_samples import OnError, checked_on_error
from .epochs import Epochs
from .iterators import AsyncItems
from .options import LARGEST, true_or_false, whole_number
from .order import Deal, Order
from .parquet_arrays import to_numpy
from .parquet_decode import decoded, to_ipc
from .parquet_read import Cut, RowGroups
from .parquet_stream import RowGroupItems, arrivals
from .state import checked_state, state_of
from .stats import ParquetStats

__all__ = ["ParquetBatch", "ParquetItem", "ParquetLoader", "ParquetOptions", "create_async_loader"]

Decode: TypeAlias = Literal["raw", "arrow", "batch"]
KEYS = ("data", "uri", "rg_idx")


class ParquetItem(BytesView):
    """A row group as bytes, with where it came from: `item["data"]`, `item["uri"]`, `item["rg_idx"]`, or as attributes.

    The item is itself a buffer of its data, with all that a BytesView can do.
    """

    __slots__ = ("rg_idx",)
    rg_idx: int

    @classmethod
    def of(cls, view: BytesView, rg_idx: int) -> ParquetItem:
        """The same memory as an item."""
        item: ParquetItem = view.view(cls)
        item.uri, item.rg_idx = view.uri, rg_idx
        return item

    def __array_finalize__(self, source: Any) -> None:
        super().__array_finalize__(source)
        self.rg_idx = getattr(source, "rg_idx", -1)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            return self if index == "data" else _fact(self, index)
        return super().__getitem__(index)

    def keys(self) -> tuple[str, ...]:
        """The names of the facts, so that `dict(item)` works."""
        return KEYS

    def __copy__(self) -> ParquetItem:
        return _item_of(self, self.uri, self.rg_idx)

    def __deepcopy__(self, memo: dict[int, Any] | None, /) -> ParquetItem:
        return _item_of(self, self.uri, self.rg_idx)

    def __reduce_ex__(self, protocol: Any) -> Any:
        kind, arguments = super().__reduce_ex__(protocol)[:2]
        return (_item_of, (*arguments, self.rg_idx)) if kind is copy_of else (kind, arguments)


def _item_of(data: object, uri: str, rg_idx: int) -> ParquetItem:
    return ParquetItem.of(copy_of(data, uri), rg_idx)


def _fact(item: Any, name: str) -> Any:
    if name not in KEYS:
        raise KeyError(f"{name!r}: an item has {', '.join(KEYS)}")
    return getattr(item, name)


@dataclass(frozen=True, slots=True)
class ParquetBatch:
    """A decoded row group: `data` is a pyarrow.RecordBatch. Its facts are keys as well as attributes."""

    data: Any
    uri: str
    rg_idx: int

    def to_numpy(self) -> dict[str, np.ndarray[Any, Any]]:
        """The columns by name; see `s3dlio.data.parquet_arrays.to_numpy`."""
        try:
            return to_numpy(self.data)
        except ValueError as exc:
            raise ValueError(f"row group {self.rg_idx} of {self.uri}: {exc}") from exc

    def __getitem__(self, name: str) -> Any:
        return _fact(self, name)

    def keys(self) -> tuple[str, ...]:
        """The names of the facts, so that `dict(item)` works."""
        return KEYS


def _raw(cut: Cut) -> ParquetItem:
    return ParquetItem.of(cut.view, cut.row_group)


def _arrow(cut: Cut) -> ParquetItem:
    return ParquetItem.of(to_ipc(decoded(cut), cut.index.uri), cut.row_group)


def _batch(cut: Cut) -> ParquetBatch:
    return ParquetBatch(decoded(cut), cut.index.uri, cut.row_group)


_RANGES: Mapping[str, tuple[int, int | None]] = {
    "footer_cap": (1, None),
    "prefetch": (1, LARGEST),
    "seed": (0, None),
    "epoch": (0, None),
    "rank": (0, LARGEST),
    "world_size": (1, LARGEST),
}
FINISHERS: Mapping[str, Callable[[Cut], Any]] = {"raw": _raw, "arrow": _arrow, "batch": _batch}


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """The options of a Parquet loader; the guide's table, and what it has besides.

    `columns`: leaf numbers from 0, or names. `footer_cap`: bytes read from a file's end at first. `prefetch`: row groups in
    flight, or ready and not yet taken. `filters`: pyarrow's form; row groups whose statistics rule them out are not read.
    `rank` of `world_size` takes its part of the row groups. `on_error`: what happens to a row group that cannot be had.
    """

    format: str = "parquet"
    decode: Decode = "raw"
    columns: Any = None
    footer_cap: int = 4 * config.MIB
    prefetch: int = 32
    filters: Any = None
    shuffle: bool = False
    seed: int = 0
    epoch: int = 0
    rank: int = 0
    world_size: int = 1
    on_error: OnError = field(default="raise")

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> ParquetOptions:
        """Check a dict of options. Raises ConfigError, listing those there are, for an unknown one."""
        known = {entry.name for entry in fields(cls)}
        if unknown := sorted(str(name) for name in options if name not in known):
            raise ConfigError(f"a Parquet loader has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}")
        return cls(**options)

    def __post_init__(self) -> None:
        for name, (smallest, largest) in _RANGES.items():
            whole_number(name, getattr(self, name), smallest, largest)
        if not isinstance(self.decode, str) or self.decode not in FINISHERS:
            raise ConfigError(f"decode={self.decode!r} is none of {', '.join(FINISHERS)}")
        true_or_false("shuffle", self.shuffle)
        if self.rank >= self.world_size:
            raise ConfigError(f"rank={self.rank} lies outside of [0, world_size={self.world_size})")
        checked_on_error(self.on_error)
        if self.columns is not None:
            _check_columns(self.columns)


def _check_columns(columns: Any) -> None:
    if isinstance(columns, str | bytes) or not hasattr(columns, "__iter__") or not list(columns):
        raise ConfigError(f"columns is a list of numbers or names, or None for all of them, not {columns!r}")
    for column in columns:
        if isinstance(column, bool) or not (isinstance(column, str) or hasattr(column, "__index__")):
            raise ConfigError(f"columns has {column!r}, which is neither a number nor a name")


class ParquetLoader:
    """The row groups under a prefix, one item each, read ahead. Made by `create_async_loader`.

    Iterating (`for`, `async for`) that comes to its end ends an epoch; with `shuffle` the next one has another order.
    Without, it is that of the files' names. A row group that cannot be had raises at its turn, and the next one comes after
    it; with `on_error="skip"` a copy of a good one stands in its place. The files are those that were there when the loader
    was made. Several iterations may run at once: position and `stats()` are those of the one that was begun last.
    """

    def __init__(self, uri: str, options: ParquetOptions) -> None:
        self.options = options
        self.groups = RowGroups(uri, columns=options.columns, footer_cap=options.footer_cap, filters=options.filters)
        self._seed = int(options.seed)
        self._epochs = Epochs(int(options.epoch))
        self._stats = ParquetStats()
        self._running: weakref.WeakSet[RowGroupItems] = weakref.WeakSet()
        self._deal()

    def _deal(self, start: int = 0) -> Deal:
        return Deal(len(self.groups), start, num_ranks=self.options.world_size, rank=self.options.rank)

    def __len__(self) -> int:
        """Row groups of this rank in a whole epoch."""
        return self._deal().length

    @property
    def epoch(self) -> int:
        """The running epoch, or the next one between epochs."""
        return self._epochs.epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`; nothing happens when it is the current one."""
        self._epochs.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        return self._begin()

    def __aiter__(self) -> AsyncIterator[Any]:
        """The same items without blocking the event loop.

        A cancelled wait loses nothing: who asks again gets the item that was waited for, and no state counts it before.
        """
        return AsyncItems(self._begin())

    def _begin(self) -> RowGroupItems:
        options, run, left = self.options, self._epochs.begin(), list[None]()
        order, stats = Order(len(self.groups), options.shuffle, self._seed, run.epoch), ParquetStats()
        coming = partial(
            arrivals,
            self.groups,
            finish=FINISHERS[options.decode],
            decode=options.decode,
            prefetch=options.prefetch,
            clock=stats.clock,
            left=left,
        )
        items = RowGroupItems(coming, order, self._deal(run.start), run, stats, options.on_error, left)
        self._stats = stats
        self._running.add(items)
        return items

    def stats(self) -> dict[str, Any]:
        """Where the time of the epoch that was begun last went, so far.

        The keys are those of `PyBytesAsyncDataLoader.stats`, with a row group for an object and the bytes that were read for
        it; besides, `rows`, `waiting_for_decoding_seconds` and `decoding_seconds_per_object`, and `dominant` may be
        `"decoding"`. In `skipped`, `uri` is the file, and `error` begins with the row group.
        """
        return self._stats.report()

    def close(self) -> None:
        """Stop all running iterations; they give no further item, and their epochs are not over."""
        for items in list(self._running):
            items.close()

    def state_dict(self) -> dict[str, int]:
        """(version, seed, epoch, global position, number of row groups) after the last item that was taken.

        Take it at the same step on all ranks: then any rank's state restores all, also with another number of ranks.
        """
        return state_of(
            seed=self._seed,
            shuffle=self.options.shuffle,
            epoch=self._epochs.epoch,
            position=self._epochs.position,
            num_samples=len(self.groups),
        )

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration go on where `state` was taken. Raises ValueError when it belongs to other data."""
        epoch, position = checked_state(state, shuffle=self.options.shuffle, num_samples=len(self.groups))
        self._deal(position)
        self._seed = state["seed"]
        self._epochs.go_to(epoch, position)

    def __getstate__(self) -> dict[str, Any]:
        """Options, files, and where the next iteration begins; not what runs."""
        return {**self.__dict__, "_epochs": (self._epochs.epoch, self._epochs.start), "_stats": None, "_running": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        epochs = Epochs(*state["_epochs"])
        self.__dict__.update(state, _epochs=epochs, _stats=ParquetStats(), _running=weakref.WeakSet())

    def __repr__(self) -> str:
        return f"ParquetLoader({self.groups.uri!r}, {len(self.groups)} row groups)"


def create_async_loader(uri: str, opts: Mapping[str, Any] | None = None) -> Any:
    """A loader over the objects under `uri`: with `{"format": "parquet"}` their row groups, else whole objects.

    The keys of a Parquet loader are those of ParquetOptions; it is a ParquetLoader. Without a format, it is a
    PyBytesAsyncDataLoader over PyDataset(uri) with these options. Raises NotFoundError when there is nothing under `uri`,
    ConfigError for options that do not exist.

    >>> for item in s3dlio.create_async_loader("s3://bucket/train/", {"format": "parquet", "columns": ["x", "y"]}):
    ...     table = pq.read_table(io.BytesIO(item["data"]))
    """
    if opts is not None and not isinstance(opts, Mapping):
        raise ConfigError(f"the options of a loader are a dict, not {type(opts).__name__}")
    options = dict(opts or {})
    kind = options.pop("format", None)
    if isinstance(kind, str) and kind == "parquet":
        return ParquetLoader(uri, ParquetOptions.from_dict(options))
    if kind is not None:
        raise ConfigError(f"format={kind!r}: it is 'parquet', or is left out for whole objects")
    from .dataset import PyDataset
    from .stream import PyBytesAsyncDataLoader

    return PyBytesAsyncDataLoader(PyDataset(uri), options)
