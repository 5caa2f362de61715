"""Which columns and which row groups of a Parquet file are wanted."""

from __future__ import annotations

import base64
import operator
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from ...errors import ConfigError, S3dlioError
from .index import FileIndex, pyarrow

__all__ = ["Columns", "SchemaOf", "expression_of", "leaves_of", "row_groups_of"]

Columns: TypeAlias = Sequence[int | str]
NAMES_SHOWN = 20
_ARROW_SCHEMA = b"ARROW:schema"
_ANY_LIST = ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")


def leaves_of(index: FileIndex, columns: Columns | None) -> tuple[int, ...] | None:
    """The leaf columns of a file, in its own order, that `columns` names; None for all of them.

    A number counts leaves from 0, as Parquet does. A name is that of a column with all that it holds, or the dotted path of
    a part. The values of a map bring its keys: readers take no map without. Raises ConfigError, which lists what there is,
    for what the file does not have.
    """
    if columns is None:
        return None
    chosen: set[int] = set()
    for column in columns:
        chosen.update(_named(index, column) if isinstance(column, str) else _numbered(index, column))
    if any("." in index.leaves[leaf] for leaf in chosen):
        keys = _keys_of_maps(index)
        chosen.update(*(keys.get(leaf, ()) for leaf in tuple(chosen)))
    return tuple(sorted(chosen)) if len(chosen) < len(index.leaves) else None


def _keys_of_maps(index: FileIndex) -> dict[int, tuple[int, ...]]:
    """By leaf, the leaves of the keys of the maps around it."""
    arrow = pyarrow()
    found: dict[int, tuple[int, ...]] = {}
    try:
        schema = index.metadata.schema.to_arrow_schema()
    except arrow.ArrowException:
        return found
    at = 0
    for field in schema:
        at = _walk(field.type, at, (), found)
    return found if at == len(index.leaves) else {}


def _walk(kind: Any, at: int, keys: tuple[int, ...], found: dict[int, tuple[int, ...]]) -> int:
    """Note `keys` for the leaves of a type, the first of which is `at`. Returns the number behind the last one."""
    types = pyarrow().types
    if types.is_map(kind):
        end = _walk(kind.key_type, at, keys, found)
        return _walk(kind.item_type, end, (*keys, *range(at, end)), found)
    if types.is_struct(kind):
        for field in kind:
            at = _walk(field.type, at, keys, found)
        return at
    if any(getattr(types, f"is_{name}")(kind) for name in _ANY_LIST):
        return _walk(kind.value_type, at, keys, found)
    found[at] = keys
    return at + 1


def _named(index: FileIndex, name: str) -> list[int]:
    found = [number for number, path in enumerate(index.leaves) if path == name or path.startswith(name + ".")]
    if not found:
        raise ConfigError(f"{index.uri} has no column {name!r}: {_what_there_is(index)}")
    return found


def _numbered(index: FileIndex, column: int) -> tuple[int]:
    number = operator.index(column)
    if not 0 <= number < len(index.leaves):
        raise ConfigError(f"{index.uri} has no column {number}: {_what_there_is(index)}")
    return (number,)


def _what_there_is(index: FileIndex) -> str:
    names = index.leaves
    more = ", …" if len(names) > NAMES_SHOWN else ""
    return f"it has {len(names)} columns, from 0 on {', '.join(names[:NAMES_SHOWN])}{more}"


def expression_of(filters: Any) -> Any:
    """`filters` in pyarrow's form as an expression, None for none. Raises ConfigError for what has another form."""
    if filters is None:
        return None
    arrow = pyarrow()
    try:
        return arrow.parquet.filters_to_expression(filters)
    except (arrow.ArrowException, IndexError, KeyError, TypeError, ValueError) as exc:
        form = 'a list of (column, operator, value), as [("label", "<", 3)], or an expression'
        raise ConfigError(f"filters={filters!r:.200} cannot be used ({exc}): it is {form}") from exc


def row_groups_of(index: FileIndex, expression: Any) -> list[int]:
    """The row groups that have rows, and by their statistics may have some for which the pyarrow `expression` holds."""
    wanted = [number for number, num_rows in enumerate(index.num_rows) if num_rows]
    if expression is None:
        return wanted
    arrow = pyarrow()
    import pyarrow.dataset as datasets

    index.check_claims(_leaves_in(index, str(expression)))
    try:
        fragment = datasets.ParquetFileFormat().make_fragment(index.file_without_data())
        possible = {group.id for group in fragment.subset(expression).row_groups}
    except (arrow.ArrowException, KeyError, ValueError) as exc:
        what = str(exc).partition(" in ")[0]  # what follows is the whole schema
        raise ConfigError(f"filters cannot be applied to {index.uri}: {what}; {_what_there_is(index)}") from exc
    except OSError as exc:
        raise S3dlioError(f"cannot read the statistics of {index.uri}: {exc}") from exc
    return [number for number in wanted if number in possible]


def _leaves_in(index: FileIndex, expression: str) -> list[int]:
    """The leaves whose statistics an expression may need: some too many, if names are parts of others."""
    names = (path.partition(".")[0] for path in index.leaves)
    return [number for number, name in enumerate(names) if name in expression or "FieldPath(" in expression]


class SchemaOf:
    """What becomes of a file's metadata when only some leaves are taken: Arrow's own schema is cut down to them.

    Without that, pyarrow would apply it to the wrong columns; left out altogether, dictionaries, lists of a fixed size and
    time zones would be lost.
    """

    def __init__(self, leaves: Sequence[int], num_leaves: int) -> None:
        self._leaves = leaves
        self._num_leaves = num_leaves

    def __call__(self, key: bytes, value: bytes) -> bytes | None:
        if key != _ARROW_SCHEMA:
            return value
        arrow = pyarrow()
        try:
            schema = arrow.ipc.read_schema(arrow.py_buffer(base64.b64decode(value)))
        except (arrow.ArrowException, ValueError):  # pyarrow itself will not use it either
            return None
        flags = iter([number in self._leaves for number in range(self._num_leaves)])
        try:
            fields = [kept for field in schema if (kept := _pruned(field, flags)) is not None]
        except StopIteration:
            return None
        if next(flags, None) is not None:  # it does not describe this file
            return None
        pruned = arrow.schema(fields, metadata=schema.metadata)
        return base64.b64encode(pruned.serialize())


def _pruned(field: Any, flags: Iterator[bool]) -> Any:
    """The field with those of its leaves that are flagged, or None when none is."""
    kind = _pruned_type(field.type, flags)
    return None if kind is None else field.with_type(kind)


def _pruned_type(kind: Any, flags: Iterator[bool]) -> Any:
    arrow = pyarrow()
    types = arrow.types
    if types.is_struct(kind):
        fields = [kept for field in kind if (kept := _pruned(field, flags)) is not None]
        return arrow.struct(fields) if fields else None
    if types.is_map(kind):
        key, item = _pruned(kind.key_field, flags), _pruned(kind.item_field, flags)
        return None if key is None or item is None else arrow.map_(key, item, keys_sorted=kind.keys_sorted)
    for name in _ANY_LIST:
        if getattr(types, f"is_{name}")(kind):
            value = _pruned(kind.value_field, flags)
            sizes = (kind.list_size,) if name == "fixed_size_list" else ()
            make = arrow.list_ if name == "fixed_size_list" else getattr(arrow, f"{name}_" if name == "list" else name)
            return None if value is None else make(value, *sizes)
    return kind if next(flags) else None
