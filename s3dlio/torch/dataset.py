"""Datasets of whole objects: by index (`ObjectStoreMapDataset`) and as a stream (`ObjectStoreIterableDataset`).

Both hold names and options only, so that they pickle for spawned workers and are shared by forked ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import Dataset

from .. import bulk, objects
from ..data.bad_samples import OnError
from ..data.keys import KeyList
from ..data.options import callable_or_none, whole_number
from ..view import BytesView
from . import collate as _collate  # noqa: F401 - teaches PyTorch what a batch of views is
from .bad_samples import Skipping, transform_of
from .ranks import current_worker
from .resumable import DealtStream, tail_of

__all__ = ["ObjectStoreIterableDataset", "ObjectStoreMapDataset"]

Transform = Callable[[BytesView], Any]


class ObjectStoreMapDataset(Skipping, Dataset[Any]):
    """The objects under a prefix, by index, in the order of their names.

    `uri` is listed once, here: markers are left out and an empty result is a NotFoundError. `pattern` is a glob (or
    `re:...`) on the key below `uri`. An item is a `BytesView` (with its `.uri`), or `transform(view)`. A DataLoader asks
    for a whole batch at once, and its objects are then read in parallel, `max_in_flight` at most. Batches of views
    collate to a list without a collate function of your own.

    `on_error` says what happens to a sample that cannot be read or transformed, when a batch is read at once: `"raise"`,
    `"skip"` (a copy of a good sample of the batch stands in its place), or a function of (uri, error) that says True for
    skip. `num_skipped` and `skipped` tell of them, from all workers; a batch without a good sample raises.

    >>> dataset = ObjectStoreMapDataset("s3://bucket/train/", pattern="*.npz")
    >>> loader = DataLoader(dataset, batch_size=32, num_workers=4, shuffle=True)
    """

    def __init__(
        self,
        uri: str,
        pattern: str | None = None,
        transform: Transform | None = None,
        *,
        max_in_flight: int = bulk.DEFAULT_WORKERS,
        on_error: OnError = "raise",
    ) -> None:
        self._keep(KeyList.from_listing(uri, pattern), transform, max_in_flight, on_error)

    @classmethod
    def from_prefix(cls, uri: str, **options: Any) -> ObjectStoreMapDataset:
        """The same as the constructor."""
        return cls(uri, **options)

    @classmethod
    def from_uris(
        cls,
        uris: Iterable[str],
        transform: Transform | None = None,
        *,
        max_in_flight: int = bulk.DEFAULT_WORKERS,
        on_error: OnError = "raise",
    ) -> ObjectStoreMapDataset:
        """A dataset of these objects, in this order, without listing anything."""
        dataset = cls.__new__(cls)
        dataset._keep(_keys_of(uris), transform, max_in_flight, on_error)
        return dataset

    def _keep(self, keys: KeyList, transform: Transform | None, max_in_flight: int, on_error: OnError) -> None:
        self.uris = keys
        self._transform = callable_or_none("transform", transform)
        self._max_in_flight = whole_number("max_in_flight", max_in_flight, 1)
        self._skip(on_error)

    def __len__(self) -> int:
        return len(self.uris)

    def __getitem__(self, index: int) -> Any:
        current_worker()
        return _transformed(objects.get(self.uris[index]), self._transform)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        current_worker()
        names = [self.uris[index] for index in indices]
        if self._board is not None:
            return list(self._filled(bulk.arrivals(names, window=self._max_in_flight), self._transformed))
        return [self._transformed(view) for view in bulk.get_many(names, self._max_in_flight)]

    def _transformed(self, view: BytesView) -> Any:
        return _transformed(view, self._transform)

    def __repr__(self) -> str:
        return f"ObjectStoreMapDataset({self.uris!r})"


class ObjectStoreIterableDataset(Skipping, DealtStream):
    """The objects under a prefix as a stream: each once per epoch, over all ranks and DataLoader workers.

    The order is a pure function of `seed` and the epoch (with `shuffle`; else that of the names); call `set_epoch` before
    each epoch as for a DistributedSampler, or let `s3dlio.torch.loader` do it. Told the loader's `batch_size`, whole
    batches are dealt and the global order is the same for any number of workers; without it each sample still comes
    once, in an order that depends on the workers.

    The last samples, fewer than a batch for every rank, are dealt as evenly as possible; `pad=True` repeats samples until
    all ranks have the same number, `drop_last=True` leaves them out. Either keeps the ranks of a collective in step.

    `on_error` is that of ObjectStoreMapDataset; without `batch_size` the batch of a bad sample is the whole stream.

    `prefetch` objects at most are in flight or ready. Rank and world size are those of torch.distributed, or of the
    launcher's RANK and WORLD_SIZE, unless told.

    `state_dict()` is (version, seed, epoch, position); it restores exactly, also with another number of ranks or
    workers. With workers the main process must count what was delivered: `s3dlio.torch.loader` does, and so does
    torchdata's StatefulDataLoader, whose state `s3dlio.torch.position_from` converts.
    """

    def __init__(
        self,
        uri: str,
        pattern: str | None = None,
        transform: Transform | None = None,
        *,
        shuffle: bool = False,
        seed: int = 0,
        batch_size: int | None = None,
        drop_last: bool = False,
        pad: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        prefetch: int = 32,
        on_error: OnError = "raise",
    ) -> None:
        self._keep(
            KeyList.from_listing(uri, pattern),
            transform,
            prefetch,
            on_error,
            shuffle=shuffle,
            seed=seed,
            batch_size=batch_size,
            tail=tail_of(drop_last=drop_last, pad=pad),
            rank=rank,
            world_size=world_size,
        )

    @classmethod
    def from_prefix(cls, uri: str, **options: Any) -> ObjectStoreIterableDataset:
        """The same as the constructor."""
        return cls(uri, **options)

    def _keep(self, keys: KeyList, transform: Transform | None, prefetch: int, on_error: OnError, **dealing: Any) -> None:
        self.uris = keys
        self._transform = callable_or_none("transform", transform)
        self._prefetch = whole_number("prefetch", prefetch, 1)
        self._skip(on_error)
        self._deal_out(len(keys), **dealing)

    def _read(self, samples: Iterator[int], taken: int, before: Iterator[int]) -> Iterator[Any]:
        arrivals = bulk.arrivals(self.uris.pick(samples), window=self._prefetch)
        of_batch = None if self.batch_size is None else taken % self.batch_size
        earlier = self.uris.pick(itertools.islice(before, of_batch))
        return self._filled(arrivals, self._transformed, self.batch_size, taken, lambda: bulk.arrivals(earlier, window=1))

    def _transformed(self, view: BytesView) -> Any:
        return _transformed(view, self._transform)


def _keys_of(uris: Iterable[str]) -> KeyList:
    if isinstance(uris, str):
        raise TypeError(f"expected a list of URIs, not the single URI {uris!r}")
    keys = KeyList(uris)
    if not len(keys):
        raise ValueError("the list of URIs is empty: a dataset needs at least one object")
    return keys


def _transformed(view: BytesView, transform: Transform | None) -> Any:
    return view if transform is None else transform_of(view, transform, view.uri)
