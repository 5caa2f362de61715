"""Sources for `torchdata.nodes`: the streams of this package as nodes with an exact state.

A node reads ahead by itself, so a `Prefetcher` right behind it adds nothing. Every `reset` without a state after something
was taken begins the next epoch, as a `Loader` wants it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from ..data.bad_samples import OnError, Skipped
from ..errors import MissingPackageError
from .datapipes import ReadTar, ReadTarSamples, ReadTFRecord
from .dataset import ObjectStoreIterableDataset
from .parquet import ParquetDataset
from .pipe_dataset import PipeDataset

try:
    from torchdata.nodes import BaseNode
except ImportError as exc:
    raise MissingPackageError("s3dlio.torch.nodes needs torchdata: pip install torchdata") from exc

__all__ = ["Stream", "StreamNode", "objects", "parquet", "tar", "tar_samples", "tfrecord"]


class Stream(Protocol):
    """What a node needs of a stream. Its state restores the next iteration."""

    @property
    def epoch(self) -> int:
        """The epoch that iterates next."""
        ...

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch that iterates next."""
        ...

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> dict[str, Any]:
        """Where the running iteration is."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on there."""
        ...


class StreamNode(BaseNode):  # type: ignore[misc] # torchdata is not typed
    """Any stream of this package as a source node: ObjectStoreIterableDataset, ParquetDataset, PipeDataset.

    Its state is that of the stream; that of a `torchdata.nodes.Loader` around it is converted by
    `s3dlio.torch.position_from`, provided nothing between them reads ahead. The stream is the node's own from now on.

    >>> node = Batcher(StreamNode(dataset), batch_size=32)
    >>> loader = torchdata.nodes.Loader(node)
    """

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream
        self._items: Iterator[Any] | None = None
        self._epoch = stream.epoch
        self._has_begun = False

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begin where the state was taken, or, without one, the next epoch."""
        super().reset(initial_state)
        self._leave()
        if initial_state is not None:
            self._stream.load_state_dict(initial_state["stream"])
            self._epoch = self._stream.epoch
        else:
            self._epoch = self._epoch + 1 if self._has_begun else self._stream.epoch
            self._stream.set_epoch(self._epoch)
        self._has_begun = bool(initial_state and initial_state["has_begun"])
        self._items = iter(self._stream)

    def next(self) -> Any:
        """The next item."""
        self._has_begun = True
        assert self._items is not None, "a node is reset before it is asked"
        return next(self._items)

    def get_state(self) -> dict[str, Any]:
        """The state of the stream, in plain numbers."""
        state_dict = getattr(self._stream, "progress_dict", self._stream.state_dict)
        return {"stream": state_dict(), "has_begun": int(self._has_begun)}

    @property
    def num_skipped(self) -> int:
        """Bad samples that the stream's `on_error` let pass until now."""
        return int(getattr(self._stream, "num_skipped", 0))

    @property
    def skipped(self) -> list[Skipped]:
        """They, with their errors: the first ones."""
        return list(getattr(self._stream, "skipped", ()))

    def shutdown(self) -> None:
        """Leave the stream: what is in flight is given up."""
        self._leave()

    def _leave(self) -> None:
        items: Any = self._items
        self._items = None
        if hasattr(items, "close"):
            items.close()


def objects(uri: str, **options: Any) -> StreamNode:
    """The objects under a prefix, as `ObjectStoreIterableDataset` with these options.

    A state that is taken between batches of `batch_size` is good for any number of ranks, another one for as many.
    """
    return StreamNode(ObjectStoreIterableDataset(uri, **options))


def parquet(uri: str, **options: Any) -> StreamNode:
    """Row groups as batches of tensors, as `ParquetDataset` with these options."""
    return StreamNode(ParquetDataset(uri, **options))


def tfrecord(source: str | Iterable[str], *, verify: bool = True, on_error: OnError = "raise", **options: Any) -> StreamNode:
    """The records of TFRecord files, as `ReadTFRecord` in a `PipeDataset` with these options."""
    return StreamNode(PipeDataset(ReadTFRecord(source, verify=verify, on_error=on_error), **options))


def tar(source: str | Iterable[str], *, on_error: OnError = "raise", **options: Any) -> StreamNode:
    """The files of tar archives, as `ReadTar` in a `PipeDataset` with these options."""
    return StreamNode(PipeDataset(ReadTar(source, on_error=on_error), **options))


def tar_samples(source: str | Iterable[str], *, on_error: OnError = "raise", **options: Any) -> StreamNode:
    """The samples of WebDataset shards, as `ReadTarSamples` in a `PipeDataset` with these options."""
    return StreamNode(PipeDataset(ReadTarSamples(source, on_error=on_error), **options))
