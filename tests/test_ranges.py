"""Many ranges of an object come in the order in which they were asked for."""

from __future__ import annotations

import pytest

from s3dlio import config
from s3dlio.errors import ChangedError, NotFoundError
from s3dlio.objects import resolve
from s3dlio.transfer.ranges import fetch_ranges

from .conftest import Place
from .test_read import Faulty

CONTENT = bytes(range(256)) * 40


def test_ranges_in_any_order_twice_and_over_the_end(place: Place) -> None:
    place.put("k", CONTENT)
    wanted = [(5000, 100), (0, 1), (7, 0), (0, 1), (len(CONTENT) - 5, 50), (len(CONTENT) + 5, 50)]
    views = fetch_ranges(*resolve(place.root + "k"), wanted, window=3, options=config.snapshot())
    assert [bytes(view) for view in views] == [CONTENT[start : start + length] for start, length in wanted]
    assert views[0].uri == place.root + "k"


def test_a_replaced_object_is_read_again() -> None:
    store = Faulty()
    store.put("k", memoryview(CONTENT))

    def fail_once(number: int, _: object) -> None:
        if number == 0:
            raise ChangedError("replaced")

    store.before_read = fail_once
    assert fetch_ranges(store, "k", [(1, 2), (3, 4)], window=2, options=config.snapshot()) == [CONTENT[1:3], CONTENT[3:7]]


def test_a_failure_is_raised() -> None:
    with pytest.raises(NotFoundError, match="memory://"):
        fetch_ranges(Faulty(), "k", [(0, 1)], window=2, options=config.snapshot())
