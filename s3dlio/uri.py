"""URIs: a scheme, a container, a key.

A key is opaque: everything after the container's slash reaches the store unchanged, so `#`, `?`, `%2F`, `//`, `..`, a
leading or a trailing slash are ordinary characters and nothing is decoded, joined or tidied.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from .errors import ConfigError

__all__ = ["Location", "as_uri", "basename", "parse", "sort_key", "text_of"]

# How many slash-separated names stand before the key.
_CONTAINER_PARTS = {"s3": 1, "gs": 1, "az": 2, "memory": 1, "file": 0, "direct": 0}
_ALIASES = {"gcs": "gs"}


class Location(NamedTuple):
    """Where an object or a prefix lies.

    `container` is the bucket (`s3`, `gs`, `memory`), `account/container` (`az`) or empty (`file`, `direct`, where the
    key is the path).
    """

    scheme: str
    container: str
    key: str

    @property
    def root(self) -> str:
        """The URI of the container; `root + key` is the URI of the object."""
        return f"{self.scheme}://{self.container}/" if self.container else f"{self.scheme}://"

    @property
    def uri(self) -> str:
        return self.root + self.key


def as_uri(path: str | os.PathLike[str]) -> str:
    """A URI as it is, and a plain path as one of `file://`."""
    text = os.fspath(path)
    return text if "://" in text else f"file://{text}"


def text_of(uri: str) -> str:
    """`uri` itself. Raises TypeError when it is no string."""
    if not isinstance(uri, str):
        raise TypeError(f"a URI is a str such as 's3://bucket/key' or 'file:///path', not {type(uri).__name__}")
    return uri


def parse(uri: str) -> Location:
    """Split `uri` into scheme, container and key.

    Raises TypeError when `uri` is no string and ConfigError when it has no known scheme or no container.
    """
    scheme, separator, rest = text_of(uri).partition("://")
    scheme = _ALIASES.get(scheme.lower(), scheme.lower())
    if not separator or scheme not in _CONTAINER_PARTS:
        raise ConfigError(
            f"cannot tell the scheme of {uri!r}: a URI starts with one of {', '.join(sorted(_CONTAINER_PARTS))}, "
            "as in 's3://bucket/key' or 'file:///path'"
        )
    if "\0" in rest or not (rest.isascii() or _is_encodable(rest)):
        raise ConfigError(f"the URI {uri!r} holds a NUL or half a surrogate pair, which no store can name")
    num_parts = _CONTAINER_PARTS[scheme]
    pieces = rest.split("/", num_parts)
    container = "/".join(pieces[:num_parts])
    if num_parts and ("" in pieces[:num_parts] or len(pieces) < num_parts):
        form = "account/container" if scheme == "az" else "bucket"
        raise ConfigError(f"the URI {uri!r} names no {form}: write {scheme}://{form}/key")
    key = pieces[num_parts] if len(pieces) > num_parts else ""
    if scheme in ("file", "direct") and not key:
        raise ConfigError(f"the URI {uri!r} names no path: write {scheme}:///absolute/path or {scheme}://relative/path")
    return Location(scheme, container, key)


def _is_encodable(text: str) -> bool:
    try:
        sort_key(text)
    except UnicodeEncodeError:
        return False
    return True


def basename(key: str) -> str:
    """The last segment of a key; a trailing slash belongs to it (`a/b/` gives `b/`)."""
    return key[key.rstrip("/").rfind("/") + 1 :]


def sort_key(key: str) -> bytes:
    """The bytes by which keys are ordered: UTF-8, undecodable file names as their own bytes."""
    return key.encode("utf-8", "surrogateescape")
