"""The options of a Parquet loader, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ... import config
from ...errors import ConfigError
from ..bad_samples import OnError, checked_on_error
from ..options import LARGEST, true_or_false, whole_number
from .items import FINISHERS, Decode

__all__ = ["ParquetOptions"]

_RANGES: Mapping[str, tuple[int, int | None]] = {
    "footer_cap": (1, None),
    "prefetch": (1, LARGEST),
    "seed": (0, None),
    "epoch": (0, None),
    "rank": (0, LARGEST),
    "world_size": (1, LARGEST),
}


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """The options of a Parquet loader; the guide's table, and what it has besides.

    `columns`: leaf numbers from 0, or names. `footer_cap`: bytes read from a file's end at first. `prefetch`: row groups in
    flight, or ready and not yet taken. `filters`: pyarrow's form; row groups whose statistics rule them out are not read.
    `rank` of `world_size` takes its part of the row groups. `on_error`: what happens to a row group that cannot be had.
    """

    format: str = "parquet"
    decode: Decode = "raw"
    columns: Any = None
    footer_cap: int = 4 * config.MIB
    prefetch: int = 32
    filters: Any = None
    shuffle: bool = False
    seed: int = 0
    epoch: int = 0
    rank: int = 0
    world_size: int = 1
    on_error: OnError = "raise"

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> ParquetOptions:
        """Check a dict of options. Raises ConfigError, listing those there are, for an unknown one."""
        known = {entry.name for entry in fields(cls)}
        if unknown := sorted(str(name) for name in options if name not in known):
            raise ConfigError(f"a Parquet loader has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}")
        return cls(**options)

    def __post_init__(self) -> None:
        for name, (smallest, largest) in _RANGES.items():
            whole_number(name, getattr(self, name), smallest, largest)
        if not isinstance(self.decode, str) or self.decode not in FINISHERS:
            raise ConfigError(f"decode={self.decode!r} is none of {', '.join(FINISHERS)}")
        true_or_false("shuffle", self.shuffle)
        if self.rank >= self.world_size:
            raise ConfigError(f"rank={self.rank} lies outside of [0, world_size={self.world_size})")
        checked_on_error(self.on_error)
        if self.columns is not None:
            _check_columns(self.columns)


def _check_columns(columns: Any) -> None:
    if isinstance(columns, str | bytes) or not hasattr(columns, "__iter__") or not list(columns):
        raise ConfigError(f"columns is a list of numbers or names, or None for all of them, not {columns!r}")
    for column in columns:
        if isinstance(column, bool) or not (isinstance(column, str) or hasattr(column, "__index__")):
            raise ConfigError(f"columns has {column!r}, which is neither a number nor a name")
