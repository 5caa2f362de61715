"""DataPipes of `torch.utils.data`: list objects, read them whole, and read the records inside them.

Each pipe over a prefix or a list of URIs shares the names between ranks and DataLoader workers *before* it reads anything,
by PyTorch's own protocol (`apply_sharding`, `set_shuffle`, `set_seed`), so that no `sharding_filter` is needed and
`DataLoader(pipe, shuffle=True)` shuffles names. A pipe over another pipe leaves that to it, if anything in it does.

A pipe knows where it is (`state_dict`) and goes on there (`load_state_dict`) in its next iteration, which has to have the
same seed and sharing; `s3dlio.torch.PipeDataset` keeps all of that for a StatefulDataLoader.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from torch.utils.data import IterDataPipe, MapDataPipe

from .. import bulk
from ..data.bad_samples import OnError
from ..data.keys import KeyList
from ..data.options import whole_number
from ..data.order import Indices
from ..data.parquet.arrivals import arrivals
from ..data.parquet.groups import RowGroups, row_groups
from ..data.parquet.items import FINISHERS, Decode
from ..data.parquet.options import ParquetOptions
from ..data.shards import ShardReader
from ..data.tar import TarMember, TarReader, TarSampleReader
from ..data.tfrecord import TFRecordReader
from ..view import BytesView
from .bad_samples import Skipping
from .dataset import ObjectStoreMapDataset
from .ranks import current_worker
from .shared_pipe import CountedPipe, SharedPipe, SourcePipe, functional

__all__ = [
    "ListObjects",
    "MapObjects",
    "ReadObjects",
    "ReadParquet",
    "ReadTFRecord",
    "ReadTar",
    "ReadTarSamples",
    "Source",
]

Source = str | Iterable[str] | IterDataPipe[Any]
"""A prefix to list, URIs to take as they are, or a pipe of URIs."""


NUM_LOOKED_BACK = 64  # items before a resumed place, among which a good one is sought that stands for a bad one

NONE = np.empty(0, np.int64)
_BUT_INDEXES = r"re:(?<!\.idx)\Z"


class _Held:
    """Keeps what PyTorch would pickle again and again when it looks for the pipes of a graph: any collection."""

    def __init__(self, keys: KeyList) -> None:
        self.keys = keys


@functional("s3dlio_list")
class ListObjects(SourcePipe):
    """The URIs of all objects under a prefix, or under each of several, sorted by their UTF-8 bytes; markers are left out.

    A prefix, or a list of them, is listed once, when the pipe is made; an empty one is a NotFoundError. Over a pipe of
    prefixes each iteration lists anew. Every instance (rank or worker) gets its part. `shuffle` gives an order that is a
    function of `seed`, or of the seed that a DataLoader draws for each epoch.
    """

    def __init__(self, source: Source, pattern: str | None = None, *, shuffle: bool = False, seed: int = 0) -> None:
        super().__init__()
        self.pattern = pattern
        self._shuffle, self._seed = shuffle, seed
        self.source_datapipe = source if isinstance(source, IterDataPipe) else None
        self._held: _Held | None = None
        if not isinstance(source, IterDataPipe):
            self._held = _Held(source if isinstance(source, KeyList) else _listed(source, pattern))

    @classmethod
    def from_uris(cls, uris: Iterable[str], *, shuffle: bool = False, seed: int = 0) -> ListObjects:
        """These URIs in this order, without listing anything."""
        return cls(KeyList(uris), shuffle=shuffle, seed=seed)

    def __iter__(self) -> Iterator[str]:
        held = self._held or _Held(_listed(self.source_datapipe, self.pattern))
        for number in itertools.islice(self._numbers(len(held.keys)), self._first(), None):
            self._taken += 1
            yield held.keys[number]

    def _dealt(self) -> _Dealt | None:
        """All that an iteration would give; None where that is not known before."""
        if self._held is None or self._resume_at:
            return None
        return _Dealt(self._held.keys, np.concatenate([NONE, *self._blocks(len(self._held.keys))]))


class _Dealt(Sequence[str]):
    """Names by their numbers in a list of more."""

    def __init__(self, keys: KeyList, numbers: Indices) -> None:
        self._keys, self._numbers = keys, numbers

    def __len__(self) -> int:
        return self._numbers.size

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return _Dealt(self._keys, self._numbers[index])
        return self._keys[int(self._numbers[index])]

    def __iter__(self) -> Iterator[str]:
        blocks = np.array_split(self._numbers, 1 + self._numbers.size // 4096)
        return self._keys.pick(number for block in blocks for number in block.tolist())


class _Reader(Skipping, SharedPipe):
    """What the readers share: their URIs come from `source_datapipe`, and nothing is read but for this instance."""

    def _read_from(self, source: Source) -> None:
        if isinstance(source, str):
            source = ListObjects(source)
        self.source_datapipe = source if isinstance(source, IterDataPipe) else ListObjects.from_uris(source)

    def _uris(self) -> Iterator[str]:
        num_instances, instance = self._share()
        assert self.source_datapipe is not None
        return itertools.islice(self.source_datapipe, instance, None, num_instances)


@functional("s3dlio_read")
class ReadObjects(_Reader, CountedPipe):
    """Whole objects as BytesViews (with their `.uri`), in the order of the source, read ahead.

    `prefetch` of them at most are in flight, or here and not yet taken. A failed one raises at its turn, naming its URI;
    with `on_error="skip"`, or a function of (uri, error) that says True, a copy of a good one stands in its place.
    `num_skipped` and `skipped` tell of them.

    >>> pipe = ReadObjects("s3://bucket/train/").map(decode)
    >>> loader = DataLoader(pipe, batch_size=32, num_workers=4, shuffle=True)
    """

    def __init__(self, source: Source, *, prefetch: int = 32, on_error: OnError = "raise") -> None:
        super().__init__()
        self.prefetch = whole_number("prefetch", prefetch, 1)
        self._skip(on_error)
        self._read_from(source)

    def __iter__(self) -> Iterator[BytesView]:
        current_worker()
        uris = self._uris()
        passed = deque(itertools.islice(uris, self._first()), maxlen=NUM_LOOKED_BACK)
        arrivals = bulk.arrivals(uris, window=self.prefetch)
        for view in self._filled(arrivals, before=lambda: bulk.arrivals(reversed(passed), window=1)):
            self._taken += 1
            yield view


class _ShardPipe(_Reader):
    """Items of container files; a reader of `data/` does the work, and its byte offset is the place.

    `on_error` is that of the reader: what is bad is passed over, and nothing comes in its place.
    """

    _reader: ShardReader[Any] | None = None
    _resume_at: dict[str, int] | None = None

    def _read_from(self, source: Source) -> None:
        super()._read_from(ListObjects(source, _BUT_INDEXES) if isinstance(source, str) else source)

    def _make(self, uris: Iterable[str]) -> ShardReader[Any]:
        raise NotImplementedError

    def _policy(self) -> dict[str, Any]:
        """What its reader does with what is bad."""
        return {"on_error": self._on_error, "report": self._board and self._board.add}

    def __iter__(self) -> Iterator[Any]:
        current_worker()
        state, self._resume_at = self._resume_at, None
        names = self.source_datapipe._dealt() if isinstance(self.source_datapipe, ListObjects) else None
        self._reader = reader = self._make(self._uris() if names is None else names)
        if state is not None:
            reader.load_state_dict(state)
        yield from reader

    def state_dict(self) -> dict[str, int]:
        """Where the running iteration is: file and byte."""
        if self._resume_at is not None:
            return dict(self._resume_at)
        return {} if self._reader is None else self._reader.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration go on there, without reading what comes before; of an empty state, from the beginning."""
        self._resume_at = dict(state) or None

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_reader": None}
        return state if IterDataPipe.getstate_hook is None else IterDataPipe.getstate_hook(state)


