"""What all tests share: an empty place on every scheme, and a way to look at it past the code under test."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import hypothesis
import pytest

from s3dlio import crc32c
from s3dlio.storage import memory
from s3dlio.storage.cloud import retry, wire

from .faults import FaultServer
from .servers import ACCESS_KEY, SECRET_KEY, SeaweedFS, shared_seaweedfs

pytest.register_assert_rewrite("tests.contract")
# A shared machine stalls now and then, which says nothing about the code.
hypothesis.settings.register_profile("no clock", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("no clock")

EXACT_SCHEMES = ("file", "direct", "memory")  # where a key is what it is: SeaweedFS tidies up `//` and `..`
SCHEMES = (*EXACT_SCHEMES, "s3")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=20, help="how often a save is killed in the tests of crashes")


@pytest.fixture
def no_crc32c(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if the package crc32c were not installed."""
    monkeypatch.setitem(sys.modules, "crc32c", None)
    crc32c.find.cache_clear()
    yield
    crc32c.find.cache_clear()


@pytest.fixture
def num_kills(request: pytest.FixtureRequest) -> int:
    """How often a save is killed."""
    return int(request.config.getoption("--kills"))


class Place(Protocol):
    """An empty prefix of a scheme, and raw access to it that goes around s3dlio."""

    root: str  # a URI that ends in a slash

    def put(self, key: str, data: bytes) -> None: ...

    def put_all(self, keys: list[str], data: bytes) -> None: ...

    def get(self, key: str) -> bytes | None: ...

    def keys(self) -> list[str]: ...


class LocalPlace:
    def __init__(self, scheme: str, folder: Path) -> None:
        self.folder = folder
        self.root = f"{scheme}://{folder}/"

    def put(self, key: str, data: bytes) -> None:
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def put_all(self, keys: list[str], data: bytes) -> None:
        for key in keys:
            self.put(key, data)

    def get(self, key: str) -> bytes | None:
        path = self.folder / key
        return path.read_bytes() if path.is_file() else None

    def keys(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())


class MemoryPlace:
    def __init__(self) -> None:
        bucket = f"test-{uuid.uuid4().hex}"
        self.root = f"memory://{bucket}/"
        self._store = memory.open_container("memory", bucket)

    def put(self, key: str, data: bytes) -> None:
        self._store.put(key, memoryview(data))

    def put_all(self, keys: list[str], data: bytes) -> None:
        for key in keys:
            self.put(key, data)

    def get(self, key: str) -> bytes | None:
        found = self._store._objects.get(key)
        return None if found is None else found.data

    def keys(self) -> list[str]:
        return sorted(self._store._objects)


class S3Place:
    """An empty prefix of a bucket, with boto3 as the second opinion."""

    def __init__(self, client: Any, bucket: str) -> None:
        self.client = client
        self.bucket = bucket
        self.prefix = f"{uuid.uuid4().hex}/"
        self.root = f"s3://{bucket}/{self.prefix}"

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=self.prefix + key, Body=data)

    def put_all(self, keys: list[str], data: bytes) -> None:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda key: self.put(key, data), keys))

    def get(self, key: str) -> bytes | None:
        try:
            answer = self.client.get_object(Bucket=self.bucket, Key=self.prefix + key)
        except self.client.exceptions.NoSuchKey:
            return None
        with answer["Body"] as body:
            data: bytes = body.read()
        return data

    def keys(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix)
        found = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
        return sorted(key.removeprefix(self.prefix) for key in found)

    def uploads(self) -> list[str]:
        """The keys of uploads that were neither completed nor aborted."""
        pending = self.client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", ())
        return [upload["Key"].removeprefix(self.prefix) for upload in pending if upload["Key"].startswith(self.prefix)]


def make_place(scheme: str, folder: Path) -> Place:
    return MemoryPlace() if scheme == "memory" else LocalPlace(scheme, folder)


