"""`s3://`: Amazon S3 and what speaks its protocol (MinIO, Ceph, SeaweedFS, VAST, …)."""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import TypeVar
from urllib.parse import quote_from_bytes

from ... import runtime
from ...config import S3Options, s3_options
from ...errors import NotEmptyError, NotFoundError, PreconditionFailedError, S3dlioError
from ...uri import sort_key
from ..base import Limits, ObjectInfo, Outcome, Page, Read, ReadResult
from . import poll, s3_uploads, wire
from .connection import Server
from .credentials import Provider, provider_of
from .http import Head, Request, Response, header_lines
from .s3_calls import CompleteCall, DeleteCall, ListCall, PlainCall, PutCall, StatCall, seconds_of
from .s3_checksums import BodyChecksum, upload_algorithm
from .s3_read import ReadCall
from .s3_xml import complete_upload, page_of, text_of
from .sigv4 import UNSIGNED, Signer

__all__ = ["S3Store", "S3Upload", "amazon_url", "encoded", "open_container", "options"]

log = logging.getLogger("s3dlio")

T = TypeVar("T")

DEFAULT_REGION = "us-east-1"
MAX_MOVES = 3
MIB = 1024 * 1024
_EXPIRY_CODES = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired")
_REGION_CODES = ("AuthorizationHeaderMalformed", "IllegalLocationConstraintException")
_UNRESERVED = re.compile(r"[A-Za-z0-9\-._~/]*")

options = s3_options


def amazon_url(region: str) -> str:
    """Amazon's own endpoint of a region."""
    return f"https://s3.{region}.amazonaws.com"


def open_container(_: str, container: str, options: S3Options) -> S3Store:
    """The Store of a bucket."""
    return S3Store(container, options)


