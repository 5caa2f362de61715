"""Every environment variable and option, with unit and default: the only reader of `os.environ`.

| variable | field | default |
|---|---|---|
| `S3DLIO_ENABLE_RANGE_OPTIMIZATION` | `range_enabled` | on: large objects come as parallel ranges |
| `S3DLIO_RANGE_THRESHOLD_MB` | `range_threshold_bytes` | 32 MiB: the length of the first request |
| `S3DLIO_RANGE_CONCURRENCY` | `range_concurrency` | 8 ranges of one object in flight |
| `S3DLIO_CHUNK_SIZE` | `chunk_bytes` | 8 MiB: the length of each further range |
| `S3DLIO_WORKER_THREADS`, `S3DLIO_RT_THREADS` | `worker_threads` | 16 I/O threads at most |
| `S3DLIO_BUFFER_POOL_MB` | `pool_bytes` | 256 MiB of buffers kept for re-use |
| `S3DLIO_SKIP_HEAD` | `skip_head` | on: reading never asks for the size first; off: it does, by a HEAD |

The transport to object stores:

| variable | field | default |
|---|---|---|
| `S3DLIO_MAX_RETRY_ATTEMPTS` | `max_attempts` | 6 attempts per request |
| `S3DLIO_CONNECT_TIMEOUT_SECS` | `connect_timeout` | 10 s until an unreachable server is given up |
| `S3DLIO_READ_TIMEOUT_SECS` | `stall_timeout` | 20 s without a byte end an attempt |
| `S3DLIO_OPERATION_TIMEOUT_SECS` | `operation_timeout` | 60 s: no retry begins later |
| `S3DLIO_MAX_CONNECTIONS` | `max_connections` | 0: 256 connections of each process to one server |
| `S3DLIO_MAX_MB_PER_SECOND` | `max_bytes_per_second` | 0: no limit |

The last two are limits of the host: the ranks that a launcher started on it (LOCAL_WORLD_SIZE) and the DataLoader workers
of each (`share_limits`) get equal parts.

S3 (`s3_options`): `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`, `AWS_REGION` or `AWS_DEFAULT_REGION`, `AWS_CA_BUNDLE`,
`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_PROFILE`, `AWS_SKIP_SIGNATURE` (anonymous),
`AWS_REQUEST_PAYER`, `AWS_VIRTUAL_HOSTED_STYLE_REQUEST`, `AWS_SERVER_SIDE_ENCRYPTION`, `AWS_SSE_KMS_KEY_ID`,
`AWS_REQUEST_CHECKSUM_CALCULATION`, `AWS_RESPONSE_CHECKSUM_VALIDATION` (`when_supported`, `when_required`),
`S3DLIO_UNSIGNED_PAYLOAD` (on: bodies are protected by a checksum instead of a SHA-256 signature), and the proxies
`HTTP_PROXY`, `HTTPS_PROXY`, `NO_PROXY`.

An unknown `S3DLIO_*` variable is warned about once per process.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import SplitResult, urlsplit

from .errors import ConfigError
from .loading import gate

__all__ = [
    "MIB",
    "Options",
    "S3Options",
    "TransportOptions",
    "check_endpoint",
    "launched_ranks",
    "pool_bytes",
    "proxy_of",
    "s3_options",
    "set_s3_environment",
    "set_worker_threads",
    "share_limits",
    "snapshot",
]

MIB = 1024 * 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """One consistent view of the environment, taken once per public call."""

    range_enabled: bool = True
    range_threshold_bytes: int = 32 * MIB
    range_concurrency: int = 8
    chunk_bytes: int = 8 * MIB
    worker_threads: int = 16
    pool_bytes: int = 256 * MIB
    skip_head: bool = True


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """How requests to a server are made. Times in seconds; 0 in the last two means that the user sets no limit."""

    max_attempts: int = 6
    connect_timeout: float = 10.0
    stall_timeout: float = 20.0
    operation_timeout: float = 60.0
    max_connections: int = 0
    max_bytes_per_second: int = 0


@dataclass(frozen=True, slots=True)
class S3Options(TransportOptions):
    """What `s3://` needs to know. No secret is shown by its repr."""

    endpoint_url: str | None = field(default=None, repr=False)
    region: str | None = None
    ca_bundle: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    profile: str | None = None
    anonymous: bool = False
    request_payer: str | None = None
    virtual_hosted: bool | None = None
    encryption: str | None = None
    encryption_key_id: str | None = None
    request_checksums: str = "when_supported"
    response_checksums: str = "when_supported"
    unsigned_payload: bool = True

    @property
    def transport(self) -> TransportOptions:
        """The part that says how requests are made: it is the same before and after new credentials."""
        return TransportOptions(*(getattr(self, entry.name) for entry in fields(TransportOptions)))


_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _boolean(name: str, text: str) -> bool:
    try:
        return _WORDS[text.strip().lower()]
    except KeyError:
        raise ConfigError(f"{name}={text!r} is neither true nor false: use one of {', '.join(_WORDS)}") from None


def _whole_number(minimum: int, unit: int) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ConfigError(f"{name}={text!r} is no whole number") from None
        if number < minimum:
            raise ConfigError(f"{name}={text!r} is too small: {minimum} at least")
        return number * unit

    return read


def _seconds(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.001 <= number <= 1e6:
        raise ConfigError(f"{name}={text!r} is no number of seconds from 0.001 to a million")
    return number


def _text(name: str, text: str) -> str:
    if not text.isprintable():
        raise ConfigError(f"{name} holds a line break or another character that cannot be sent: set it again without")
    return text


def _choice(*choices: str) -> Callable[[str, str], str]:
    def read(name: str, text: str) -> str:
        if text.lower() not in choices:
            raise ConfigError(f"{name}={text!r} is none of {', '.join(choices)}")
        return text.lower()

    return read


_Variables: TypeAlias = dict[str, tuple[str, Callable[[str, str], Any]]]

# Of two variables for one field the later one counts.
_VARIABLES: _Variables = {
    "S3DLIO_ENABLE_RANGE_OPTIMIZATION": ("range_enabled", _boolean),
    "S3DLIO_RANGE_THRESHOLD_MB": ("range_threshold_bytes", _whole_number(1, MIB)),
    "S3DLIO_RANGE_CONCURRENCY": ("range_concurrency", _whole_number(1, 1)),
    "S3DLIO_CHUNK_SIZE": ("chunk_bytes", _whole_number(4096, 1)),
    "S3DLIO_RT_THREADS": ("worker_threads", _whole_number(1, 1)),
    "S3DLIO_WORKER_THREADS": ("worker_threads", _whole_number(1, 1)),
    "S3DLIO_BUFFER_POOL_MB": ("pool_bytes", _whole_number(0, MIB)),
    "S3DLIO_SKIP_HEAD": ("skip_head", _boolean),
}
_POOL_VARIABLES = {name: _VARIABLES[name] for name in ("S3DLIO_BUFFER_POOL_MB",)}
_TRANSPORT_VARIABLES: _Variables = {
    "S3DLIO_MAX_RETRY_ATTEMPTS": ("max_attempts", _whole_number(1, 1)),
    "S3DLIO_CONNECT_TIMEOUT_SECS": ("connect_timeout", _seconds),
    "S3DLIO_READ_TIMEOUT_SECS": ("stall_timeout", _seconds),
    "S3DLIO_OPERATION_TIMEOUT_SECS": ("operation_timeout", _seconds),
    "S3DLIO_MAX_CONNECTIONS": ("max_connections", _whole_number(0, 1)),
    "S3DLIO_MAX_MB_PER_SECOND": ("max_bytes_per_second", _whole_number(0, MIB)),
}
_CHECKSUM_MODES = _choice("when_supported", "when_required")
_S3_VARIABLES: _Variables = {
    **_TRANSPORT_VARIABLES,
    "AWS_ENDPOINT_URL": ("endpoint_url", _text),
    "AWS_ENDPOINT_URL_S3": ("endpoint_url", _text),
    "AWS_DEFAULT_REGION": ("region", _text),
    "AWS_REGION": ("region", _text),
    "AWS_CA_BUNDLE": ("ca_bundle", _text),
    "AWS_ACCESS_KEY_ID": ("access_key", _text),
    "AWS_SECRET_ACCESS_KEY": ("secret_key", _text),
    "AWS_SESSION_TOKEN": ("session_token", _text),
    "AWS_PROFILE": ("profile", _text),
    "AWS_SKIP_SIGNATURE": ("anonymous", _boolean),
    "AWS_REQUEST_PAYER": ("request_payer", _text),
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": ("virtual_hosted", _boolean),
    "AWS_SERVER_SIDE_ENCRYPTION": ("encryption", _text),
    "AWS_SSE_KMS_KEY_ID": ("encryption_key_id", _text),
    "AWS_REQUEST_CHECKSUM_CALCULATION": ("request_checksums", _CHECKSUM_MODES),
    "AWS_RESPONSE_CHECKSUM_VALIDATION": ("response_checksums", _CHECKSUM_MODES),
    "S3DLIO_UNSIGNED_PAYLOAD": ("unsigned_payload", _boolean),
}
# Read by the recipes, not by the package.
_KNOWN_ELSEWHERE = {"S3DLIO_URI"}


class _Reader(Generic[T]):
    """Options made of environment variables, and used again for as long as the environment says the same.

    A look through `os.environ` encodes the name each time, which costs half of a small GET for thirty of them. The
    dictionary behind it is asked instead, by names that are encoded once; what it holds is decoded only when it changes.
    """

    def __init__(self, variables: Iterable[str], make: Callable[[tuple[str | None, ...]], T]) -> None:
        self._names = tuple(variables)
        self._keys = tuple(map(os.environ.encodekey, self._names))
        self._make = make
        self._known: tuple[tuple[Any, ...], T] | None = None  # replaced as a whole: threads see one state

    def __call__(self) -> T:
        raw = getattr(os.environ, "_data", None)
        values = tuple(map(os.environ.get, self._names) if raw is None else map(raw.get, self._keys))
        known = self._known
        if known is None or known[0] != values:
            decoded = tuple(value if value is None or raw is None else os.environ.decodevalue(value) for value in values)
            self._known = known = (values, self._make(decoded))
        return known[1]

    def forget(self) -> None:
        """Make the options anew, even if the environment says the same."""
        self._known = None


def snapshot() -> Options:
    """The options as the environment has them now. Raises ConfigError for a value that cannot be read."""
    _warn_about_unknown_names()
    return _read_options()


def pool_bytes() -> int:
    """How much memory the pool of buffers may keep, as the environment has it now."""
    return _read_pool_options().pool_bytes


def s3_options() -> S3Options:
    """The options of `s3://` as the environment has them now. Raises ConfigError for a value that cannot be read."""
    _warn_about_unknown_names()
    return _read_s3_options()


def _made_s3_options(values: tuple[str | None, ...]) -> S3Options:
    *values_of_options, local_ranks = values
    num_local = _whole_number(1, 1)(_LOCAL_RANKS, local_ranks) if local_ranks else 1
    num_sharing = _num_workers * num_local
    options = S3Options(**_fields(_S3_VARIABLES, values_of_options))
    return replace(
        options,
        max_connections=options.max_connections and max(1, options.max_connections // num_sharing),
        max_bytes_per_second=options.max_bytes_per_second and max(1, options.max_bytes_per_second // num_sharing),
    )


_read_options = _Reader(_VARIABLES, lambda values: Options(**_fields(_VARIABLES, values)))
_read_pool_options = _Reader(_POOL_VARIABLES, lambda values: Options(**_fields(_POOL_VARIABLES, values)))
_LOCAL_RANKS = "LOCAL_WORLD_SIZE"
_read_s3_options = _Reader((*_S3_VARIABLES, _LOCAL_RANKS), _made_s3_options)
_num_workers = 1


def share_limits(num_workers: int) -> None:
    """This process is one of `num_workers` that share the limits of one process."""
    global _num_workers
    _num_workers = max(1, num_workers)
    _read_s3_options.forget()


def _fields(variables: _Variables, values: Sequence[str | None]) -> dict[str, Any]:
    return {field: read(name, text) for (name, (field, read)), text in zip(variables.items(), values, strict=True) if text}


def proxy_of(scheme: str, host: str) -> str | None:
    """The URL of the proxy for `host`, as HTTP_PROXY, HTTPS_PROXY and NO_PROXY (or lower case) tell."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    with gate:
        from urllib.request import getproxies_environment, proxy_bypass

    return None if proxy_bypass(host) else getproxies_environment().get(scheme)


