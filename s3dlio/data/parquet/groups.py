"""Which row groups there are under a URI, and which file each of them is in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ... import objects
from ...errors import CorruptDataError, S3dlioError
from ...storage.base import ObjectInfo, Store
from ..bad_samples import Skipped, Skips
from .columns import expression_of, leaves_of, row_groups_of
from .cut import Cut
from .files import find, sound_indexes
from .index import FileIndex, pyarrow
from .options import ParquetOptions

__all__ = ["RowGroups", "row_groups"]


class RowGroups:
    """All row groups under a URI that the options of a loader leave, in the order of names. Pickles with what it knows.

    Files that are damaged are left out where `on_error` says so, and are in `skipped`; then all may be. Other errors raise,
    whatever `on_error` says: what a request met, the ranks of a job need not all meet.
    """

    def __init__(self, uri: str, options: ParquetOptions) -> None:
        pyarrow()  # an error at once where it is not installed
        files = find(uri)
        self.uri = uri
        self._place = files[0][0]
        self.skipped: list[Skipped] = []
        sound = list(self._sound(files, options))
        self.files = [index for index, _, _ in sound]
        self._leaves = [leaves for _, leaves, _ in sound]
        self._file_of = np.repeat(np.arange(len(sound)), [len(wanted) for _, _, wanted in sound])
        self._row_group_of = np.array([number for _, _, wanted in sound for number in wanted], np.int64)

    def _sound(
        self, files: Iterable[tuple[str, ObjectInfo]], options: ParquetOptions
    ) -> Iterator[tuple[FileIndex, tuple[int, ...] | None, list[int]]]:
        """Files that can be read, with the leaf columns and the row groups that are wanted of them."""
        expression, skips = expression_of(options.filters), Skips(options.on_error, self.skipped.append)
        damaged: dict[str, CorruptDataError] = {}

        def note(uri: str, error: CorruptDataError) -> None:
            if skips.on_error == "raise":
                raise error
            damaged[uri] = error

        indexes = sound_indexes(self.store(), files, options.footer_cap, note)
        for uri, _ in files:
            try:
                if uri in damaged:
                    raise damaged[uri]
                index = indexes[uri]
                yield index, leaves_of(index, options.columns), row_groups_of(index, expression)
            except CorruptDataError as exc:
                skips.skip(uri, exc, is_whole=True)

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
        return objects.resolve(self._place)[0]


def row_groups(uri: str, options: ParquetOptions) -> RowGroups:
    """RowGroups of which there is a file. Raises S3dlioError where every one is damaged."""
    groups = RowGroups(uri, options)
    if not groups.files:
        last = groups.skipped[-1]
        raise S3dlioError(f"none of the {len(groups.skipped)} .parquet files under {uri} can be read: {last.error}")
    return groups
