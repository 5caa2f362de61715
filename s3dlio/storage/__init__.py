"""The minimal storage core: `open_store` is the only place that knows which file serves which scheme."""

from __future__ import annotations

import importlib
from functools import lru_cache

from ..errors import ConfigError
from ..runtime import after_fork
from ..uri import Location
from .base import Store

__all__ = ["open_store"]

_SCHEMES = {"file": "local", "direct": "local", "memory": "memory"}


def open_store(location: Location) -> Store:
    """The Store of the location's scheme and container, made once per process."""
    return _open(location.scheme, location.container)


@lru_cache(maxsize=1024)
def _open(scheme: str, container: str) -> Store:
    try:
        module = importlib.import_module(f".{_SCHEMES[scheme]}", __name__)
    except KeyError:
        raise ConfigError(
            f"this version of s3dlio has no {scheme}:// yet; it has {', '.join(f'{name}://' for name in _SCHEMES)}"
        ) from None
    store: Store = module.open_container(scheme, container)
    return store


after_fork(_open.cache_clear)
