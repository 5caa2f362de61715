"""AWS Signature Version 4 for S3, with the signing key cached per day: one SHA-256 and one HMAC per request.

Source: "Signature Calculations for the Authorization Header", Amazon S3 API Reference.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Credentials", "Signer", "UNSIGNED"]

UNSIGNED = "UNSIGNED-PAYLOAD"
MAX_TEMPLATES = 32


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key. No secret is shown by its repr."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


class _Second(NamedTuple):
    """What does not change within a second; the key not within a day."""

    second: int
    timestamp: str
    scope: str
    key: bytes
    templates: dict[object, _Template]


class _Template(NamedTuple):
    """What requests with the same signed headers share within a second."""

    canonical: str  # the end of the canonical request
    to_sign: str  # the beginning of the string to sign
    authorization: str  # the beginning of its value
    added: tuple[tuple[str, str], ...]  # the headers that signing adds


class Signer:
    """Signs requests of one region with one set of credentials."""

    def __init__(self, credentials: Credentials, region: str) -> None:
        self.credentials = credentials
        self.region = region
        self._now = _Second(-1, "", "", b"", {})  # replaced as a whole, so that threads see one second's state

    def _at(self, second: int) -> _Second:
        now = self._now
        if now.second == second:
            return now
        timestamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        day = timestamp[:8]
        if day == now.timestamp[:8]:
            key = now.key
        else:
            key = f"AWS4{self.credentials.secret_key}".encode()
            for part in (day, self.region, "s3", "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
        self._now = now = _Second(second, timestamp, f"{day}/{self.region}/s3/aws4_request", key, {})
        return now

    def _template(self, now: _Second, signed: tuple[tuple[str, str], ...], payload_hash: str) -> _Template:
        found = now.templates.get((signed, payload_hash))
        if found is not None:
            return found
        added = [("x-amz-content-sha256", payload_hash), ("x-amz-date", now.timestamp)]
        if self.credentials.session_token:
            added.append(("x-amz-security-token", self.credentials.session_token))
        ordered = sorted([*signed, *added])
        names = ";".join(name for name, _ in ordered)
        lines = "".join(f"{name}:{value}\n" for name, value in ordered)
        template = _Template(
            f"{lines}\n{names}\n{payload_hash}",
            f"AWS4-HMAC-SHA256\n{now.timestamp}\n{now.scope}\n",
            f"AWS4-HMAC-SHA256 Credential={self.credentials.access_key}/{now.scope}, SignedHeaders={names}, Signature=",
            tuple(added),
        )
        if len(now.templates) < MAX_TEMPLATES:
            now.templates[signed, payload_hash] = template
        return template

    def sign(
        self,
        method: str,
        path: str,
        query: str,
        headers: Sequence[tuple[str, str]],
        *,
        payload_hash: str,
        now: float,
    ) -> list[tuple[str, str]]:
        """`headers` with the date, payload hash, token and Authorization added.

        `path` and `query` are encoded, `query` sorted by name; `headers` begins with Host, has lower-case names, and those
        that begin with `x-amz-` are signed with it. `now` is the server's time in seconds since 1970.
        """
        this = self._at(int(now))
        signed = tuple([header for header in headers if header[0] == "host" or header[0].startswith("x-amz-")])
        template = self._template(this, signed, payload_hash)
        digest = hashlib.sha256(f"{method}\n{path}\n{query}\n{template.canonical}".encode()).hexdigest()
        signature = hmac.digest(this.key, (template.to_sign + digest).encode(), "sha256").hex()
        return [*headers, *template.added, ("authorization", template.authorization + signature)]
