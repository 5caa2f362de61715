"""What a distributed checkpoint is made of: which file an item goes into, where its bytes are, which of them are wanted.

Pure arithmetic on plans, and the extra facts that are kept of each item in `.metadata`, as an attribute that torch's own
reader carries along and ignores.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import WriteItem

from ...checkpoint.blocks import ALGORITHM, BLOCK_BYTES
from ...checkpoint.extents import Extent
from ...errors import S3dlioError

__all__ = [
    "DATA_SUFFIX",
    "Facts",
    "METADATA",
    "extent_of",
    "facts_of",
    "file_name",
    "info_of",
    "is_data_file",
    "item_bytes",
    "split_items",
]

METADATA = ".metadata"
DATA_SUFFIX = ".distcp"
_OWN_FILE = re.compile(r"__\d+_\d+\.[0-9a-f]{16}\.distcp")
_FACTS = "s3dlio"  # the attribute of _StorageInfo


class Facts(NamedTuple):
    """Where the payload of an item lies in its file: the raw bytes of a tensor in C order, or those of a pickle."""

    start: int
    length: int
    checksums: bytes | None
    is_raw: bool  # tensor elements, rather than what torch.load reads
    etag: str | None = None  # of the version that was looked at; not kept in `.metadata`


def info_of(name: str, offset: int, length: int, facts: Facts) -> _StorageInfo:
    """What `.metadata` says of an item: bytes [offset, offset + length) of the file `name` are what torch.save writes."""
    info = _StorageInfo(name, offset, length)
    details: dict[str, Any] = {"algorithm": ALGORITHM, "block_bytes": BLOCK_BYTES, "checksums": facts.checksums}
    if facts.etag is not None:
        details["etag"] = facts.etag
    setattr(info, _FACTS, {"start": facts.start, "length": facts.length, "is_raw": facts.is_raw, **details})
    return info


def facts_of(info: _StorageInfo) -> Facts | None:
    """The facts of an item, None when another writer wrote it."""
    details: dict[str, Any] | None = getattr(info, _FACTS, None)
    if details is None:
        return None
    checksums = details["checksums"]
    if checksums is not None and (details["algorithm"], details["block_bytes"]) != (ALGORITHM, BLOCK_BYTES):
        raise S3dlioError(
            f"{info.relative_path} has checksums {details['algorithm']} per {details['block_bytes']} bytes, which this "
            "version cannot verify: use a newer s3dlio"
        )
    return Facts(details["start"], details["length"], checksums, details["is_raw"], details.get("etag"))


def extent_of(folder: str, info: _StorageInfo, facts: Facts) -> Extent:
    """The payload of an item as bytes of an object."""
    return Extent(folder + info.relative_path, facts.start, facts.length, facts.checksums, facts.etag)


def file_name(rank: int, number: int, save_id: str) -> str:
    """The name of a data file: that of torch, with the save's id, so that no save touches the files of another one."""
    return f"__{rank}_{number}.{save_id}{DATA_SUFFIX}"


def is_data_file(name: str) -> bool:
    """Did a save of this package write the file, whether it was committed or not?"""
    return _OWN_FILE.fullmatch(name) is not None


def item_bytes(item: WriteItem) -> int:
    """About how many bytes an item has; 0 for a pickle, whose size nobody knows before it is made."""
    data = item.tensor_data
    return 0 if data is None else math.prod(data.chunk.sizes) * data.properties.dtype.itemsize


def split_items(items: Sequence[WriteItem], num_files: int) -> list[list[WriteItem]]:
    """Deal items to at most `num_files` files of about the same size, in the order of the plan within each."""
    files: list[list[int]] = [[] for _ in range(num_files)]
    sizes = [0] * num_files
    for index in sorted(range(len(items)), key=lambda index: -item_bytes(items[index])):
        smallest = sizes.index(min(sizes))
        files[smallest].append(index)
        sizes[smallest] += max(1, item_bytes(items[index]))
    return [[items[index] for index in sorted(file)] for file in files if file]
