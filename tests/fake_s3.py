"""A small S3 in memory, without I/O: a request becomes a reply. Keys are opaque: percent-decoded exactly once."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from functools import cached_property
from urllib.parse import quote_plus, unquote, unquote_to_bytes
from xml.etree import ElementTree
from xml.sax.saxutils import escape

__all__ = ["FakeS3", "Object", "Reply", "Request", "error"]

_PLAIN = re.compile(r"[A-Za-z0-9/._-]*")
SPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


@dataclass(frozen=True)
class Request:
    """What the server saw."""

    number: int  # from 0, over all connections
    connection: int
    method: str
    target: str
    headers: dict[str, str]  # lower-case names
    body: bytes
    at: float  # time.monotonic()

    @cached_property
    def query(self) -> dict[str, str]:
        pairs = (pair.partition("=") for pair in self.target.partition("?")[2].split("&") if pair)
        return {unquote(name): unquote(value, errors="surrogateescape") for name, _, value in pairs}

    @cached_property
    def bucket(self) -> str:
        return self.target.partition("?")[0].split("/", 2)[1]

    @cached_property
    def key(self) -> str:
        pieces = self.target.partition("?")[0].split("/", 2)
        return unquote_to_bytes(pieces[2]).decode("utf-8", "surrogateescape") if len(pieces) > 2 else ""

    @property
    def verb(self) -> str:
        """GET, HEAD, PUT, DELETE of an object, else what the query says: LIST, CREATE, PART, COMPLETE, ABORT."""
        if self.method == "GET" and not self.key:
            return "LIST"
        if "uploads" in self.query:
            return "CREATE"
        if "uploadId" in self.query:
            return {"PUT": "PART", "POST": "COMPLETE", "DELETE": "ABORT"}[self.method]
        return self.method

    @property
    def scope(self) -> tuple[str, str]:
        """(access key, region) of the signature."""
        credential = self.headers.get("authorization", "").partition("Credential=")[2].partition(",")[0].split("/")
        return (credential[0], credential[2]) if len(credential) == 5 else ("", "")


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def with_headers(self, **headers: str) -> Reply:
        """The same with these fields (`_` for `-`) set."""
        return replace(self, headers={**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}})


def error(status: int, code: str, inside: str = "", **headers: str) -> Reply:
    """An error as S3 words it."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>told to</Message>{inside}</Error>".encode()
    return Reply(status, {"x-amz-request-id": "REQ123"}, body).with_headers(**headers)


@dataclass(frozen=True)
class Object:
    data: bytes
    etag: str
    headers: dict[str, str] = field(default_factory=dict)
    modified: float = field(default_factory=time.time)


