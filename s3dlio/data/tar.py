"""Tar shards (WebDataset) on any scheme: members and samples streamed, indexed, and read at random.

A sample is a run of members whose path is the same up to the first dot of its last part
(https://github.com/webdataset/webdataset). An index is text: a line `offset size "name"` for each file, the offset and the
size of its data in bytes, and its name as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from .. import config, objects
from ..errors import CorruptDataError, IncompleteReadError
from ..transfer import ranges
from ..transfer.ahead import Forward
from ..view import BytesView
from .bad_samples import OnError
from .shards import Report, ShardReader
from .tarheaders import headers, padded

__all__ = [
    "TarEntry",
    "TarFile",
    "TarMember",
    "TarReader",
    "TarSampleReader",
    "create_tar_index",
    "read_tar_index",
    "split_name",
]

WINDOW = 64  # ranged reads in flight

TarSample = dict[str, str | BytesView]


class TarMember(NamedTuple):
    """A file of an archive; `data.uri` is the archive."""

    name: str
    data: BytesView


class TarEntry(NamedTuple):
    """Where a file of an archive lies: the offset and the size of its data, in bytes."""

    offset: int
    size: int
    name: str


def _members(file: Forward) -> Iterator[tuple[int, TarMember]]:
    """Every regular file, with the byte at which its headers begin."""
    for header in headers(file):
        data = file.take(header.size)
        file.skip(padded(header.size) - header.size)
        yield header.start, TarMember(header.name, data)


class TarReader(ShardReader[TarMember]):
    """Stream the regular files of one or several tar archives, in order, as (name, data) pairs.

    Data is a BytesView: a slice of the block that was read (no copy), or memory of its own where it crosses blocks.
    Iterating again starts again; state and errors are those of `TFRecordReader`. An archive without its end mark is
    truncated, hence an error, and what follows an end mark is read as well, as in archives that were concatenated.
    `on_error` is that of `TFRecordReader`: of a damaged archive the rest is passed over.

    >>> for name, data in TarReader("s3://bucket/train-{0000}.tar"):
    ...     print(name, len(data))
    """

    def __init__(self, uris: str | Iterable[str], *, on_error: OnError = "raise", report: Report | None = None) -> None:
        super().__init__(uris, on_error, report)

    def items_of(self, file: Forward) -> Iterator[tuple[TarMember, int]]:
        for _, member in _members(file):
            yield member, file.position


class TarSampleReader(ShardReader[TarSample]):
    """Stream the samples of WebDataset shards as dicts: "__key__", "__url__" (the shard), and a BytesView by extension.

    A sample is a run of files with one key, the path up to the first dot of its last part; what follows the dot, in lower
    case, is the extension. Files without one are left out. A state lies between two samples. Raises CorruptDataError when a
    sample has an extension twice. `on_error` is that of `TarReader`, which such a sample does not end.
    """

    def __init__(self, uris: str | Iterable[str], *, on_error: OnError = "raise", report: Report | None = None) -> None:
        super().__init__(uris, on_error, report)

    def items_of(self, file: Forward) -> Iterator[tuple[TarSample | Exception, int]]:
        sample: TarSample = {}
        wrong: CorruptDataError | None = None  # with this sample
        after = file.position  # the member that was seen last
        for start, member in _members(file):
            after = file.position
            key, extension = split_name(member.name)
            if not extension:
                continue
            if sample and sample["__key__"] != key:
                yield wrong or sample, start
                sample, wrong = {}, None
            if extension in sample:
                wrong = CorruptDataError(f"{file.uri}: {member.name} comes twice in a sample")
            sample = sample or {"__key__": key, "__url__": file.uri}
            sample[extension] = member.data
        if sample:
            yield wrong or sample, after


def split_name(name: str) -> tuple[str, str]:
    """(key, extension) of a member: the path up to the first dot of its last part, and the rest in lower case."""
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return folder + slash + stem, extension.lower() if stem else ""


class TarFile:
    """One tar archive by member: `file[name]` or `file[number]`, `len(file)`, `file.get_many(…)`, each one ranged read.

    `index` is the URI of an index, or what `read_tar_index` returns; without it the headers are read to make one, and an
    archive that was replaced since is a ChangedError. An index cannot tell whether it is that of the archive.
    """

    def __init__(self, uri: str, index: str | Sequence[TarEntry] | None = None) -> None:
        self.uri = uri
        self._etag: str | None = None
        if index is None:
            self._etag, entries = _indexed(uri)
            self.entries: Sequence[TarEntry] = entries
        else:
            self.entries = read_tar_index(index) if isinstance(index, str) else index
        self._numbers = {entry.name: number for number, entry in enumerate(self.entries)}

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, member: int | str) -> BytesView:
        return self.get_many([member])[0]

    def get_many(self, members: Iterable[int | str]) -> list[BytesView]:
        """The data of these members, by name or number, in their order."""
        wanted = [self.entries[self._numbers[name] if isinstance(name, str) else name] for name in members]
        store, key = objects.resolve(self.uri)
        pieces = [(entry.offset, entry.size) for entry in wanted]
        views = ranges.fetch_ranges(store, key, pieces, window=WINDOW, options=config.snapshot(), match=self._etag)
        for view, entry in zip(views, wanted, strict=True):
            if view.nbytes < entry.size:
                has = f"{view.nbytes} of {entry.size} bytes"
                raise IncompleteReadError(f"{self.uri} is truncated: of {entry.name} it has {has}")
        return views

    __getitems__ = get_many


def _indexed(uri: str) -> tuple[str | None, list[TarEntry]]:
    """The etag of an archive, and where its files lie."""
    file = Forward(*objects.resolve(uri), config.snapshot())
    entries = []
    try:
        for header in headers(file):
            entries.append(TarEntry(file.position, header.size, header.name))
            file.skip(padded(header.size))
        return file.etag, entries
    finally:
        file.close()


def create_tar_index(input_path: str, output_path: str | None = None) -> int:
    """Write the index of a tar archive, by default to its name with ".idx", and return the number of files in it.

    Any scheme in and out. Of large files only the headers are read. Nothing is written when the archive is broken.
    """
    _, entries = _indexed(input_path)
    text = "".join(f"{entry.offset} {entry.size} {json.dumps(entry.name)}\n" for entry in entries)
    objects.put_bytes(f"{input_path}.idx" if output_path is None else output_path, text.encode())
    return len(entries)


def read_tar_index(index_path: str) -> list[TarEntry]:
    """The entries of an index, in the order of the archive."""
    try:
        lines = bytes(objects.get(index_path)).decode().splitlines()
        parts = (line.split(" ", 2) for line in lines)
        return [TarEntry(int(offset), int(size), json.loads(name)) for offset, size, name in parts]
    except ValueError as exc:
        raise CorruptDataError(f"{index_path} is no index of a tar archive: {exc}") from exc
