"""Checkpoints of `torch.save` on every scheme: whole ones, and shards of ranks with one commit."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed

from .. import config, objects
from .. import uri as uris
from ..checkpoint.catalog import KINDS, directory, read_manifest
from ..checkpoint.checked import ArchiveReader, WatchedReader, is_archive, plain_file, verify_archive
from ..checkpoint.formats import HEAD_BYTES, is_safetensors
from ..checkpoint.manifest import MANIFEST_NAME, Manifest, Shard
from ..checkpoint.retention import note_loaded, note_saved
from ..checkpoint.shards import ShardWriter, commit, new_save_id, open_shard, remember_save_id
from ..errors import ConfigError, CorruptDataError, NotFoundError, S3dlioError, UnsafePickleError
from ..progress import Progress
from ..transfer import compress as codecs
from ..transfer.write import ObjectWriter
from .archive import load_from, save_into
from .ranks import current_ranks

__all__ = [
    "finalize_distributed_checkpoint",
    "load_checkpoint",
    "load_checkpoint_with_validation",
    "load_distributed_shard",
    "save_checkpoint",
    "save_distributed_shard",
]

FINALIZE_TIMEOUT = 300.0  # seconds
ATTEMPTS = 3  # when the next checkpoint is committed while one is loaded
_NOTHING: Any = object()

T = TypeVar("T")


def save_checkpoint(
    uri: str,
    data: Any,
    compress: bool | str = False,
    *,
    compression_level: int | None = None,
    progress: bool = False,
) -> None:
    """Save what `torch.save` takes as the object `uri`, which appears complete and durably, or not at all.

    The bytes go out while torch makes them, in constant memory, however large the model is. `compress=True` is zstd; also
    a codec's name (zstd, gzip, lz4). `progress` draws a bar on a terminal and writes one line of bytes, seconds and MB/s
    (of the bytes before compression). Raises what the store raises; the object that was there before stays then.

    >>> s3dlio.save_checkpoint("s3://bucket/epoch_10.bin", {"epoch": 10, "model": model.state_dict()}, compress=True)
    """
    codec, level = _codec(compress, compression_level)
    store, key = objects.resolve(uri)
    if key.endswith("/"):
        raise ConfigError(f"{uri} names a directory: a checkpoint is an object, such as {uri}model.pt")
    with (
        _shown(f"save {uri}", progress) as shown,
        ObjectWriter(store, key, codec=codec, level=level, progress=shown.advance) as file,
    ):
        save_into(file, data)
    note_saved(uri)


def _codec(compress: bool | str, level: int | None) -> tuple[codecs.Codec | None, int]:
    name = compress if isinstance(compress, str) else "zstd" if compress else "none"
    return codecs.find(name, level)


def _shown(action: str, progress: bool, rank: int | None = None, total: int | None = None) -> Progress:
    if rank is None and torch.distributed.is_available() and torch.distributed.is_initialized():
        rank = torch.distributed.get_rank()
    return Progress(action, shown=progress, rank=rank, total=total)


def load_checkpoint(uri: str, *, weights_only: bool = True, map_location: Any = None, progress: bool = False) -> Any:
    """Load a checkpoint: the object `uri`, or of a distributed one the list of all shards in the order of ranks.

    Compression is detected. An uncompressed object goes straight into the tensors, in parallel ranges; a compressed one is
    first decompressed into memory. Shards are verified against their checksums. `map_location` is that of `torch.load`.

    `weights_only=True` builds only tensors and plain containers: UnsafePickleError for anything else, which False would
    load, and which can run any code. Raises NotFoundError when there is no such checkpoint, no manifest or not every
    shard, CorruptDataError when what is there is not what was written.
    """
    found = _load(uri, weights_only, map_location, progress, validate=False)
    note_loaded(uri)
    return found.value


def load_checkpoint_with_validation(
    uri: str,
    expected_keys: Iterable[str] | None = None,
    *,
    weights_only: bool = True,
    map_location: Any = None,
    progress: bool = False,
) -> Any:
    """Load as `load_checkpoint` does, verify every byte by its checksum, and require keys.

    The records of an uncompressed object are compared with the CRCs that `torch.save` put into it, those of a compressed
    one with the codec's checksum, shards with that in the manifest. Each of `expected_keys` has to be in the checkpoint
    (in each shard of a distributed one). Raises CorruptDataError for wrong bytes, S3dlioError for missing keys.
    """
    found = _load(uri, weights_only, map_location, progress, validate=True)
    wanted = [*expected_keys] if expected_keys is not None else []
    for part in found.value if found.is_sharded else [found.value]:
        missing = [key for key in wanted if not isinstance(part, dict) or key not in part]
        if missing:
            there = [*part] if isinstance(part, dict) else type(part).__name__
            raise S3dlioError(f"{uri} lacks the keys {missing}: it holds {there!r:.300}")
    note_loaded(uri)
    return found.value


class _Loaded(NamedTuple):
    """A checkpoint, or the list of its shards, which a checkpoint may be itself."""

    value: Any
    is_sharded: bool


def _load(uri: str, weights_only: bool, map_location: Any, progress: bool, *, validate: bool) -> _Loaded:
    if uri is None:
        raise TypeError("load_checkpoint takes a URI and got None: there is no checkpoint yet, if latest_checkpoint gave it")
    arguments = {"weights_only": weights_only, "map_location": map_location}
    if not uris.text_of(uri).endswith("/"):
        try:
            return _Loaded(_load_object(uri, arguments, progress, validate), is_sharded=False)
        except NotFoundError:
            _refuse_shard(uri)
            if not any(objects.exists(directory(uri) + kind.commit) for kind in KINDS):
                raise

    def load_all(manifest: Manifest) -> list[Any]:
        return [_load_shard(uri, shard, arguments, progress) for shard in manifest.shards]

    return _Loaded(_with_manifest(uri, load_all), is_sharded=True)


def _load_object(uri: str, arguments: Mapping[str, Any], progress: bool, validate: bool) -> Any:
    store, key = objects.resolve(uri)
    with _shown(f"load {uri}", progress) as shown:
        kind = ArchiveReader if validate else WatchedReader
        reader = kind(store, key, config.snapshot(), progress=shown.advance)
        shown.total = len(reader)
        with reader:
            file = plain_file(reader)
            has_directory = is_archive(file.read(HEAD_BYTES)) and file is reader
            file.seek(0)
            try:
                found = load_from(file, uri, arguments)
            except CorruptDataError as exc:
                _refuse_safetensors(file, uri, exc)
                raise
            if isinstance(reader, ArchiveReader) and file is reader:
                reader.verify()
            elif has_directory:  # it is in memory, as the end of the object
                verify_archive(reader, uri, lambda _: False)
            return found


def _refuse_safetensors(file: Any, uri: str, exc: CorruptDataError) -> None:
    """What `latest_checkpoint` names may be of that format, which is no damage."""
    file.seek(0)
    if is_safetensors(file.read(HEAD_BYTES)):
        raise S3dlioError(f"{uri} is a safetensors file: load it by s3dlio.torch.safetensors.load_file") from exc


def _refuse_shard(uri: str) -> None:
    """The name of a shard is that of no object."""
    base, _, name = uri.rpartition("/")
    shards: tuple[Shard, ...] = ()
    with suppress(S3dlioError):  # there is a better error, that of the caller
        shards = read_manifest(base)[0].shards
    for shard in shards:
        if shard.name == name:
            call = f"load_distributed_shard({base + '/'!r}, {shard.rank})"
            raise S3dlioError(f"{uri} is a shard of the checkpoint {base}/: load it by {call}")


def _with_manifest(uri: str, load: Callable[[Manifest], T]) -> T:
    """Load by the manifest; again by the next one, when that was committed meanwhile and the shards of this one went."""
    manifest, etag = _manifest(uri)
    for _ in range(ATTEMPTS):
        try:
            return load(manifest)
        except NotFoundError:
            before, (manifest, etag) = etag, _manifest(uri)
            if etag == before:
                raise
    return load(manifest)


def _manifest(uri: str) -> tuple[Manifest, str | None]:
    try:
        return read_manifest(uri)
    except NotFoundError as exc:
        base = directory(uri)
        other = next(
            (kind.name for kind in KINDS if kind.commit != MANIFEST_NAME and objects.exists(base + kind.commit)), None
        )
        if other is not None:
            how = ' with format="safetensors"' if other == "huggingface" else ""
            raise S3dlioError(
                f"{base} is a checkpoint of the kind {other}: load it by s3dlio.torch.dcp.load{how} "
                "(torch.distributed.checkpoint)"
            ) from exc
        raise NotFoundError(
            f"{base} is no complete checkpoint: it has no {MANIFEST_NAME}, which finalize_distributed_checkpoint writes "
            "when all shards are saved. Load another one (latest_checkpoint names it)"
        ) from exc


def load_distributed_shard(
    base_uri: str, rank: int | None = None, *, weights_only: bool = True, map_location: Any = None, progress: bool = False
) -> Any:
    """Load one rank's shard of the distributed checkpoint `base_uri`, verified against its checksum.

    `rank` is by default that of this process. The rest is as for `load_checkpoint`. Raises S3dlioError when the checkpoint
    was saved by fewer ranks.
    """
    arguments = {"weights_only": weights_only, "map_location": map_location}
    wanted = current_ranks(None, None)[0] if rank is None else operator.index(rank)

    def load(manifest: Manifest) -> Any:
        if not 0 <= wanted < manifest.world_size:
            raise S3dlioError(
                f"{base_uri} has no shard of rank {wanted}: it was saved by {manifest.world_size} ranks. Load all shards by "
                "load_checkpoint, or save by torch.distributed.checkpoint, which reshards"
            )
        return _load_shard(base_uri, manifest.shards[wanted], arguments, progress)

    found = _with_manifest(base_uri, load)
    note_loaded(base_uri)
    return found


def _load_shard(base: str, shard: Shard, arguments: Mapping[str, Any], progress: bool) -> Any:
    uri = directory(base) + shard.key
    with _shown(f"load {uri}", progress, total=shard.size) as shown, open_shard(base, shard, shown.advance) as reader:
        try:
            found = load_from(plain_file(reader), uri, arguments)
        except Exception as exc:
            if isinstance(exc, (CorruptDataError, UnsafePickleError)) or not isinstance(exc, S3dlioError):
                reader.verify(shard.checksum)  # wrong bytes are the better reason
            raise
        reader.verify(shard.checksum)
        return found


def save_distributed_shard(
    uri: str,
    data: Any = _NOTHING,
    rank: int | None = None,
    world_size: int | None = None,
    *,
    shard_data: Any = _NOTHING,
    save_id: str | None = None,
    compress: bool | str = False,
    compression_level: int | None = None,
    progress: bool = False,
) -> None:
    """Save one rank's shard (`data`, or `shard_data`: either name) of a distributed checkpoint, as `torch.save` does.

    It does not count before `finalize_distributed_checkpoint` has committed the shards of all ranks, and until then it
    touches nothing of the checkpoint that is committed: `uri` is the shard's logical name, its bytes go to
    `<uri>.<save_id>`. All shards lie directly in one directory, one per rank. Rank and world size are by default those of
    this process.

    `save_id` tells the saves of a checkpoint apart, and is the same on all ranks (`f"step-{step}"`). Without one it is
    agreed upon when torch.distributed is initialised (a broadcast: every rank has to call). Without either the ranks
    cannot agree: the finalizer takes each rank's newest shard, which may be one that a dead save has left.
    """
    if (data is _NOTHING) == (shard_data is _NOTHING):
        raise TypeError("save_distributed_shard takes either data or shard_data")
    codec, level = _codec(compress, compression_level)
    this, ranks = current_ranks(rank, world_size)
    chosen = save_id if save_id is not None else _agreed_save_id(this, ranks)
    remember_save_id(uri, chosen)
    with _shown(f"save {uri}", progress, this) as shown:
        writer = ShardWriter(
            uri,
            rank=this,
            world_size=ranks,
            save_id=new_save_id() if chosen is None else chosen,
            codec=codec,
            level=level,
            progress=shown.advance,
        )
        with writer as file:
            save_into(file, data if shard_data is _NOTHING else shard_data)


def _agreed_save_id(rank: int, world_size: int) -> str | None:
    """One that rank 0 makes and all ranks get; None where the process group is not that of the save."""
    group = torch.distributed
    if not (group.is_available() and group.is_initialized()):
        return None
    if (rank, world_size) != (group.get_rank(), group.get_world_size()):
        return None
    ids = [new_save_id() if rank == 0 else None]
    group.broadcast_object_list(ids, src=0)
    return ids[0]


def finalize_distributed_checkpoint(
    base_uri: str, world_size: int | None = None, *, save_id: str | None = None, timeout: float = FINALIZE_TIMEOUT
) -> None:
    """Wait until all ranks have saved their shards, then make them the checkpoint `base_uri` by one atomic put.

    Call it on one rank. Waits `timeout` seconds. `save_id` is by default the one by which this process saved its own
    shard; without one, a shard that the manifest before names counts as missing. The shards before are deleted after the
    commit. Again for the save that is committed already it does nothing. Raises S3dlioError that names the missing ranks,
    or shards that do not belong together, PreconditionFailedError when somebody else has committed meanwhile; then what
    was committed before stays.
    """
    ranks = current_ranks(None, None)[1] if world_size is None else operator.index(world_size)
    if ranks < 1:
        raise ValueError(f"world_size={ranks}: a checkpoint has at least one shard")
    commit(base_uri, world_size=ranks, save_id=save_id, timeout=timeout)
    note_saved(base_uri)