@functional("s3dlio_tfrecord")
class ReadTFRecord(_ShardPipe):
    """The records of TFRecord files as BytesViews, each file's in order, their checksums checked unless `verify` is false.

    Files, not records, are shuffled and shared: have at least as many as ranks times workers. Under a prefix, what ends in
    `.idx` is left out, here and by the readers of tar archives: `create_tfrecord_index` writes its indexes beside the files.
    """

    def __init__(self, source: Source, *, verify: bool = True, on_error: OnError = "raise") -> None:
        super().__init__()
        self.verify = verify
        self._skip(on_error)
        self._read_from(source)

    def _make(self, uris: Iterable[str]) -> TFRecordReader:
        return TFRecordReader(uris, verify=self.verify, **self._policy())


@functional("s3dlio_tar")
class ReadTar(_ShardPipe):
    """The files of tar archives as (name, data) pairs, each archive's in order. Archives are shuffled and shared."""

    def __init__(self, source: Source, *, on_error: OnError = "raise") -> None:
        super().__init__()
        self._skip(on_error)
        self._read_from(source)

    def _make(self, uris: Iterable[str]) -> ShardReader[TarMember]:
        return TarReader(uris, **self._policy())


@functional("s3dlio_tar_samples")
class ReadTarSamples(_ShardPipe):
    """The samples of WebDataset shards as dicts, each shard's in order. Shards are shuffled and shared."""

    def __init__(self, source: Source, *, on_error: OnError = "raise") -> None:
        super().__init__()
        self._skip(on_error)
        self._read_from(source)

    def _make(self, uris: Iterable[str]) -> ShardReader[Any]:
        return TarSampleReader(uris, **self._policy())