def check_endpoint(url: str) -> SplitResult:
    """The parts of the URL of a server. Raises ConfigError, without showing a password, when it is none."""
    shown = "***@" + url.rpartition("@")[2] if "@" in url else url
    problem = ConfigError(f"the endpoint {shown!r} is no URL such as 'https://host:9000'")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise problem from None
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or port == 0:
        raise problem
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise ConfigError(
            f"the endpoint {shown!r} has a path, which no S3 server has: write {parts.scheme}://{parts.netloc}"
        )
    return parts


def set_worker_threads(num_threads: int) -> None:
    """Let this process and its children make at most so many I/O threads. Raises ConfigError for less than one."""
    _VARIABLES["S3DLIO_WORKER_THREADS"][1]("S3DLIO_WORKER_THREADS", str(num_threads))
    os.environ["S3DLIO_WORKER_THREADS"] = str(num_threads)


def set_s3_environment(*, endpoint_url: str | None, region: str | None, ca_bundle: str | None) -> None:
    """Let every later operation of this process and its children use these; None leaves a setting as it is."""
    settings = {
        ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"): endpoint_url,
        ("AWS_DEFAULT_REGION", "AWS_REGION"): region,
        ("AWS_CA_BUNDLE", "AWS_CA_BUNDLE"): ca_bundle,
    }
    for (name, stronger), value in settings.items():
        if value is not None:
            os.environ[name] = value
            if stronger in os.environ:
                os.environ[stronger] = value


@lru_cache(maxsize=1)
def _warn_about_unknown_names() -> None:
    known = {name for name in (*_VARIABLES, *_S3_VARIABLES, *_KNOWN_ELSEWHERE) if name.startswith("S3DLIO_")}
    unknown = sorted(name for name in os.environ if name.startswith("S3DLIO_") and name not in known)
    if unknown:
        warnings.warn(
            f"these environment variables have no effect: {', '.join(unknown)}; s3dlio reads {', '.join(sorted(known))}",
            stacklevel=4,
        )


def launched_ranks() -> tuple[int, int]:
    """(rank, world size) as a launcher such as torchrun tells them by RANK and WORLD_SIZE; (0, 1) without one."""
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if not rank or not world_size:
        return 0, 1
    return _whole_number(0, 1)("RANK", rank), _whole_number(1, 1)("WORLD_SIZE", world_size)
