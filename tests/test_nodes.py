"""Sources for torchdata.nodes: epochs, exact states, and positions for other numbers of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torchdata.nodes import Batcher, Loader, Mapper, Prefetcher

from s3dlio import ObjectStoreIterableDataset
from s3dlio.torch import nodes, position_from
from s3dlio.torch.nodes import StreamNode
from tests.objects import fill, flat, number, threads_and_descriptors
from tests.test_datapipes import NUM_OBJECTS, NUM_SHARDS, PER_SHARD, prefix, sample_number, shards

__all__ = ["prefix", "shards"]


def row_of(batch: Any) -> int:
    return int(batch["x"])


Make = Callable[[str, str], StreamNode]
MAKERS: dict[str, tuple[Make, Callable[[Any], int], int]] = {
    "objects": (lambda prefix, _: nodes.objects(prefix, shuffle=True), number, NUM_OBJECTS),
    "records": (lambda _, shards: nodes.tfrecord(f"{shards}records/", shuffle=True), number, NUM_SHARDS * PER_SHARD),
    "rows": (lambda _, shards: nodes.parquet(f"{shards}rows/", shuffle=True), row_of, NUM_SHARDS * PER_SHARD),
    "samples": (lambda _, shards: nodes.tar_samples(f"{shards}tar/", shuffle=True), sample_number, NUM_SHARDS * PER_SHARD),
}
every_node = pytest.mark.parametrize("kind", MAKERS)


def loader(kind: str, prefix: str, shards: str, *, ahead: bool = False) -> Any:
    make, value, _ = MAKERS[kind]
    node = Batcher(Mapper(make(prefix, shards), value), 3, drop_last=False)
    return Loader(Prefetcher(node, prefetch_factor=2) if ahead else node)


def take(batches: Any, num_batches: int | None = None) -> list[list[int]]:
    taken = []
    for batch in batches:
        taken.append(batch)
        if len(taken) == num_batches:
            break
    return taken


@every_node
@pytest.mark.parametrize("ahead", [False, True])
def test_epochs_differ_and_a_state_goes_on_exactly(kind: str, prefix: str, shards: str, ahead: bool) -> None:
    """In the middle, twice, at the last batch, and after the epoch; behind a node that reads ahead, too."""

    def make() -> Any:
        return loader(kind, prefix, shards, ahead=ahead)

    whole = make()
    epochs = [take(whole) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    assert [sorted(flat(epoch)) for epoch in epochs] == [list(range(MAKERS[kind][2]))] * 3

    run = make()
    assert take(run) == epochs[0]
    seen = take(run, 2)
    for stop in (1, len(epochs[1]) - 3, None):
        state, run = run.state_dict(), make()
        run.load_state_dict(state)
        seen += take(run, stop)
    assert seen == epochs[1] + epochs[2], "at the end of an epoch a Loader goes on with the next"


@every_node
def test_a_state_of_the_beginning_is_the_beginning(kind: str, prefix: str, shards: str) -> None:
    first = loader(kind, prefix, shards)
    state = first.state_dict()
    resumed = loader(kind, prefix, shards)
    resumed.load_state_dict(state)
    assert take(resumed) == take(first) == take(loader(kind, prefix, shards))
    assert take(resumed) == take(first)


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_ranks_go_on_within_a_batch_and_others_at_its_end(prefix: str, stop: int) -> None:
    options: dict[str, Any] = {"transform": number, "shuffle": True, "batch_size": 3}
    seen: list[int] = []
    states = []
    for rank in range(2):
        node = nodes.objects(prefix, **options, rank=rank, world_size=2)
        seen += [next(node) for _ in range(stop)]
        states.append(node.state_dict())
        again = nodes.objects(prefix, **options, rank=rank, world_size=2)
        again.reset(states[-1])
        assert sorted([*again]) == sorted([*node])
    if stop < 3:
        with pytest.raises(ValueError, match="between batches"):
            position_from(states[0])
        return
    assert position_from(states[0]) == position_from(states[1])
    for rank in range(3):
        dataset = ObjectStoreIterableDataset(prefix, **options, rank=rank, world_size=3)
        dataset.load_state_dict(position_from(states[0]))
        seen += [*StreamNode(dataset)]
        other = nodes.objects(prefix, **options, rank=rank, world_size=3)
        other.reset(states[1])
        assert other.state_dict() == states[1]
    assert sorted(seen) == list(range(NUM_OBJECTS))


def test_a_node_takes_files_of_tar_archives(shards: str) -> None:
    node = nodes.tar(f"{shards}tar/")
    assert [next(node).name for _ in range(3)] == ["0000.bin", "0000.cls", "0001.bin"]
    node.shutdown()


def test_leaving_early_leaves_nothing_behind(tmp_path: Any) -> None:
    prefix = fill(f"file://{tmp_path}/", 40)

    def once() -> None:
        node = nodes.objects(prefix)
        next(node)
        node.shutdown()
        batches = Loader(nodes.objects(prefix))
        take(batches, 2)

    once()
    before = threads_and_descriptors()
    for _ in range(5):
        once()
    after = threads_and_descriptors()
    assert after[0] <= before[0]
    assert after[1] <= before[1]
