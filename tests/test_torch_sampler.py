"""ResumableSampler: the order of a rank, from anywhere, in constant memory."""

from __future__ import annotations

import tracemalloc
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from s3dlio.torch import ResumableSampler
from tests.objects import flat


def indices(num_samples: int, **options: Any) -> list[int]:
    return list(ResumableSampler(range(num_samples), **options))


def test_a_sampler_is_what_a_data_loader_wants() -> None:
    sampler = ResumableSampler(range(10), batch_size=3, shuffle=True, seed=1)
    batches = [batch.tolist() for batch in DataLoader(range(10), batch_size=3, sampler=sampler)]  # type: ignore[arg-type]
    assert [len(batch) for batch in batches] == [3, 3, 3, 1]
    assert sorted(flat(batches)) == list(range(10)) != flat(batches)


@given(st.integers(1, 80), st.integers(1, 6), st.integers(1, 5), st.booleans())
@settings(max_examples=60, deadline=None)
def test_ranks_share_an_epoch_exactly(num_samples: int, batch_size: int, num_ranks: int, shuffle: bool) -> None:
    options = {"batch_size": batch_size, "shuffle": shuffle, "world_size": num_ranks}
    samplers = [ResumableSampler(range(num_samples), rank=rank, **options) for rank in range(num_ranks)]  # type: ignore[arg-type]
    hands = [list(sampler) for sampler in samplers]
    assert sorted(index for hand in hands for index in hand) == list(range(num_samples))
    assert [len(sampler) for sampler in samplers] == [len(hand) for hand in hands]


@pytest.mark.parametrize("tail", [{"pad": True}, {"drop_last": True}])
def test_padding_and_dropping_keep_ranks_in_step(tail: dict[str, bool]) -> None:
    lengths = {len(indices(103, batch_size=5, rank=rank, world_size=4, **tail)) for rank in range(4)}
    assert lengths == ({26} if "pad" in tail else {25})


def test_every_epoch_and_seed_has_another_order_and_the_same_one_again() -> None:
    sampler = ResumableSampler(range(50), shuffle=True)
    epochs = []
    for epoch in (0, 1, 2, 0):
        sampler.set_epoch(epoch)
        epochs.append(tuple(sampler))
    assert len(set(epochs)) == 3
    assert epochs[0] == epochs[3] != tuple(indices(50, shuffle=True, seed=1))


@given(st.integers(0, 60), st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_a_state_is_restored_by_other_ranks_for_one_epoch_only(position: int, batch_size: int, num_ranks: int) -> None:
    whole = indices(60, shuffle=True, seed=5)
    state = {"version": 1, "seed": 5, "shuffle": 1, "epoch": 0, "position": position, "num_samples": 60}
    rest: list[int] = []
    for rank in range(num_ranks):
        sampler = ResumableSampler(range(60), batch_size=batch_size, shuffle=True, rank=rank, world_size=num_ranks)
        sampler.load_state_dict(state)
        assert sampler.state_dict() == state
        sampler.set_epoch(0)  # as training loops do before each epoch, the restored one too
        rest += sampler
        assert sampler.state_dict()["position"] == 0
    assert sorted(rest) == sorted(whole[position:])


def test_set_epoch_forgets_the_position_of_another_epoch() -> None:
    sampler = ResumableSampler(range(10))
    sampler.start_at(3, 6)
    assert sampler.epoch == 3
    sampler.set_epoch(4)
    assert list(sampler) == list(range(10))


@pytest.mark.parametrize(
    ("change", "named"), [({"num_samples": 11}, "11 samples"), ({"version": 2}, "version 2"), ({"position": 99}, "99")]
)
def test_a_state_of_other_data_is_refused(change: dict[str, int], named: str) -> None:
    sampler = ResumableSampler(range(10))
    with pytest.raises(ValueError, match=named):
        sampler.load_state_dict(sampler.state_dict() | {"seed": 8} | change)
    assert sampler.state_dict() == ResumableSampler(range(10)).state_dict(), "a refused state changes nothing"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"drop_last": True, "pad": True}, "contradict"),
        ({"rank": 0}, "world_size=None"),
        ({"rank": 3, "world_size": 3}, "rank=3"),
    ],
)
def test_contradictions_are_errors(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ResumableSampler(range(10), **wrong)


def test_memory_does_not_grow_with_the_number_of_samples() -> None:
    sampler = ResumableSampler(range(10**8), batch_size=100, shuffle=True, rank=1, world_size=3)
    sampler.start_at(0, 3 * 10**7)
    tracemalloc.start()
    try:
        seen = list(islice(sampler, 25_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(set(seen)) == 25_000
    assert max(seen) > 9 * 10**7
    assert peak < 8 * 2**20
