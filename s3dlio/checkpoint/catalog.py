"""Which checkpoints there are, the latest one, and how one is deleted: commit first, so that no half is listed."""

from __future__ import annotations

import builtins
import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from .. import listing, objects, runtime
from .. import uri as uris
from ..errors import CorruptDataError, NotEmptyError, NotFoundError
from ..storage import open_store
from ..storage.base import HasDirectories, ObjectInfo, Store
from . import dcp_files, safetensors
from .formats import (
    COMPRESSED_HEAD_BYTES,
    END_BYTES,
    HEAD_BYTES,
    is_checkpoint,
    is_compressed,
    is_cut_short,
    is_whole_archive,
    needs_end,
)
from .manifest import FACTS_SUFFIX, MANIFEST_NAME, Manifest
from .small import part, read_part

__all__ = [
    "CheckpointInfo",
    "DCP",
    "KINDS",
    "Kind",
    "Level",
    "REQUESTS_IN_FLIGHT",
    "delete_all",
    "delete_checkpoint",
    "directory",
    "is_committed",
    "kind_of",
    "latest_checkpoint",
    "list_checkpoints",
    "place_of",
    "read_manifest",
    "readable_manifest",
    "scan",
]

log = logging.getLogger("s3dlio")

REQUESTS_IN_FLIGHT = 16


class Kind(NamedTuple):
    """A kind of checkpoint that is a directory: the object that commits it, and how the names of its data end."""

    name: str
    commit: str
    data_suffix: str


DISTRIBUTED = Kind("distributed", MANIFEST_NAME, "")  # its manifest tells its data
DCP = Kind("dcp", ".metadata", ".distcp")
HUGGING_FACE = Kind("huggingface", "model.safetensors.index.json", ".safetensors")
KINDS = (DISTRIBUTED, DCP, HUGGING_FACE)
# What a commit that is no manifest says of its data: the files, and the bytes that each has at least.
_FILES: dict[str, Callable[[bytes, str], Mapping[str, int]]] = {
    DCP.commit: dcp_files.files_in,
    HUGGING_FACE.commit: lambda data, uri: dict.fromkeys(safetensors.files_in(data, uri), 0),
}
_COMMIT_OF_RANK = re.compile(r"__\d+\.metadata")  # where ranks save without collectives, each commits its own part
_NUMBERED = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")  # a part, whether there is an index or not


class CheckpointInfo(NamedTuple):
    """A complete checkpoint. The URI of a directory ends in a slash; `committed` is in seconds since 1970, by the store."""

    uri: str
    kind: str  # single, or the name of a Kind
    size: int  # bytes of its data
    committed: float


class Level(NamedTuple):
    """The objects that lie directly in a directory, by name."""

    uri: str
    objects: dict[str, ObjectInfo]


def directory(uri: str) -> str:
    """The URI as that of a directory: with one slash at its end."""
    return uri if uris.text_of(uri).endswith("/") else uri + "/"


def place_of(uri: str) -> tuple[Store, str]:
    """The Store of a directory and the keys' prefix, which ends in a slash; a whole bucket has an empty one."""
    location = uris.parse(directory(uri))
    return open_store(location), location.key


def scan(uri: str) -> tuple[Level, builtins.list[Level]]:
    """The directory `uri`, and those directly in it. One recursive listing; what lies deeper is left out."""
    base = directory(uri)
    here, below = Level(base, {}), dict[str, Level]()
    for entry, info in listing.walk(base, recursive=True):
        name = entry[len(base) :]
        if not name or info is None:
            continue
        folder, slash, inside = name.partition("/")
        if not slash:
            here.objects[name] = info
        elif inside and "/" not in inside:
            below.setdefault(folder, Level(base + folder + "/", {})).objects[inside] = info
    return here, [*below.values()]


def list_checkpoints(uri: str, pattern: str | None = None) -> builtins.list[CheckpointInfo]:
    """The complete checkpoints directly under the prefix `uri`, oldest first; without a `pattern` the prefix itself, too.

    Single objects are told by their first bytes, so that logs and tables are left out; directories by their commit, and
    a distributed one by all its shards. They come in the order of their commits, by the store's clock, and those of the
    same second in natural order of their names (`epoch_9` before `epoch_10`). `pattern` is a glob on names, or `re:` and
    a regular expression. A prefix without checkpoints gives []; any failure raises.

    >>> [checkpoint.uri for checkpoint in s3dlio.list_checkpoints("s3://bucket/checkpoints/")]
    ['s3://bucket/checkpoints/epoch_9.pt', 's3://bucket/checkpoints/epoch_10.pt']
    """
    here, below = scan(uri)
    found = [*_directories(here, below, pattern), *_singles(here, pattern)]
    return sorted(found, key=lambda checkpoint: (checkpoint.committed, _natural(checkpoint.uri)))


