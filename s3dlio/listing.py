"""What a URI lists: the rule for prefixes, and globs.

`K` without a trailing slash means the object `K` and what lies under `K/`, never a neighbour such as `K2`. `K/` means
what lies under it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from . import uri as uris
from .errors import ConfigError, NotFoundError, S3dlioError
from .storage import open_store
from .storage.base import ObjectInfo, Store

__all__ = ["matcher", "walk"]


def walk(uri: str, *, recursive: bool, pattern: str | None = None) -> Iterator[tuple[str, ObjectInfo | None]]:
    """The entries under `uri` as (full URI, facts); a sub-prefix has no facts and its URI ends in a slash.

    Streams page by page, in the store's own order. Raises for a missing bucket and for any failed request.
    """
    location = uris.parse(uri)
    store = open_store(location)
    matches = None if pattern is None else matcher(pattern)
    base = location.key if location.key.endswith("/") or not location.key else location.key + "/"
    itself = _object_itself(store, location.key) if base != location.key else None
    if itself is not None and (matches is None or matches(uris.basename(itself.key))):
        yield store.root + itself.key, itself
    for page in store.list(base, recursive=recursive):
        for info in page.objects:
            if not info.key.startswith(base):
                raise S3dlioError(f"cannot list {uri}: the store names {info.key!r}, which does not lie there")
            if info.key == base:  # the marker of the prefix itself is no child of it
                is_listed = recursive and matches is None
            else:
                is_listed = matches is None or matches(info.key[len(base) :])
            if is_listed:
                yield store.root + info.key, info
        for prefix in page.prefixes:
            if matches is None or matches(prefix[len(base) :].rstrip("/")):
                yield store.root + prefix, None


def _object_itself(store: Store, key: str) -> ObjectInfo | None:
    try:
        return store.stat(key)
    except NotFoundError:
        return None


def matcher(pattern: str | None) -> Callable[[str], bool]:
    """The predicate of a glob, or of a regular expression written `re:...`, on a key relative to its prefix.

    `?` and `[...]` match one character and `*` any number of them within a path segment; `**` crosses slashes. A glob
    without a slash and without `**` is matched against the last segment, at any depth.
    """
    if pattern is None:
        return lambda _: True
    if not isinstance(pattern, str):
        raise TypeError(f"pattern is a str such as '*.npz' or 're:...', not {type(pattern).__name__}")
    if pattern.startswith("re:"):
        return _compiled(pattern, pattern[3:], lambda expression, key: bool(expression.search(key)))
    if "/" in pattern or "**" in pattern:
        return _compiled(pattern, _translated(pattern), lambda expression, key: bool(expression.fullmatch(key)))
    return _compiled(pattern, _translated(pattern), lambda expression, key: bool(expression.fullmatch(uris.basename(key))))


def _compiled(pattern: str, text: str, test: Callable[[re.Pattern[str], str], bool]) -> Callable[[str], bool]:
    try:
        expression = re.compile(text, re.DOTALL)
    except re.error as exc:
        raise ConfigError(f"pattern={pattern!r} cannot be read: {exc}") from exc
    return lambda key: test(expression, key)


_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|\[!?+(?:\][^\]]*|[^\]]+)\]|.", re.DOTALL)
_WILDCARDS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def _translated(glob: str) -> str:
    return "".join(_WILDCARDS.get(token) or _character(token) for token in _TOKEN.findall(glob))


def _character(token: str) -> str:
    if len(token) == 1:
        return re.escape(token)
    negation = "^" if token[1] == "!" else ""
    members = re.sub(r"[\\\[\]^&~|]|(?<=-)-", r"\\\g<0>", token[1 + len(negation) : -1])
    return f"(?!/)[{negation}{members}]"