@functional("s3dlio_parquet")
class ReadParquet(Skipping, SourcePipe):
    """Row groups of the Parquet files under a prefix, one item each; they are shuffled and shared, not the files.

    Items and `columns`, `filters` and `decode` are those of `create_async_loader`, but that `decode` is "batch" unless told.
    Over a pipe of URIs the row groups of each file come in order, and that pipe shuffles and shares the files. `on_error` is
    that of ReadObjects, for row groups; a file whose footer is damaged is left out.
    """

    def __init__(
        self,
        source: str | IterDataPipe[Any],
        *,
        columns: Any = None,
        filters: Any = None,
        decode: Decode = "batch",
        prefetch: int = 8,
        on_error: OnError = "raise",
    ) -> None:
        super().__init__()
        self._skip(on_error)
        self._options = ParquetOptions(columns=columns, filters=filters, decode=decode, prefetch=prefetch, on_error=on_error)
        self.source_datapipe = source if isinstance(source, IterDataPipe) else None
        self._groups = None if isinstance(source, IterDataPipe) else row_groups(source, self._options)
        self._tell_of(self._groups.skipped if self._groups else ())

    def __iter__(self) -> Iterator[Any]:
        current_worker()
        passed: deque[tuple[RowGroups, int]] = deque(maxlen=NUM_LOOKED_BACK)
        coming = self._coming(self._first(), passed)
        for item in self._filled(coming, before=lambda: self._again(passed)):
            self._taken += 1
            yield item
            del item

    def _coming(self, skip: int, passed: deque[tuple[RowGroups, int]]) -> Iterator[Any]:
        """What comes of this instance's row groups but for the first `skip`, the last ones of which go into `passed`."""
        for groups, numbers in self._files():
            for number in itertools.islice(numbers, skip):
                passed.append((groups, number))
                skip -= 1
            yield from self._read(groups, numbers, self._options.prefetch)

    def _files(self) -> Iterator[tuple[RowGroups, Iterator[int]]]:
        if self._groups is not None:
            yield self._groups, self._numbers(len(self._groups))
            return
        num_instances, instance = self._share()
        assert self.source_datapipe is not None
        for uri in itertools.islice(self.source_datapipe, instance, None, num_instances):
            groups = RowGroups(uri, self._options)
            self._tell_of(groups.skipped)
            yield groups, iter(range(len(groups)))

    def _again(self, passed: deque[tuple[RowGroups, int]]) -> Iterator[Any]:
        """Them, the last one first."""
        for groups, number in reversed(passed):
            yield from self._read(groups, iter([number]), 1)

    def _read(self, groups: RowGroups, numbers: Iterator[int], prefetch: int) -> Iterator[Any]:
        decode = self._options.decode
        return arrivals(groups, numbers, FINISHERS[decode], decode=decode, prefetch=prefetch)


@functional("s3dlio_read")
class MapObjects(MapDataPipe[Any]):
    """Whole objects by index, as BytesViews: those under a prefix, or of URIs, in their order.

    A thin pipe over ObjectStoreMapDataset. PyTorch asks a map-style pipe for one item at a time, so a batch is read in
    parallel by the dataset only: prefer it where no other pipe follows, and where bad samples are to be skipped.
    """

    def __init__(self, source: str | Iterable[str] | MapDataPipe[Any], pattern: str | None = None) -> None:
        super().__init__()
        if isinstance(source, MapDataPipe):
            source = [source[number] for number in range(len(source))]
        if isinstance(source, str):
            self.dataset = ObjectStoreMapDataset(source, pattern)
        else:
            self.dataset = ObjectStoreMapDataset.from_uris(source)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> BytesView:
        view: BytesView = self.dataset[index]
        return view

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return self.dataset.__getitems__(indices)


def _listed(source: Any, pattern: str | None) -> KeyList:
    prefixes = [source] if isinstance(source, str) else list(source)
    if len(prefixes) == 1:
        return KeyList.from_listing(prefixes[0], pattern)
    return KeyList(uri for prefix in prefixes for uri in KeyList.from_listing(prefix, pattern))
