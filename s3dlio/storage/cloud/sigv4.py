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


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key. No secret is shown by its repr."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


class _State(NamedTuple):
    """What does not change within a second; the key not within a day."""

    second: int
    timestamp: str
    scope: str
    key: bytes


class Signer:
    """Signs requests of one region with one set of credentials."""

    def __init__(self, credentials: Credentials, region: str) -> None:
        self.credentials = credentials
        self.region = region
        self._state = _State(-1, "", "", b"")  # replaced as a whole, so that threads see one second's state

    def _state_at(self, second: int) -> _State:
        state = self._state
        if state.second == second:
            return state
        timestamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        day = timestamp[:8]
        if day == state.timestamp[:8]:
            key = state.key
        else:
            key = f"AWS4{self.credentials.secret_key}".encode()
            for part in (day, self.region, "s3", "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
        self._state = state = _State(second, timestamp, f"{day}/{self.region}/s3/aws4_request", key)
        return state

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
        state = self._state_at(int(now))
        timestamp, scope = state.timestamp, state.scope
        signed = [header for header in headers if header[0] == "host" or header[0].startswith("x-amz-")]
        added = [("x-amz-content-sha256", payload_hash), ("x-amz-date", timestamp)]
        if self.credentials.session_token:
            added.append(("x-amz-security-token", self.credentials.session_token))
        signed = sorted(signed + added)
        names = ";".join(name for name, _ in signed)
        canonical_headers = "".join(f"{name}:{value}\n" for name, value in signed)
        canonical = f"{method}\n{path}\n{query}\n{canonical_headers}\n{names}\n{payload_hash}"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{timestamp}\n{scope}\n{digest}"
        signature = hmac.digest(state.key, text.encode(), "sha256").hex()
        credential = f"{self.credentials.access_key}/{scope}"
        authorization = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
        return [*headers, *added, ("authorization", authorization)]
