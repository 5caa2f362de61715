"""DataPipes of `torch.utils.data`: list objects, read them whole, and read the records inside them.

Each pipe over a prefix or a list of URIs shares the names between ranks and DataLoader workers *before* it reads anything,
by PyTorch's own protocol (`apply_sharding`, `set_shuffle`, `set_seed`), so that no `sharding_filter` is needed and
`DataLoader(pipe, shuffle=True)` shuffles names. A pipe over another pipe leaves that to it, if anything in it does.

A pipe knows where it is (`state_dict`) and goes on there (`load_state_dict`) in its next iteration, which has to have the
same seed and sharing; `s3dlio.torch.PipeDataset` keeps all of that for a StatefulDataLoader.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from torch.utils.data import IterDataPipe, MapDataPipe, functional_datapipe
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
from torch.utils.data.graph import traverse_dps
from torch.utils.data.graph_settings import get_all_graph_pipes

from .. import bulk
from ..data.keys import KeyList
from ..data.order import Deal, Order
from ..data.shards import ShardReader
from ..data.tar import TarMember, TarReader, TarSampleReader
from ..data.tfrecord import TFRecordReader
from ..view import BytesView
from .dataset import ObjectStoreMapDataset
from .ranks import current_worker

__all__ = [
    "ListObjects",
    "MapObjects",
    "ReadObjects",
    "ReadTFRecord",
    "ReadTar",
    "ReadTarSamples",
    "SharedPipe",
    "Source",
]

T = TypeVar("T")
Source = str | Iterable[str] | IterDataPipe[Any]
"""A prefix to list, URIs to take as they are, or a pipe of URIs."""

VERSION = 1
_DEFAULT = SHARDING_PRIORITIES.DEFAULT


def _functional(name: str) -> Callable[[type[T]], type[T]]:
    """`functional_datapipe`, which refuses a name that is there: this module may be imported again."""

    def register(kind: type[T]) -> type[T]:
        names = (IterDataPipe if issubclass(kind, IterDataPipe) else MapDataPipe).functions
        names.pop(name, None)
        registered: type[T] = functional_datapipe(name)(kind)
        return registered

    return register


class _Held:
    """Keeps what PyTorch would pickle again and again when it looks for the pipes of a graph: any collection."""

    def __init__(self, keys: KeyList) -> None:
        self.keys = keys


class _Sharing:
    """This instance among all that share the items, from what was told for each group of instances."""

    def __init__(self) -> None:
        self._groups: dict[int, tuple[int, int]] = {}

    def tell(self, num_instances: int, instance: int, group: Any) -> None:
        if not 0 <= instance < num_instances:
            raise ValueError(f"instance {instance} lies outside of [0, {num_instances})")
        number = group.value
        if self._groups and (number == _DEFAULT.value) != (_DEFAULT.value in self._groups):
            raise RuntimeError("the default sharding group and others exclude each other")
        self._groups[number] = num_instances, instance

    def mine(self) -> tuple[int, int]:
        """(number of instances, this instance): workers divide what their rank has."""
        total, mine = 1, 0
        for _, (num_instances, instance) in sorted(self._groups.items()):
            mine += total * instance
            total *= num_instances
        return total, mine


class SharedPipe(IterDataPipe[Any]):
    """A pipe that takes its part of the items, unless a pipe before it does so already: PyTorch refuses to share twice.

    All iterable pipes of this module are of this kind.
    """

    source_datapipe: IterDataPipe[Any] | None = None
    _sharing: _Sharing | None = None

    @property
    def apply_sharding(self) -> Callable[..., None]:
        """Tell this pipe, by PyTorch's protocol, which part is its own. Not there when a pipe before it shares already."""
        if not self._may_share():
            raise AttributeError("apply_sharding")
        return self._apply_sharding

    def _apply_sharding(self, num_of_instances: int, instance_id: int, sharding_group: Any = _DEFAULT) -> None:
        self._sharing = self._sharing or _Sharing()
        self._sharing.tell(num_of_instances, instance_id, sharding_group)

    def state_dict(self) -> dict[str, int]:
        """Where the running iteration is."""
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration go on there; of an empty state, from the beginning."""
        raise NotImplementedError

    def _may_share(self) -> bool:
        before = [] if self.source_datapipe is None else get_all_graph_pipes(traverse_dps(self.source_datapipe))
        return not any(hasattr(pipe, "apply_sharding") for pipe in before)

    def _share(self) -> tuple[int, int]:
        """(number of instances, this instance)."""
        return (1, 0) if self._sharing is None or not self._may_share() else self._sharing.mine()


class _CountedPipe(SharedPipe):
    """A pipe whose place is the number of items that it gave."""

    _taken = 0
    _resume_at: int | None = None

    def _first(self) -> int:
        """How many items this iteration leaves out, without reading them."""
        first, self._resume_at = self._resume_at or 0, None
        self._taken = first
        return first

    def state_dict(self) -> dict[str, int]:
        """Where the running iteration is."""
        return {"version": VERSION, "taken": self._taken if self._resume_at is None else self._resume_at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration go on there; of an empty state, from the beginning. ValueError for what is no state."""
        taken = state.get("taken")
        if state and (state.get("version") != VERSION or not isinstance(taken, int) or taken < 0):
            raise ValueError(f"{state} is no state of {type(self).__name__}")
        self._resume_at = taken


