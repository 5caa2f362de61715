"""The one put that makes a checkpoint exist, and fails when somebody else was quicker."""

from __future__ import annotations

import logging

from ..errors import NotFoundError, PreconditionFailedError, UnsupportedError
from ..storage.base import Store

__all__ = ["publish"]

log = logging.getLogger("s3dlio")


def publish(store: Store, key: str, data: bytes, *, is_first: bool, etag: str | None) -> None:
    """Put the object that commits a checkpoint, durably: where there is none (`is_first`), or over the version `etag`.

    Raises PreconditionFailedError when something else stands there. A server without conditional writes is asked what
    stands there, and gets a plain put, which is as atomic: only what another save commits in between is replaced unnoticed.
    """
    try:
        store.put(key, memoryview(data), if_absent=is_first, if_match=etag, durable=True)
    except UnsupportedError as exc:
        if not is_first and etag is None:
            raise
        log.warning("of two saves at once the later commit replaces the other, since the server lacks conditions: %s", exc)
        _require(store, key, None if is_first else etag)
        store.put(key, memoryview(data), durable=True)


def _require(store: Store, key: str, etag: str | None) -> None:
    try:
        found = store.stat(key).etag
    except NotFoundError:
        found = None
    if found != etag:
        raise PreconditionFailedError(f"{store.root}{key} was written by somebody else during this save")
