"""What S3's refusals mean: whose error they become, and whether trying again can help.

Source: Amazon S3 API Reference, "Error Responses".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from ...errors import (
    AccessDeniedError,
    ConfigError,
    NotEmptyError,
    NotFoundError,
    PreconditionFailedError,
    S3dlioError,
    UnsupportedError,
)
from .http import Head, Request, Response
from .retry import Failure, Verdict
from .s3_xml import error_of

__all__ = ["Site", "failure_of"]


class Site(Protocol):
    """What a call needs of its store."""

    root: str
    verifies_checksums: bool
    sends_checksums: bool

    @property
    def wire(self) -> object: ...

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


_NOT_FOUND = (NotFoundError, "check the name, or list its parent")
_DENIED = (AccessDeniedError, "check the access key and its rights")
_UNSUPPORTED = (
    UnsupportedError,
    "the server does not know what the request asks for: leave conditions (if_absent, if_match) out, or set "
    "AWS_REQUEST_CHECKSUM_CALCULATION=when_required, or use a server that knows them",
)
_BY_CODE: dict[str, tuple[type[S3dlioError], str]] = {
    "AccessDenied": _DENIED,
    "SignatureDoesNotMatch": _DENIED,  # it quotes the request, conditions and all
    "InvalidPart": (S3dlioError, "a part of the upload is not there any more: write the object again"),
    "NoSuchKey": _NOT_FOUND,
    "NoSuchBucket": (NotFoundError, "check the bucket's name, or create_bucket()"),
    "NoSuchUpload": (NotFoundError, "the upload was aborted or completed elsewhere"),
    "InvalidBucketName": (ConfigError, "check the bucket's name"),
    "RequestTimeTooSkewed": (AccessDeniedError, "set this machine's clock: its time and the server's differ too much"),
    "ExpiredToken": (AccessDeniedError, "the session token has expired: get new credentials"),
    "BucketAlreadyOwnedByYou": (PreconditionFailedError, "it is there"),
    "BucketAlreadyExists": (PreconditionFailedError, "somebody has a bucket of this name: choose another"),
    "BucketNotEmpty": (NotEmptyError, "delete what it holds first"),
    "NotImplemented": _UNSUPPORTED,
    "EntityTooLarge": (ConfigError, "the object is larger than the store takes"),
    "KeyTooLongError": (ConfigError, "the key is longer than the store takes"),
}
_BY_STATUS: dict[int, tuple[type[S3dlioError], str]] = {
    400: (S3dlioError, "the server does not accept the request"),
    401: _DENIED,
    403: _DENIED,
    404: _NOT_FOUND,
    412: (PreconditionFailedError, "the object is not in the expected state any more"),
    501: _UNSUPPORTED,
}
# What a server says to a condition that it does not know, when it says nothing clearer (NotImplemented, 501).
_CONDITION_CODES = {"InvalidArgument", "InvalidRequest", "MethodNotAllowed"}
_CONDITION_STATUSES = {400, 403, 405}
_CONDITIONS = re.compile("if-(none-)?match", re.IGNORECASE)
_TRANSIENT_CODES = {"RequestTimeout", "InternalError", "OperationAborted", "ConditionalRequestConflict", "BadDigest"}
_THROTTLING_CODES = {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests"}
_TRANSIENT_STATUSES = {408, 500, 502, 504}
_THROTTLING_STATUSES = {429, 503}


def failure_of(site: Site, response: Response, *, is_conditional: bool = False) -> Failure:
    """What an answer that is no success means; `is_conditional` says that a write was to happen on a condition."""
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
    if is_conditional and code not in _BY_CODE and _is_about_conditions(head.status, code, body):
        kind, remedy = _UNSUPPORTED
    if head.status == 404 and body and not code:  # the 404 of a web server says nothing about an object
        kind, remedy = S3dlioError, "is the endpoint an S3 server?"
    is_final = head.status >= 300 or code in _BY_CODE  # an error in a good answer may pass, unless it is known not to
    return Failure(Verdict.FINAL if is_final else Verdict.RETRY, reason, kind=kind, remedy=remedy)


def _is_about_conditions(status: int, code: str, body: bytes) -> bool:
    """Whether a server refuses the conditions of a write, and not the write: by its code, or because it names them."""
    told = code in _CONDITION_CODES or _CONDITIONS.search(body.decode("utf-8", "replace")) is not None
    return status in _CONDITION_STATUSES and (told or status == 405)


def _retry_after(head: Head) -> float:
    text = head.get("retry-after") or ""
    return min(float(text), 60.0) if text.isascii() and text.isdigit() else 0.0