class FakeS3:
    """Buckets of objects, and the uploads that are pending. The tests may look at all of it and change it."""

    def __init__(self, *buckets: str) -> None:
        self.buckets: dict[str, dict[str, Object]] = {name: {} for name in buckets or ("bkt",)}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.page = 1000
        self.ignores_range = False
        self.ignores_match = False
        self.lock = threading.RLock()
        self._num_uploads = 0
        self._sorted: tuple[int, str, list[bytes]] = (0, "", [])

    def put(self, key: str, data: bytes, *, bucket: str = "bkt", **headers: str) -> None:
        """Store an object past the wire."""
        etag = hashlib.md5(data).hexdigest()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        with self.lock:
            self.buckets[bucket][key] = Object(data, etag, named)

    def get(self, key: str, *, bucket: str = "bkt") -> bytes | None:
        found = self.buckets[bucket].get(key)
        return None if found is None else found.data

    def answer(self, request: Request) -> Reply:
        with self.lock:
            if request.bucket not in self.buckets:
                return error(404, "NoSuchBucket")
            verbs: dict[str, Callable[[Request], Reply]] = {
                "GET": self._get,
                "HEAD": self._get,
                "PUT": self._put,
                "DELETE": self._delete,
                "LIST": self._list,
                "CREATE": self._create,
                "PART": self._part,
                "COMPLETE": self._complete,
                "ABORT": self._abort,
            }
            return verbs[request.verb](request)

    def _get(self, request: Request) -> Reply:
        found = self.buckets[request.bucket].get(request.key)
        if found is None:
            return error(404, "NoSuchKey")
        wanted = request.headers.get("if-match")
        if wanted is not None and wanted.strip('"') != found.etag and not self.ignores_match:
            return error(412, "PreconditionFailed")
        headers = {"etag": f'"{found.etag}"', "last-modified": formatdate(found.modified, usegmt=True), **found.headers}
        span = request.headers.get("range")
        size = len(found.data)
        if span is None or self.ignores_range:
            return Reply(200, headers, found.data)
        first, _, last = span.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or size) + 1, size)
        if start >= size:
            return error(416, "InvalidRange", content_range=f"bytes */{size}")
        return Reply(206, {**headers, "content-range": f"bytes {start}-{end - 1}/{size}"}, found.data[start:end])

    def _put(self, request: Request) -> Reply:
        if not request.key:
            self.buckets.setdefault(request.bucket, {})
            return Reply(200)
        if refused := self._precondition(request):
            return refused
        self.put(request.key, request.body, bucket=request.bucket)
        return Reply(200, {"etag": f'"{self.buckets[request.bucket][request.key].etag}"'})

    def _precondition(self, request: Request) -> Reply | None:
        found = self.buckets[request.bucket].get(request.key)
        wanted = request.headers.get("if-match")
        if request.headers.get("if-none-match") == "*" and found is not None:
            return error(412, "PreconditionFailed")
        if wanted is not None and (found is None or wanted.strip('"') != found.etag):
            return error(412, "PreconditionFailed")
        return None

    def _delete(self, request: Request) -> Reply:
        self.buckets[request.bucket].pop(request.key, None)
        return Reply(204)

    def _create(self, request: Request) -> Reply:
        self._num_uploads += 1
        name = f"upload-{self._num_uploads}"
        self.uploads[name] = {}
        inside = f"<UploadId>{name}</UploadId>"
        return Reply(200, {}, f"<InitiateMultipartUploadResult {SPACE}>{inside}</InitiateMultipartUploadResult>".encode())

    def _part(self, request: Request) -> Reply:
        parts = self.uploads.get(request.query["uploadId"])
        if parts is None:
            return error(404, "NoSuchUpload")
        parts[int(request.query["partNumber"])] = request.body
        return Reply(200, {"etag": f'"{hashlib.md5(request.body).hexdigest()}"'})

    def _complete(self, request: Request) -> Reply:
        parts = self.uploads.get(request.query["uploadId"])
        if parts is None:
            return error(404, "NoSuchUpload")
        if refused := self._precondition(request):
            return refused
        entries = [
            (int(entry.findtext("{*}PartNumber") or 0), (entry.findtext("{*}ETag") or "").strip('"'))
            for entry in ElementTree.fromstring(request.body).iterfind("{*}Part")
        ]
        if [(number, hashlib.md5(parts[number]).hexdigest()) for number in sorted(parts)] != entries:
            return error(400, "InvalidPart")
        self.put(request.key, b"".join(parts[number] for number in sorted(parts)), bucket=request.bucket)
        del self.uploads[request.query["uploadId"]]
        etag = self.buckets[request.bucket][request.key].etag
        inside = f"<ETag>&quot;{etag}&quot;</ETag>"
        return Reply(200, {}, f"<CompleteMultipartUploadResult {SPACE}>{inside}</CompleteMultipartUploadResult>".encode())

    def _abort(self, request: Request) -> Reply:
        return Reply(204) if self.uploads.pop(request.query["uploadId"], None) is not None else error(404, "NoSuchUpload")

    def _keys(self, bucket: str) -> list[bytes]:
        """All keys in order; sorted anew only when their number has changed."""
        objects = self.buckets[bucket]
        if self._sorted[:2] != (len(objects), bucket):
            self._sorted = (len(objects), bucket, sorted(key.encode("utf-8", "surrogateescape") for key in objects))
        return self._sorted[2]

    def _list(self, request: Request) -> Reply:
        query = request.query
        prefix = query.get("prefix", "").encode("utf-8", "surrogateescape")
        delimiter = query.get("delimiter", "").encode()
        encode = _url_encoded if query.get("encoding-type") == "url" else _xml_text
        keys = self._keys(request.bucket)
        objects = self.buckets[request.bucket]
        after = bytes.fromhex(query.get("continuation-token", ""))
        index = bisect_right(keys, after) if after else bisect_left(keys, prefix)
        entries: list[str] = []
        last = b""
        while index < len(keys) and keys[index].startswith(prefix) and len(entries) < self.page:
            key = keys[index]
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            if end >= 0:
                group = key[: end + len(delimiter)]
                entries.append(f"<CommonPrefixes><Prefix>{encode(group)}</Prefix></CommonPrefixes>")
                last = group + b"\xff"
                index = bisect_left(keys, last)
            else:
                found = objects[key.decode("utf-8", "surrogateescape")]
                entries.append(
                    f"<Contents><Key>{encode(key)}</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified>"
                    f"<ETag>&quot;{found.etag}&quot;</ETag><Size>{len(found.data)}</Size></Contents>"
                )
                last = key
                index += 1
        is_more = index < len(keys) and keys[index].startswith(prefix)
        entries.append(f"<IsTruncated>{'true' if is_more else 'false'}</IsTruncated>")
        if is_more:
            entries.append(f"<NextContinuationToken>{last.hex()}</NextContinuationToken>")
        if query.get("encoding-type") == "url":
            entries.append("<EncodingType>url</EncodingType>")
        return Reply(200, {}, f"<ListBucketResult {SPACE}>{''.join(entries)}</ListBucketResult>".encode())


def _url_encoded(key: bytes) -> str:
    text = key.decode("latin-1")
    return text if _PLAIN.fullmatch(text) else quote_plus(key, safe="/")


def _xml_text(key: bytes) -> str:
    return escape(key.decode())