@_functional("s3dlio_list")
class ListObjects(_CountedPipe):
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

    def shuffle(self, **_: int) -> ListObjects:
        """Shuffle all names here: a pipe with a buffer, such as PyTorch puts behind others, is not needed."""
        return self.set_shuffle(True)

    def sharding_filter(self, *_: Any, **__: Any) -> ListObjects:
        """The pipe itself: it takes its part anyway, and PyTorch refuses another pipe that does so."""
        return self

    def set_shuffle(self, shuffle: bool = True) -> ListObjects:
        """Shuffle, or do not. A DataLoader calls this."""
        self._shuffle = shuffle
        return self

    def set_seed(self, seed: int) -> ListObjects:
        """Name the seed of the next iteration. A DataLoader calls this before each epoch, with one seed for all workers."""
        self._seed = seed
        return self

    def __iter__(self) -> Iterator[str]:
        held = self._held or _Held(_listed(self.source_datapipe, self.pattern))
        num_instances, instance = self._share()
        order = Order(len(held.keys), self._shuffle, self._seed)
        deal = Deal(len(held.keys), num_ranks=num_instances, rank=instance)
        indices = (index for block in deal.blocks() for index in order.samples(block).tolist())
        for index in itertools.islice(indices, self._first(), None):
            self._taken += 1
            yield held.keys[index]


class _Reader(SharedPipe):
    """What the readers share: their URIs come from `source_datapipe`, and nothing is read but for this instance."""

    def _read_from(self, source: Source) -> None:
        if isinstance(source, str):
            source = ListObjects(source)
        self.source_datapipe = source if isinstance(source, IterDataPipe) else ListObjects.from_uris(source)

    def _uris(self) -> Iterator[str]:
        num_instances, instance = self._share()
        uris: Iterator[str] = iter(self.source_datapipe or ())
        return itertools.islice(uris, instance, None, num_instances)


@_functional("s3dlio_read")
class ReadObjects(_Reader, _CountedPipe):
    """Whole objects as BytesViews (with their `.uri`), in the order of the source, read ahead.

    `prefetch` of them at most are in flight, or here and not yet taken. A failed one raises at its turn, naming its URI.

    >>> pipe = ReadObjects("s3://bucket/train/").map(decode)
    >>> loader = DataLoader(pipe, batch_size=32, num_workers=4, shuffle=True)
    """

    def __init__(self, source: Source, *, prefetch: int = 32) -> None:
        super().__init__()
        if prefetch < 1:
            raise ValueError(f"prefetch={prefetch}: at least one object must be in flight")
        self.prefetch = prefetch
        self._read_from(source)

    def __iter__(self) -> Iterator[BytesView]:
        current_worker()
        uris = itertools.islice(self._uris(), self._first(), None)
        for view in bulk.stream(uris, window=self.prefetch):
            self._taken += 1
            yield view


class _ShardPipe(_Reader):
    """Items of container files; a reader of `data/` does the work, and its byte offset is the place."""

    _reader: ShardReader[Any] | None = None
    _resume_at: dict[str, int] | None = None

    def _make(self, uris: list[str]) -> ShardReader[Any]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        current_worker()
        state, self._resume_at = self._resume_at, None
        self._reader = reader = self._make(list(self._uris()))
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


@_functional("s3dlio_tfrecord")
class ReadTFRecord(_ShardPipe):
    """The records of TFRecord files as BytesViews, each file's in order, their checksums checked unless `verify` is false.

    Files, not records, are shuffled and shared: have at least as many as ranks times workers.
    """

    def __init__(self, source: Source, *, verify: bool = True) -> None:
        super().__init__()
        self.verify = verify
        self._read_from(source)

    def _make(self, uris: list[str]) -> TFRecordReader:
        return TFRecordReader(uris, verify=self.verify)


@_functional("s3dlio_tar")
class ReadTar(_ShardPipe):
    """The files of tar archives as (name, data) pairs, each archive's in order. Archives are shuffled and shared."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._read_from(source)

    def _make(self, uris: list[str]) -> ShardReader[TarMember]:
        return TarReader(uris)


@_functional("s3dlio_tar_samples")
class ReadTarSamples(_ShardPipe):
    """The samples of WebDataset shards as dicts, each shard's in order. Shards are shuffled and shared."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._read_from(source)

    def _make(self, uris: list[str]) -> ShardReader[Any]:
        return TarSampleReader(uris)


@_functional("s3dlio_read")
class MapObjects(MapDataPipe[Any]):
    """Whole objects by index, as BytesViews: those under a prefix, or of URIs, in their order.

    A thin pipe over ObjectStoreMapDataset. PyTorch asks a map-style pipe for one item at a time, so a batch is read in
    parallel by the dataset only: prefer it where no other pipe follows.
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
