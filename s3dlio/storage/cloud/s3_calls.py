"""The S3 dialect: a verb becomes requests, an answer becomes a result or an error. No sockets here.

Sources: Amazon S3 API Reference (actions, "Error Responses", "Checking object integrity").
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

from ...errors import (
    AccessDeniedError,
    ConfigError,
    NotEmptyError,
    NotFoundError,
    PreconditionFailedError,
    S3dlioError,
)
from ..base import ObjectInfo
from .http import Head, Request, Response
from .retry import Failure, Verdict
from .s3_xml import Listing, error_of, listing_of

__all__ = [
    "Call",
    "DeleteCall",
    "ListCall",
    "PlainCall",
    "PutCall",
    "Site",
    "StatCall",
    "crc32_of",
    "etag_of",
    "failure_of",
    "info_of",
    "range_of",
    "seconds_of",
    "version_query",
]

Headers = list[tuple[str, str]]


class Site(Protocol):
    """What a call needs of its store."""

    root: str
    verifies_checksums: bool
    sends_checksums: bool

    def signed(
        self,
        method: str,
        key: str | None,
        query: Sequence[tuple[str, str]] = (),
        headers: Sequence[tuple[str, str]] = (),
        body: Sequence[memoryview] = (),
    ) -> Request: ...

    def corrected(self, response: Response, code: str) -> str | None:
        """Put right what the server complains of (region, clock, credentials); what was done, or None."""

    def stat(self, key: str, version: str | None = None) -> ObjectInfo: ...


_NOT_FOUND = (NotFoundError, "check the name, or list its parent")
_DENIED = (AccessDeniedError, "check the access key and its rights")
_BY_CODE: dict[str, tuple[type[S3dlioError], str]] = {
    "NoSuchKey": _NOT_FOUND,
    "NoSuchBucket": (NotFoundError, "check the bucket's name, or create_bucket()"),
    "NoSuchUpload": (NotFoundError, "the upload was aborted or completed elsewhere"),
    "InvalidBucketName": (ConfigError, "check the bucket's name"),
    "RequestTimeTooSkewed": (AccessDeniedError, "set this machine's clock: its time and the server's differ too much"),
    "ExpiredToken": (AccessDeniedError, "the session token has expired: get new credentials"),
    "BucketAlreadyOwnedByYou": (PreconditionFailedError, "it is there"),
    "BucketAlreadyExists": (PreconditionFailedError, "somebody has a bucket of this name: choose another"),
    "BucketNotEmpty": (NotEmptyError, "delete what it holds first"),
    "EntityTooLarge": (ConfigError, "the object is larger than the store takes"),
    "KeyTooLongError": (ConfigError, "the key is longer than the store takes"),
}
_BY_STATUS: dict[int, tuple[type[S3dlioError], str]] = {
    400: (S3dlioError, "the server does not accept the request"),
    401: _DENIED,
    403: _DENIED,
    404: _NOT_FOUND,
    412: (PreconditionFailedError, "the object is not in the expected state any more"),
}
_TRANSIENT_CODES = {"RequestTimeout", "InternalError", "OperationAborted", "ConditionalRequestConflict", "BadDigest"}
_THROTTLING_CODES = {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests"}
_TRANSIENT_STATUSES = {408, 500, 502, 504}
_THROTTLING_STATUSES = {429, 503}


def failure_of(site: Site, response: Response) -> Failure:
    """What an answer that is no success means."""
    head, body = response.head, bytes(response.body)
    code, message = error_of(body)
    request_id = head.get("x-amz-request-id")
    reason = f"{head.status} {code or 'without a code'}{f': {message}' if message else ''}"
    if request_id:
        reason += f" [request {request_id}]"
    if done := site.corrected(response, code):
        kind, remedy = _BY_CODE.get(code) or _BY_STATUS.get(head.status, (S3dlioError, ""))
        return Failure(Verdict.CORRECTED, f"{reason}, although {done}", kind=kind, remedy=remedy)
    if head.status in _THROTTLING_STATUSES or code in _THROTTLING_CODES:
        return Failure(Verdict.THROTTLED, reason, remedy="ask for less at once", retry_after=_retry_after(head))
    if head.status in _TRANSIENT_STATUSES or code in _TRANSIENT_CODES:
        return Failure(Verdict.RETRY, reason, retry_after=_retry_after(head))
    kind, remedy = _BY_CODE.get(code) or _BY_STATUS.get(head.status, (S3dlioError, ""))
    return Failure(Verdict.FINAL, reason, kind=kind, remedy=remedy)


def _retry_after(head: Head) -> float:
    text = head.get("retry-after") or ""
    return min(float(text), 60.0) if text.isascii() and text.isdigit() else 0.0


class Call:
    """What all verbs share: a site, a key, and the words for an error."""

    __slots__ = ("key", "site")
    action = ""

    def __init__(self, site: Site, key: str | None) -> None:
        self.site = site
        self.key = key

    @property
    def uri(self) -> str:
        return self.site.root + (self.key or "")

    def interrupted(self, num_received: int) -> None:
        """A body that is collected is collected anew."""


class PlainCall(Call):
    """A request with a small answer, which is handed over as it is. A status of 300 or more is an error."""

    __slots__ = ("_action", "_body", "_headers", "_method", "_query")

    def __init__(
        self,
        site: Site,
        method: str,
        key: str | None,
        *,
        action: str,
        query: Sequence[tuple[str, str]] = (),
        headers: Sequence[tuple[str, str]] = (),
        body: Sequence[memoryview] = (),
    ) -> None:
        super().__init__(site, key)
        self._action, self._method, self._query, self._headers, self._body = action, method, query, headers, body

    @property
    def action(self) -> str:  # type: ignore[override]
        return self._action

    def request(self) -> Request:
        return self.site.signed(self._method, self.key, self._query, self._headers, self._body)

    def answer(self, response: Response) -> Response:
        if response.head.status >= 300:
            raise failure_of(self.site, response)
        code, _ = error_of(bytes(response.body)) if response.body.nbytes else ("", "")
        if code:  # S3 says 200 first and finds out later: an error in a good answer
            raise Failure(Verdict.RETRY, f"200 with the error {code} inside")
        return response


class DeleteCall(PlainCall):
    """Remove one object; a missing one is fine."""

    __slots__ = ()

    def __init__(self, site: Site, key: str) -> None:
        super().__init__(site, "DELETE", key, action="delete")

    def answer(self, response: Response) -> Response:
        code, _ = error_of(bytes(response.body))
        return response if response.head.status == 404 and code != "NoSuchBucket" else super().answer(response)


class ListCall(Call):
    """One page of a listing."""

    __slots__ = ("_query",)
    action = "list"

    def __init__(self, site: Site, prefix: str, *, recursive: bool, token: str | None) -> None:
        super().__init__(site, prefix)
        query = [("encoding-type", "url"), ("list-type", "2"), ("max-keys", "1000"), ("prefix", prefix)]
        if not recursive:
            query.append(("delimiter", "/"))
        if token is not None:
            query.append(("continuation-token", token))
        self._query = sorted(query)

    def request(self) -> Request:
        return self.site.signed("GET", None, self._query)

    def answer(self, response: Response) -> Listing:
        if response.head.status != 200:
            raise failure_of(self.site, response)
        try:
            return listing_of(bytes(response.body))
        except ValueError as exc:
            raise Failure(Verdict.RETRY, str(exc)) from exc


def version_query(version: str | None) -> list[tuple[str, str]]:
    """The query that asks for an older version."""
    return [] if version is None else [("versionId", version)]


class StatCall(Call):
    """The facts about an object. A HEAD answer has no body, so a refused one is asked again as a GET, which says why."""

    __slots__ = ("_method", "_query")
    action = "stat"

    def __init__(self, site: Site, key: str, version: str | None = None) -> None:
        super().__init__(site, key)
        self._method = "HEAD"
        self._query = version_query(version)

    def request(self) -> Request:
        headers = [] if self._method == "HEAD" else [("range", "bytes=0-0")]
        return self.site.signed(self._method, self.key, self._query, headers)

    def answer(self, response: Response) -> ObjectInfo:
        head = response.head
        assert self.key is not None
        if self._method == "HEAD" and head.status in (301, 307, 400, 403):
            self._method = "GET"
            raise Failure(Verdict.CORRECTED, f"{head.status} without a reason")
        if head.status == 416:  # an empty object has no first byte
            self._method = "HEAD"
            raise Failure(Verdict.RETRY, "416 for an object that a HEAD request may not see")
        if head.status >= 300:
            raise failure_of(self.site, response)
        size = head.content_length() if self._method == "HEAD" else range_of(head)[2]
        if size is None:
            raise Failure(Verdict.FINAL, "the answer does not tell the object's size")
        return info_of(self.key, size, head)


_ATTRIBUTES = {
    "content-type": "content_type",
    "content-language": "content_language",
    "content-encoding": "content_encoding",
    "cache-control": "cache_control",
    "content-disposition": "content_disposition",
    "expires": "expires",
    "x-amz-storage-class": "storage_class",
    "x-amz-server-side-encryption": "server_side_encryption",
    "x-amz-server-side-encryption-aws-kms-key-id": "ssekms_key_id",
    "x-amz-server-side-encryption-customer-algorithm": "sse_customer_algorithm",
    "x-amz-version-id": "version_id",
    "x-amz-replication-status": "replication_status",
}


def info_of(key: str, size: int, head: Head) -> ObjectInfo:
    """All that a head tells of an object."""
    attributes: dict[str, Any] = {}
    metadata: dict[str, str] = {}
    for name, value in head.fields():
        if name in _ATTRIBUTES:
            attributes[_ATTRIBUTES[name]] = value
        elif name.startswith("x-amz-meta-"):
            metadata[name[len("x-amz-meta-") :]] = value
    attributes["metadata"] = metadata
    return ObjectInfo(key, size, etag_of(head), seconds_of(head.get("last-modified")), attributes)


def seconds_of(date: str | None) -> float | None:
    """The moment that a date of HTTP names, in seconds since 1970; None for what is none."""
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except ValueError:
        return None


def etag_of(head: Head) -> str | None:
    """The etag without its quotes."""
    etag = head.get("etag")
    return etag.strip('"') if etag else None


def range_of(head: Head) -> tuple[int, int, int | None]:
    """(first byte, number of bytes, size of the object or None) as Content-Range tells."""
    text = head.get("content-range") or ""
    unit, _, rest = text.partition(" ")
    span, _, total = rest.partition("/")
    first, _, last = span.partition("-")
    try:
        size = None if total == "*" else int(total)
        return (0, 0, size) if span == "*" else (int(first), int(last) - int(first) + 1, size)
    except ValueError:
        raise Failure(Verdict.RETRY, f"the answer's Content-Range {unit} {rest!r} cannot be read") from None


def crc32_of(buffers: Sequence[memoryview]) -> str:
    """The CRC-32 of all bytes as S3 writes it: big-endian, in base64."""
    value = 0
    for buffer in buffers:
        value = zlib.crc32(buffer, value)
    return base64.b64encode(value.to_bytes(4, "big")).decode()


class PutCall(Call):
    """Store an object, or a part of one, in one request."""

    __slots__ = ("_body", "_headers", "_num_sent", "_query", "checksum")
    action = "write"

    def __init__(
        self,
        site: Site,
        key: str,
        body: Sequence[memoryview],
        *,
        query: Sequence[tuple[str, str]] = (),
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(site, key)
        self._body = [buffer for buffer in body if buffer.nbytes]
        self._query = query
        self.checksum = crc32_of(self._body) if site.sends_checksums else None
        self._headers: Headers = [*headers, ("content-length", str(sum(buffer.nbytes for buffer in self._body)))]
        if self.checksum:
            self._headers.append(("x-amz-checksum-crc32", self.checksum))
        self._num_sent = 0

    def request(self) -> Request:
        self._num_sent += 1
        return self.site.signed("PUT", self.key, self._query, self._headers, self._body)

    def answer(self, response: Response) -> str | None:
        """The etag."""
        head = response.head
        if head.status == 412 and self._num_sent > 1 and self._is_ours():
            return self.site.stat(self.key or "").etag
        if head.status >= 300:
            raise failure_of(self.site, response)
        return etag_of(head)

    def _is_ours(self) -> bool:
        """Did an attempt whose answer was lost write the object already? Then its etag is the MD5 of our bytes."""
        digest = hashlib.md5(usedforsecurity=False)
        for buffer in self._body:
            digest.update(buffer)
        assert self.key is not None
        return self.site.stat(self.key).etag == digest.hexdigest()
