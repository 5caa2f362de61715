"""The options of a `PyBytesAsyncDataLoader`, from a dict with the guide's keys."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .. import config
from ..errors import ConfigError
from .bad_samples import OnError, checked_on_error

__all__ = ["LoaderOptions"]


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """What a loader was told. None: not told."""

    prefetch: int = 32  # objects in flight, or here and not yet consumed
    skip_head: bool | None = None  # True: no size is asked for; None: as S3DLIO_SKIP_HEAD says, which is True unless set
    batch_size: int | None = None  # iterate over lists of so many views; None: over views
    drop_last: bool = False  # leave out what fills no whole batch, or no whole step of all shards
    shuffle: bool = False
    seed: int = 0
    shard_rank: int = 0
    shard_world_size: int = 1
    part_size: int | None = None  # bytes of each further range of a large object
    max_inflight_parts: int | None = None  # ranges of one object at once
    reader_mode: str = "range"  # "sequential": one request per object, however large
    on_error: OnError = field(default="raise")

    @classmethod
    def of(cls, opts: Mapping[str, Any] | None) -> LoaderOptions:
        """Check `opts`. Raises ConfigError, which is a ValueError, and lists what there is."""
        if opts is None:
            return cls()
        if not isinstance(opts, Mapping):
            raise ConfigError(f"the options of a loader are a dict, not {type(opts).__name__}; {_known()}")
        unknown = [name for name in opts if name not in _KEYS]
        if unknown:
            raise ConfigError(f"a loader has no option {', '.join(map(repr, unknown))}; {_known()}")
        options = cls(**{name: _read(name, value) for name, value in opts.items()})
        if options.shard_rank >= options.shard_world_size:
            raise ConfigError(f"shard_rank={options.shard_rank} lies outside of [0, {options.shard_world_size})")
        return options

    def of_reads(self) -> config.Options:
        """The options by which objects are read: those of the environment, but for what was told here."""
        told: dict[str, Any] = {
            "skip_head": self.skip_head,
            "chunk_bytes": self.part_size,
            "range_concurrency": self.max_inflight_parts,
            "range_enabled": False if self.reader_mode == "sequential" else None,
        }
        return replace(config.snapshot(), **{name: value for name, value in told.items() if value is not None})


def _whole_number(minimum: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise ValueError
        number = operator.index(value)
        if number < minimum:
            raise ValueError
        return number

    return read


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _reader_mode(value: Any) -> str:
    if value not in ("range", "sequential"):
        raise ValueError
    return str(value)


# Key -> (what belongs there, how it is read).
_KEYS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "prefetch": ("int from 1 on", _whole_number(1)),
    "skip_head": ("bool", _boolean),
    "batch_size": ("int from 1 on, or None", _or_none(_whole_number(1))),
    "drop_last": ("bool", _boolean),
    "shuffle": ("bool", _boolean),
    "seed": ("int from 0 on", _whole_number(0)),
    "shard_rank": ("int from 0 on", _whole_number(0)),
    "shard_world_size": ("int from 1 on", _whole_number(1)),
    "part_size": ("int of bytes from 4096 on", _or_none(_whole_number(4096))),
    "max_inflight_parts": ("int from 1 on", _or_none(_whole_number(1))),
    "reader_mode": ("'range' or 'sequential'", _reader_mode),
    "on_error": ("'raise', 'skip' or a function of (uri, error)", checked_on_error),
}


def _read(name: str, value: Any) -> Any:
    wanted, read = _KEYS[name]
    try:
        return read(value)
    except ValueError:
        raise ConfigError(f"the option {name}={value!r} is not what belongs there: {wanted}; {_known()}") from None


def _known() -> str:
    return "the options are " + ", ".join(f"{name} ({wanted})" for name, (wanted, _) in _KEYS.items())
