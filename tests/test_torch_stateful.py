"""Streams and samplers under the StatefulDataLoader of torchdata, and its state as a position of the whole job."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from torch.utils.data._utils.worker import WorkerInfo
from torchdata.stateful_dataloader import StatefulDataLoader

from s3dlio import ObjectStoreIterableDataset, ObjectStoreMapDataset
from s3dlio.torch import ResumableSampler, loader, position_from
from tests.objects import fill, flat, number, threads_and_descriptors

NUM_OBJECTS = 53
BATCH = 4


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> str:
    return fill(f"file://{tmp_path_factory.mktemp('stateful')}/", NUM_OBJECTS)


class Run:
    """A StatefulDataLoader over a stream, or over a map-style dataset with a ResumableSampler."""

    def __init__(
        self,
        kind: str,
        prefix: str,
        num_workers: int = 0,
        persistent: bool = False,
        *,
        dealt: int | None = BATCH,
        **options: Any,
    ) -> None:
        method = options.pop("method", "fork")
        loading: dict[str, Any] = {"snapshot_every_n_steps": options.pop("snapshot_every_n_steps", 1)}
        if num_workers:
            loading |= {"multiprocessing_context": method, "persistent_workers": persistent, "timeout": 60}
        self.source: ObjectStoreIterableDataset | ResumableSampler
        if kind == "stream":
            dataset: Any = ObjectStoreIterableDataset(prefix, transform=number, batch_size=dealt, **options)
            self.source = dataset
        else:
            dataset = ObjectStoreMapDataset(prefix, transform=number)
            loading["sampler"] = self.source = ResumableSampler(dataset, batch_size=dealt or 1, **options)
        self.batches = StatefulDataLoader(dataset, BATCH, num_workers=num_workers, **loading)

    def take(self, epoch: int, num_batches: int | None = None) -> list[list[int]]:
        """The next batches of an epoch; all of them without a number."""
        self.source.set_epoch(epoch)
        taken: list[list[int]] = []
        if num_batches == 0:
            return taken
        for batch in self.batches:
            taken.append(batch.tolist())
            if len(taken) == num_batches:
                break
        return taken


both_kinds = pytest.mark.parametrize("kind", ["stream", "sampler"])
WORKERS = [(0, False), (2, False), (2, True)]


@both_kinds
@pytest.mark.parametrize(("num_workers", "persistent"), WORKERS)
@pytest.mark.parametrize("dealt", [BATCH, None])
def test_a_state_goes_on_exactly(kind: str, prefix: str, num_workers: int, persistent: bool, dealt: int | None) -> None:
    """Before the first batch, in the middle, after the last batch and after the epoch; in the first epoch and the second."""

    def make() -> Run:
        return Run(kind, prefix, num_workers, persistent, dealt=dealt, shuffle=True)

    whole = make()
    epochs = [whole.take(epoch) for epoch in range(3)]
    assert [sorted(flat(epoch)) for epoch in epochs] == [list(range(NUM_OBJECTS))] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    num_batches = len(epochs[1])

    run = make()
    assert run.take(0) == epochs[0]
    for stop in (1, num_batches // 2, num_batches):
        first = run.take(1, stop)
        assert first == epochs[1][:stop]
        resumed = make()
        resumed.batches.load_state_dict(run.batches.state_dict())
        assert resumed.take(1) == epochs[1][stop:]
        assert resumed.take(2) == epochs[2]
    assert run.take(1) == epochs[1]
    after = run.batches.state_dict()
    resumed = make()
    resumed.batches.load_state_dict(after)
    assert resumed.take(2) == epochs[2], "a state of the end of an epoch goes on with the next"


@both_kinds
@pytest.mark.parametrize(("num_workers", "persistent"), WORKERS)
def test_a_resumed_run_is_resumed_again(kind: str, prefix: str, num_workers: int, persistent: bool) -> None:
    expected = Run(kind, prefix, shuffle=True).take(3)
    seen: list[list[int]] = []
    state = None
    for stop in (2, 3, 1, None):
        run = Run(kind, prefix, num_workers, persistent, shuffle=True)
        if state is not None:
            run.batches.load_state_dict(state)
        seen += run.take(3, stop)
        state = run.batches.state_dict()
    assert seen == expected


@both_kinds
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_that_is_asked_for_first_costs_nothing(kind: str, prefix: str, num_workers: int) -> None:
    run = Run(kind, prefix, num_workers)
    state = run.batches.state_dict()
    assert flat(run.take(0)) == list(range(NUM_OBJECTS))
    resumed = Run(kind, prefix, num_workers)
    resumed.batches.load_state_dict(state)
    assert flat(resumed.take(0)) == list(range(NUM_OBJECTS))


def test_a_spawned_worker_resumes_too(prefix: str) -> None:
    run = Run("stream", prefix, 1, shuffle=True)
    first = run.take(1, 5)
    resumed = Run("stream", prefix, 1, shuffle=True, method="spawn")
    resumed.batches.load_state_dict(run.batches.state_dict())
    assert first + resumed.take(1) == Run("stream", prefix, shuffle=True).take(1)


@both_kinds
@pytest.mark.parametrize("number", range(5))
def test_the_position_of_a_state_is_good_for_other_ranks_and_workers(kind: str, prefix: str, number: int) -> None:
    draw = random.Random(number)
    num_ranks, num_workers = draw.randint(1, 3), draw.choice([0, 1, 2, 3])
    tail = draw.choice([{}, {"pad": True}])
    options: dict[str, Any] = {"shuffle": True, "seed": 5, **tail}
    stop = draw.randint(1, NUM_OBJECTS // (num_ranks * BATCH))
    every = draw.choice([1, 3]) if num_workers else 1
    seen: list[int] = []
    states = []
    for rank in range(num_ranks):
        sharing = {"rank": rank, "world_size": num_ranks, "snapshot_every_n_steps": every}
        run = Run(kind, prefix, num_workers, **(options | sharing))
        seen += flat(run.take(2, stop))
        states.append(position_from(run.batches.state_dict()))
    assert states == [states[0]] * num_ranks
    assert (states[0]["epoch"], states[0]["position"]) == (2, stop * num_ranks * BATCH)

    num_ranks, num_workers = draw.randint(1, 4), draw.choice([0, 2, 3])
    for rank in range(num_ranks):
        run = Run(kind, prefix, num_workers, **options, rank=rank, world_size=num_ranks)
        run.source.load_state_dict(states[0])
        seen += flat(run.take(2))
    assert set(seen) == set(range(NUM_OBJECTS))
    assert len(seen) == NUM_OBJECTS or tail


@both_kinds
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_position_after_an_epoch_is_its_end(kind: str, prefix: str, num_workers: int) -> None:
    """Also on a rank that has nothing of the tail."""
    for rank, num_ranks in ((0, 1), (12, 13)):
        run = Run(kind, prefix, num_workers, rank=rank, world_size=num_ranks)
        run.take(1)
        state = position_from(run.batches.state_dict())
        assert (state["epoch"], state["position"]) == (1, NUM_OBJECTS)
        resumed = Run(kind, prefix, num_workers, rank=rank, world_size=num_ranks)
        resumed.source.load_state_dict(state)
        assert resumed.take(1) == []
        assert resumed.take(2) == run.take(2)


def test_a_state_of_a_stateful_loader_goes_on_in_our_own(prefix: str) -> None:
    run = Run("stream", prefix, 2, shuffle=True)
    first = run.take(1, 7)
    batches = loader(ObjectStoreIterableDataset(prefix, transform=number, shuffle=True, batch_size=BATCH), BATCH)
    batches.load_state_dict(position_from(run.batches.state_dict()))
    assert first + [batch.tolist() for batch in batches] == Run("stream", prefix, shuffle=True).take(1)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_position_survives_being_resumed_with_workers(prefix: str, num_workers: int) -> None:
    """A stream that began at a position is snapshotted by its workers, and converted once more."""
    expected = flat(Run("stream", prefix, shuffle=True).take(1))
    run = Run("stream", prefix, num_workers, shuffle=True)
    seen = flat(run.take(1, 3))
    for more, workers in ((2, 3 - num_workers), (4, num_workers)):
        state = position_from(run.batches.state_dict())
        run = Run("stream", prefix, workers, shuffle=True)
        run.source.load_state_dict(state)
        seen += flat(run.take(1, more))
        again = Run("stream", prefix, workers, shuffle=True)
        again.batches.load_state_dict(run.batches.state_dict())
        run = again
        seen += flat(run.take(1, 1))
    assert seen == expected[: len(seen)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_dropped_and_padded_tails_resume(prefix: str, num_workers: int) -> None:
    for tail in ({"drop_last": True}, {"pad": True}):
        whole = [Run("stream", prefix, rank=rank, world_size=2, **tail).take(0) for rank in range(2)]
        for rank, stop in itertools.product(range(2), (5, len(whole[0]))):
            run = Run("stream", prefix, num_workers, rank=rank, world_size=2, **tail)
            assert run.take(0, stop) == whole[rank][:stop]
            resumed = Run("stream", prefix, num_workers, rank=rank, world_size=2, **tail)
            resumed.batches.load_state_dict(run.batches.state_dict())
            assert resumed.take(0) == whole[rank][stop:]
            if stop == len(whole[0]):
                assert position_from(run.batches.state_dict())["position"] == NUM_OBJECTS


def state_of(run: Run, num_batches: int) -> dict[str, Any]:
    run.take(0, num_batches)
    state: dict[str, Any] = run.batches.state_dict()
    return state


def test_a_state_without_one_position_is_refused(prefix: str) -> None:
    untold = state_of(Run("stream", prefix, 2, dealt=None), 1)
    with pytest.raises(ValueError, match="stand at different places"):
        position_from(untold)
    assert position_from(state_of(Run("stream", prefix, 2, dealt=None), 2))["position"] == 2 * BATCH
    with pytest.raises(ValueError, match="1 batches after its snapshot"):
        position_from(state_of(Run("stream", prefix, 1, dealt=None, snapshot_every_n_steps=2), 3))
    with pytest.raises(ValueError, match="between batches"):
        position_from(state_of(Run("sampler", prefix, 2, dealt=3, rank=0, world_size=2), 1))
    with pytest.raises(ValueError, match="0 positions of s3dlio"):
        position_from(StatefulDataLoader([1, 2]).state_dict())
    with pytest.raises(TypeError, match="not list"):
        position_from([])  # type: ignore[arg-type]


def share_of(run: Run) -> dict[str, int]:
    """What its first worker took."""
    share: dict[str, int] = state_of(run, 2)["_snapshot"]["_worker_snapshots"]["worker_0"]["dataset_state"]
    return share


def test_a_state_of_another_dealing_is_refused(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    share = share_of(Run("stream", prefix, 2))
    assert all(type(value) is int for value in share.values())
    with pytest.raises(ValueError, match="position_from"):
        Run("stream", prefix).source.load_state_dict(share)
    in_worker = WorkerInfo(id=0, num_workers=2, seed=0, dataset=Run("stream", prefix).batches.dataset)
    monkeypatch.setattr("s3dlio.torch.ranks.get_worker_info", lambda: in_worker)
    for options, named in (
        ({"dealt": 2}, "batch_size=4, and here it is 2"),
        ({"rank": 0, "world_size": 2}, "num_ranks=1, and here it is 2"),
        ({"drop_last": True}, "tail=0, and here it is 2"),
        ({"shuffle": True}, "shuffle=False"),
        ({"pattern": "*0"}, "53 samples and there are 6 now"),
    ):
        other = Run("stream", prefix, **options).source
        with pytest.raises(ValueError, match=named):
            other.load_state_dict(share)
        assert (other.epoch, other.seed) == (0, 0)
    source = Run("stream", prefix).source
    with pytest.raises(ValueError, match="taken=-1"):
        source.load_state_dict(share | {"taken": -1})
    source.load_state_dict(share)
    assert next(iter(source)) == 2 * BATCH, "the first worker took the first batch"


def test_the_refusal_of_a_worker_reaches_the_main_process(prefix: str) -> None:
    resumed = Run("stream", prefix, 1, dealt=2)
    resumed.batches.load_state_dict(state_of(Run("stream", prefix, 1), 2))
    with pytest.raises(ValueError, match="batch_size=4, and here it is 2") as caught:
        iter(resumed.batches)
    iterators: list[Any] = [frame.frame.f_locals.get("self") for frame in caught.traceback]
    for iterator in iterators:
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()


@both_kinds
def test_leaving_early_leaves_nothing_behind(kind: str, prefix: str) -> None:
    def once() -> None:
        run = Run(kind, prefix, 2)
        run.take(0, 2)
        run.batches.state_dict()
        iterator: Any = run.batches._iterator
        iterator._shutdown_workers()

    once()
    before = threads_and_descriptors()
    once()
    once()
    after = threads_and_descriptors()
    assert after[0] <= before[0]
    assert after[1] <= before[1] + 2