class S3Store:
    """One bucket."""

    limits = Limits(
        parallel_ranges=True,
        parallel_parts=4,
        min_part=5 * MIB,
        max_part=5 * 1024 * MIB,
        max_parts=10_000,
        max_put=64 * MIB,
    )

    def __init__(self, bucket: str, options: S3Options) -> None:
        self.root = f"s3://{bucket}/"
        self.bucket = bucket
        self.verifies_checksums = options.response_checksums == "when_supported"
        self.sends_checksums = options.request_checksums == "when_supported"
        self._options = options
        self._provider: Provider = provider_of(options)
        self._region = self._provider.region() or DEFAULT_REGION
        self._clock_offset = 0.0  # the server's time minus ours, in seconds
        self._generation = 0  # of all that signs and addresses a request
        self._signer: Signer | None = None
        self._place()

    def _place(self) -> None:
        """Where the bucket is: path style for custom endpoints and dotted names, else a host of its own."""
        url = self._options.endpoint_url or amazon_url(self._region)
        server = Server.from_url(url, self._options.ca_bundle)
        is_virtual = self._options.virtual_hosted
        if is_virtual is None:
            is_virtual = self._options.endpoint_url is None and "." not in self.bucket
        if is_virtual:
            server = Server(server.scheme, f"{self.bucket}.{server.host}", server.port, server.ca_bundle)
        self._base = "" if is_virtual else "/" + encoded(self.bucket)
        payer = self._options.request_payer
        self._named = (("host", server.authority), *((("x-amz-request-payer", payer),) if payer else ()))
        self.wire = wire.wire_to(server, self._options.transport)

    # What the calls need of their store

    def signed(
        self,
        method: str,
        key: str | None,
        query: Sequence[tuple[str, str]] = (),
        headers: Sequence[tuple[str, str]] = (),
        body: Sequence[memoryview] = (),
    ) -> Request:
        """A request, signed as of now."""
        generation = self._generation  # before anything else is read, so that it is never newer than the request
        path = f"{self._base}/{encoded(key)}" if key else self._base or "/"
        text = "&".join(f"{encoded(name, False)}={encoded(value, False)}" for name, value in sorted(query)) if query else ""
        target = f"{path}?{text}" if text else path
        credentials = self._provider.current()
        if credentials is None:
            return Request(method, target, header_lines((*self._named, *headers)), body, None, generation)
        signer = self._signer
        if signer is None or not signer.serves(credentials, self._region):
            self._signer = signer = Signer(credentials, self._region)
            self._generation = generation = generation + 1
        now = time.time() + self._clock_offset
        lines = signer.sign(method, path, text, (*self._named, *headers), payload_hash=self._payload_hash(body), now=now)
        return Request(method, target, lines, body, None, generation)

    def _payload_hash(self, body: Sequence[memoryview]) -> str:
        if self._options.unsigned_payload:
            return UNSIGNED
        digest = hashlib.sha256()
        for buffer in body:
            digest.update(buffer)
        return digest.hexdigest()

    def corrected(self, response: Response, code: str) -> str | None:
        """Put right what the server complains of; what was done, or None.

        Of many requests that are refused for the same reason the first one corrects it for all.
        """
        head, body = response.head, bytes(response.body)
        wanted = head.get("x-amz-bucket-region") or text_of(body, "Region")
        correct: Callable[[], str | None]
        if code == "RequestTimeTooSkewed":
            correct = partial(self._correct_clock, head)
        elif code in _EXPIRY_CODES:
            correct = self._renew_credentials
        elif (head.status in (301, 307) or code in _REGION_CODES) and wanted:
            correct = partial(self._correct_region, wanted)
        else:
            return None
        with _corrections:
            if response.stamp != self._generation:
                return "it was put right meanwhile"
            done = correct()
            self._generation += done is not None
            return done

    def _renew_credentials(self) -> str | None:
        refused = self._signer.credentials if self._signer else None
        return "new credentials were fetched" if self._provider.refresh(refused) else None

    def _correct_region(self, wanted: str) -> str | None:
        if wanted == self._region:
            return None
        used, self._region = self._region, wanted
        self._place()
        return f"the region was corrected from {used} to {wanted}"

    def _correct_clock(self, head: Head) -> str | None:
        date = seconds_of(head.get("date"))
        if date is None:
            return None
        offset = date - time.time()
        if abs(offset - self._clock_offset) < 1.0:
            return None
        self._clock_offset = offset
        return f"the clock was corrected by {offset:.0f} s"

    def _perform(self, call: wire.Call[T]) -> T:
        """One operation, over another wire when a correction has moved the bucket."""
        for _ in range(MAX_MOVES):
            try:
                return self.wire.perform(call)
            except wire.MovedError:
                continue
        return self.wire.perform(call)

    # The verbs of a Store

    def stat(self, key: str, version: str | None = None) -> ObjectInfo:
        return self._perform(StatCall(self, key, version))

    def read(self, read: Read) -> ReadResult:
        return self._perform(ReadCall(self, read))

    def read_many(self, reads: Iterable[Read], *, window: int) -> Iterator[Outcome]:
        if window == 1:
            yield from runtime.each(self.read, reads, window=window)
            return
        calls = map(partial(ReadCall, self), reads)
        for call, result in poll.perform_many(self.wire, calls, window=window):
            assert isinstance(call, ReadCall)
            yield call.read, self._moved(call) if isinstance(result, wire.MovedError) else result

    def _moved(self, call: ReadCall) -> ReadResult | BaseException:
        try:
            return self._perform(call)
        except Exception as exc:
            return exc

    def list(self, prefix: str, *, recursive: bool) -> Iterator[Page]:
        owner = os.getpid()
        body, token = self._listed(prefix, recursive, None)
        while True:
            following = runtime.io.submit(partial(self._listed, prefix, recursive, token)) if token else None
            try:
                yield page_of(body)  # while the server makes the next page
            except ValueError as exc:
                raise S3dlioError(f"cannot list {self.root}{prefix}: {exc}") from exc
            if following is None:
                return
            used = token
            is_forked = os.getpid() != owner  # without the thread that asks
            body, token = self._listed(prefix, recursive, used) if is_forked else following.result()
            if token == used:
                raise S3dlioError(f"cannot list {self.root}{prefix}: the server gives the same page again and again")

    def _listed(self, prefix: str, recursive: bool, token: str | None) -> tuple[bytes, str | None]:
        return self._perform(ListCall(self, prefix, recursive=recursive, token=token))

    def put(
        self, key: str, data: memoryview, *, if_match: str | None = None, if_absent: bool = False, durable: bool = False
    ) -> ObjectInfo:
        headers = [*_conditions(if_match, if_absent), *self._creation_headers()]
        etag = self._perform(PutCall(self, key, [data], headers=headers))
        return ObjectInfo(key, data.nbytes, etag)

    def delete(self, key: str) -> None:
        self._perform(DeleteCall(self, key))

    def begin_upload(self, key: str) -> S3Upload:
        return S3Upload(self, key)

    def drop_uploads(self, prefix: str, before: float) -> int:
        return s3_uploads.drop(self.perform, prefix, before)

    def perform(
        self,
        method: str,
        key: str | None,
        *,
        action: str,
        query: Sequence[tuple[str, str]] = (),
        headers: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
    ) -> bytes:
        """A request with small bodies in both directions; returns the body of its answer."""
        fields = [*headers, ("content-length", str(len(body)))]
        if body:  # which some servers want to be protected by an MD5
            digest = hashlib.md5(body, usedforsecurity=False).digest()
            fields.append(("content-md5", base64.b64encode(digest).decode()))
        buffers = [memoryview(body)] if body else []
        call = PlainCall(self, method, key, action=action, query=query, headers=fields, body=buffers)
        return bytes(self._perform(call).body)

    def _creation_headers(self) -> Sequence[tuple[str, str]]:
        headers = []
        if self._options.encryption:
            headers.append(("x-amz-server-side-encryption", self._options.encryption))
        if self._options.encryption_key_id:
            headers.append(("x-amz-server-side-encryption-aws-kms-key-id", self._options.encryption_key_id))
        return headers

    def create_bucket(self) -> None:
        """Make the bucket; one's own existing bucket is fine."""
        body = b""
        if self._region != DEFAULT_REGION and self._options.endpoint_url is None:
            space = "http://s3.amazonaws.com/doc/2006-03-01/"
            place = f"<LocationConstraint>{self._region}</LocationConstraint>"
            body = f'<CreateBucketConfiguration xmlns="{space}">{place}</CreateBucketConfiguration>'.encode()
        try:
            self.perform("PUT", None, action="create the bucket", body=body)
        except PreconditionFailedError:  # 409: it exists; S3 tells whose it is by what it lets one do
            next(self.list("", recursive=False))

    def delete_bucket(self) -> None:
        """Remove the bucket, which must be empty: looks first, since SeaweedFS by default deletes what it holds, too."""
        if any(page.objects for page in self.list("", recursive=True)):
            raise NotEmptyError(f"cannot delete the bucket {self.root}: it is not empty (delete what it holds first)")
        self.perform("DELETE", None, action="delete the bucket")


