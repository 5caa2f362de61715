"""Shards of a distributed checkpoint, and the commit that makes them one: bytes that never touch what is committed."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType

from .. import config, objects
from .. import uri as uris
from ..errors import ConfigError, CorruptDataError, NotFoundError, PreconditionFailedError, S3dlioError
from ..storage.base import ObjectInfo, Page
from ..transfer.checksum import Checksum, best_algorithm, parsed
from ..transfer.compress import Codec
from ..transfer.write import ObjectWriter
from .catalog import REQUESTS_IN_FLIGHT, delete_all, directory, place_of, read_manifest
from .checked import CheckedReader
from .manifest import FACTS_SUFFIX, MANIFEST_NAME, Manifest, Shard, key_of
from .publish import publish
from .small import part

__all__ = ["ShardWriter", "commit", "new_save_id", "open_shard", "remember_save_id"]

log = logging.getLogger("s3dlio")

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # seconds between two looks for the shards of other ranks
_SAVE_ID = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]{0,99}")
_save_ids: dict[str, str] = {}  # directory -> the id by which this process saved last


def new_save_id() -> str:
    """An id that no other save has."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + "-" + secrets.token_hex(4)


def remember_save_id(uri: str, save_id: str | None) -> None:
    """The shard `uri` is saved by an id that all ranks know, so that `commit` need not be told; None: they know none."""
    base, _ = _split(uri)
    if save_id is None:
        _save_ids.pop(base, None)
    else:
        _save_ids[base] = save_id


def _split(uri: str) -> tuple[str, str]:
    """The directory of a shard, with its slash, and its name."""
    whole = uris.parse(uri).uri
    name = whole[whole.rfind("/") + 1 :]
    if not name or name == MANIFEST_NAME or name.endswith(FACTS_SUFFIX):
        raise ConfigError(f"{uri} cannot be a shard: name an object in the checkpoint's directory, as .../shard_0.bin")
    return whole[: -len(name)], name


