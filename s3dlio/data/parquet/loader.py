"""`create_async_loader`: row groups of Parquet files as a stream, or whole objects.

A row group is the unit of reading, of shuffling, of sharing between ranks and of resuming. How it is read is told in
`read.py`; what is remembered of files, in `index.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from typing import Any

from ...errors import ConfigError
from ..epochs import Epochs
from ..iterators import AsyncItems
from ..order import Deal, Order
from ..state import checked_state, state_of
from ..stats import ParquetStats
from .arrivals import RowGroupItems, arrivals
from .groups import row_groups
from .items import FINISHERS
from .options import ParquetOptions

__all__ = ["ParquetLoader", "create_async_loader"]


class ParquetLoader:
    """The row groups under a prefix, one item each, read ahead. Made by `create_async_loader`.

    Iterating (`for`, `async for`) that comes to its end ends an epoch; with `shuffle` the next one has another order.
    Without, it is that of the files' names. A row group that cannot be had raises at its turn, and the next one comes after
    it; with `on_error="skip"` a copy of a good one stands in its place, and files whose footer is damaged are left out. The
    files are those that were there when the loader was made. Several iterations may run at once: position and `stats()` are
    those of the one that was begun last.
    """

    def __init__(self, uri: str, options: ParquetOptions) -> None:
        self.options = options
        self.groups = row_groups(uri, options)
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
        for skipped in self.groups.skipped:  # their row groups are missing in every epoch
            stats.tally.add(skipped)
        self._stats = stats
        self._running.add(items)
        return items

    def stats(self) -> dict[str, Any]:
        """Where the time of the epoch that was begun last went, so far.

        The keys are those of `PyBytesAsyncDataLoader.stats`, with a row group for an object and the bytes that were read for
        it; besides, `rows`, `waiting_for_decoding_seconds` and `decoding_seconds_per_object`, and `dominant` may be
        `"decoding"`. In `skipped`, `uri` is the file, and `error` begins with the row group; first come files that are left
        out.
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
    from ..dataset import PyDataset
    from ..stream import PyBytesAsyncDataLoader

    return PyBytesAsyncDataLoader(PyDataset(uri), options)
