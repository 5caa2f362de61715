"""The one put that makes a checkpoint exist, and fails when somebody else was quicker."""

from __future__ import annotations

import logging

from ..errors import NotFoundError, PreconditionFailedError, UnsupportedError
from ..storage.base import Store

__all__ = ["publish"]

log = logging.getLogger("s3dlio")


def publish(store: Store, key: str, data: bytes, *, is_first: bool, etag: str | None) -> None:
    """Put the object that commits a checkpoint, durably: where there is none (`is_first`), or over the version `etag`.

    Raises PreconditionFailedError when something else stands there. That is looked at first, since many servers pass over
    conditions of writes without a word. A server that refuses them gets a plain put, which is as atomic, after another look:
    only what another save commits in between is replaced unnoticed.
    """
    if not is_first and etag is None:  # the store tells no versions apart
        store.put(key, memoryview(data), durable=True)
        return
    _require(store, key, etag)
    try:
        store.put(key, memoryview(data), if_absent=is_first, if_match=etag, durable=True)
    except (UnsupportedError, PreconditionFailedError, NotFoundError) as exc:
        _require(store, key, etag)
        if isinstance(exc, NotFoundError) or (is_first and isinstance(exc, PreconditionFailedError)):
            raise
        # It finds that another version stands there than the one that it names: Ceph 16 answers any If-Match so.
        log.warning("of two saves at once the later commit replaces the other, since the server lacks conditions: %s", exc)
        store.put(key, memoryview(data), durable=True)


def _require(store: Store, key: str, etag: str | None) -> None:
    """Raise PreconditionFailedError unless this version stands there; None: nothing."""
    try:
        found = store.stat(key).etag or ""
    except NotFoundError:
        found = None
    if found != etag:
        raise PreconditionFailedError(f"{store.root}{key} was written by somebody else during this save")