class ShardWriter:
    """One rank's shard on its way: write to the file of the `with` block, at whose end shard and facts stand.

    An empty object under the facts' name says meanwhile that the bytes belong to a save, whoever dies. After an exception
    neither is left.
    """

    def __init__(
        self,
        uri: str,
        *,
        rank: int,
        world_size: int,
        save_id: str,
        codec: Codec | None = None,
        level: int = 0,
        progress: Callable[[int], object] | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank={rank} lies outside of [0, world_size={world_size})")
        if not isinstance(save_id, str) or not _SAVE_ID.fullmatch(save_id):
            raise ConfigError(f"save_id={save_id!r} is no name of at most 100 letters, digits and ._+-")
        self._base, name = _split(uri)
        _require_uncommitted(self._base, save_id)
        self._may_count = False
        self._shard = Shard(name, key_of(name, save_id), rank, world_size, save_id, 0, None, "", 0.0)
        self._store, self._prefix = place_of(self._base)
        self._facts = self._prefix + self._shard.key + FACTS_SUFFIX
        self._store.put(self._facts, memoryview(b""), durable=True)
        checksum = Checksum(best_algorithm())
        key = self._prefix + self._shard.key
        self._file = ObjectWriter(self._store, key, codec=codec, level=level, checksum=checksum, progress=progress)

    def __enter__(self) -> ObjectWriter:
        return self._file

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self._finish()
        except BaseException:
            self._drop()
            raise
        if kind is not None:
            self._drop()

    def _finish(self) -> None:
        # A finalizer that was quicker may have taken the shard that an earlier try left under this id.
        _require_uncommitted(self._base, self._shard.save_id)
        facts = self._file.finalize()
        stored = {"size": facts["stored_bytes"], "etag": facts["etag"], "checksum": facts["checksum"]}
        shard = replace(self._shard, **stored, saved=time.time())
        self._may_count = True
        self._store.put(self._facts, memoryview(shard.to_bytes()), durable=True)

    def _drop(self) -> None:
        """Remove what was written, unless a manifest names it, or soon may: the answer to the facts' put may be lost."""
        try:
            self._file.abort()
            if self._may_count or self._is_named():
                return
            delete_all(self._store, [self._prefix + self._shard.key])
            delete_all(self._store, [self._facts])
        except S3dlioError as exc:  # the caller has a better reason to tell
            log.warning("a shard that was not saved leaves something until keep_last sweeps it: %s", exc)

    def _is_named(self) -> bool:
        committed, _ = _previous(self._base)
        return committed is not None and any(shard.key == self._shard.key for shard in committed.shards)


def _require_uncommitted(base: str, save_id: str) -> None:
    committed, _ = _previous(base)
    if committed is not None and committed.save_id == save_id:
        raise ConfigError(f"{base} holds the committed checkpoint of save_id={save_id!r} already: choose another save_id")


def _previous(base: str) -> tuple[Manifest | None, str | None]:
    """The manifest that is committed, and its etag; a damaged one names nothing, and is replaced."""
    try:
        return read_manifest(base)
    except NotFoundError:
        return None, None
    except CorruptDataError as exc:
        log.warning("a damaged manifest is replaced: %s", exc)
        return None, objects.stat(base + MANIFEST_NAME)["etag"]


def commit(base_uri: str, *, world_size: int, save_id: str | None, timeout: float) -> Manifest:
    """Wait for the shards of all ranks, then make them the checkpoint by one atomic put; the shards before go afterwards.

    Without a `save_id`, the one by which this process saved its own shard; without that the newest shard of each rank that
    the manifest before does not name. Raises S3dlioError naming the ranks whose shards are missing after `timeout` seconds,
    or at once for a shard of another world size or two shards of one rank; PreconditionFailedError when another process
    has committed meanwhile. Nothing is committed then.
    """
    base = directory(uris.parse(base_uri).uri)
    previous, etag = _previous(base)
    save_id = save_id or _save_ids.get(base)
    if save_id is not None and previous is not None and previous.save_id == save_id:
        return previous
    shards = _Gathering(base, world_size, save_id, previous).wait(timeout)
    common = save_id or new_save_id()
    manifest = Manifest(common, world_size, tuple(replace(shard, save_id=common) for shard in shards))
    _publish(base, manifest, previous, etag)
    _save_ids.pop(base, None)
    _forget(base, previous, manifest)
    return manifest


def _publish(base: str, manifest: Manifest, previous: Manifest | None, etag: str | None) -> None:
    store, prefix = place_of(base)
    try:
        is_first = etag is None and previous is None
        publish(store, prefix + MANIFEST_NAME, manifest.to_bytes(), is_first=is_first, etag=etag)
    except PreconditionFailedError:  # by another process, or by the first try of this one, whose answer was lost
        current, _ = _previous(base)
        if current != manifest:
            raise


def _forget(base: str, previous: Manifest | None, manifest: Manifest) -> None:
    """Delete the shards of the manifest before. The checkpoint is committed, so a failure is no failure of it."""
    if previous is None:
        return
    store, prefix = place_of(base)
    kept = {shard.key for shard in manifest.shards}
    old = [prefix + shard.key for shard in previous.shards if shard.key not in kept]
    try:
        delete_all(store, old)
        delete_all(store, (key + FACTS_SUFFIX for key in old))
    except S3dlioError as exc:
        log.warning("shards of the checkpoint before stay until keep_last sweeps them: %s", exc)


class _Gathering:
    """Looks for the facts of all ranks until they are complete."""

    def __init__(self, base: str, world_size: int, save_id: str | None, previous: Manifest | None) -> None:
        self._base, self._world_size, self._save_id = base, world_size, save_id
        self._store, self._prefix = place_of(base)
        self._committed = {shard.key for shard in previous.shards} if previous is not None else set()
        self._known: dict[tuple[str, str | None], Shard] = {}  # (name, etag) of facts that were read
        self._foreign: set[int] = set()  # world sizes of shards that do not belong here

    def wait(self, timeout: float) -> list[Shard]:
        deadline, pause = time.monotonic() + timeout, FIRST_PAUSE
        while True:
            shards, overlap = self._look()
            missing = sorted(set(range(self._world_size)) - shards.keys())
            if not missing and not overlap:
                return [shards[rank] for rank in range(self._world_size)]
            left = deadline - time.monotonic()
            if left <= 0:
                raise S3dlioError(self._complaint(missing, timeout) if missing else overlap)
            time.sleep(min(pause, left))
            pause = min(LONGEST_PAUSE, pause * 1.5)

    def _complaint(self, missing: Sequence[int], timeout: float) -> str:
        which = "rank " + ", ".join(map(str, missing[:20])) + (", ..." if len(missing) > 20 else "")
        save = f" of save_id={self._save_id!r}" if self._save_id is not None else ""
        sizes = f"; there are shards of a world size of {sorted(self._foreign)}" if self._foreign else ""
        return (
            f"cannot finalize {self._base}: after {timeout:g} s the shard{save} of {which} is missing{sizes}. Nothing was "
            "committed: what was committed before stays. Save the missing shards and finalize again"
        )

    def _look(self) -> tuple[dict[int, Shard], str]:
        """The shards that are saved and whole, by rank, and why they may be of different saves: "" if they are of one."""
        here = {info.key[len(self._prefix) :]: info for page in self._pages() for info in page.objects}
        found: dict[int, Shard] = {}
        passed_over: list[Shard] = []
        for shard in self._facts(here):
            info = here.get(shard.key)
            if info is None or info.size != shard.size or (info.etag and shard.etag and info.etag != shard.etag):
                continue  # replaced, or deleted, since its facts were written
            other = found.get(shard.rank)
            if other is not None and self._save_id is not None:
                raise S3dlioError(
                    f"cannot finalize {self._base}: rank {shard.rank} has saved {other.name} and {shard.name}. A checkpoint "
                    "holds one shard of each rank: put both into one, or into directories of their own"
                )
            newest = shard if other is None or other.saved < shard.saved else other
            found[shard.rank] = newest
            if other is not None:
                passed_over.append(other if newest is shard else shard)
        return found, self._overlap(here, passed_over, found) if passed_over else ""

    def _overlap(self, here: Mapping[str, ObjectInfo], passed_over: Iterable[Shard], found: Mapping[int, Shard]) -> str:
        """What to complain of unless the newest shards of all ranks came after all others."""

        def written(shard: Shard) -> float:  # by the clock of the store, which is one for all ranks
            return here[shard.key + FACTS_SUFFIX].last_modified or shard.saved

        last, first = max(passed_over, key=written), min(found.values(), key=written)
        if written(last) <= written(first):
            return ""
        return (
            f"cannot finalize {self._base}: {last.name} of rank {last.rank}, which is not its newest, was saved after "
            f"{first.name} of rank {first.rank}, so that two saves have overlapped. Nothing was committed: pass the "
            "same save_id to save_distributed_shard and to finalize_distributed_checkpoint"
        )

    def _pages(self) -> Iterator[Page]:
        return self._store.list(self._prefix, recursive=False)

    def _facts(self, here: Mapping[str, ObjectInfo]) -> Iterator[Shard]:
        end = FACTS_SUFFIX if self._save_id is None else f".{self._save_id}{FACTS_SUFFIX}"
        names = [name for name, info in here.items() if name.endswith(end) and info.size]
        names = [name for name in names if name.removesuffix(FACTS_SUFFIX) not in self._committed]
        for name, shard in self._read(here, names):
            if self._save_id not in (None, shard.save_id) or key_of(shard.name, shard.save_id) + FACTS_SUFFIX != name:
                continue
            if shard.world_size == self._world_size:
                yield shard
            elif self._save_id is None:  # perhaps of a save long ago
                self._foreign.add(shard.world_size)
            else:
                raise S3dlioError(
                    f"cannot finalize {self._base}: {shard.name} was saved for a world size of {shard.world_size}, "
                    f"not {self._world_size}. Save and finalize with the same world_size"
                )

    def _read(self, here: Mapping[str, ObjectInfo], names: Sequence[str]) -> Iterator[tuple[str, Shard]]:
        """Facts, each version of them read once; what has vanished meanwhile is left out."""
        new = [name for name in names if (name, here[name].etag) not in self._known]
        reads = (part(self._prefix + name) for name in new)
        for read, result in self._store.read_many(reads, window=REQUESTS_IN_FLIGHT):
            if isinstance(result, NotFoundError):
                continue
            if isinstance(result, BaseException):
                raise result
            name = read.key[len(self._prefix) :]
            if result.data.nbytes:
                self._known[name, here[name].etag] = Shard.from_bytes(result.data.tobytes(), self._base + name)
        for name in names:
            if (shard := self._known.get((name, here[name].etag))) is not None:
                yield name, shard


def open_shard(base: str, shard: Shard, progress: Callable[[int], object] | None = None) -> CheckedReader:
    """A file on the bytes of a shard, to be verified against its checksum at the end.

    Raises NotFoundError when it is missing, CorruptDataError when it has not the size that the manifest names.
    """
    uri = directory(base) + shard.key
    algorithm, _ = parsed(shard.checksum, uri)
    store, key = objects.resolve(uri)
    try:
        reader = CheckedReader(store, key, config.snapshot(), algorithm=algorithm, progress=progress)
    except NotFoundError as exc:
        raise NotFoundError(
            f"the checkpoint {base} is not complete: its manifest names {shard.key}, which is missing. Load another one"
        ) from exc
    if len(reader) != shard.size:
        reader.close()
        raise CorruptDataError(f"{uri} is damaged: it has {len(reader)} bytes, {shard.size} were written. Load another one")
    return reader
