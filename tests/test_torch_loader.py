"""`s3dlio.torch.loader`, and iterable datasets whose state goes through a plain DataLoader."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

from s3dlio import ObjectStoreIterableDataset, ObjectStoreMapDataset
from s3dlio.torch import Loader, loader
from tests.objects import failure_of, fill, flat, number

NUM_OBJECTS = 103


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> str:
    return fill(f"file://{tmp_path_factory.mktemp('loader')}/", NUM_OBJECTS)


def map_loader(prefix: str, batch_size: int = 4, num_workers: int = 0, persistent: bool = False, **options: Any) -> Loader:
    dataset = ObjectStoreMapDataset(prefix, transform=number)
    return loader(dataset, batch_size, **options, **workers(num_workers, persistent))


def stream_loader(
    prefix: str, batch_size: int = 4, num_workers: int = 0, persistent: bool = False, **options: Any
) -> Loader:
    dataset = ObjectStoreIterableDataset(prefix, transform=number, batch_size=batch_size, **options)
    return loader(dataset, batch_size, **workers(num_workers, persistent))


def workers(num_workers: int, persistent: bool) -> dict[str, Any]:
    if not num_workers:
        return {}
    return {
        "num_workers": num_workers,
        "persistent_workers": persistent,
        "multiprocessing_context": "fork",
        "timeout": 60,
    }


both_kinds = pytest.mark.parametrize("make", [map_loader, stream_loader])
Make = Callable[..., Loader]


def take(batches: Loader, num_batches: int | None = None) -> list[list[int]]:
    """The next batches of an epoch; all of them without a number."""
    taken = []
    for batch in batches:
        taken.append(batch.tolist())
        if len(taken) == num_batches:
            break
    return taken


@both_kinds
def test_the_global_order_is_the_same_for_any_number_of_workers(prefix: str, make: Make) -> None:
    orders = [take(make(prefix, shuffle=True, num_workers=number)) for number in range(6)]
    assert all(order == orders[0] for order in orders)
    assert sorted(flat(orders[0])) == list(range(NUM_OBJECTS)) != flat(orders[0])
    assert {len(batch) for batch in orders[0][:-1]} == {4}


def test_both_kinds_of_dataset_have_one_order(prefix: str) -> None:
    for options in ({"shuffle": True, "seed": 3}, {"rank": 1, "world_size": 3, "pad": True}):
        assert take(map_loader(prefix, **options)) == take(stream_loader(prefix, **options))


@both_kinds
@pytest.mark.parametrize("number", range(4))
def test_other_ranks_and_workers_go_on_after_a_random_step(prefix: str, make: Make, number: int) -> None:
    draw = random.Random(number)
    num_ranks, num_workers, batch_size = draw.randint(1, 3), draw.randint(0, 2), draw.randint(1, 6)
    seen: list[int] = []
    states = []
    stop = draw.randint(1, NUM_OBJECTS // (num_ranks * batch_size))
    for rank in range(num_ranks):
        batches = make(prefix, batch_size, num_workers, shuffle=True, seed=7, rank=rank, world_size=num_ranks)
        seen += flat(take(batches, stop))
        states.append(batches.state_dict())
    assert all(state == states[0] for state in states)

    num_ranks, num_workers, batch_size = draw.randint(1, 4), draw.randint(0, 3), draw.randint(1, 6)
    second_epoch: list[int] = []
    for rank in range(num_ranks):
        batches = make(prefix, batch_size, num_workers, shuffle=True, rank=rank, world_size=num_ranks)
        batches.load_state_dict(states[0])
        assert batches.state_dict() == states[0]
        seen += flat(take(batches))
        assert batches.epoch == 1
        second_epoch += flat(take(batches))
    assert sorted(seen) == sorted(second_epoch) == list(range(NUM_OBJECTS))


@both_kinds
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_every_epoch_has_its_own_order(prefix: str, make: Make, num_workers: int, persistent: bool) -> None:
    """Workers that outlive an epoch learn of the next one, and a restored position counts once."""
    expected = []
    for epoch in range(3):
        fresh = make(prefix, shuffle=True)
        fresh.set_epoch(epoch)
        expected.append(take(fresh))
    assert len({tuple(flat(epoch)) for epoch in expected}) == 3

    batches = make(prefix, shuffle=True, num_workers=num_workers, persistent=persistent)
    assert [take(batches), take(batches)] == expected[:2]
    assert batches.epoch == 2
    batches.set_epoch(0)
    take(batches, 9)
    state = batches.state_dict()
    assert take(batches) == expected[0], "left early, an epoch begins anew"
    batches.load_state_dict(state)
    assert take(batches) == expected[0][9:]
    assert [take(batches), take(batches)] == expected[1:]


@both_kinds
def test_the_last_batch_of_an_epoch_is_the_beginning_of_the_next(prefix: str, make: Make) -> None:
    batches = make(prefix, shuffle=True)
    iterator = iter(batches)
    for _ in range(len(batches)):
        next(iterator)
    at_the_last_batch = batches.state_dict()
    assert (at_the_last_batch["epoch"], at_the_last_batch["position"]) == (0, NUM_OBJECTS)
    assert next(iterator, None) is None
    after_the_epoch = batches.state_dict()
    assert (after_the_epoch["epoch"], after_the_epoch["position"]) == (1, 0)
    second_epoch = take(batches)
    for state, epochs in ((at_the_last_batch, [[], second_epoch]), (after_the_epoch, [second_epoch])):
        resumed = make(prefix, shuffle=True)
        resumed.load_state_dict(state)
        assert [take(resumed) for _ in epochs] == epochs


@both_kinds
def test_a_state_is_a_few_plain_numbers(prefix: str, make: Make) -> None:
    state = make(prefix, seed=11).state_dict()
    assert state == {"version": 1, "seed": 11, "shuffle": 0, "epoch": 0, "position": 0, "num_samples": NUM_OBJECTS}


@both_kinds
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_samples": 5}, "5 samples and there are 103"),
        ({"version": 9}, "version 9"),
        ({"position": 104}, "104"),
        ({"shuffle": 1}, "shuffle=True"),
    ],
)
def test_a_state_of_other_data_is_refused(prefix: str, make: Make, change: dict[str, int], named: str) -> None:
    batches = make(prefix)
    before = batches.state_dict()
    with pytest.raises(ValueError, match=named):
        batches.load_state_dict(before | {"seed": 8} | change)
    assert batches.state_dict() == before


@both_kinds
@pytest.mark.parametrize("tail", [{}, {"pad": True}, {"drop_last": True}])
def test_len_is_the_number_of_batches_and_tails_keep_ranks_in_step(prefix: str, make: Make, tail: dict[str, bool]) -> None:
    hands = []
    for rank in range(4):
        batches = make(prefix, 5, num_workers=rank % 2, rank=rank, world_size=4, **tail)
        hands.append(take(batches))
        assert len(batches) == len(hands[-1])
    seen = [sample for hand in hands for sample in flat(hand)]
    shapes = {tuple(map(len, hand)) for hand in hands}
    if not tail:
        assert sorted(seen) == list(range(NUM_OBJECTS))
    else:
        assert len(shapes) == 1
        assert (set(seen) == set(range(NUM_OBJECTS))) == ("pad" in tail)
        assert len(seen) == (104 if "pad" in tail else 100)


def test_a_loader_takes_any_map_style_dataset() -> None:
    assert take(loader(list(range(5)), 2)) == [[0, 1], [2, 3], [4]]  # type: ignore[arg-type]


@pytest.mark.parametrize("option", [{"shuffle": True}, {"seed": 1}, {"drop_last": True}, {"pad": True}, {"rank": 0}])
def test_a_stream_brings_its_own_order(prefix: str, option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="brings its own"):
        loader(ObjectStoreIterableDataset(prefix, batch_size=4), 4, **option)


@pytest.mark.parametrize("told", [None, 3])
def test_a_stream_must_have_been_told_the_batch_size(prefix: str, told: int | None) -> None:
    with pytest.raises(ValueError, match=f"told batch_size={told}, the loader 4"):
        loader(ObjectStoreIterableDataset(prefix, batch_size=told), 4)


def test_a_stream_of_another_package_cannot_be_resumed() -> None:
    class Stream(IterableDataset[int]):
        pass

    with pytest.raises(TypeError, match="Stream"):
        loader(Stream())


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"drop_last": True, "pad": True}, "contradict"),
        ({"rank": 1}, "world_size=None"),
        ({"rank": 2, "world_size": 2}, "rank=2"),
        ({"batch_size": 2.5}, "batch_size is a whole number"),
        ({"batch_size": 10**30}, "batch_size=1"),
        ({"shuffle": "no"}, "shuffle is True or False"),
        ({"drop_last": "no"}, "drop_last is True or False"),
        ({"pad": 1}, "pad is True or False"),
        ({"seed": 1.5}, "seed is a whole number"),
        ({"seed": -1}, "seed=-1"),
    ],
)
@both_kinds
def test_contradictions_are_errors(prefix: str, make: Make, wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make(prefix, **wrong)


@pytest.mark.parametrize(
    "wrong", [{"prefetch": 0}, {"prefetch": 1.5}, {"prefetch": 10**30}, {"transform": "decode"}], ids=str
)
def test_what_a_stream_cannot_use_is_an_error_at_once(prefix: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ObjectStoreIterableDataset(prefix, **wrong)


@both_kinds
def test_a_negative_epoch_is_an_error(prefix: str, make: Make) -> None:
    with pytest.raises(ValueError, match="epoch=-1"):
        make(prefix).set_epoch(-1)


# A plain DataLoader over an iterable dataset


def stream(prefix: str, **options: Any) -> ObjectStoreIterableDataset:
    return ObjectStoreIterableDataset(prefix, transform=number, shuffle=True, batch_size=4, **options)


def plain(dataset: ObjectStoreIterableDataset, num_workers: int, persistent: bool = False) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=4, **workers(num_workers, persistent))


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_set_epoch_reaches_the_workers_of_a_plain_data_loader(prefix: str, num_workers: int, persistent: bool) -> None:
    dataset = stream(prefix)
    batches = plain(dataset, num_workers, persistent)
    orders = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        orders.append(flat(batch.tolist() for batch in batches))
    assert orders[0] == orders[2] != orders[1]
    assert all(sorted(order) == list(range(NUM_OBJECTS)) for order in orders)


@pytest.mark.parametrize("num_workers", [0, 3])
def test_the_state_of_a_stream_restores_it_exactly(prefix: str, num_workers: int) -> None:
    dataset = stream(prefix, seed=2)
    dataset.set_epoch(4)
    whole = [batch.tolist() for batch in plain(dataset, 0)]
    iterator = iter(plain(dataset, 0))
    for _ in range(7):
        next(iterator)
    state = dataset.state_dict()
    assert (state["epoch"], state["position"], state["seed"]) == (4, 28, 2)

    resumed = stream(prefix)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    resumed.set_epoch(4)  # as training loops do before each epoch, the restored one too
    batches = plain(resumed, num_workers)
    assert [batch.tolist() for batch in batches] == whole[7:]
    resumed.set_epoch(5)
    assert len(flat(batch.tolist() for batch in batches)) == NUM_OBJECTS


@pytest.mark.parametrize("persistent", [False, True])
def test_a_restored_stream_is_not_shortened_twice_in_silence(prefix: str, persistent: bool) -> None:
    """Without set_epoch, workers would begin every epoch at the restored position."""
    dataset = stream(prefix)
    dataset.start_at(1, 90)
    batches = plain(dataset, 2, persistent)
    assert len(flat(batch.tolist() for batch in batches)) == 13
    assert "call set_epoch() before each epoch" in failure_of(batches, RuntimeError)


def test_within_a_batch_several_ranks_have_no_state(prefix: str) -> None:
    dataset = stream(prefix, rank=0, world_size=2)
    iterator = iter(dataset)
    for _ in range(4):
        next(iterator)
    assert dataset.state_dict()["position"] == 8
    next(iterator)
    with pytest.raises(RuntimeError, match="between batches"):
        dataset.state_dict()


def test_a_negative_epoch_of_a_stream_is_an_error(prefix: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="epoch=-1"):
        stream(prefix).set_epoch(-1)


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_two_loaders_of_one_stream_are_in_epochs_of_their_own(prefix: str, num_workers: int, persistent: bool) -> None:
    dataset = ObjectStoreIterableDataset(prefix, transform=number, batch_size=4, shuffle=True)
    one, two = (loader(dataset, 4, **workers(num_workers, persistent)) for _ in range(2))
    two.set_epoch(5)
    pairs = list(zip(one, two, strict=True))
    alone = loader(dataset, 4)
    assert flat(first for first, _ in pairs) == flat(alone)
    alone.set_epoch(5)
    assert flat(second for _, second in pairs) == flat(alone)


def test_the_seed_of_a_state_reaches_workers_that_live_already(prefix: str) -> None:
    saved = stream_loader(prefix, shuffle=True, seed=7)
    begun = list(itertools.islice(saved, 3))
    batches = stream_loader(prefix, shuffle=True, seed=0, num_workers=2, persistent=True)
    list(batches)
    batches.load_state_dict(saved.state_dict())
    assert sorted(flat(begun) + flat(batches)) == list(range(NUM_OBJECTS))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_begins_where_its_stream_stands(prefix: str, num_workers: int) -> None:
    def fresh() -> ObjectStoreIterableDataset:
        return ObjectStoreIterableDataset(prefix, transform=number, batch_size=4, shuffle=True, seed=5)

    source = fresh()
    source.set_epoch(3)
    samples = iter(source)
    taken = list(itertools.islice(samples, 8))
    state, rest = source.state_dict(), list(samples)
    assert len(taken) + len(rest) == NUM_OBJECTS

    restored = fresh()
    restored.load_state_dict(state)
    batches = loader(restored, 4, **workers(num_workers, False))
    assert (batches.epoch, batches.state_dict()) == (3, state)
    assert flat(take(batches)) == rest
    assert batches.epoch == 4

    named = fresh()
    named.set_epoch(3)
    assert flat(take(loader(named, 4, **workers(num_workers, False)))) == taken + rest


@both_kinds
def test_batches_that_overtake_each_other_are_refused(prefix: str, make: Make) -> None:
    dataset = {map_loader: ObjectStoreMapDataset, stream_loader: ObjectStoreIterableDataset}[make](prefix)
    with pytest.raises(ValueError, match="in_order=False"):
        loader(dataset, 1, num_workers=2, in_order=False)
