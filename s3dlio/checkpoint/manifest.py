"""The manifest of a distributed checkpoint, and the facts that each shard leaves beside it: JSON, checked when read.

A shard's name is logical. Its bytes are the object `<name>.<save_id>`, its facts `<name>.<save_id>.s3dlio-shard.json`. The
manifest maps names to those keys, and keys are relative to it, so that a copied checkpoint stays whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..errors import DamagedError, S3dlioError

__all__ = ["FACTS_SUFFIX", "MANIFEST_NAME", "Manifest", "Shard", "key_of"]

MANIFEST_NAME = "s3dlio-manifest.json"
FACTS_SUFFIX = ".s3dlio-shard.json"
_FORMAT = "s3dlio-checkpoint"
_VERSION = 1
_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "str | None": (str, type(None)),
}


@dataclass(frozen=True, slots=True)
class Shard:
    """The facts about one rank's shard. `key` is relative to the directory, `size` in bytes, `saved` in seconds since 1970.

    `checksum` is that of the stored bytes, as `algorithm:hexadecimal`; `etag` is what the store said when they were written.
    """

    name: str
    key: str
    rank: int
    world_size: int
    save_id: str
    size: int
    etag: str | None
    checksum: str
    saved: float

    def to_bytes(self) -> bytes:
        """As JSON."""
        return _encoded({"format": _FORMAT, "version": _VERSION, **asdict(self)})

    @classmethod
    def from_bytes(cls, data: bytes, uri: str) -> Shard:
        """Read the facts at `uri`. Raises DamagedError when they are none."""
        return _shard(_decoded(data, uri), uri)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The shards of one save, in the order of ranks."""

    save_id: str
    world_size: int
    shards: tuple[Shard, ...]

    def to_bytes(self) -> bytes:
        """As JSON with two spaces, for people, too."""
        shards = {
            shard.name: {name: value for name, value in asdict(shard).items() if name != "name"} for shard in self.shards
        }
        header = {"format": _FORMAT, "version": _VERSION, "save_id": self.save_id, "world_size": self.world_size}
        return _encoded({**header, "shards": shards})

    @classmethod
    def from_bytes(cls, data: bytes, uri: str) -> Manifest:
        """Read the manifest at `uri`. Raises DamagedError when it is none, or names other than one shard of each rank."""
        content = _decoded(data, uri)
        entries = content.get("shards")
        if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
            raise _damaged(uri, "its shards are no mapping")
        shards = sorted(
            (_shard({**entry, "name": name}, uri) for name, entry in entries.items()), key=lambda shard: shard.rank
        )
        manifest = cls(str(content.get("save_id")), len(shards), tuple(shards))
        if content.get("world_size") != len(shards) or [shard.rank for shard in shards] != list(range(len(shards))):
            raise _damaged(uri, f"it names {len(shards)} shards of a world of {content.get('world_size')}")
        for shard in shards:
            if (shard.save_id, shard.world_size) != (manifest.save_id, manifest.world_size):
                raise _damaged(uri, f"shard {shard.name} is of another save ({shard.save_id}, {shard.world_size} ranks)")
        return manifest


def key_of(name: str, save_id: str) -> str:
    """The name of the object that holds the bytes of the shard `name`."""
    return f"{name}.{save_id}"


def _encoded(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode("ascii")


def _decoded(data: bytes, uri: str) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except ValueError as exc:
        raise _damaged(uri, str(exc)) from exc
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise _damaged(uri, f"it does not say that its format is {_FORMAT}")
    if content.get("version") != _VERSION:
        raise S3dlioError(f"{uri} has version {content.get('version')!r}, this package reads {_VERSION}: use a newer s3dlio")
    return content


def _shard(content: Mapping[str, Any], uri: str) -> Shard:
    values: dict[str, Any] = {}
    for field in fields(Shard):
        value = content.get(field.name)
        if not isinstance(value, _TYPES[str(field.type)]) or isinstance(value, bool):
            raise _damaged(uri, f"{field.name} is {value!r}")
        values[field.name] = value
    if "/" in values["key"]:  # it would lead out of the checkpoint
        raise _damaged(uri, f"the key {values['key']!r} lies elsewhere")
    return Shard(**values)


def _damaged(uri: str, reason: str) -> DamagedError:
    return DamagedError(f"{uri} is damaged or no part of a distributed checkpoint ({reason}): load another one")
