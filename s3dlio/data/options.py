"""The options of a `PyBytesAsyncDataLoader`, from a dict with the guide's keys."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .. import config
from ..errors import ConfigError
from .bad_samples import OnError, checked_on_error

__all__ = ["LARGEST", "LoaderOptions", "callable_or_none", "true_or_false", "whole_number"]

LARGEST = 2**31 - 1  # of what counts objects in memory, or ranks


def whole_number(name: str, value: Any, smallest: int, largest: int | None = LARGEST) -> int:
    """`value` as an int. Raises ConfigError when it is no whole number between these."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise ConfigError(f"{name} is a whole number, not {value!r}")
    if number < smallest:
        raise ConfigError(f"{name}={number} is too small: {smallest} at least")
    if largest is not None and number > largest:
        raise ConfigError(f"{name}={number} is too large: {largest} at most")
    return number


def true_or_false(name: str, value: Any) -> bool:
    """`value` as a bool: no text, which would count as True. Raises ConfigError."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise ConfigError(f"{name} is True or False, not {value!r}")


def callable_or_none(name: str, value: Any) -> Any:
    """`value` itself. Raises ConfigError when it is something else than a function or None."""
    if value is None or callable(value):
        return value
    raise ConfigError(f"{name} is a function or None, not {value!r}")


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


def _whole_number(smallest: int, largest: int | None = LARGEST) -> Callable[[Any], int]:
    return lambda value: whole_number("", value, smallest, largest)


def _boolean(value: Any) -> bool:
    return true_or_false("", value)


def _or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _reader_mode(value: Any) -> str:
    if not isinstance(value, str) or value not in ("range", "sequential"):
        raise ValueError
    return str(value)


# Key -> (what belongs there, how it is read).
_KEYS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "prefetch": ("int from 1 on", _whole_number(1)),
    "skip_head": ("bool", _boolean),
    "batch_size": ("int from 1 on, or None", _or_none(_whole_number(1))),
    "drop_last": ("bool", _boolean),
    "shuffle": ("bool", _boolean),
    "seed": ("int from 0 on", _whole_number(0, None)),
    "shard_rank": ("int from 0 on", _whole_number(0)),
    "shard_world_size": ("int from 1 on", _whole_number(1)),
    "part_size": ("int of bytes from 4096 on", _or_none(_whole_number(4096, None))),
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
