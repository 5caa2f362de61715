"""The order of an epoch is a permutation, and ranks and workers share it without loss, against naive lists."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3dlio.data.order import BLOCK, Deal, Order, Tail

FEW = settings(max_examples=60, deadline=None)

seeds = st.integers(-(2**63), 2**128)
sizes = st.integers(0, 60)
parts = st.integers(1, 6)


def permutation(num_samples: int, seed: int, epoch: int = 0) -> list[int]:
    order = Order(num_samples, shuffle=True, seed=seed, epoch=epoch)
    samples: list[int] = order.samples(np.arange(num_samples)).tolist()
    return samples


def flat(lists: Iterable[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(lists))


def naive_deal(positions: list[int], batch_size: int, num_ranks: int, tail: Tail) -> list[list[list[int]]]:
    """For each rank its steps, dealt as with cards: a batch to each rank in turn, then what is left."""
    hands: list[list[list[int]]] = [[] for _ in range(num_ranks)]
    left = list(positions)
    while len(left) >= num_ranks * batch_size:
        for hand in hands:
            hand.append(left[:batch_size])
            left = left[batch_size:]
    if tail == "drop" or not left:
        return hands
    if tail == "pad":
        again = itertools.cycle(range(positions[-1] + 1))  # the epoch from its beginning, wherever this run began
        while len(left) % num_ranks:
            left.append(next(again))
    shares = [len(left[rank::num_ranks]) for rank in range(num_ranks)]
    for hand, share in zip(hands, shares, strict=True):
        if share:
            hand.append(left[:share])
        left = left[share:]
    return hands


def steps_of(deal: Deal) -> Iterator[list[int]]:
    """A block holds whole steps, the last block perhaps one that is shorter."""
    for block in deal.blocks():
        for first in range(0, block.size, deal.batch_size):
            yield block[first : first + deal.batch_size].tolist()


def dealt(deal: Deal, num_workers: int = 1) -> list[list[int]]:
    """The steps of the deal's rank as a DataLoader delivers them: from its workers in turn."""
    hands = [list(steps_of(deal.for_worker(worker, num_workers))) for worker in range(num_workers)]
    turns = itertools.zip_longest(*hands)
    return [step for turn in turns for step in turn if step is not None]


@FEW
@given(st.integers(0, 2000), seeds, st.integers(0, 2**40))
def test_an_order_is_a_bijection_and_positions_is_its_inverse(num_samples: int, seed: int, epoch: int) -> None:
    order = Order(num_samples, shuffle=True, seed=seed, epoch=epoch)
    positions = np.arange(num_samples)
    samples = order.samples(positions)
    assert sorted(samples.tolist()) == positions.tolist()
    assert order.positions(samples).tolist() == positions.tolist()
    assert order.samples(order.positions(positions)).tolist() == positions.tolist()


@FEW
@given(st.integers(1, 2**62), seeds, st.lists(st.integers(0, 2**62), max_size=20))
def test_an_order_of_any_size_has_an_inverse_at_every_position(num_samples: int, seed: int, drawn: list[int]) -> None:
    positions = [number % num_samples for number in drawn]
    order = Order(num_samples, shuffle=True, seed=seed)
    samples = order.samples(positions)
    assert all(0 <= sample < num_samples for sample in samples.tolist())
    assert order.positions(samples).tolist() == positions


@pytest.mark.parametrize("num_samples", [1, 2, 63, 64, 65, 4095, 4096, 4097])
def test_sizes_around_powers_of_two_are_permuted_as_wholes(num_samples: int) -> None:
    assert sorted(permutation(num_samples, seed=9)) == list(range(num_samples))


def test_positions_may_come_in_any_number_and_shape() -> None:
    order = Order(1000, shuffle=True, seed=3)
    everything = order.samples(np.arange(1000))
    assert order.samples(np.arange(1000).reshape(10, 100)).tolist() == everything.reshape(10, 100).tolist()
    assert [order.samples([number]).tolist() for number in (0, 999)] == [[everything[0]], [everything[999]]]


def test_without_shuffle_the_order_is_that_of_the_names() -> None:
    assert Order(7).samples(np.arange(7)).tolist() == list(range(7))
    assert Order(7).positions([6, 0]).tolist() == [6, 0]


