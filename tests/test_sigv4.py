"""Signatures: equal to botocore's for anything that can be asked."""

from __future__ import annotations

import calendar
from datetime import UTC, datetime
from unittest import mock

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as TheirCredentials
from hypothesis import given, settings
from hypothesis import strategies as st

from s3dlio.storage.cloud.s3 import encoded
from s3dlio.storage.cloud.sigv4 import UNSIGNED, Credentials, Signer

TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=30)
VALUE = st.text('abcdefghijklmnopqrstuvwxyz0123456789=/+-_"*:', min_size=1, max_size=20)
DAYS = st.datetimes(datetime(2000, 1, 1), datetime(2099, 12, 31))
HASHES = st.sampled_from([UNSIGNED, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"])


def theirs(
    credentials: Credentials,
    region: str,
    method: str,
    url: str,
    headers: dict[str, str],
    payload: str,
    moment: datetime,
) -> str:
    request = AWSRequest(method, url, headers=headers)
    request.headers["X-Amz-Content-SHA256"] = payload
    keys = TheirCredentials(credentials.access_key, credentials.secret_key, credentials.session_token)
    signer = S3SigV4Auth(keys, "s3", region)
    with (
        mock.patch.object(signer, "payload", return_value=payload),
        mock.patch("botocore.auth.get_current_datetime", return_value=moment),
    ):
        signer.add_auth(request)
    return str(request.headers["Authorization"])


def fields(lines: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in lines.splitlines())


def signature(authorization: str) -> str:
    return authorization.rpartition("Signature=")[2]


@settings(max_examples=300, deadline=None)
@given(
    method=st.sampled_from(["GET", "PUT", "HEAD", "POST", "DELETE"]),
    key=TEXT,
    query=st.dictionaries(TEXT, TEXT | st.just(""), max_size=4),
    extra=st.dictionaries(st.sampled_from(["x-amz-meta-a", "x-amz-acl", "x-amz-request-payer"]), VALUE, max_size=3),
    token=st.none() | VALUE,
    secret=VALUE,
    region=st.sampled_from(["us-east-1", "eu-west-3", "auto"]),
    payload=HASHES,
    moment=DAYS,
)
def test_signatures_equal_those_of_botocore(
    method: str,
    key: str,
    query: dict[str, str],
    extra: dict[str, str],
    token: str | None,
    secret: str,
    region: str,
    payload: str,
    moment: datetime,
) -> None:
    moment = moment.replace(microsecond=0, tzinfo=UTC)
    credentials = Credentials("AKID", secret, token)
    path = "/bkt/" + encoded(key)
    pairs = sorted((encoded(name, False), encoded(value, False)) for name, value in query.items())
    text = "&".join(f"{name}={value}" for name, value in pairs)
    headers = (("host", "localhost:9000"), *extra.items())
    ours = Signer(credentials, region).sign(
        method, path, text, headers, payload_hash=payload, now=float(calendar.timegm(moment.timetuple()))
    )
    url = f"http://localhost:9000{path}" + (f"?{text}" if text else "")
    expected = theirs(credentials, region, method, url, dict(headers[1:]), payload, moment)
    assert signature(fields(ours)["authorization"]) == signature(expected)


def test_the_key_of_a_signer_changes_with_the_day_and_only_then() -> None:
    credentials = Credentials("AKID", "secret")
    signer = Signer(credentials, "us-east-1")
    for now in (1e9, 1e9 + 1, 1e9 + 86_400, 1e9, 1e9 + 400 * 86_400):
        arguments = ("GET", "/b/k", "", (("host", "h"),))
        fresh = Signer(credentials, "us-east-1").sign(*arguments, payload_hash=UNSIGNED, now=now)
        assert signer.sign(*arguments, payload_hash=UNSIGNED, now=now) == fresh
        assert fields(fresh)["x-amz-date"] == datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")


def test_no_secret_is_shown_by_a_repr() -> None:
    credentials = Credentials("AKID", "very-secret", "secret-token")
    assert "secret" not in repr(credentials) + str(credentials) + repr(Signer(credentials, "r"))
