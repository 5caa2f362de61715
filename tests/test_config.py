"""Options come from the environment, checked, once per call."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable, Iterator

import pytest

import s3dlio
from s3dlio import config
from s3dlio.config import MIB, Options, launched_ranks, snapshot
from s3dlio.errors import ConfigError


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of ours, and no memory of what was warned about."""
    for name in config._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    config._warn_about_unknown_names.cache_clear()
    yield
    config._warn_about_unknown_names.cache_clear()


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("S3DLIO_ENABLE_RANGE_OPTIMIZATION", "0", "range_enabled", False),
        ("S3DLIO_ENABLE_RANGE_OPTIMIZATION", " TRUE ", "range_enabled", True),
        ("S3DLIO_RANGE_THRESHOLD_MB", "64", "range_threshold_bytes", 64 * MIB),
        ("S3DLIO_RANGE_CONCURRENCY", "32", "range_concurrency", 32),
        ("S3DLIO_CHUNK_SIZE", "16777216", "chunk_bytes", 16 * MIB),
        ("S3DLIO_WORKER_THREADS", "3", "worker_threads", 3),
        ("S3DLIO_RT_THREADS", "4", "worker_threads", 4),
        ("S3DLIO_BUFFER_POOL_MB", "0", "pool_bytes", 0),
    ],
)
def test_each_variable_sets_its_field(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, field: str, value: object
) -> None:
    monkeypatch.setenv(name, text)
    assert snapshot() == dataclasses.replace(Options(), **{field: value})  # type: ignore[arg-type]


def test_unset_and_empty_variables_give_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert snapshot() == Options()
    for name in config._VARIABLES:
        monkeypatch.setenv(name, "")
    assert snapshot() == Options()


def test_a_change_counts_from_the_next_call_on(monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot()
    monkeypatch.setenv("S3DLIO_CHUNK_SIZE", "5000")
    assert (before.chunk_bytes, snapshot().chunk_bytes) == (8 * MIB, 5000)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("S3DLIO_ENABLE_RANGE_OPTIMIZATION", "maybe"),
        ("S3DLIO_RANGE_THRESHOLD_MB", "0"),
        ("S3DLIO_RANGE_THRESHOLD_MB", "8MB"),
        ("S3DLIO_RANGE_CONCURRENCY", "-1"),
        ("S3DLIO_CHUNK_SIZE", "10"),
        ("S3DLIO_WORKER_THREADS", "1.5"),
        ("S3DLIO_BUFFER_POOL_MB", "-1"),
    ],
)
def test_a_value_that_cannot_be_read_is_named_by_the_call(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(name, text)
    s3dlio.put_bytes("memory://config/k", b"x")
    with pytest.raises(ConfigError, match=f"{name}='{text}'"):
        s3dlio.get("memory://config/k")


def test_an_unknown_variable_is_warned_about_once(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_python(
        "import warnings; warnings.simplefilter('always')\n"
        "import s3dlio\n"
        "s3dlio.put_bytes('memory://b/k', b'x')\n"
        "for _ in range(3): s3dlio.get('memory://b/k')",
        S3DLIO_NO_SUCH_THING="1",
        S3DLIO_URI="file:///x",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("S3DLIO_NO_SUCH_THING") == 1
    assert "S3DLIO_URI;" not in done.stderr


def test_an_unknown_variable_is_warned_about_by_a_program_that_only_writes_to_s3(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_python(
        "import warnings; warnings.simplefilter('always')\n"
        "import s3dlio\n"
        "for _ in range(2):\n"
        "    try: s3dlio.put_bytes('s3://b/k', b'x')\n"
        "    except s3dlio.S3dlioError: pass",
        S3DLIO_MAX_RETRY_ATTEMPT="1",  # a slip
        S3DLIO_MAX_RETRY_ATTEMPTS="1",
        AWS_ENDPOINT_URL="http://127.0.0.1:1",
        AWS_ACCESS_KEY_ID="key",
        AWS_SECRET_ACCESS_KEY="secret",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no effect: S3DLIO_MAX_RETRY_ATTEMPT;") == 1


def test_options_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().chunk_bytes = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("rank", "world_size", "expected"), [(None, None, (0, 1)), ("3", "8", (3, 8)), ("3", None, (0, 1)), ("", "", (0, 1))]
)
def test_the_launchers_ranks(
    monkeypatch: pytest.MonkeyPatch, rank: str | None, world_size: str | None, expected: tuple[int, int]
) -> None:
    for name, value in (("RANK", rank), ("WORLD_SIZE", world_size)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert launched_ranks() == expected


def test_a_rank_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="RANK='first'"):
        launched_ranks()


def test_limits_of_the_host_are_shared_by_its_ranks_and_their_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "_num_workers", 1)
    assert config.s3_options().max_connections == 0
    monkeypatch.setenv("S3DLIO_MAX_CONNECTIONS", "64")
    monkeypatch.setenv("S3DLIO_MAX_MB_PER_SECOND", "100")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    config.share_limits(2)
    options = config.s3_options()
    assert (options.max_connections, options.max_bytes_per_second) == (8, 100 * config.MIB // 8)
    config.share_limits(1000)
    assert config.s3_options().max_connections == 1