def test_the_order_is_the_same_in_every_release() -> None:
    """A checkpoint's state names (seed, epoch, position) only: another permutation would repeat and lose samples."""
    assert permutation(10, seed=0) == [7, 3, 0, 2, 6, 4, 8, 9, 5, 1]
    assert permutation(10, seed=42, epoch=7) == [6, 0, 3, 4, 5, 9, 7, 2, 8, 1]


def test_every_seed_and_every_epoch_gives_another_order() -> None:
    orders = {tuple(permutation(200, seed, epoch)) for seed in range(12) for epoch in range(12)}
    assert len(orders) == 144
    assert permutation(200, seed=0) != permutation(200, seed=2**64), "the upper half of a long seed counts"


@pytest.mark.parametrize(("num_samples", "per_order"), [(2, 60), (3, 30), (4, 20), (5, 6)])
def test_all_orders_of_few_samples_come_about_equally_often(num_samples: int, per_order: int) -> None:
    """Chi-square over the first seeds; the limit is the 99.9 % point (Wilson and Hilferty's formula)."""
    num_orders = math.factorial(num_samples)
    seen = Counter(tuple(permutation(num_samples, seed)) for seed in range(num_orders * per_order))
    everything = itertools.permutations(range(num_samples))
    chi_square = sum((seen[order] - per_order) ** 2 / per_order for order in everything)
    freedom = num_orders - 1
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3
    assert chi_square < limit


def test_a_sample_goes_everywhere_about_equally_often() -> None:
    """The epochs of one seed are as independent as seeds are: chi-square of where sample 0 stands."""
    places = Counter(permutation(8, seed=1, epoch=epoch).index(0) for epoch in range(320))
    assert sum((places[place] - 40) ** 2 / 40 for place in range(8)) < 24.3


@pytest.mark.parametrize("index", [-1, 10])
def test_an_index_outside_of_the_epoch_is_an_error(index: int) -> None:
    with pytest.raises(IndexError, match="10"):
        Order(10, shuffle=True).samples([index])
    with pytest.raises(IndexError, match="10"):
        Order(10).positions([index])


@pytest.mark.parametrize("wrong", [{"num_samples": -1}, {"num_samples": 1, "epoch": -1}])
def test_negative_sizes_and_epochs_are_errors(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="negative"):
        Order(**wrong)


@given(sizes, st.data(), st.integers(1, 5), parts, st.integers(1, 4), st.sampled_from(["exact", "pad", "drop"]))
@settings(max_examples=300, deadline=None)
def test_a_deal_is_that_of_a_naive_dealer(
    num_samples: int, data: st.DataObject, batch_size: int, num_ranks: int, num_workers: int, tail: Tail
) -> None:
    start = data.draw(st.integers(0, num_samples))
    expected = naive_deal(list(range(start, num_samples)), batch_size, num_ranks, tail)
    for rank in range(num_ranks):
        deal = Deal(num_samples, start, batch_size, num_ranks, rank, tail=tail)
        assert dealt(deal, num_workers) == expected[rank]
        assert deal.num_steps == len(expected[rank])
        assert deal.length == sum(map(len, expected[rank]))
        assert [number for block in deal.blocks() for number in block.tolist()] == flat(expected[rank])


@given(sizes, st.integers(1, 5), parts)
@settings(max_examples=200, deadline=None)
def test_ranks_and_tails(num_samples: int, batch_size: int, num_ranks: int) -> None:
    """Exact: each sample once. Pad: equal lengths, nothing missing. Drop: equal lengths, nothing twice, few left out."""
    hands: dict[str, list[list[int]]] = {
        tail: [flat(dealt(Deal(num_samples, 0, batch_size, num_ranks, rank, tail=tail))) for rank in range(num_ranks)]
        for tail in ("exact", "pad", "drop")
    }
    lengths = {tail: {len(hand) for hand in of_ranks} for tail, of_ranks in hands.items()}
    exact, pad, drop = (flat(hands[tail]) for tail in ("exact", "pad", "drop"))
    assert sorted(exact) == list(range(num_samples))
    assert max(lengths["exact"]) - min(lengths["exact"]) <= 1
    assert len(lengths["pad"]) == len(lengths["drop"]) == 1
    assert set(pad) == set(range(num_samples))
    assert len(pad) < num_samples + num_ranks
    assert len(set(drop)) == len(drop) > num_samples - num_ranks * batch_size


