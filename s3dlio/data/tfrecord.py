"""TFRecord files on any scheme: streamed with their checksums checked, indexed, and read at random.

A file is a sequence of records: the length of the data (8 bytes, little-endian), its checksum (4), the data, its checksum
(4). A checksum is a masked CRC-32C. Source: https://www.tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format
details". The index is the text of DALI's tfrecord2idx: a line "offset size" for each record, both in bytes, the size with
the 16 bytes of framing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

from .. import config, objects
from ..crc32c import Update, load
from ..errors import CorruptDataError, IncompleteReadError
from ..transfer import ranges
from ..transfer.ahead import Forward
from ..view import BytesView
from .bad_samples import OnError
from .shards import Report, ShardReader

__all__ = ["TFRecordFile", "TFRecordReader", "create_tfrecord_index", "read_tfrecord_index"]

HEADER_BYTES = 12
FOOTER_BYTES = 4
FRAMING_BYTES = HEADER_BYTES + FOOTER_BYTES
WINDOW = 64
_HEADER = struct.Struct("<QI")

Entry = tuple[int, int]
"""Where a record lies: the offset of its framing, and its size with it."""


def _checksum() -> Update:
    return load("checking TFRecord files needs crc32c", "tfrecord")


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _checked_length(uri: str, start: int, header: bytes, checksum: Update | None) -> int:
    """The length of the data that follows the header of a record."""
    length, crc = _HEADER.unpack(header)
    if checksum is not None and _masked(checksum(header[:8])) != crc:
        raise CorruptDataError(f"{uri} is corrupt: the checksum of the length of the record at byte {start} is wrong")
    return int(length)


def _check_data(uri: str, start: int, data: BytesView, footer: bytes, checksum: Update | None) -> None:
    if checksum is not None and _masked(checksum(data)) != int.from_bytes(footer, "little"):
        raise CorruptDataError(f"{uri} is corrupt: the checksum of the data of the record at byte {start} is wrong")


def _records(file: Forward, checksum: Update | None) -> Iterator[tuple[BytesView | Exception, int]]:
    """The data of each record, or that its checksum is wrong, and where the next record begins."""
    while left := file.left:
        start = file.position
        header = file.take_bytes(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            raise IncompleteReadError(f"{file.uri} is truncated: {left} bytes at byte {start} are no record")
        length = _checked_length(file.uri, start, header, checksum)
        if length + FRAMING_BYTES > left:
            raise IncompleteReadError(
                f"{file.uri} is truncated: the record at byte {start} has {length} bytes of data, and the file ends "
                f"{left} bytes after that byte"
            )
        data = file.take(length)
        try:
            _check_data(file.uri, start, data, file.take_bytes(FOOTER_BYTES), checksum)
        except CorruptDataError as exc:
            yield exc, file.position
        else:
            yield data, file.position


class TFRecordReader(ShardReader[BytesView]):
    """Stream the records of one or several TFRecord files, in order.

    Each record is a BytesView: a slice of the block that was read (no copy), or memory of its own where it crosses blocks.
    `record.uri` is its file. Both checksums are checked unless `verify` is false. Iterating again starts again;
    `state_dict()` between two records says where, and a reader of the same files goes on there after
    `load_state_dict()`, without reading what came before. Raises CorruptDataError and IncompleteReadError, naming file
    and byte offset, at the turn of the broken record.

    `on_error` says what happens to broken data: `"raise"`, `"skip"`, or a function of (URI of the file, error) that says
    True for skip. A record whose data is wrong is passed over; a wrong length, and what is missing of a file, end that file.
    `num_skipped`, `skipped` and a BadSampleWarning tell of each.

    >>> for record in TFRecordReader("s3://bucket/train-00000.tfrecord"):
    ...     example.ParseFromString(record)
    """

    def __init__(
        self,
        uris: str | Iterable[str],
        *,
        verify: bool = True,
        on_error: OnError = "raise",
        report: Report | None = None,
    ) -> None:
        super().__init__(uris, on_error, report)
        self._checksum = _checksum() if verify else None

    def items_of(self, file: Forward) -> Iterator[tuple[BytesView | Exception, int]]:
        return _records(file, self._checksum)


class TFRecordFile:
    """One TFRecord file by record number: `len(file)`, `file[i]`, `file.get_many(indices)`, each record one ranged read.

    `index` is the URI of an index, or what `read_tfrecord_index` returns; without it the file is read once to make one.
    """

    def __init__(self, uri: str, index: str | Sequence[Entry] | None = None, *, verify: bool = True) -> None:
        self.uri = uri
        self._checksum = _checksum() if verify else None
        if index is None:
            self._entries: Sequence[Entry] = list(_entries(uri, verify))
        else:
            self._entries = read_tfrecord_index(index) if isinstance(index, str) else index

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, number: int) -> BytesView:
        return self.get_many([number])[0]

    def get_many(self, numbers: Iterable[int]) -> list[BytesView]:
        """The records of these numbers, in their order, at most `WINDOW` requests at once."""
        entries = [self._entries[number] for number in numbers]
        store, key = objects.resolve(self.uri)
        framed = ranges.fetch_ranges(store, key, entries, window=WINDOW, options=config.snapshot())
        return [self._unframed(view, *entry) for view, entry in zip(framed, entries, strict=True)]

    def _unframed(self, framed: BytesView, start: int, size: int) -> BytesView:
        if framed.nbytes < size:
            has = f"{framed.nbytes} of {size} bytes"
            raise IncompleteReadError(f"{self.uri} is truncated: of the record at byte {start} it has {has}")
        data: BytesView = framed[HEADER_BYTES:-FOOTER_BYTES]
        if _checked_length(self.uri, start, framed[:HEADER_BYTES].tobytes(), self._checksum) != data.nbytes:
            raise CorruptDataError(f"{self.uri}: the record at byte {start} has another size than its index says")
        _check_data(self.uri, start, data, framed[-FOOTER_BYTES:].tobytes(), self._checksum)
        return data

    __getitems__ = get_many


def _entries(uri: str, verify: bool) -> Iterator[Entry]:
    reader = TFRecordReader(uri, verify=verify)
    offset = 0
    for record in reader:
        size = record.nbytes + FRAMING_BYTES
        yield offset, size
        offset += size


def create_tfrecord_index(
    input_path: str | None = None,
    output_path: str | None = None,
    *,
    tfrecord_path: str | None = None,
    index_path: str | None = None,
    verify: bool = True,
) -> int:
    """Write the index of a TFRecord file, by default to its name with ".idx", and return the number of records.

    Any scheme in and out; `tfrecord_path` and `index_path` are other names of the two. The file is read once, and both
    checksums of each record are checked unless `verify` is false. Nothing is written when the file is broken:
    CorruptDataError or IncompleteReadError names the byte.
    """
    source = _one("input_path", input_path, "tfrecord_path", tfrecord_path)
    if source is None:
        raise TypeError("create_tfrecord_index needs input_path, the URI of a TFRecord file")
    target = _one("output_path", output_path, "index_path", index_path) or f"{source}.idx"
    entries = list(_entries(source, verify))
    objects.put_bytes(target, "\n".join(f"{offset} {size}" for offset, size in entries).encode())
    return len(entries)


def _one(name: str, value: str | None, other_name: str, other: str | None) -> str | None:
    if value is not None and other is not None:
        raise TypeError(f"{name} and {other_name} are two names of one argument: pass one of them")
    return other if value is None else value


def read_tfrecord_index(index_path: str) -> list[Entry]:
    """The (offset, size) of every record, in bytes, from an index; the size with the framing."""
    try:
        pairs = (line.split() for line in bytes(objects.get(index_path)).decode("ascii").splitlines())
        return [(int(offset), int(size)) for offset, size in pairs]
    except ValueError as exc:
        raise CorruptDataError(f"{index_path} is no index of a TFRecord file: {exc}") from exc