@pytest.fixture(params=SCHEMES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place on every scheme in turn."""
    return _place_of(request, tmp_path)


@pytest.fixture(params=EXACT_SCHEMES)
def exact_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place on every scheme whose keys may hold anything."""
    return _place_of(request, tmp_path)


def _place_of(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "s3":
        place: S3Place = request.getfixturevalue("s3_place")
        return place
    folder = tmp_path / "place"
    folder.mkdir()
    return make_place(request.param, folder)


@pytest.fixture(params=("file", "direct"))
def local_place(request: pytest.FixtureRequest, tmp_path: Path) -> LocalPlace:
    """An empty folder, as file:// and as direct://."""
    folder = tmp_path / "place"
    folder.mkdir()
    return LocalPlace(request.param, folder)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """A SeaweedFS, started when the first test asks for it and shared with the other workers of the run."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with shared_seaweedfs(folder) as server:
        yield server


@pytest.fixture(scope="session")
def boto3_client(s3_server: SeaweedFS) -> Any:
    """A client that takes nothing from the environment."""
    return make_boto3_client(s3_server.url)


def make_boto3_client(url: str, **options: Any) -> Any:
    import boto3
    from botocore.config import Config

    config = Config(proxies={}, max_pool_connections=32, signature_version="s3v4", s3={"addressing_style": "path"})
    keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
    return boto3.client("s3", endpoint_url=url, region_name="us-east-1", config=config, **{**keys, **options})


@pytest.fixture(scope="session")
def s3_bucket(boto3_client: Any) -> str:
    """The bucket of all places of this process: the server needs 0.2 to 5 s for the first object of another one."""
    name = f"test-{uuid.uuid4().hex}"
    boto3_client.create_bucket(Bucket=name)
    boto3_client.put_object(Bucket=name, Key="first", Body=b"x")
    return name


@pytest.fixture
def s3_environment(s3_server: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> SeaweedFS:
    """The environment, and so that of children, says where `s3://` is, and nothing else of this machine does."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "S3DLIO_")) or name.lower().endswith(("_proxy", "_ca_bundle")):
            monkeypatch.delenv(name)
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    return s3_server


@pytest.fixture
def s3_place(s3_environment: SeaweedFS, boto3_client: Any, s3_bucket: str) -> S3Place:
    """An empty prefix on the S3 server."""
    return S3Place(boto3_client, s3_bucket)


@pytest.fixture
def new_bucket(s3_environment: SeaweedFS, boto3_client: Any) -> Iterator[str]:
    """The name of a bucket that is not there; what stands there afterwards is removed."""
    name = f"own-{uuid.uuid4().hex}"
    yield name
    if name in buckets(boto3_client):
        for entry in boto3_client.list_objects_v2(Bucket=name).get("Contents", ()):
            boto3_client.delete_object(Bucket=name, Key=entry["Key"])
        boto3_client.delete_bucket(Bucket=name)


def buckets(client: Any) -> set[str]:
    return {entry["Name"] for entry in client.list_buckets()["Buckets"]}


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """Permissions count for root, too: the test runs as another user where it was started by root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run code in a fresh interpreter, with a bound in seconds."""

    def run(code: str, *args: str, timeout: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", code, *args],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **environment},
            check=False,
        )

    return run


@pytest.fixture
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's settings: no keys, no endpoint, no proxy, no options."""
    for name in list(os.environ):
        if name.upper().startswith(("AWS_", "S3DLIO_")) or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)


@pytest.fixture
def faults(bare_environment: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    """A server that misbehaves on demand, where `s3://` is; its bucket is `bkt`."""
    with FaultServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server
    wire.close_idle()


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow at once, more or less: what the pauses are is a matter of test_retry.py."""
    monkeypatch.setattr(retry.Attempts, "_jittered", lambda self, num_failed: 0.005 * num_failed)


@pytest.fixture
def impatient(short_pauses: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails for ever is given up soon."""
    monkeypatch.setenv("S3DLIO_OPERATION_TIMEOUT_SECS", "0.4")
    monkeypatch.setenv("S3DLIO_READ_TIMEOUT_SECS", "0.3")
    monkeypatch.setenv("S3DLIO_CONNECT_TIMEOUT_SECS", "0.4")


def eventually(is_so: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Wait for what another thread does when it comes to it; False when it never does."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