@given(sizes, st.data(), st.sampled_from(["exact", "pad", "drop"]))
@settings(max_examples=300, deadline=None)
def test_other_ranks_and_workers_go_on_where_a_run_stopped(num_samples: int, data: st.DataObject, tail: Tail) -> None:
    """Three runs of different shapes, each stopped after any step, lose nothing and repeat nothing but padding."""
    seen: list[int] = []
    position = 0
    padding = dropped = 0
    for last in (False, False, True):
        batch_size, num_ranks, num_workers = data.draw(st.integers(1, 4)), data.draw(parts), data.draw(st.integers(1, 3))
        deals = [Deal(num_samples, position, batch_size, num_ranks, rank, tail=tail) for rank in range(num_ranks)]
        num_steps = max(deal.num_steps for deal in deals)
        stop = num_steps if last else data.draw(st.integers(0, num_steps))
        for deal in deals:
            for step in dealt(deal, num_workers)[:stop]:
                seen += step
        padding += num_ranks - 1
        dropped += num_ranks * batch_size - 1
        (position,) = {deal.position_after(stop) for deal in deals}
        assert position <= num_samples
    assert position == num_samples
    if tail == "exact":
        assert sorted(seen) == list(range(num_samples))
    elif tail == "pad":
        assert set(seen) == set(range(num_samples))
        assert len(seen) <= num_samples + padding
    else:
        assert len(set(seen)) == len(seen) >= num_samples - dropped


def test_the_position_after_the_last_step_is_the_end_whatever_was_dropped() -> None:
    """Else a run resumed with smaller batches would read what `drop_last` has left out."""
    assert [Deal(10, 0, 3, tail="drop").position_after(number) for number in range(5)] == [0, 3, 6, 10, 10]
    assert [Deal(10, 0, 3, tail="exact").position_after(number) for number in range(5)] == [0, 3, 6, 9, 10]


def test_blocks_are_bounded_however_long_the_epoch() -> None:
    deal = Deal(10**12, batch_size=100, num_ranks=3, rank=1)
    blocks = list(itertools.islice(deal.blocks(), 3))
    assert all(block.size < BLOCK + deal.batch_size for block in blocks)
    assert blocks[0][:3].tolist() == [100, 101, 102]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"rank": 2, "num_ranks": 2}, "rank=2"),
        ({"rank": -1}, "rank=-1"),
        ({"worker": 1}, "worker=1"),
        ({"num_workers": 0}, "worker=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"start": 11}, "position 11"),
        ({"start": -1}, "position -1"),
    ],
)
def test_contradictions_of_a_deal_are_errors(wrong: dict[str, int], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Deal(10, **wrong)


@FEW
@given(sizes, parts, parts, parts, st.sampled_from(["exact", "pad", "drop"]), st.data())
def test_what_came_before_is_what_was_dealt_before(
    num_samples: int, batch_size: int, num_ranks: int, num_workers: int, tail: Tail, data: st.DataObject
) -> None:
    rank, worker = data.draw(st.integers(0, num_ranks - 1)), data.draw(st.integers(0, num_workers - 1))
    whole = Deal(num_samples, 0, batch_size, num_ranks, rank, num_workers, worker, tail)
    dealt = [position for block in whole.blocks() for position in block.tolist()]
    taken = data.draw(st.integers(0, len(dealt)))
    assert list(whole.before(taken)) == dealt[:taken][::-1]
    turns = data.draw(st.integers(0, whole.num_full_steps // num_workers))
    later = Deal(
        num_samples, turns * num_workers * whole.step_length, batch_size, num_ranks, rank, num_workers, worker, tail
    )
    left = [position for block in later.blocks() for position in block.tolist()]
    taken = data.draw(st.integers(0, len(left)))
    assert list(later.before(taken)) == (dealt[: turns * batch_size] + left[:taken])[::-1]
