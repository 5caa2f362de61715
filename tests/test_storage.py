"""The contract on every store, and the table of schemes."""

from __future__ import annotations

import pytest

from s3dlio import uri as uris
from s3dlio.errors import ConfigError
from s3dlio.storage import open_store

from .contract import ExactKeysContract, StoreContract


class TestEveryStore(StoreContract):
    """Runs on each `place`."""


class TestExactStores(ExactKeysContract):
    """Runs on each `exact_place`."""


def test_a_store_is_made_once_per_container() -> None:
    assert open_store(uris.parse("memory://one/a")) is open_store(uris.parse("memory://one/b/c"))
    assert open_store(uris.parse("memory://one/a")) is not open_store(uris.parse("memory://two/a"))
    assert open_store(uris.parse("file:///a")) is open_store(uris.parse("file:///b"))
    assert open_store(uris.parse("file:///a")) is not open_store(uris.parse("direct:///a"))


@pytest.mark.parametrize("scheme", ["az://account/container/key"])
def test_a_scheme_without_a_store_says_which_exist(scheme: str) -> None:
    with pytest.raises(ConfigError, match=r"file://.*memory://"):
        open_store(uris.parse(scheme))
