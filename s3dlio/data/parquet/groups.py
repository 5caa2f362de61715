"""`RowGroups`: which row groups there are under a URI, and which file each of them is in."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import objects
from ...storage.base import Store
from .columns import Columns, expression_of, leaves_of, row_groups_of
from .cut import Cut
from .files import find, indexes
from .index import pyarrow

__all__ = ["RowGroups"]


class RowGroups:
    """All row groups under a URI that columns and filters leave, in the order of names. Pickles with what it knows."""

    def __init__(self, uri: str, *, columns: Columns | None, footer_cap: int, filters: Any) -> None:
        pyarrow()  # an error at once where it is not installed
        files = find(uri)
        self.uri = uri
        expression = expression_of(filters)
        self.files = indexes(objects.resolve(files[0][0])[0], files, footer_cap)
        self._leaves = [leaves_of(index, columns) for index in self.files]
        wanted = [row_groups_of(index, expression) for index in self.files]
        self._file_of = np.repeat(np.arange(len(wanted)), [len(numbers) for numbers in wanted])
        self._row_group_of = np.array([number for numbers in wanted for number in numbers], np.int64)

    def __len__(self) -> int:
        return len(self._file_of)

    def cut(self, number: int, decode: str) -> Cut:
        """Begin with one of them: makes its buffer, see Cut."""
        file = int(self._file_of[number])
        return Cut(self.files[file], int(self._row_group_of[number]), self._leaves[file], decode)

    def place_of(self, number: int) -> tuple[str, int]:
        """The file of one of them, and its number in it."""
        return self.files[int(self._file_of[number])].uri, int(self._row_group_of[number])

    def num_rows(self, number: int) -> int:
        """Rows of one of them."""
        return self.files[int(self._file_of[number])].num_rows[int(self._row_group_of[number])]

    def store(self) -> Store:
        """The Store of all the files."""
        return objects.resolve(self.files[0].uri)[0]
