"""Uploads to S3 that nobody ended: the list of them, and how old ones are aborted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ...errors import NotFoundError, S3dlioError
from .s3_xml import PendingUpload, uploads_of

__all__ = ["drop"]

Perform = Callable[..., bytes]  # S3Store.perform


class _Markers(NamedTuple):
    """Where a page of the list begins."""

    key: str = ""
    upload_id: str = ""


def drop(perform: Perform, prefix: str, before: float) -> int:
    """Abort the uploads of keys that start with `prefix` and were begun before that time; how many there were."""
    old = [upload for upload in _pending(perform, prefix) if upload.begun is not None and upload.begun < before]
    for upload in old:
        try:
            perform("DELETE", upload.key, action="abort the upload of", query=[("uploadId", upload.upload_id)])
        except NotFoundError:
            continue  # somebody else has ended it
    return len(old)


def _pending(perform: Perform, prefix: str) -> Iterator[PendingUpload]:
    markers: _Markers | None = _Markers()
    while markers is not None:
        query = [("prefix", prefix), ("uploads", "")]  # no encoding-type: SeaweedFS says that it encodes, and does not
        if markers.key:
            query += [("key-marker", markers.key), ("upload-id-marker", markers.upload_id)]
        body = perform("GET", None, action="list the uploads of", query=sorted(query))
        try:
            uploads, following = uploads_of(body)
        except ValueError as exc:
            raise S3dlioError(f"cannot list the uploads under {prefix}: {exc}") from exc
        yield from (upload for upload in uploads if upload.key.startswith(prefix))
        markers = None if following is None else _Markers(*following)
