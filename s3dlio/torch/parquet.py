"""`ParquetDataset`: row groups of Parquet files as batches of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from ..data.bad_samples import OnError
from ..data.options import callable_or_none
from ..data.parquet.arrays import to_numpy
from ..data.parquet.arrivals import arrivals
from ..data.parquet.groups import row_groups
from ..data.parquet.items import FINISHERS, ParquetBatch
from ..data.parquet.options import ParquetOptions
from .bad_samples import Skipping, transform_of
from .resumable import DealtStream, tail_of

__all__ = ["ParquetDataset", "split_rows", "to_tensors"]


class ParquetDataset(Skipping, DealtStream):
    """Row groups as a stream of batches: each is a dict of tensors by column name, shared with Arrow's memory.

    Ranks, workers, order, tail and state are those of ObjectStoreIterableDataset, with a row group for a sample; use
    `batch_size=None` in a DataLoader or `s3dlio.torch.loader`, since a sample is a batch already. `columns`, `filters`,
    `footer_cap` and `prefetch` are those of `create_async_loader`. Columns that are no numbers (text, lists of any length)
    come as lists. `split_rows` cuts a batch into smaller ones. `transform` is applied to the dict.

    `on_error` is that of ObjectStoreIterableDataset: with `"skip"` a copy of a good row group stands in for one that cannot
    be read, decoded or transformed, and a file whose footer is damaged is left out. In `skipped`, `uri` is the file, and
    `error` begins with the row group.

    >>> dataset = s3dlio.torch.ParquetDataset("s3://bucket/train/", columns=["x", "label"], shuffle=True)
    >>> for batch in s3dlio.torch.loader(dataset, batch_size=None, num_workers=2):
    ...     for part in split_rows(batch, 256):
    ...         loss = model(part["x"], part["label"])
    """

    def __init__(
        self,
        uri: str,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        *,
        columns: Any = None,
        filters: Any = None,
        footer_cap: int = ParquetOptions().footer_cap,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        pad: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        prefetch: int = 8,
        on_error: OnError = "raise",
    ) -> None:
        self._skip(on_error)
        options = ParquetOptions(
            columns=columns, filters=filters, footer_cap=footer_cap, prefetch=prefetch, on_error=on_error
        )
        self._groups = row_groups(uri, options)
        self._tell_of(self._groups.skipped)
        self._prefetch = prefetch
        self._transform = callable_or_none("transform", transform)
        self._deal_out(
            len(self._groups),
            shuffle=shuffle,
            seed=seed,
            batch_size=None,
            tail=tail_of(drop_last=drop_last, pad=pad),
            rank=rank,
            world_size=world_size,
        )

    def __len__(self) -> int:
        """Row groups of this rank per epoch."""
        return self.deal().length

    def _read(self, samples: Iterator[int], taken: int, before: Iterator[int]) -> Iterator[Any]:
        coming = partial(arrivals, self._groups, finish=FINISHERS["batch"], decode="batch")
        items, earlier = coming(samples, prefetch=self._prefetch), partial(coming, before, prefetch=1)
        return self._filled(items, self._transformed, taken=taken, before=earlier)

    def _transformed(self, item: ParquetBatch) -> Any:
        where = f"row group {item.rg_idx} of {item.uri}"
        try:
            batch = to_tensors(item.data)
        except ValueError as exc:
            raise ValueError(f"{where}: {exc}") from exc
        return batch if self._transform is None else transform_of(batch, self._transform, where)


def to_tensors(batch: Any) -> dict[str, Any]:
    """The columns of a pyarrow.RecordBatch by name: tensors that share memory where `to_numpy` does, else lists.

    Times and dates come as their whole numbers, text and lists of any length as lists. Raises ValueError as `to_numpy` does,
    and for a null among times.
    """
    return {name: _tensor(name, array) for name, array in to_numpy(batch).items()}


def _tensor(name: str, array: np.ndarray[Any, Any]) -> Any:
    if array.dtype.kind in "mM":
        if np.isnat(array).any():
            raise ValueError(f"column {name!r} has nulls, which no whole number stands for: fill them, or leave it out")
        array = array.view(np.int64)
    if array.dtype.kind not in "biuf":
        return array.tolist()
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def split_rows(batch: dict[str, Any], num_rows: int) -> Iterator[dict[str, Any]]:
    """Cut a batch into batches of `num_rows` rows, the last one shorter; tensors share their memory."""
    if num_rows < 1:
        raise ValueError(f"num_rows={num_rows}: a batch holds at least one row")
    for start in range(0, max((len(column) for column in batch.values()), default=0), num_rows):
        yield {name: column[start : start + num_rows] for name, column in batch.items()}
