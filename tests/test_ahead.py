"""`Forward` gives the bytes of one version of an object in order, and looks a bounded way ahead."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3dlio import config
from s3dlio.errors import ChangedError, NotFoundError
from s3dlio.objects import resolve
from s3dlio.storage.base import Read, ReadResult
from s3dlio.transfer import ahead
from s3dlio.transfer.ahead import Forward

from .conftest import Place
from .test_read import Faulty

BLOCK = 100
CONTENT = bytes(range(256)) * 5


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ahead, "BLOCK_BYTES", BLOCK)
        yield


@pytest.fixture
def store() -> Faulty:
    store = Faulty()
    store.put("k", memoryview(CONTENT))
    return store


def forward(store: Faulty, start: int = 0) -> Forward:
    return Forward(store, "k", config.snapshot(), start=start)


STEPS = st.lists(st.tuples(st.sampled_from(["take", "take_bytes", "skip"]), st.integers(0, 3 * BLOCK)), max_size=12)


@given(st.integers(0, len(CONTENT)), STEPS)
def test_any_steps_give_the_slices_of_the_object(start: int, steps: list[tuple[str, int]]) -> None:
    store = Faulty()
    store.put("k", memoryview(CONTENT))
    file = forward(store, start)
    for step, count in steps:
        given_bytes = getattr(file, step)(count)
        assert step == "skip" or bytes(given_bytes) == CONTENT[start : start + count]
        start = min(start + count, len(CONTENT))
        assert (file.position, file.left) == (start, len(CONTENT) - start)


def test_on_every_scheme_from_the_middle_and_at_the_end(place: Place) -> None:
    place.put("k", CONTENT)
    for start in (0, 150, len(CONTENT)):
        file = Forward(*resolve(place.root + "k"), config.snapshot(), start=start)
        assert file.size == len(CONTENT)
        assert bytes(file.take(10_000)) == CONTENT[start:]
        assert file.take(1).nbytes == 0


def test_what_lies_within_a_block_is_no_copy(store: Faulty) -> None:
    file = forward(store)
    first, second = file.take(10), file.take(10)
    assert second.__array_interface__["data"][0] == first.__array_interface__["data"][0] + 10
    assert first.uri == store.root + "k"


def test_few_blocks_are_asked_for_before_they_are_taken(store: Faulty) -> None:
    file = forward(store)
    file.take(1)
    asked = {start for start, _, _ in store.reads} | {BLOCK * number for number in range(1, 1 + ahead.BLOCKS_AHEAD)}
    assert asked == {BLOCK * number for number in range(1 + ahead.BLOCKS_AHEAD)}


def test_a_long_way_that_is_skipped_is_not_read(store: Faulty) -> None:
    store.put("k", memoryview(bytes(100 * BLOCK) + b"end"))
    file = forward(store)
    file.skip(100 * BLOCK)
    assert bytes(file.take(10)) == b"end"
    assert len(store.reads) <= 2 + 2 * ahead.BLOCKS_AHEAD


def test_a_replaced_object_is_an_error(store: Faulty) -> None:
    file = forward(store)
    file.take(BLOCK)
    store.put("k", memoryview(bytes(reversed(CONTENT))))
    with pytest.raises(ChangedError, match=store.root):
        file.take(len(CONTENT))


@pytest.mark.parametrize("left", [0, 1, BLOCK])
def test_a_long_way_that_is_skipped_may_lead_to_the_end(place: Place, left: int) -> None:
    place.put("k", CONTENT)
    file = Forward(*resolve(place.root + "k"), config.snapshot())
    file.take(1)
    file.skip(len(CONTENT) - 1 - left)
    assert (file.position, file.left) == (len(CONTENT) - left, left)
    assert bytes(file.take(1000)) == CONTENT[len(CONTENT) - left :]
    file.skip(1)
    assert file.left == 0


@pytest.mark.parametrize("new", [bytes(1 + 20 * BLOCK), bytes(30 * BLOCK)], ids=["same size", "longer"])
def test_an_object_that_is_replaced_before_a_long_way_is_skipped_is_an_error(store: Faulty, new: bytes) -> None:
    store.put("k", memoryview(bytes(20 * BLOCK) + b"x"))
    file = forward(store)
    file.take(1)
    store.put("k", memoryview(new))
    file.skip(15 * BLOCK)
    with pytest.raises(ChangedError, match=store.root):
        file.take(1)


class Ignoring(Faulty):
    """A store that does not compare versions."""

    def read(self, read: Read) -> ReadResult:
        return super().read(read._replace(match=None))


def test_a_store_that_ignores_the_wanted_version_is_found_out() -> None:
    store = Ignoring()
    store.put("k", memoryview(CONTENT))
    store.change = lambda number, result: result._replace(info=result.info._replace(etag=f"version {number}"))
    with pytest.raises(ChangedError, match=store.root):
        forward(store).take(len(CONTENT))


def test_a_store_that_ignores_the_wanted_version_is_found_out_behind_a_long_way() -> None:
    store = Ignoring()
    store.put("k", memoryview(bytes(20 * BLOCK)))
    file = forward(store)
    file.take(1)
    store.put("k", memoryview(b"x" * 20 * BLOCK))
    file.skip(15 * BLOCK)
    with pytest.raises(ChangedError, match=store.root):
        file.take(1)


def test_a_missing_object_raises_when_it_is_looked_at(store: Faulty) -> None:
    file = Forward(store, "missing", config.snapshot())
    with pytest.raises(NotFoundError, match="missing"):
        file.take(1)


def test_after_close_nothing_more_is_asked_for(store: Faulty) -> None:
    file = forward(store)
    file.take(1)
    file.close()
    file.close()
    assert len(store.reads) <= 1 + ahead.BLOCKS_AHEAD


def test_a_forked_child_goes_on_where_it_was(store: Faulty) -> None:
    file = forward(store)
    file.take(3)
    pid = os.fork()
    if not pid:
        try:
            part = file.take_bytes(500)
            os._exit(0 if part == CONTENT[3:503] else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert file.take_bytes(500) == CONTENT[3:503]
