"""Buckets, and where `s3://` is."""

from __future__ import annotations

import os

from . import config
from . import uri as uris
from .errors import ConfigError
from .storage import open_store
from .storage.base import HasBuckets

__all__ = ["configure_s3", "create_bucket", "delete_bucket"]


def configure_s3(endpoint_url: str | None = None, region: str | None = None, ca_bundle: str | None = None) -> None:
    """Tell where `s3://` is, for every later operation of this process and its children; at any time, not only before use.

    Sets AWS_ENDPOINT_URL, AWS_DEFAULT_REGION and AWS_CA_BUNDLE (and AWS_ENDPOINT_URL_S3 and AWS_REGION where they are set
    and would win) in `os.environ`; None leaves a setting as it is. Raises ConfigError for an endpoint that is no http(s)
    URL and for a CA bundle that does not exist.
    """
    for name, value in (("endpoint_url", endpoint_url), ("region", region), ("ca_bundle", ca_bundle)):
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name} is a str or None, not {type(value).__name__}")
    if endpoint_url:
        config.check_endpoint(endpoint_url)
    if ca_bundle and not os.path.exists(ca_bundle):
        raise ConfigError(f"ca_bundle={ca_bundle!r} does not exist: give the path of a PEM file")
    config.set_s3_environment(endpoint_url=endpoint_url, region=region, ca_bundle=ca_bundle)


def create_bucket(name: str) -> None:
    """Make a bucket: a name means `s3://name`. One's own existing bucket is fine."""
    _container(name).create_bucket()


def delete_bucket(name: str) -> None:
    """Remove a bucket. One that is not empty stays, and raises NotEmptyError: looks first, whatever the server does."""
    _container(name).delete_bucket()


def _container(name: str) -> HasBuckets:
    if not isinstance(name, str):
        raise TypeError(f"a bucket's name is a str, not {type(name).__name__}")
    location = uris.parse(name if "://" in name else f"s3://{name}")
    store = open_store(location)
    if location.key or not isinstance(store, HasBuckets):
        raise ConfigError(f"{name!r} is no bucket: write its name, or s3://name")
    return store
