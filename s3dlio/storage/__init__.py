"""The minimal storage core: `open_store` is the only place that knows which file serves which scheme."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any

from ..errors import ConfigError
from ..loading import gate
from ..runtime import after_fork
from ..uri import Location
from .base import Store

__all__ = ["open_store"]

# Each module makes the Store of a container, from what its `options()` reads in the environment.
MAX_STORES = 1024
_SCHEMES = {"file": "local", "direct": "local", "memory": "memory", "s3": "cloud.s3"}


def open_store(location: Location) -> Store:
    """The Store of the location's scheme and container, made once per process and set of options."""
    options = _module_of(location.scheme).options()
    place = location[:2]
    last = _last_opened.get(place)
    if last is not None and last[0] is options:  # spares the hash of thirty options
        return last[1]
    store = _open(*place, options)
    if last is not None or len(_last_opened) < MAX_STORES:
        _last_opened[place] = options, store
    return store


@lru_cache(maxsize=len(_SCHEMES))
def _module_of(scheme: str) -> Any:
    try:
        with gate:
            return importlib.import_module(f".{_SCHEMES[scheme]}", __name__)
    except KeyError:
        known = ", ".join(f"{name}://" for name in _SCHEMES)
        raise ConfigError(f"this version of s3dlio has no {scheme}:// yet; it has {known}") from None


@lru_cache(maxsize=MAX_STORES)
def _open(scheme: str, container: str, options: Any) -> Store:
    store: Store = _module_of(scheme).open_container(scheme, container, options)
    return store


_last_opened: dict[tuple[str, str], tuple[Any, Store]] = {}
after_fork(_open.cache_clear)
after_fork(_last_opened.clear)
