"""The S3 dialect: a verb becomes requests, an answer becomes a result or an error. No sockets here.

Sources: Amazon S3 API Reference (actions, "Error Responses", "Checking object integrity").
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from typing import Any

from ..base import ObjectInfo
from .http import Head, Request, Response
from .retry import Failure, Question, Verdict
from .s3_checksums import checksum_of
from .s3_errors import Site, failure_of
from .s3_xml import error_of, next_token_of

__all__ = [
    "Call",
    "CompleteCall",
    "DeleteCall",
    "ListCall",
    "PlainCall",
    "PutCall",
    "StatCall",
    "etag_of",
    "info_of",
    "range_of",
    "seconds_of",
    "version_query",
]

Headers = list[tuple[str, str]]


class Call:
    """What all verbs share: a site, a key, and the words for an error."""

    __slots__ = ("key", "site")
    action = ""
    is_read = False

    def __init__(self, site: Site, key: str | None) -> None:
        self.site = site
        self.key = key

    @property
    def uri(self) -> str:
        return self.site.root + (self.key or "")

    def interrupted(self, num_received: int) -> None:
        """A body that is collected is collected anew."""

    def is_at(self, wire: object) -> bool:
        """Is this still the wire of the bucket?"""
        return self.site.wire is wire


def _is_conditional(headers: Sequence[tuple[str, str]]) -> bool:
    return any(name in ("if-match", "if-none-match") for name, _ in headers)


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
            raise failure_of(self.site, response, is_conditional=_is_conditional(self._headers))
        if response.body.nbytes and error_of(bytes(response.body))[0]:
            raise failure_of(self.site, response)  # S3 says 200 first and finds out later: an error in a good answer
        return response


class CompleteCall(PlainCall):
    """Publish an upload. `etag` is what the object of these parts has on S3: it tells a lost answer from a lost upload."""

    __slots__ = ("_etag", "_num_sent")

    def __init__(self, site: Site, key: str, *, etag: str, query: Headers, headers: Headers, body: bytes) -> None:
        digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        headers = [*headers, ("content-length", str(len(body))), ("content-md5", digest)]
        super().__init__(site, "POST", key, action="complete", query=query, headers=headers, body=[memoryview(body)])
        self._etag = etag
        self._num_sent = 0

    def request(self) -> Request:
        self._num_sent += 1
        return super().request()

    def answer(self, response: Response) -> Response:
        code, _ = error_of(bytes(response.body))
        if self._num_sent > 1 and (code == "NoSuchUpload" or response.head.status == 412):
            assert self.key is not None
            raise Question(StatCall(self.site, self.key), partial(self._told, response))
        response = super().answer(response)
        if b"CompleteMultipartUploadResult" not in bytes(response.body):
            raise Failure(Verdict.RETRY, f"{response.head.status} without a result")
        return response

    def _told(self, response: Response, info: ObjectInfo | None) -> Response:
        """An attempt whose answer was lost may have published the object already."""
        return response if info is not None and info.etag == self._etag else super().answer(response)


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

    def answer(self, response: Response) -> tuple[bytes, str | None]:
        """The page as it came, and the token of the next one."""
        if response.head.status != 200:
            raise failure_of(self.site, response)
        body = bytes(response.body)
        try:
            return body, next_token_of(body)
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
        if self._method == "HEAD" and head.status in (301, 307, 400, 403, 404):
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
    return etag[1:-1] if etag and etag[0] == etag[-1] == '"' else etag


_RANGE = re.compile(r"\w+ (?:(\d+)-(\d+)|\*)/(?:(\d+)|\*)", re.ASCII)


def range_of(head: Head) -> tuple[int, int, int | None]:
    """(first byte, number of bytes, size of the object or None) as Content-Range tells."""
    return _range_in(head.get("content-range") or "")


@lru_cache(maxsize=1024)
def _range_in(text: str) -> tuple[int, int, int | None]:
    found = _RANGE.fullmatch(text)
    if found is None:
        raise Failure(Verdict.RETRY, f"the answer's Content-Range {text!r} cannot be read")
    first, last, size = found.groups()
    span = (int(first), int(last) - int(first) + 1) if first else (0, 0)
    return (*span, int(size) if size else None)


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
        self.checksum = checksum_of(self._body) if site.sends_checksums else None
        self._headers: Headers = [*headers, ("content-length", str(sum(buffer.nbytes for buffer in self._body)))]
        if self.checksum:
            self._headers.append(self.checksum.header)
        self._num_sent = 0

    def request(self) -> Request:
        self._num_sent += 1
        return self.site.signed("PUT", self.key, self._query, self._headers, self._body)

    def answer(self, response: Response) -> str | None:
        """The etag."""
        head = response.head
        if head.status == 412 and self._num_sent > 1:
            assert self.key is not None
            raise Question(StatCall(self.site, self.key), partial(self._told, response))
        if head.status >= 300:
            raise failure_of(self.site, response, is_conditional=_is_conditional(self._headers))
        return etag_of(head)

    def _told(self, response: Response, info: ObjectInfo | None) -> str | None:
        """An attempt whose answer was lost may have written the object already: then its etag is the MD5 of our bytes."""
        digest = hashlib.md5(usedforsecurity=False)
        for buffer in self._body:
            digest.update(buffer)
        if info is None or info.etag != digest.hexdigest():
            raise failure_of(self.site, response)
        return info.etag