class S3Upload:
    """A multipart upload."""

    def __init__(self, store: S3Store, key: str) -> None:
        self._store = store
        self._key = key
        headers = store._creation_headers()
        if store.sends_checksums:
            headers = [*headers, ("x-amz-checksum-algorithm", upload_algorithm())]
        answer = store.perform("POST", key, action="begin to write", query=[("uploads", "")], headers=headers)
        self._id = text_of(answer, "UploadId")
        if not self._id:
            raise S3dlioError(f"cannot begin to write {store.root}{key}: the server gave the upload no id")
        self._pid = os.getpid()
        self._parts: dict[int, tuple[str, BodyChecksum | None, int]] = {}
        self._is_open = True

    def part(self, number: int, offset: int, data: Sequence[memoryview]) -> None:
        query = [("partNumber", str(number)), ("uploadId", self._id)]
        call = PutCall(self._store, self._key, data, query=query)
        etag = self._store._perform(call)
        self._parts[number] = (etag or "", call.checksum, sum(buffer.nbytes for buffer in data))

    def complete(self, *, if_match: str | None = None, if_absent: bool = False) -> ObjectInfo:
        parts = sorted(self._parts.items())
        body = complete_upload((number, etag, checksum) for number, (etag, checksum, _) in parts)
        expected = _etag_of_parts([etag for _, (etag, _, _) in parts])
        call = CompleteCall(
            self._store,
            self._key,
            etag=expected,
            query=[("uploadId", self._id)],
            headers=_conditions(if_match, if_absent),
            body=body,
        )
        answer = self._store._perform(call)
        self._is_open = False
        size = sum(size for _, (_, _, size) in parts)
        return ObjectInfo(self._key, size, text_of(bytes(answer.body), "ETag").strip('"') or expected or None)

    def abort(self) -> None:
        if not self._is_open or os.getpid() != self._pid:
            return
        self._is_open = False
        try:
            self._store.perform("DELETE", self._key, action="abort writing", query=[("uploadId", self._id)])
        except NotFoundError:
            log.debug("the upload of %s%s was gone already", self._store.root, self._key)
        except S3dlioError as exc:  # the caller has a better reason to tell
            log.warning("the parts of an upload stay on the server, invisible, until its rules remove them: %s", exc)


def _etag_of_parts(etags: Sequence[str]) -> str:
    """The etag that S3 gives to an object of these parts: the MD5 of their MD5s, and how many they are."""
    try:
        digest = hashlib.md5(b"".join(map(bytes.fromhex, etags)), usedforsecurity=False).hexdigest()
    except ValueError:  # encrypted parts have etags that are no MD5
        return ""
    return f"{digest}-{len(etags)}"


_corrections = threading.Lock()


@runtime.after_fork
def _renew_lock() -> None:
    global _corrections
    _corrections = threading.Lock()


def _conditions(if_match: str | None, if_absent: bool) -> list[tuple[str, str]]:
    conditions = [("if-match", f'"{if_match}"')] if if_match is not None else []
    return [*conditions, ("if-none-match", "*")] if if_absent else conditions


@lru_cache(maxsize=4096)
def _encoded(text: str, keep_slash: bool) -> str:
    return quote_from_bytes(sort_key(text), safe="/-_.~" if keep_slash else "-_.~")


def encoded(text: str, keep_slash: bool = True) -> str:
    """Percent-encode as SigV4 wants it: all but letters, digits, `-._~` and (in a path) slashes."""
    return text if keep_slash and _UNRESERVED.fullmatch(text) else _encoded(text, keep_slash)
