"""The verbs on one URI: `get`, `put_bytes`, `list`, `stat`, `delete` and their kin."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from . import config, listing, runtime
from . import uri as uris
from .errors import ConfigError, NotFoundError
from .storage import open_store
from .storage.base import HasDirectories, ObjectInfo, Store
from .transfer import compress, read, write
from .transfer.file import ObjectReader
from .transfer.write import ObjectWriter
from .view import BytesView, as_buffer

__all__ = [
    "delete",
    "describe",
    "exists",
    "get",
    "get_object",
    "get_range",
    "init_logging",
    "list",
    "list_full_uris",
    "list_keys",
    "mkdir",
    "open_reader",
    "open_writer",
    "places_of",
    "put_bytes",
    "resolve",
    "stat",
    "stat_object",
]

log = logging.getLogger("s3dlio")

DELETES_IN_FLIGHT = 64

_STAT_KEYS = (
    "content_type",
    "content_language",
    "content_encoding",
    "cache_control",
    "content_disposition",
    "expires",
    "storage_class",
    "server_side_encryption",
    "ssekms_key_id",
    "sse_customer_algorithm",
    "version_id",
    "replication_status",
)


def resolve(uri: str) -> tuple[Store, str]:
    """The Store of `uri` and the key of the object in it. Raises ConfigError when the URI names no object."""
    location = uris.parse(uri)
    if not location.key:
        raise ConfigError(f"{uri!r} names a bucket, not an object: write {location.root}key")
    return open_store(location), location.key


def places_of(names: Iterable[str]) -> Iterator[tuple[Store, str]]:
    """`resolve` for many URIs, with one look at the environment for all objects of a container."""
    stores: dict[str, Store] = {}
    root = "\0"  # no URI begins so
    for name in names:
        if isinstance(name, str) and name.startswith(root) and len(name) > len(root) and name.isascii() and "\0" not in name:
            yield stores[root], name[len(root) :]  # what `parse` would say
            continue
        location = uris.parse(name)
        if location.root not in stores or not location.key:
            stores[location.root], _ = resolve(name)
        yield stores[location.root], location.key
        root = location.root


def get(uri: str, *, version_id: str | None = None) -> BytesView:
    """Read a whole object.

    Returns a writable, 64-byte aligned view that owns its memory (no copy was made, and none is needed for numpy or
    torch). A large object comes in parallel ranges of one version; `version_id` names an older one, where the store keeps
    them. Raises NotFoundError when there is no such object,
    ChangedError when it was replaced again and again meanwhile, AccessDeniedError when the store refuses.

    >>> bytes(s3dlio.get("s3://bucket/key"))
    b'Hello, World!'
    """
    store, key = resolve(uri)
    log.debug("get %s", uri)
    return read.fetch(store, key, config.snapshot(), version_id)


def get_range(uri: str, offset: int, length: int | None = None, *, version_id: str | None = None) -> BytesView:
    """Read the bytes [offset, offset + length) of an object, or from `offset` to its end.

    Only these bytes are transferred. A range over the object's end gives what is there, one past it an empty view.
    Raises ValueError for a negative offset or length, and what `get` raises.
    """
    store, key = resolve(uri)
    start = _count("offset", offset)
    count = None if length is None else _count("length", length)
    log.debug("get_range %s offset=%s length=%s", uri, offset, length)
    return read.fetch_range(store, key, start, count, config.snapshot(), version_id)


def _count(name: str, value: int) -> int:
    try:
        number = value.__index__()
    except AttributeError:
        raise TypeError(f"{name} is a whole number of bytes, not {type(value).__name__}") from None
    if number < 0:
        raise ValueError(f"{name}={number} is negative: it is a number of bytes from the object's start")
    return number


def get_object(uri: str, *, version_id: str | None = None) -> BytesView:
    """The same as `get`."""
    return get(uri, version_id=version_id)


def put_bytes(uri: str, data: object, *, if_absent: bool = False, if_match: str | None = None) -> None:
    """Write `data`, any buffer, as a whole object, replacing what stood under the name.

    The object appears complete or not at all. On `file://` parents are made, and it survives a crash of the process but
    is not synced to disk (writers do that). `if_absent` writes only when there is no such object yet, `if_match` only over
    the version with this etag: else PreconditionFailedError. Raises TypeError when `data` is no buffer, and errors of the
    store.
    """
    store, key = resolve(uri)
    source = as_buffer(data)
    log.debug("put_bytes %s %d bytes", uri, source.nbytes)
    write.put(store, key, source, if_absent=if_absent, if_match=if_match)


def list(uri: str, recursive: bool = False, pattern: str | None = None) -> builtins.list[str]:
    """List full URIs, sorted by their UTF-8 bytes.

    One level: objects, and sub-prefixes with a trailing slash. With `recursive`, objects at any depth. `K` without a
    trailing slash means the object `K` and what lies under `K/`. `pattern` is a glob (or `re:` and a regular
    expression) on the key relative to `uri`. A prefix without objects gives []; a missing bucket or any failure raises.
    """
    log.debug("list %s recursive=%s pattern=%s", uri, recursive, pattern)
    found = [entry for entry, _ in listing.walk(uri, recursive=recursive, pattern=pattern)]
    found.sort(key=None if all(map(str.isascii, found)) else uris.sort_key)
    return found


def list_full_uris(uri: str, recursive: bool = False, pattern: str | None = None) -> builtins.list[str]:
    """The same as `list`."""
    return list(uri, recursive, pattern)


def list_keys(uri: str, recursive: bool = False, pattern: str | None = None) -> builtins.list[str]:
    """List as `list` does, as keys relative to `uri`; the object that `uri` itself names has its last segment as key."""
    location = uris.parse(uri)
    base = location.uri if location.uri.endswith("/") else location.uri + "/"
    itself = uris.basename(location.key)
    entries = list(uri, recursive, pattern)
    return [entry[len(base) :] if entry.startswith(base) else itself for entry in entries if entry != base]


def stat(uri: str, *, version_id: str | None = None) -> dict[str, Any]:
    """The facts about an object, without reading it.

    A dict of `size` (bytes), `last_modified` (RFC 3339, UTC), `etag` (no quotes), `content_type`, `metadata` and eleven
    more; what a store does not know is None. Raises NotFoundError when there is no such object.
    """
    store, key = resolve(uri)
    log.debug("stat %s", uri)
    return describe(store.stat(key, version_id))


def describe(info: ObjectInfo) -> dict[str, Any]:
    """The dict that `stat` returns."""
    facts: dict[str, Any] = {
        "size": info.size,
        "last_modified": None if info.last_modified is None else _rfc3339(info.last_modified),
        "etag": info.etag,
    }
    facts.update((name, info.attributes.get(name)) for name in _STAT_KEYS)
    facts["metadata"] = dict(info.attributes.get("metadata") or {})
    return facts


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def stat_object(uri: str, *, version_id: str | None = None) -> dict[str, Any]:
    """The same as `stat`."""
    return stat(uri, version_id=version_id)


def exists(uri: str) -> bool:
    """Is there an object of this name? False only for a definite not-found; every other failure raises."""
    try:
        stat(uri)
    except NotFoundError:
        return False
    return True


def delete(uri: str, recursive: bool = False) -> None:
    """Remove exactly the object `uri`; a missing one is fine.

    With `recursive`, the object `K` and everything under `K/`. Wildcards mean themselves. On `file://` an empty directory
    goes too; one that is not empty raises NotEmptyError without `recursive`.
    """
    location = uris.parse(uri)
    log.debug("delete %s recursive=%s", uri, recursive)
    store = open_store(location)
    if not recursive:
        store.delete(resolve(uri)[1])
    elif isinstance(store, HasDirectories):
        store.delete_tree(location.key)
    else:
        keys = (entry[len(store.root) :] for entry, _ in listing.walk(uri, recursive=True))
        for _, result in runtime.each(store.delete, keys, window=DELETES_IN_FLIGHT):
            if isinstance(result, BaseException):
                raise result


def mkdir(uri: str) -> None:
    """Make a directory with its parents, or on an object store its marker, the empty object `uri/`."""
    store, key = resolve(uri)
    if isinstance(store, HasDirectories):
        store.mkdir(key)
    else:
        store.put(key if key.endswith("/") else key + "/", memoryview(b""))


def open_writer(
    uri: str,
    *,
    if_absent: bool = False,
    if_match: str | None = None,
    compression: str = "none",
    compression_level: int | None = None,
) -> ObjectWriter:
    """A binary file object that becomes the object when it is closed; use it in a `with` block.

    The conditions are those of `put_bytes`, and are checked when it is closed. `compression` is none, zstd, gzip or lz4;
    the name stays as it is. Levels: 1 to 22 for zstd (3), 0 to 9 for gzip (6), 0 to 16 for lz4 (0). Raises ConfigError for
    others, MissingPackageError where the extra `compress` is needed.

    >>> with s3dlio.open_writer("s3://bucket/model.pt") as file:
    ...     torch.save(model.state_dict(), file)
    """
    codec, level = compress.find(compression, compression_level)
    return ObjectWriter(*resolve(uri), if_absent=if_absent, if_match=if_match, codec=codec, level=level)


def open_reader(uri: str) -> ObjectReader:
    """A seekable binary file object on one version of an object, which is read in ranges as they are asked for.

    >>> with s3dlio.open_reader("s3://bucket/model.pt") as file:
    ...     state = torch.load(file, weights_only=True)
    """
    return ObjectReader(*resolve(uri), config.snapshot())


_LEVELS = {"trace": 5, "debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


def init_logging(level: str = "info") -> None:
    """Log to stderr what the package does, from `level` on: trace, debug, info, warn or error."""
    if not isinstance(level, str) or level.lower() not in _LEVELS:
        raise ConfigError(f"level={level!r} is none of {', '.join(_LEVELS)}")
    log.setLevel(_LEVELS[level.lower()])
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