def latest_checkpoint(uri: str, pattern: str | None = None) -> str | None:
    """The URI of the newest complete checkpoint under the prefix `uri`, None when there is none. See `list_checkpoints`.

    >>> latest = s3dlio.latest_checkpoint("s3://bucket/checkpoints/")
    >>> state = s3dlio.load_checkpoint(latest) if latest else None
    """
    found = list_checkpoints(uri, pattern)
    return found[-1].uri if found else None


def _natural(uri: str) -> tuple[tuple[int, str], ...]:
    """A key that orders numbers within names by their value."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", uri) if part)


def _directories(here: Level, below: Iterable[Level], pattern: str | None) -> Iterator[CheckpointInfo]:
    matches = listing.matcher(pattern)
    for level in (here, *below):
        if pattern is None or (level is not here and matches(level.uri[len(here.uri) : -1])):
            kind = kind_of(level)
            checkpoint = None if kind is None else _complete(level, kind)
            if checkpoint is not None:
                yield checkpoint


def kind_of(level: Level) -> Kind | None:
    """The kind of checkpoint that is committed in a directory."""
    return next((kind for kind in KINDS if kind.commit in level.objects), None)


def is_committed(level: Level) -> bool:
    """Does anything say that a save into the directory has ended?"""
    return kind_of(level) is not None or any(map(_COMMIT_OF_RANK.fullmatch, level.objects))


def _complete(level: Level, kind: Kind) -> CheckpointInfo | None:
    """The checkpoint, or None for one that lacks some of its data: somebody is deleting it, or has copied half."""
    commit = level.objects[kind.commit]
    sizes = [info.size for name, info in level.objects.items() if kind.data_suffix and name.endswith(kind.data_suffix)]
    if kind is DISTRIBUTED:
        manifest = readable_manifest(level)
        if manifest is None:
            return None
        found = {name: info.size for name, info in level.objects.items()}
        if any(found.get(shard.key) != shard.size for shard in manifest.shards):
            return None
        sizes = [shard.size for shard in manifest.shards]
    elif not _has_files(level, kind):
        return None
    return CheckpointInfo(level.uri, kind.name, sum(sizes), commit.last_modified or 0.0)


def _has_files(level: Level, kind: Kind) -> bool:
    """Are the files there that the commit names, and none of them cut short?"""
    listed = level.objects[kind.commit].etag
    try:
        etag, files = (_files_named if listed else _files_named.__wrapped__)(level.uri, kind.commit, listed)
    except NotFoundError:
        return False
    except CorruptDataError as exc:
        log.warning("left out of the checkpoints: %s", exc)
        return False
    if etag != listed:  # replaced since it was listed, and so were its files
        level = scan(level.uri)[0]
    return all(name in level.objects and level.objects[name].size >= num_bytes for name, num_bytes in files.items())


@lru_cache(maxsize=64)
def _files_named(folder: str, commit: str, _: str | None) -> tuple[str | None, Mapping[str, int]]:
    """The etag of a commit, and the files that it names; read once for each etag that was listed, since it may be large."""
    store, base = place_of(folder)
    info, data = read_part(store, base + commit)
    return info.etag, _FILES[commit](data, folder + commit)


def read_manifest(uri: str) -> tuple[Manifest, str | None]:
    """The manifest of the distributed checkpoint `uri`, and its etag. Raises NotFoundError when it has none."""
    place = directory(uri) + MANIFEST_NAME
    store, key = objects.resolve(place)
    info, data = read_part(store, key)
    return Manifest.from_bytes(data, place), info.etag


def readable_manifest(level: Level) -> Manifest | None:
    """None for one that was deleted since it was listed, and for a damaged one, which commits nothing."""
    try:
        return read_manifest(level.uri)[0]
    except NotFoundError:
        return None
    except CorruptDataError as exc:
        log.warning("left out of the checkpoints: %s", exc)
        return None


def _singles(level: Level, pattern: str | None) -> Iterator[CheckpointInfo]:
    matches = listing.matcher(pattern)
    parts = _names_of_parts(level)
    names = [name for name, info in level.objects.items() if info.size and name not in parts and matches(name)]
    for name in _checkpoints_of(level, names):
        info = level.objects[name]
        yield CheckpointInfo(level.uri + name, "single", info.size, info.last_modified or 0.0)


def _names_of_parts(level: Level) -> set[str]:
    """What belongs to a directory's checkpoint, or to a save of one that has not been committed."""
    facts = {name for name in level.objects if name.endswith(FACTS_SUFFIX)}
    kinds = [kind for kind in KINDS if kind.data_suffix and (kind.commit in level.objects or kind is DCP)]
    data = {name for name in level.objects if any(name.endswith(kind.data_suffix) for kind in kinds)}
    data |= {name for name in level.objects if _NUMBERED.fullmatch(name)}
    return facts | data | {name.removesuffix(FACTS_SUFFIX) for name in facts} | {kind.commit for kind in KINDS}


