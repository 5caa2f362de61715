"""What all tests share: an empty place on every scheme, and a way to look at it past the code under test."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from s3dlio.storage import memory
from s3dlio.storage.cloud import retry, wire

from .faults import FaultServer

SCHEMES = ("file", "direct", "memory")


class Place(Protocol):
    """An empty prefix of a scheme, and raw access to it that goes around s3dlio."""

    root: str  # a URI that ends in a slash

    def put(self, key: str, data: bytes) -> None: ...

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

    def get(self, key: str) -> bytes | None:
        found = self._store._objects.get(key)
        return None if found is None else found.data

    def keys(self) -> list[str]:
        return sorted(self._store._objects)


def make_place(scheme: str, folder: Path) -> Place:
    return MemoryPlace() if scheme == "memory" else LocalPlace(scheme, folder)


@pytest.fixture(params=SCHEMES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place on every scheme in turn."""
    folder = tmp_path / "place"
    folder.mkdir()
    return make_place(request.param, folder)


@pytest.fixture(params=("file", "direct"))
def local_place(request: pytest.FixtureRequest, tmp_path: Path) -> LocalPlace:
    """An empty folder, as file:// and as direct://."""
    folder = tmp_path / "place"
    folder.mkdir()
    return LocalPlace(request.param, folder)


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
