"""`PyBytesAsyncDataLoader`: whole objects through a sliding window, in submission order or as they come.

The thread that waits for the next object drives the requests of all others meanwhile (large local files are read by the
I/O threads). So nothing has to be stopped when an iteration is left early: its requests are dropped with it.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from .dataset import PyDataset
from .epochs import checked_epoch
from .iterators import AsyncItems, Batches, PyObjectDataLoaderSyncIter
from .options import LoaderOptions
from .order import Deal, Order
from .stats import Stats

__all__ = ["PyBytesAsyncDataLoader"]


class PyBytesAsyncDataLoader:
    """The objects of `dataset`, up to `prefetch` of them in flight, or here and not yet consumed.

    Iterating (`for`, `async for`) gives views in submission order, `items()` gives them as they come. Either may be started
    again, for the next epoch. Nothing is fetched before the first item is asked for. `opts` is a dict: `prefetch` (32),
    `skip_head` (True: sizes are never asked for), `batch_size` (None; else `for` and `async for` give lists), `drop_last`,
    `shuffle`, `seed`, `shard_rank`, `shard_world_size`, `part_size`, `max_inflight_parts`, `reader_mode`, `on_error`; an
    unknown key or a wrong value is a ConfigError, which is a ValueError. With `shuffle` the order is a pure function of
    (seed, epoch).

    Memory: `prefetch` objects and the one that the consumer has. It pickles, and works in forked and spawned processes.

    >>> loader = PyBytesAsyncDataLoader(PyDataset("s3://bucket/train/"), {"prefetch": 64})
    >>> for item in loader.items():
    ...     print(item.uri, len(item))
    """

    def __init__(self, dataset: PyDataset, opts: Mapping[str, Any] | None = None) -> None:
        if not isinstance(dataset, PyDataset):
            raise TypeError(
                f"a loader takes a PyDataset, not {type(dataset).__name__}: PyDataset(uri) or PyDataset.from_uris(…)"
            )
        self.dataset = dataset
        self._options = LoaderOptions.of(opts)
        self._epoch = 0
        self._stats = Stats()
        self._running: weakref.WeakSet[PyObjectDataLoaderSyncIter] = weakref.WeakSet()

    @property
    def epoch(self) -> int:
        """The epoch that is begun next, from 0 on; its number gives its order when the loader shuffles."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch that is begun next; each one that is begun counts on by itself."""
        self._epoch = checked_epoch(epoch)

    def __len__(self) -> int:
        """Items per epoch: views, or lists of them where `batch_size` is told."""
        deal = self._deal()
        return deal.length if self._options.batch_size is None else deal.num_steps

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch, in submission order."""
        return self._in_order()

    def _in_order(self) -> PyObjectDataLoaderSyncIter | Batches:
        items = self._begin(in_order=True)
        return items if self._options.batch_size is None else Batches(items, self._options.batch_size)

    def items(self) -> PyObjectDataLoaderSyncIter:
        """Begin the next epoch, in completion order: views with their `.uri`, also by `collect_batch(n)`."""
        return self._begin(in_order=False)

    def __aiter__(self) -> AsyncIterator[Any]:
        """Begin the next epoch, in submission order, without blocking the event loop.

        A cancelled wait loses nothing: who asks again gets the item that was waited for.
        """
        return AsyncItems(self._in_order())

    def _deal(self) -> Deal:
        options = self._options
        return Deal(
            len(self.dataset),
            batch_size=options.batch_size or 1,
            num_ranks=options.shard_world_size,
            rank=options.shard_rank,
            tail="drop" if options.drop_last else "exact",
        )

    def _begin(self, *, in_order: bool) -> PyObjectDataLoaderSyncIter:
        options, names = self._options, self.dataset.keys()
        order = Order(len(names), options.shuffle, options.seed, self._epoch)
        chosen = names.pick(index for block in self._deal().blocks() for index in order.samples(block).tolist())
        self._stats = Stats()
        items = PyObjectDataLoaderSyncIter(chosen, options, self._stats, in_order=in_order)
        self._running.add(items)
        self._epoch += 1
        return items

    def stats(self) -> dict[str, Any]:
        """Where the time of the epoch that was begun last went, so far.

        `objects`, `bytes`, `errors`, `retries` (of all requests of this process while this loader was waited for);
        `seconds`, which is the sum of `waiting_for_first_byte_seconds` and `waiting_for_body_seconds` (the consumer waited
        for the loader, shared by what the requests spent their time on) and `waiting_for_consumer_seconds`;
        `bytes_per_second`; `first_byte_seconds_per_object`, `body_seconds_per_object`; `dominant` (`"first byte"`,
        `"body"`, `"consumer"`, or `"nothing"`) and `advice` in words; `num_skipped`, and in `skipped` the first 1000 of
        them as dicts of `uri`, `error` and `repeated`, the URI of the sample that was given instead.
        """
        return self._stats.report()

    def close(self) -> None:
        """Stop all running iterations; they give no further item."""
        for items in list(self._running):
            items.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stats": None, "_running": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _stats=Stats(), _running=weakref.WeakSet())

    def __repr__(self) -> str:
        return f"PyBytesAsyncDataLoader({self.dataset!r}, {self._options})"
