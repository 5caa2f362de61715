"""What a loader hands out: a row group as bytes, or decoded, and how each is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from ...view import BytesView, copy_of
from .arrays import to_numpy
from .cut import Cut
from .decode import decoded, to_ipc

__all__ = ["Decode", "FINISHERS", "ParquetBatch", "ParquetItem"]

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
        """The columns by name; see `s3dlio.data.parquet.arrays.to_numpy`."""
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


FINISHERS: Mapping[str, Callable[[Cut], Any]] = {"raw": _raw, "arrow": _arrow, "batch": _batch}
