"""Who asks: keys from the environment, which need no SDK, else botocore's own chain (profiles, containers, instances).

A chain is asked once per process under a lock, and again at most every `CHECK_SECONDS`, or when a server says that a token
has expired; botocore then decides whether it is time to refresh.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from ...config import S3Options
from ...errors import AccessDeniedError, ConfigError, MissingPackageError, S3dlioError
from ...loading import gate
from ...runtime import after_fork
from .sigv4 import Credentials

__all__ = ["Provider", "provider_of"]

CHECK_SECONDS = 30.0


class Provider:
    """Gives the credentials of the moment; None means anonymous."""

    def __init__(self, options: S3Options) -> None:
        self._profile = options.profile
        self._is_static = options.anonymous or bool(options.access_key)
        self._current = _from_environment(options)
        self._region = options.region
        self._chain: Any = None
        self._checked_at = float("-inf")

    def current(self) -> Credentials | None:
        """The credentials to sign with now. Raises AccessDeniedError when the chain finds none."""
        if self._is_static or time.monotonic() - self._checked_at < CHECK_SECONDS:
            return self._current
        return self._ask(time.monotonic())

    def refresh(self, refused: Credentials | None) -> bool:
        """Ask the chain again, since the server refused these. Is there anything new?"""
        if self._is_static:
            return False
        return self._current != refused or self._ask(time.monotonic()) != refused

    def region(self) -> str | None:
        """The region of the environment, else of the profile."""
        if self._region is None and not self._is_static:
            with _asking, _translated():
                self._region = self._session().get_config_variable("region")
        return self._region

    def _ask(self, now: float) -> Credentials:
        with _asking:
            if self._checked_at >= now and self._current is not None:  # another thread has just asked
                return self._current
            self._current = self._from_chain()
            self._checked_at = time.monotonic()
            return self._current

    def _from_chain(self) -> Credentials:
        with _translated():
            if self._chain is None:
                self._chain = self._session().get_credentials()
            frozen = None if self._chain is None else self._chain.get_frozen_credentials()
        if frozen is None:
            raise AccessDeniedError(
                "found no credentials for s3://: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, configure a "
                "profile, or set AWS_SKIP_SIGNATURE=1 for public buckets"
            )
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token)

    def _session(self) -> Any:
        try:
            with gate:
                import botocore.session
        except ImportError as exc:
            raise MissingPackageError(
                "s3:// finds no keys in the environment: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or let boto3 look "
                "further: pip install 's3dlio[aws]'"
            ) from exc
        return botocore.session.Session(profile=self._profile)


@contextmanager
def _translated() -> Iterator[None]:
    """An error of botocore's becomes one of ours."""
    try:
        yield
    except Exception as exc:
        if isinstance(exc, S3dlioError):
            raise
        raise AccessDeniedError(f"cannot find the credentials for s3://: {exc}") from exc


def _from_environment(options: S3Options) -> Credentials | None:
    if options.anonymous or not options.access_key:
        return None
    if not options.secret_key:
        raise ConfigError("AWS_ACCESS_KEY_ID is set but AWS_SECRET_ACCESS_KEY is not: set both or none")
    return Credentials(options.access_key, options.secret_key, options.session_token)


_asking = threading.Lock()


@after_fork
def _renew_lock() -> None:
    global _asking
    _asking = threading.Lock()


@lru_cache(maxsize=64)
def provider_of(options: S3Options) -> Provider:
    """The provider for these options, one per process."""
    return Provider(options)


after_fork(provider_of.cache_clear)
