"""Keeping the last few checkpoints, and sweeping what dead saves have left."""

from __future__ import annotations

import builtins
import logging
import os
import time
from collections.abc import Iterable

from .. import objects
from .. import uri as uris
from ..errors import NotFoundError, S3dlioError
from ..storage.base import HasUploads, ObjectInfo
from .catalog import (
    DCP,
    KINDS,
    CheckpointInfo,
    Level,
    delete_all,
    delete_checkpoint,
    is_committed,
    list_checkpoints,
    place_of,
    readable_manifest,
    scan,
)
from .manifest import FACTS_SUFFIX, MANIFEST_NAME

__all__ = ["STALE_SECONDS", "keep_last", "note_loaded", "note_saved"]

log = logging.getLogger("s3dlio")

STALE_SECONDS = 24 * 3600.0
_saved: set[str] = set()
_loaded: set[str] = set()


def note_saved(uri: str) -> None:
    """This process has made the checkpoint itself, so loading it again is no resuming."""
    _saved.add(_identity(uri))


def note_loaded(uri: str) -> None:
    """This process has loaded the checkpoint: `keep_last` keeps what a run resumed from, unless it saved it itself."""
    if _identity(uri) not in _saved:
        _loaded.add(_identity(uri))


def _identity(uri: str) -> str:
    """One text for each place: a local path may be written in many ways, and reached by links."""
    location = uris.parse(uri)
    if location.scheme in ("file", "direct"):
        return os.path.realpath(location.key)
    return location.uri.rstrip("/")


def keep_last(
    uri: str,
    n: int,
    *,
    protect: Iterable[str] = (),
    pattern: str | None = None,
    stale_after: float = STALE_SECONDS,
) -> builtins.list[str]:
    """Delete all but the newest `n` complete checkpoints under the prefix `uri`; returns the URIs of the deleted ones.

    Never deleted are the newest complete one, those that this process has loaded and not saved itself (what the run
    resumed from), and those in `protect`, for what another process loaded. None of these counts against `n`, except where
    it is among the newest. Then what dead saves left under the prefix goes, when nothing of it changed for `stale_after`
    seconds: shards that no manifest names, unfinished uploads, temporary files. `pattern` is that of `list_checkpoints`.
    Call it on one rank. Raises ValueError when `n` is less than 1.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n={n!r}: the newest checkpoint is always kept, so n is a whole number from 1")
    kept = _loaded | {_identity(name) for name in protect}
    candidates = list_checkpoints(uri, pattern)[:-n]
    doomed = [checkpoint for checkpoint in candidates if _identity(checkpoint.uri) not in kept]
    deleted = []
    for checkpoint in doomed:
        if _is_as_listed(checkpoint):
            delete_checkpoint(checkpoint.uri)
            deleted.append(checkpoint.uri)
    _sweep(uri, time.time() - stale_after)
    return deleted


def _is_as_listed(checkpoint: CheckpointInfo) -> bool:
    """False when another one was saved over it meanwhile, which is the newest now.

    Times are compared with a second to spare, since listings of some servers know finer ones than they tell of an object.
    """
    commit = next((kind.commit for kind in KINDS if kind.name == checkpoint.kind), "")
    store, key = objects.resolve(checkpoint.uri + commit)
    try:
        return (store.stat(key).last_modified or 0.0) < checkpoint.committed + 1.0
    except NotFoundError:
        return True


def _sweep(uri: str, before: float) -> None:
    here, below = scan(uri)
    for level in (here, *below):
        store, base = place_of(level.uri)
        names = _left_over(level, before)
        delete_all(store, (base + name for name in names if not name.endswith(FACTS_SUFFIX)))
        delete_all(store, (base + name for name in names if name.endswith(FACTS_SUFFIX)))
    store, base = place_of(uri)
    if isinstance(store, HasUploads):
        try:
            store.drop_uploads(base, before)
        except S3dlioError as exc:  # which may need a right of its own, and nothing of it is visible
            log.warning("unfinished uploads under %s stay: %s", uri, exc)


def _left_over(level: Level, before: float) -> builtins.list[str]:
    """Shards that no manifest names, with their facts, and DCP's data without a commit, that nobody has touched since."""
    facts = {name for name in level.objects if name.endswith(FACTS_SUFFIX)}
    if MANIFEST_NAME in level.objects:
        manifest = readable_manifest(level)
        if manifest is None:  # who knows what it named
            return []
        facts -= {shard.key + FACTS_SUFFIX for shard in manifest.shards}
    groups = [[name, name.removesuffix(FACTS_SUFFIX)] for name in facts]
    if not is_committed(level):
        groups.append([name for name in level.objects if name.endswith(DCP.data_suffix)])
    found = ([name for name in group if name in level.objects] for group in groups)
    return sorted(name for group in found if _is_older(map(level.objects.__getitem__, group), before) for name in group)


def _is_older(infos: Iterable[ObjectInfo], before: float) -> bool:
    return all(info.last_modified is not None and info.last_modified < before for info in infos)
