"""A record batch as numpy arrays, without copies where Arrow's memory is what numpy needs."""

from __future__ import annotations

from typing import Any

import numpy as np

from .index import pyarrow

__all__ = ["to_numpy"]


def to_numpy(batch: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The columns of a pyarrow.RecordBatch by name, of shape (rows,), (rows, size) for lists of a fixed size, and so on for
    lists of lists. Raises ValueError for two columns of one name.

    Numbers are shared with the batch, and writable; what Arrow packs (booleans) or numpy has no type for (text, lists of any
    length: dtype object) is copied. A time of day in nanoseconds is a timedelta64, since midnight. A null in a column of
    floats becomes NaN. The type of an array follows from the type of the column alone: a null among integers, booleans or in
    lists of a fixed size raises ValueError.
    """
    names = batch.schema.names
    if twice := sorted({name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else ()):
        raise ValueError(f"there are several columns of the name {twice[0]!r}: choose one of them by its number")
    return {name: _array(name, column) for name, column in zip(names, batch.columns, strict=True)}


def _array(name: str, column: Any) -> np.ndarray[Any, Any]:
    types, kind = pyarrow().types, column.type
    if types.is_dictionary(kind):
        return _array(name, column.dictionary_decode())
    if hasattr(kind, "storage_type"):
        return _array(name, column.storage)
    is_list = types.is_fixed_size_list(kind)
    is_number = types.is_integer(kind) or types.is_floating(kind)
    if column.null_count and (is_list or types.is_integer(kind) or types.is_boolean(kind)):
        nulls = f"column {name!r} has {column.null_count} nulls"
        raise ValueError(f"{nulls}, for which an array of {kind} has no value: fill them, or leave the column out")
    if is_list:
        inner = _array(name, column.flatten())
        return inner.reshape(len(column), kind.list_size, *inner.shape[1:])
    if types.is_time64(kind) and kind.unit == "ns":  # datetime.time, as of other units, would lose nanoseconds
        column = column.cast(pyarrow().int64()).cast(pyarrow().duration("ns"))
    if is_number and not column.null_count:
        memory = np.frombuffer(column.buffers()[1], kind.to_pandas_dtype())
        return memory[column.offset : column.offset + len(column)]
    array: np.ndarray[Any, Any] = column.to_numpy(zero_copy_only=False)
    return array
