"""`Spare`: what is kept of the memory of decoded row groups."""

from __future__ import annotations

import threading

import pytest

from s3dlio.data.parquet.spare import SPARE_BYTES, Spare
from s3dlio.view import fresh

MIB = 1024 * 1024


def test_the_memory_that_was_given_last_is_taken_where_it_is_large_enough() -> None:
    spare = Spare()
    first, second = fresh(3 * MIB), fresh(4 * MIB)
    spare.give(first)
    spare.give(second)
    taken = spare.take(3 * MIB, "memory://x/a")
    assert (taken is second, taken.uri) == (True, "memory://x/a")
    assert spare.take(5 * MIB, "").nbytes >= 5 * MIB
    assert spare.num_bytes == 0


def test_no_more_is_kept_than_is_promised_and_what_was_given_last_is() -> None:
    spare = Spare()
    views = [fresh(5 * MIB) for _ in range(10)]
    for view in views:
        spare.give(view)
    assert spare.num_bytes == 20 * MIB <= SPARE_BYTES
    spare.give(fresh(SPARE_BYTES + 1))
    assert [spare.take(MIB, "") is view for view in reversed(views[-4:])] == [True] * 4


@pytest.mark.parametrize(("pool_mib", "kept"), [(0, 0), (7, 5), (256, 20)])
def test_the_limit_of_the_pool_is_also_one_here(monkeypatch: pytest.MonkeyPatch, pool_mib: int, kept: int) -> None:
    monkeypatch.setenv("S3DLIO_BUFFER_POOL_MB", str(pool_mib))
    spare = Spare()
    for _ in range(6):
        spare.give(fresh(5 * MIB))
    assert spare.num_bytes == kept * MIB


def test_threads_that_give_at_once_keep_no_more() -> None:
    spare, start = Spare(), threading.Barrier(8)

    def give() -> None:
        start.wait(30)
        for _ in range(50):
            spare.give(fresh(5 * MIB))

    threads = [threading.Thread(target=give) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert spare.num_bytes <= SPARE_BYTES
