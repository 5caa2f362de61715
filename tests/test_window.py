"""A stream shuffled in windows: every item once per epoch, another order in each, and exact resuming."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3dlio import ShuffleWindow, TFRecordReader
from s3dlio.data.window import HasState

from .conftest import MemoryPlace
from .test_tfrecord import file_of

SIZES = st.integers(0, 30)
WINDOWS = st.integers(1, 15)
SEEDS = st.integers(0, 1 << 40)


@settings(max_examples=20)
@given(SIZES, WINDOWS, SEEDS)
def test_every_item_comes_once_and_stays_near_its_place(size: int, window: int, seed: int) -> None:
    items = list(ShuffleWindow(range(size), window=window, seed=seed))
    assert sorted(items) == list(range(size))
    assert all(abs(item - place) < window for place, item in enumerate(items))


@settings(max_examples=20)
@given(SIZES, WINDOWS, SEEDS, st.data())
def test_it_goes_on_exactly_from_any_position_of_any_epoch(size: int, window: int, seed: int, data: st.DataObject) -> None:
    stream = ShuffleWindow(range(size), window=window, seed=seed)
    epochs = [list(stream) for _ in range(3)]
    epoch, count = data.draw(st.integers(0, 1)), data.draw(st.integers(0, size))
    stopped = ShuffleWindow(range(size), window=window, seed=seed)
    stopped.set_epoch(epoch)
    begun = iter(stopped)
    assert [next(begun) for _ in range(count)] == epochs[epoch][:count]
    resumed = ShuffleWindow(range(size), window=window, seed=seed)
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert resumed.state_dict() == stopped.state_dict()
    assert list(resumed) == epochs[epoch][count:]
    assert list(resumed) == epochs[epoch + 1]


def test_naming_the_restored_epoch_keeps_the_position_and_another_one_does_not() -> None:
    stream = ShuffleWindow(range(20), window=5, seed=1)
    epochs = [list(stream) for _ in range(3)]
    stream.set_epoch(1)
    begun = iter(stream)
    for _ in range(7):
        next(begun)
    resumed = ShuffleWindow(range(20), window=5, seed=1)
    resumed.load_state_dict(stream.state_dict())
    assert resumed.epoch == 1
    rest = []
    for epoch in range(resumed.epoch, 3):  # the loop of a training job
        resumed.set_epoch(epoch)
        rest.append(list(resumed))
    assert rest == [epochs[1][7:], epochs[2]]
    resumed.load_state_dict(stream.state_dict())
    resumed.set_epoch(0)
    assert list(resumed) == epochs[0]
    assert resumed.epoch == 1


def test_orders_differ_between_epochs_seeds_and_windows() -> None:
    stream = ShuffleWindow(range(400), window=100, seed=1)
    epochs = [list(stream) for _ in range(4)]
    other = list(ShuffleWindow(range(400), window=100, seed=2))
    assert len(set(map(tuple, [*epochs, other]))) == 5
    firsts = [[item for item in epoch if item < 100] for epoch in epochs]
    assert len(set(map(tuple, firsts))) == 4


def test_windows_end_elsewhere_in_each_epoch() -> None:
    stream = ShuffleWindow(range(100), window=50)
    epochs = [list(stream) for _ in range(12)]
    assert len({max(map(epoch.index, range(50))) for epoch in epochs}) > 1


def test_a_source_with_a_state_is_not_read_from_its_beginning() -> None:
    place = MemoryPlace()
    records = [str(number).encode() for number in range(100)]
    place.put("a", file_of(records))
    source = TFRecordReader(place.root + "a")
    assert isinstance(source, HasState)
    stream = ShuffleWindow(source, window=10, seed=4)
    expected = [bytes(record) for record in stream]
    assert sorted(expected) == sorted(records)
    for count in (0, 1, 37, 99, 100):
        stream.set_epoch(0)
        begun = iter(stream)
        for _ in range(count):
            next(begun)
        state = json.loads(json.dumps(stream.state_dict()))
        again = TFRecordReader(place.root + "a")
        resumed = ShuffleWindow(again, window=10, seed=4)
        resumed.load_state_dict(state)
        assert [bytes(record) for record in resumed] == expected[count:]
        assert count < 10 or state["source"]["num_items"] > count - 10


def test_a_window_of_items_is_taken_from_the_source_and_no_more() -> None:
    source = iter(range(1000))
    next(iter(ShuffleWindow(source, window=10)))
    assert next(source) <= 10


@pytest.mark.parametrize("change", [{"version": 0}, {"seed": 1}, {"window": 11}, {"position": -1}, {"start": None}], ids=str)
def test_a_state_of_another_order_is_refused(change: dict[str, Any]) -> None:
    stream = ShuffleWindow(range(5), window=10)
    with pytest.raises(ValueError):
        stream.load_state_dict({**stream.state_dict(), **change})


def test_impossible_options_are_refused() -> None:
    for options in ({"window": 0}, {"window": 1, "seed": -1}):
        with pytest.raises(ValueError):
            ShuffleWindow(range(5), **options)
    with pytest.raises(ValueError):
        ShuffleWindow(range(5), window=1).set_epoch(-1)


def test_iterations_at_once_are_independent_and_the_state_is_that_of_the_later_one() -> None:
    stream, alone = ShuffleWindow(range(50), window=8, seed=3), ShuffleWindow(range(50), window=8, seed=3)
    epochs = [list(alone), list(alone)]
    first, second = iter(stream), iter(stream)
    taken = [next(first) for _ in range(20)]
    other = [next(second) for _ in range(7)]
    taken += [next(first) for _ in range(5)]
    resumed = ShuffleWindow(range(50), window=8, seed=3)
    resumed.load_state_dict(stream.state_dict())
    assert other + list(resumed) == epochs[1]
    assert other + list(second) == epochs[1]
    assert taken + list(first) == epochs[0]


@pytest.mark.parametrize("options", [{"window": 0}, {"window": 2.5}, {"window": "8"}, {"window": 8, "seed": -1}])
def test_what_cannot_be_is_a_value_error(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(reversed(options))):
        ShuffleWindow([], **options)
