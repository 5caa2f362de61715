"""Who asks: keys of the environment, nobody, or the SDK's own chain, which is asked a few times only."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import s3dlio
from s3dlio import config, errors
from s3dlio.storage.cloud import credentials
from s3dlio.storage.cloud.credentials import Provider

from .fake_s3 import Request
from .faults import Fault, FaultServer, failing

pytestmark = pytest.mark.usefixtures("short_pauses")


class Issuer:
    """A container's credentials server: gives key A a few times, then key B."""

    def __init__(self, num_old: int) -> None:
        self.num_asked = 0
        issuer, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with lock:
                    issuer.num_asked += 1
                    name = "A" if issuer.num_asked <= num_old else "B"
                expiry = datetime.now(UTC) + (timedelta(seconds=60) if name == "A" else timedelta(hours=6))
                facts = {
                    "AccessKeyId": f"key{name}",
                    "SecretAccessKey": f"secret{name}",
                    "Token": f"token{name}",
                    "Expiration": expiry.strftime("%Y-%m-%dT%H:%M:%SZ"),
                }
                body = json.dumps(facts).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/credentials"

    def __enter__(self) -> Issuer:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def chain(faults: FaultServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[int], Issuer]]:
    """No keys in the environment and no profile, but a container's credentials server."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    for name, value in (
        ("AWS_CONFIG_FILE", str(tmp_path / "config")),
        ("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials")),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ):
        monkeypatch.setenv(name, value)
    credentials.provider_of.cache_clear()
    issuers: list[Issuer] = []

    def start(num_old: int) -> Issuer:
        issuers.append(Issuer(num_old).__enter__())
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", issuers[-1].url)
        return issuers[-1]

    yield start
    for issuer in issuers:
        issuer.__exit__()
    credentials.provider_of.cache_clear()


def expiring(after: int) -> Callable[[Request], Fault | None]:
    """The server takes key A for so many requests and then calls its token expired."""
    left = iter(range(after))
    lock = threading.Lock()

    def decide(request: Request) -> Fault | None:
        if request.scope[0] == "keyB":
            return None if request.headers.get("x-amz-security-token") == "tokenB" else failing(403, "InvalidToken")
        with lock:
            return None if next(left, None) is not None else failing(400, "ExpiredToken")

    return decide


def test_an_expired_token_is_renewed_for_all_that_is_under_way(faults: FaultServer, chain: Callable[[int], Issuer]) -> None:
    issuer = chain(2)
    for number in range(200):
        faults.s3.put(f"o/{number}", str(number).encode())
    faults.decide = expiring(5)
    views = s3dlio.get_many([f"s3://bkt/o/{number}" for number in range(200)])
    assert [bytes(view) for view in views] == [str(number).encode() for number in range(200)]
    assert {request.scope[0] for request in faults.requests} == {"keyA", "keyB"}
    assert faults.requests[-1].scope[0] == "keyB"
    assert issuer.num_asked <= 5
    s3dlio.stat("s3://bkt/o/1")
    s3dlio.list("s3://bkt/o/")
    assert issuer.num_asked <= 5


WORKERS_CODE = """
import os, sys, s3dlio
s3dlio.get("s3://bkt/o/0")
children = []
for worker in range(16):
    child = os.fork()
    if child == 0:
        uris = [f"s3://bkt/o/{number}" for number in range(worker, 200, 16)]
        good = [bytes(view) for view in s3dlio.get_many(uris)] == [uri.rpartition("/")[2].encode() for uri in uris]
        os._exit(0 if good else 1)
    children.append(child)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""


def test_forked_workers_each_ask_a_few_times(
    faults: FaultServer, chain: Callable[[int], Issuer], run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    issuer = chain(2)  # the parent's question, and its refresh: a child that asks gets the new key, whenever it does
    for number in range(200):
        faults.s3.put(f"o/{number}", str(number).encode())
    faults.decide = expiring(5)
    done = run_python(WORKERS_CODE, PYTHONPATH=str(Path(s3dlio.__file__).parent.parent))
    assert done.returncode == 0, done.stderr
    assert issuer.num_asked <= 17 * 3
    assert faults.requests[-1].scope[0] == "keyB"


def test_a_chain_without_credentials_is_one_clear_error_without_a_request(
    faults: FaultServer, chain: Callable[[int], Issuer], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(errors.AccessDeniedError, match=r"s3://bkt/k: found no credentials.*AWS_ACCESS_KEY_ID"):
        s3dlio.get("s3://bkt/k")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(errors.AccessDeniedError, match=r"s3://bkt/k.*nobody"):
        s3dlio.get("s3://bkt/k")
    assert faults.requests == []


def test_anonymous_requests_are_not_signed(
    faults: FaultServer, chain: Callable[[int], Issuer], monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer = chain(1)
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    faults.s3.put("k", b"data")
    assert bytes(s3dlio.get("s3://bkt/k")) == b"data"
    assert "authorization" not in faults.requests[0].headers
    assert "x-amz-date" not in faults.requests[0].headers
    assert issuer.num_asked == 0


def test_static_keys_are_never_renewed(faults: FaultServer) -> None:
    faults.decide = lambda request: failing(400, "ExpiredToken")
    with pytest.raises(errors.AccessDeniedError, match=r"s3://bkt/k: 400 ExpiredToken.*get new credentials"):
        s3dlio.get("s3://bkt/k")
    assert len(faults.requests) == 1


def test_a_session_token_of_the_environment_is_sent(faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "the-token")
    faults.s3.put("k", b"data")
    s3dlio.get("s3://bkt/k")
    assert faults.requests[0].headers["x-amz-security-token"] == "the-token"
    assert "x-amz-security-token" in faults.requests[0].headers["authorization"]


def test_half_a_key_is_refused(faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(errors.ConfigError, match="AWS_SECRET_ACCESS_KEY is not"):
        s3dlio.get("s3://bkt/k")


NO_SDK_CODE = """
import sys, s3dlio
s3dlio.put_bytes("s3://bkt/k", b"data")
assert bytes(s3dlio.get("s3://bkt/k")) == b"data"
assert s3dlio.list("s3://bkt/") == ["s3://bkt/k"]
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("boto3", "botocore", "torch", "urllib3")))
"""


def test_keys_of_the_environment_need_no_sdk(
    faults: FaultServer, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = run_python(NO_SDK_CODE, PYTHONPATH=str(Path(s3dlio.__file__).parent.parent))
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_nothing_that_holds_a_secret_shows_it() -> None:
    options = config.S3Options(access_key="AKID", secret_key="very-secret", session_token="secret-token")
    provider = Provider(options)
    assert "secret" not in repr(options) + str(options) + repr(provider) + repr(provider.current())