def _checkpoints_of(level: Level, names: Iterable[str]) -> Iterator[str]:
    """Those of the objects that begin as checkpoints do; and end so, where a plain `torch.save` could have been killed."""
    compressed, archives = [], []
    for name, head in _heads(level, names, HEAD_BYTES):
        if is_compressed(head):
            compressed.append(name)
        elif needs_end(head):
            archives.append(name)
        elif is_checkpoint(head) and not is_cut_short(head, level.objects[name].size):
            yield name
    for name, head in _heads(level, compressed, COMPRESSED_HEAD_BYTES):
        if is_checkpoint(head):
            yield name
    for name, end in _ends(level, archives):
        if is_whole_archive(end):
            yield name


def _heads(level: Level, names: Iterable[str], num_bytes: int) -> Iterator[tuple[str, bytes]]:
    """The first bytes of objects, in any order; what has vanished meanwhile is left out."""
    return _parts(level, ((name, 0, num_bytes) for name in names))


def _ends(level: Level, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    return _parts(level, ((name, max(0, level.objects[name].size - END_BYTES), END_BYTES) for name in names))


def _parts(level: Level, parts: Iterable[tuple[str, int, int]]) -> Iterator[tuple[str, bytes]]:
    store, base = place_of(level.uri)
    reads = (part(base + name, start, length) for name, start, length in parts)
    for read, result in store.read_many(reads, window=REQUESTS_IN_FLIGHT):
        if isinstance(result, NotFoundError):
            continue
        if isinstance(result, BaseException):
            raise result
        yield read.key[len(base) :], result.data.tobytes()


def delete_checkpoint(uri: str) -> None:
    """Delete a checkpoint: the object `uri`, or the directory's commit first and then its data.

    What a directory holds besides stays. A missing one is fine, and the rest of one that was deleted by half goes, too.
    Raises S3dlioError of the first failure; what is left then is no checkpoint any more.
    """
    if not uris.text_of(uri).endswith("/"):
        store, key = objects.resolve(uri)
        try:
            store.stat(key)
        except NotFoundError:
            uri = directory(uri)
        else:
            store.delete(key)
            return
    _delete_directory(scan(uri)[0])


def _delete_directory(level: Level) -> None:
    store, base = place_of(level.uri)
    data = _data_of(level)
    for name in level.objects:
        if any(name == kind.commit for kind in KINDS) or _COMMIT_OF_RANK.fullmatch(name):
            store.delete(base + name)
    delete_all(store, (base + name for name in data if not name.endswith(FACTS_SUFFIX)))
    delete_all(store, (base + name for name in data if name.endswith(FACTS_SUFFIX)))
    if isinstance(store, HasDirectories):
        with contextlib.suppress(NotEmptyError):
            store.delete(base)


def _data_of(level: Level) -> builtins.list[str]:
    """The objects of the directory's checkpoint; where its commit is gone, all that it can have left."""
    data = {name for name in level.objects if name.endswith(DCP.data_suffix)}
    data |= _parts_of_index(level) & level.objects.keys()
    manifest = readable_manifest(level) if MANIFEST_NAME in level.objects else None
    if manifest is not None:
        data |= {name for shard in manifest.shards for name in (shard.key, shard.key + FACTS_SUFFIX)}
    else:
        facts = {name for name in level.objects if name.endswith(FACTS_SUFFIX)}
        data |= facts | {name.removesuffix(FACTS_SUFFIX) for name in facts}
    return sorted(data)


def _parts_of_index(level: Level) -> set[str]:
    """The safetensors that the index names, since others may lie beside them; without one, what is numbered as they are."""
    if HUGGING_FACE.commit not in level.objects:
        return {name for name in level.objects if _NUMBERED.fullmatch(name)}
    store, base = place_of(level.uri)
    try:
        _, index = read_part(store, base + HUGGING_FACE.commit)
        return safetensors.files_in(index, level.uri + HUGGING_FACE.commit)
    except (NotFoundError, CorruptDataError) as exc:
        log.warning("files that an index may have named stay: %s", exc)
        return set()


def delete_all(store: Store, keys: Iterable[str]) -> None:
    """Delete objects, several at once. Raises the first failure."""
    for _, result in runtime.each(store.delete, keys, window=REQUESTS_IN_FLIGHT):
        if isinstance(result, BaseException):
            raise result
