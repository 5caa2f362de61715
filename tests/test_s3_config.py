"""Where `s3://` is and how it is reached: bad settings are one clear error each; TLS, proxies, IPv6."""

from __future__ import annotations

import socket
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import s3dlio
from s3dlio import errors
from s3dlio.storage import open_store
from s3dlio.storage.cloud import wire
from s3dlio.storage.cloud.s3 import S3Store
from s3dlio.uri import parse

from .faults import FaultServer, failing
from .proxy import Proxy
from .servers import free_ports, make_authority

VERBS: dict[str, Callable[[str], object]] = {
    "get": s3dlio.get,
    "get_many": lambda uri: s3dlio.get_many([uri, uri]),
    "stat": s3dlio.stat,
    "exists": s3dlio.exists,
    "list": s3dlio.list,
    "put_bytes": lambda uri: s3dlio.put_bytes(uri, b"data"),
    "delete": s3dlio.delete,
    "open_reader": s3dlio.open_reader,
}
every_verb = pytest.mark.parametrize("verb", VERBS)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("authority")
    make_authority(folder)
    return folder


@pytest.fixture
def tls(faults: FaultServer, authority: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    """A server whose certificate only `authority` vouches for."""
    with FaultServer(certificate=authority) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        yield server
    wire.close_idle()


@every_verb
def test_a_refused_connection_names_endpoint_and_uri(
    faults: FaultServer, impatient: None, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    with pytest.raises(errors.S3dlioError, match=f"s3://bkt/k: no connection to {url}"):
        VERBS[verb]("s3://bkt/k")


@pytest.mark.parametrize("verb", ["get", "get_many", "list"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_black_hole_is_given_up_after_the_connect_timeout(
    faults: FaultServer, impatient: None, monkeypatch: pytest.MonkeyPatch, verb: str, scheme: str
) -> None:
    """Nobody accepts: the queue of the listener is full (http), or nobody answers in it (https)."""
    with socket.create_server(("127.0.0.1", 0), backlog=0 if scheme == "http" else 9) as hole:
        port = hole.getsockname()[1]
        fillers = [socket.socket() for _ in range(4 if scheme == "http" else 0)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"{scheme}://127.0.0.1:{port}")
        with pytest.raises(errors.S3dlioError, match=f"s3://bkt/k: no connection to {scheme}://127.0.0.1:{port}"):
            VERBS[verb]("s3://bkt/k")
        for filler in fillers:
            filler.close()


def test_a_name_that_does_not_resolve_is_told(faults: FaultServer, impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://no-such-host.invalid:9")
    with pytest.raises(errors.S3dlioError, match=r"s3://bkt/k: no connection to http://no-such-host\.invalid:9"):
        s3dlio.get("s3://bkt/k")


@every_verb
def test_wrong_keys_are_denied_at_once(faults: FaultServer, verb: str) -> None:
    faults.decide = lambda request: failing(403, "InvalidAccessKeyId")
    with pytest.raises(errors.AccessDeniedError, match=r"s3://bkt/k.*403 InvalidAccessKeyId.*check the access key"):
        VERBS[verb]("s3://bkt/k")
    methods = [request.method for request in faults.requests]
    # A HEAD answer has no body, so it is asked again as a GET for the reason.
    expected = {"stat": ["HEAD", "GET"], "exists": ["HEAD", "GET"], "list": ["HEAD", "GET"], "put_bytes": ["PUT"]}
    if verb != "get_many":
        assert methods == expected.get(verb, ["DELETE" if verb == "delete" else "GET"])
    else:
        assert set(methods) == {"GET"}
        assert len(methods) <= 2


@every_verb
def test_a_missing_bucket_is_told(faults: FaultServer, verb: str) -> None:
    if verb == "exists":
        assert not s3dlio.exists("s3://missing/k")
    elif verb == "delete":
        with pytest.raises(errors.NotFoundError, match=r"s3://missing/k.*NoSuchBucket"):
            s3dlio.delete("s3://missing/k")
    else:
        with pytest.raises(errors.NotFoundError, match=r"s3://missing/k"):
            VERBS[verb]("s3://missing/k")


@pytest.mark.parametrize(
    "url", ["127.0.0.1:9000", "ftp://host", "http://", "http://host:port", "http://host:99999", "http://[::1", "https:/host"]
)
def test_an_endpoint_that_is_no_url_is_refused(faults: FaultServer, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    with pytest.raises(errors.ConfigError, match="endpoint"):
        s3dlio.get("s3://bkt/k")
    with pytest.raises(errors.ConfigError, match="endpoint"):
        s3dlio.configure_s3(endpoint_url=url)


def test_a_password_in_an_endpoint_or_proxy_is_not_shown(faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name, url in (
        ("AWS_ENDPOINT_URL", "http://user:hunter2@127.0.0.1:9"),
        ("AWS_ENDPOINT_URL", "http://user:hunter2@127.0.0.1:port"),
        ("HTTP_PROXY", "http://user:hunter2@127.0.0.1:port"),
        ("HTTP_PROXY", "socks5://user:hunter2@127.0.0.1:1080"),
        ("HTTP_PROXY", "https://user:hunter2@127.0.0.1:1080"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, url)
            if name == "HTTP_PROXY":
                patch.delenv("NO_PROXY")
                patch.setenv("AWS_ENDPOINT_URL", f"http://s3.invalid:{free_ports(1)[0]}")
            with pytest.raises(errors.ConfigError) as caught:
                s3dlio.get("s3://bkt/k")
        assert "127.0.0.1" in str(caught.value)
        assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_no_secret_is_in_any_error(faults: FaultServer, impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "faulttoken")
    texts = []
    for status, code in (
        (400, "ExpiredToken"),
        (403, "SignatureDoesNotMatch"),
        (404, "NoSuchKey"),
        (500, ""),
        (503, "SlowDown"),
    ):
        faults.decide = lambda request, status=status, code=code: failing(status, code)
        for name, verb in VERBS.items():
            if (name, status) in (("delete", 404), ("exists", 404)):
                continue
            with pytest.raises(errors.S3dlioError) as caught:
                verb("s3://bkt/k")
            texts += [*traceback.format_exception(caught.value), repr(caught.value)]
    assert "s3://bkt/k" in "".join(texts)
    for secret in ("faultsecret", "faulttoken", "Signature="):
        assert secret not in "".join(texts)


# TLS


@pytest.mark.parametrize("verb", ["get", "get_many", "put_bytes", "list"])
def test_an_untrusted_certificate_is_final_and_nothing_is_sent(tls: FaultServer, verb: str) -> None:
    with pytest.raises(errors.S3dlioError, match=rf"s3://bkt/k: the certificate of {tls.url} is not trusted.*AWS_CA_BUNDLE"):
        VERBS[verb]("s3://bkt/k")
    assert tls.requests == []


def test_a_private_authority_is_trusted_when_told(
    tls: FaultServer, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority / "ca.crt"))
    data = bytes(range(256)) * 20_000
    s3dlio.put_bytes("s3://bkt/k", data)
    assert bytes(s3dlio.get("s3://bkt/k")) == data
    assert [bytes(view) for view in s3dlio.get_many(["s3://bkt/k"] * 9)] == [data] * 9


def test_a_certificate_of_another_host_is_not_trusted(
    tls: FaultServer, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority / "ca.crt"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.2:{tls.port}")
    with pytest.raises(errors.S3dlioError, match="s3://bkt/k"):
        s3dlio.get("s3://bkt/k")
    assert tls.requests == []


def test_a_missing_or_broken_ca_file_is_told_by_name(
    tls: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    for path in (tmp_path / "missing.pem", broken):
        monkeypatch.setenv("AWS_CA_BUNDLE", str(path))
        with pytest.raises(errors.ConfigError, match=str(path)):
            s3dlio.get("s3://bkt/k")
    with pytest.raises(errors.ConfigError, match=r"missing\.pem"):
        s3dlio.configure_s3(ca_bundle=str(tmp_path / "missing.pem"))
    assert tls.requests == []


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_that_speaks_the_other_protocol_is_an_error(
    faults: FaultServer, tls: FaultServer, impatient: None, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    port = tls.port if scheme == "http" else faults.port
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"{scheme}://127.0.0.1:{port}")
    for verb in ("get", "get_many"):
        with pytest.raises(errors.S3dlioError, match="s3://bkt/k"):
            VERBS[verb]("s3://bkt/k")
    assert tls.requests == faults.requests == []


# Proxies and IPv6


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy"])
def test_requests_go_through_the_proxy(faults: FaultServer, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    faults.s3.put("k", b"data")
    with Proxy(instead=faults.port) as proxy:
        monkeypatch.setenv(name, f"http://{proxy.address}")
        host = f"s3.invalid:{faults.port}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}")
        for _ in range(3):
            assert bytes(s3dlio.get("s3://bkt/k")) == b"data"
        assert [bytes(view) for view in s3dlio.get_many(["s3://bkt/k"] * 3)] == [b"data"] * 3
        assert proxy.requests[0].startswith(f"CONNECT {host} HTTP/1.1\r\nhost: {host}\r\n")
        assert len(proxy.requests) <= 3
    assert faults.requests[0].headers["host"] == host
    wire.close_idle()


def test_user_and_password_are_for_the_proxy_alone(
    faults: FaultServer, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.s3.put("k", b"data")
    with Proxy(credentials=b64encode(b"user:p@ss").decode()) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://user:p%40ss@{proxy.address}")
        assert bytes(s3dlio.get("s3://bkt/k")) == b"data"
        assert "proxy-authorization" not in faults.requests[0].headers
        wire.close_idle()
    with Proxy(credentials="other") as proxy, FaultServer() as second:
        monkeypatch.setenv("AWS_ENDPOINT_URL", second.url)
        monkeypatch.setenv("HTTP_PROXY", f"http://user:p%40ss@{proxy.address}")
        with pytest.raises(errors.S3dlioError, match=r"s3://bkt/k: no connection.*407") as caught:
            s3dlio.get("s3://bkt/k")
        assert "p@ss" not in str(caught.value)


def test_no_proxy_is_honoured(faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    faults.s3.put("k", b"data")
    with Proxy() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://{proxy.address}")
        monkeypatch.setenv("NO_PROXY", "example.com,127.0.0.1")
        assert bytes(s3dlio.get("s3://bkt/k")) == b"data"
        assert proxy.requests == []


def test_tls_goes_through_the_proxy_unbroken(tls: FaultServer, authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls.s3.put("k", b"data")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority / "ca.crt"))
    with Proxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address}")
        assert bytes(s3dlio.get("s3://bkt/k")) == b"data"
        assert [bytes(view) for view in s3dlio.get_many(["s3://bkt/k"] * 3)] == [b"data"] * 3
        assert proxy.requests[0].startswith(f"CONNECT 127.0.0.1:{tls.port} ")
        wire.close_idle()


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
def test_an_ipv6_address_is_an_endpoint(faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with FaultServer(host="::1") as server:
        server.s3.put("k", b"data")
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        assert bytes(s3dlio.get("s3://bkt/k")) == b"data"
        assert [bytes(view) for view in s3dlio.get_many(["s3://bkt/k"] * 3)] == [b"data"] * 3
        assert server.requests[0].headers["host"] == f"[::1]:{server.port}"
        wire.close_idle()


def test_an_endpoint_with_a_path_is_refused_and_no_password_is_shown() -> None:
    with pytest.raises(errors.ConfigError, match="has a path"):
        s3dlio.configure_s3(endpoint_url="https://gateway.example.com/s3/prefix")
    for url in ("ftp://user:TOPSECRET@host", "https://user:TOPSECRET@host:99999", "https://user:TOPSECRET@host"):
        with pytest.raises(errors.ConfigError) as caught:
            s3dlio.configure_s3(endpoint_url=url)
        assert "TOPSECRET" not in str(caught.value)


def test_a_setting_with_a_line_break_is_named(faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "secret-token\n")
    with pytest.raises(errors.ConfigError, match="AWS_SESSION_TOKEN") as caught:
        s3dlio.get("s3://bkt/k")
    assert "secret-token" not in str(caught.value)


def test_payer_and_encryption_are_told_and_signed(faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REQUEST_PAYER", "requester")
    monkeypatch.setenv("AWS_SERVER_SIDE_ENCRYPTION", "aws:kms")
    monkeypatch.setenv("AWS_SSE_KMS_KEY_ID", "key-1")
    s3dlio.put_bytes("s3://bkt/k", b"data")
    assert s3dlio.get("s3://bkt/k") == b"data"
    put, get = faults.requests
    told = {
        "x-amz-request-payer": "requester",
        "x-amz-server-side-encryption": "aws:kms",
        "x-amz-server-side-encryption-aws-kms-key-id": "key-1",
    }
    assert {name: put.headers.get(name) for name in told} == told
    assert all(name in put.headers["authorization"] for name in told)
    assert get.headers["x-amz-request-payer"] == "requester"
    assert "x-amz-server-side-encryption" not in get.headers


def test_an_older_version_is_asked_for_in_every_request(faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3DLIO_RANGE_THRESHOLD_MB", "1")
    data = bytes(range(250)) * 20_000
    faults.s3.put("k", data)
    assert s3dlio.get("s3://bkt/k", version_id="v 1+") == data
    assert s3dlio.get_range("s3://bkt/k", 5, 10, version_id="v 1+") == data[5:15]
    assert s3dlio.stat("s3://bkt/k", version_id="v 1+")["size"] == len(data)
    assert len(faults.requests) > 3
    assert {request.query.get("versionId") for request in faults.requests} == {"v 1+"}


def test_a_bucket_may_be_part_of_the_hosts_name(faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "1")
    store = open_store(parse("s3://bkt/k"))
    assert isinstance(store, S3Store)
    request = store.signed("GET", "a/k")
    assert request.target == "/a/k"
    assert f"host: bkt.127.0.0.1:{faults.port}\r\n" in request.headers
