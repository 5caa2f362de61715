"""Datasets of whole objects under PyTorch's own DataLoader."""

from __future__ import annotations

import gc
import io
import pickle
import random
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from torch.utils.data import DataLoader, DistributedSampler, Subset

import s3dlio
from s3dlio import BytesView, ObjectStoreIterableDataset, ObjectStoreMapDataset
from s3dlio.storage import memory, open_store
from s3dlio.storage.base import Outcome, Read, ReadResult, Store
from s3dlio.uri import parse
from tests.conftest import LocalPlace, Place, eventually, make_place
from tests.objects import failure_of, fill, flat, nothing_at_hand, number, numbers, threads_and_descriptors

KINDS: list[Callable[..., Any]] = [ObjectStoreMapDataset, ObjectStoreIterableDataset]
both_kinds = pytest.mark.parametrize("kind", KINDS)


def forked(dataset: Any, **options: Any) -> DataLoader[Any]:
    """A DataLoader whose workers are forked, so that they see the objects of memory://, and that never waits for ever."""
    context = "fork" if options.get("num_workers") else None
    return DataLoader(dataset, multiprocessing_context=context, timeout=60 if context else 0, **options)


def test_the_guides_example(place: Place) -> None:
    arrays = [np.arange(length) for length in range(1, 71)]
    for index, array in enumerate(arrays):
        file = io.BytesIO()
        np.savez(file, x=array)
        place.put(f"train/{index:02}.npz", file.getvalue())
    place.put("train/notes.txt", b"no sample")
    uri = f"{place.root}train/"

    dataset = ObjectStoreMapDataset(uri=uri, pattern="*.npz")
    item = dataset[0]
    assert len(dataset) == 70
    assert item == place.get("train/00.npz")
    assert item.uri == f"{uri}00.npz"
    with np.load(io.BytesIO(item)) as archive:
        assert archive["x"].tolist() == [0]

    stream = ObjectStoreIterableDataset(uri=uri, pattern="*.npz", shuffle=True)
    for chosen in (dataset, stream):
        batches = list(forked(chosen, batch_size=32, num_workers=4))
        views = [view for batch in batches for view in batch]
        assert sorted(view.uri for view in views) == list(dataset.uris)
        assert all(view == place.get(view.uri.removeprefix(place.root)) for view in views)


def test_an_index_counts_from_either_end_and_ends_there(place: Place) -> None:
    dataset = ObjectStoreMapDataset(fill(place.root, 3))
    assert [number(dataset[index]) for index in (0, 2, -1, -3)] == [0, 2, 2, 0]
    for index in (3, -4):
        with pytest.raises(IndexError, match="there are 3 objects"):
            dataset[index]


@both_kinds
def test_a_pattern_selects_and_a_transform_converts(place: Place, kind: Callable[..., Any]) -> None:
    prefix = fill(place.root, 12)
    dataset = kind(prefix, pattern="re:[02468]$", transform=number)
    loader = forked(dataset, batch_size=2)
    assert [batch.tolist() for batch in loader] == [[0, 2], [4, 6], [8, 10]]


@both_kinds
def test_an_item_is_a_view_that_knows_its_uri(place: Place, kind: Callable[..., Any]) -> None:
    prefix = fill(place.root, 1)
    (batch,) = forked(kind(prefix), batch_size=4)
    assert type(batch[0]) is BytesView
    assert (batch[0].uri, bytes(batch[0])) == (f"{prefix}00000", b"0")


@both_kinds
def test_nothing_found_is_an_error_that_names_the_uri(place: Place, kind: Callable[..., Any]) -> None:
    place.put("other/a", b"x")
    with pytest.raises(s3dlio.NotFoundError, match="no objects under") as caught:
        kind(f"{place.root}train/")
    assert f"{place.root}train/" in str(caught.value)


@both_kinds
def test_markers_are_no_samples(place: Place, kind: Callable[..., Any]) -> None:
    for marker in ("train/", "train/cls0/", "train/empty/"):
        s3dlio.put_bytes(place.root + marker, b"")
    place.put("train/cls0/1.jpg", b"1")
    place.put("train/2.jpg", b"2")
    assert list(kind(f"{place.root}train/").uris) == [f"{place.root}train/2.jpg", f"{place.root}train/cls0/1.jpg"]


@both_kinds
def test_neighbours_of_the_prefix_are_no_samples(place: Place, kind: Callable[..., Any]) -> None:
    for name in ("data/1", "data/2", "data2/3", "data.bak/4"):
        place.put(name, b"x")
    if not isinstance(place, LocalPlace):
        place.put("data", b"an object of the prefix's own name")
    assert list(kind(f"{place.root}data/").uris) == [f"{place.root}data/1", f"{place.root}data/2"]


def test_more_objects_than_a_page_of_a_listing(place: Place) -> None:
    prefix = fill(place.root, 1203)
    for kind in KINDS:
        uris = kind(prefix).uris
        assert len(set(uris)) == len(uris) == 1203


@both_kinds
def test_a_listing_that_fails_is_not_an_empty_one(kind: Callable[..., Any], public_folder: Path, unprivileged: None) -> None:
    with pytest.raises(s3dlio.AccessDeniedError, match="closed"):
        kind(f"file://{public_folder}/closed/")


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that any user may enter, as pytest's own are not: two objects, one of them closed, and a closed folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for key in ("train/a", "train/b", "closed/c"):
            (folder / key).parent.mkdir(exist_ok=True)
            (folder / key).write_bytes(b"1")
        (folder / "train/b").chmod(0)
        (folder / "closed").chmod(0)
        yield folder
        (folder / "closed").chmod(0o755)


def test_a_dataset_of_named_uris_keeps_their_order_and_lists_nothing(place: Place) -> None:
    prefix = fill(place.root, 4)
    dataset = ObjectStoreMapDataset.from_uris([f"{prefix}{index:05}" for index in (3, 1, 3)], transform=number)
    assert [dataset[index] for index in range(len(dataset))] == [3, 1, 3]
    assert len(ObjectStoreMapDataset.from_uris(["s3://nowhere/at/all"])) == 1
    assert len(ObjectStoreMapDataset.from_prefix(prefix)) == 4


@pytest.mark.parametrize(("wrong", "error"), [("s3://bucket/key", TypeError), ([], ValueError), ([b"x"], TypeError)])
def test_a_dataset_needs_a_list_of_names(wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        ObjectStoreMapDataset.from_uris(wrong)


START_METHODS = [("file", "fork", 4), ("direct", "fork", 4), ("memory", "fork", 4), ("file", "spawn", 1)]


@pytest.mark.parametrize(("scheme", "method", "num_workers"), [*START_METHODS, ("direct", "forkserver", 1)])
def test_workers_read_what_the_parent_has_listed_and_read(
    tmp_path: Path, scheme: str, method: str, num_workers: int
) -> None:
    prefix = fill(make_place(scheme, tmp_path).root, 30)
    for dataset in (ObjectStoreMapDataset(prefix), ObjectStoreIterableDataset(prefix, batch_size=4)):
        expected = numbers(DataLoader(dataset, batch_size=4))
        loader = DataLoader(dataset, batch_size=4, num_workers=num_workers, multiprocessing_context=method, timeout=60)
        assert numbers(loader) == expected
        assert numbers(DataLoader(dataset, batch_size=4)) == expected, "the parent still works"
    assert flat(expected) == list(range(30))


def test_two_loaders_in_turns(place: Place) -> None:
    prefix = fill(place.root, 24)
    loaders = [
        forked(dataset, batch_size=3, num_workers=2)
        for dataset in (ObjectStoreMapDataset(prefix), ObjectStoreIterableDataset(prefix, batch_size=3))
    ]
    pairs = list(zip(*loaders, strict=True))
    assert numbers(pair[0] for pair in pairs) == numbers(pair[1] for pair in pairs)
    assert flat(numbers(pair[0] for pair in pairs)) == list(range(24))


def test_fork_from_a_thread_while_other_threads_are_inside_get(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """All I/O threads of the parent are held inside a read while workers are forked and do their reading."""
    dataset = ObjectStoreMapDataset(fill(place.root, 12))
    slow = make_place("memory", Path())
    slow.put("slow", b"at last")
    inside, go_on = threading.Event(), threading.Event()
    read_now = memory.MemoryStore.read

    def read(store: memory.MemoryStore, request: Read) -> ReadResult:
        if request.key == "slow":
            inside.set()
            assert go_on.wait(60)
        return read_now(store, request)

    monkeypatch.setattr(memory.MemoryStore, "read", read)
    read_by_others: list[BytesView] = []
    batches: list[Any] = []
    others = [
        threading.Thread(target=lambda: read_by_others.extend(s3dlio.get_many([f"{slow.root}slow"] * 40))),
        threading.Thread(target=lambda: read_by_others.append(s3dlio.get(f"{slow.root}slow"))),
    ]
    for thread in others:
        thread.start()
    assert inside.wait(60)
    forking = threading.Thread(target=lambda: batches.extend(forked(dataset, batch_size=3, num_workers=2)))
    forking.start()
    forking.join(60)
    assert flat(numbers(batches)) == list(range(12))
    go_on.set()
    for thread in others:
        thread.join(60)
    assert read_by_others == [b"at last"] * 41


def test_datasets_survive_a_pickle(place: Place) -> None:
    prefix = fill(place.root, 9)
    indexed = ObjectStoreMapDataset(prefix, transform=number)
    stream = ObjectStoreIterableDataset(prefix, transform=number, shuffle=True, seed=3)
    stream.set_epoch(2)
    first, second = pickle.loads(pickle.dumps((indexed, stream)))
    assert [first[index] for index in range(9)] == list(range(9))
    assert list(second) == list(stream) != list(range(9))
    assert second.epoch == 2


@both_kinds
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_object_that_is_gone_fails_by_type_and_uri(place: Place, kind: Callable[..., Any], num_workers: int) -> None:
    prefix = fill(place.root, 8)
    dataset = kind(prefix)
    s3dlio.delete(f"{prefix}00005")
    text = failure_of(forked(dataset, batch_size=2, num_workers=num_workers), s3dlio.NotFoundError)
    assert "check the name" in text
    assert f"{prefix}00005" in text


@both_kinds
@pytest.mark.parametrize("scheme", ["file", "direct"])
def test_an_object_that_is_closed_fails_by_type_and_uri(
    kind: Callable[..., Any], scheme: str, public_folder: Path, unprivileged: None
) -> None:
    uri = f"{scheme}://{public_folder}/train/"
    text = failure_of(forked(kind(uri), batch_size=1, num_workers=2), s3dlio.AccessDeniedError)
    assert "check the permissions" in text
    assert f"{uri}b" in text


@both_kinds
def test_an_error_of_the_users_own_keeps_its_type(place: Place, kind: Callable[..., Any]) -> None:
    def transform(view: BytesView) -> int:
        raise KeyError(f"no label for {view.uri}")

    prefix = fill(place.root, 2)
    text = failure_of(forked(kind(prefix, transform=transform), num_workers=1), KeyError)
    assert f"no label for {prefix}00000" in text


@both_kinds
@pytest.mark.parametrize("num_workers", [0, 2])
def test_leaving_early_leaves_nothing_behind(tmp_path: Path, kind: Callable[..., Any], num_workers: int) -> None:
    dataset = kind(fill(f"direct://{tmp_path}/", 60))

    def leave_early() -> None:
        for step, _ in enumerate(forked(dataset, batch_size=4, num_workers=num_workers)):
            if step == 2:
                break

    leave_early()
    before = threads_and_descriptors()
    for _ in range(8 if num_workers else 30):
        leave_early()
    # A thread of the last DataLoader may still be on its way out.
    assert eventually(lambda: all(now <= then for now, then in zip(threads_and_descriptors(), before, strict=True)))


@both_kinds
@pytest.mark.parametrize("num_workers", [0, 2])
def test_memory_threads_and_descriptors_stay_level_over_50_epochs(
    tmp_path: Path, kind: Callable[..., Any], num_workers: int
) -> None:
    root = f"file://{tmp_path}/"
    sizes = random.Random(1).choices(range(100_000, 400_000), k=24)
    s3dlio.put_many((f"{root}{index}", bytes(size)) for index, size in enumerate(sizes))
    loader = forked(kind(root), batch_size=4, num_workers=num_workers, persistent_workers=num_workers > 0)
    usage = {}
    for epoch in range(1, 51):
        assert sum(view.nbytes for batch in loader for view in batch) == sum(sizes)
        if epoch in (5, 50):
            gc.collect()
            usage[epoch] = (psutil.Process().memory_info().rss, threads_and_descriptors())
    assert usage[50][0] <= usage[5][0] + 20 * 2**20
    assert usage[50][1] == usage[5][1]


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("batch_size", [None, 5])
def test_ranks_and_workers_share_a_stream_exactly(
    tmp_path: Path, num_ranks: int, num_workers: int, batch_size: int | None
) -> None:
    prefix = fill(f"file://{tmp_path}/", 103)
    seen = []
    for rank in range(num_ranks):
        dataset = ObjectStoreIterableDataset(prefix, shuffle=True, batch_size=batch_size, rank=rank, world_size=num_ranks)
        seen += flat(numbers(forked(dataset, batch_size=5, num_workers=num_workers)))
    assert sorted(seen) == list(range(103))
    assert seen != sorted(seen)


def test_torchs_own_distributed_sampler_shares_a_map_dataset(tmp_path: Path) -> None:
    dataset = ObjectStoreMapDataset(fill(f"file://{tmp_path}/", 103))
    samplers = [DistributedSampler(dataset, num_replicas=4, rank=rank) for rank in range(4)]
    seen = [flat(numbers(forked(dataset, batch_size=5, num_workers=1, sampler=sampler))) for sampler in samplers]
    assert set(flat(seen)) == set(range(103))
    assert {len(samples) for samples in seen} == {26}


@pytest.mark.parametrize("num_workers", [0, 3])
def test_a_rank_and_a_worker_with_nothing_to_do_end_normally(place: Place, num_workers: int) -> None:
    prefix = fill(place.root, 2)
    seen = []
    for rank in range(4):
        stream = ObjectStoreIterableDataset(prefix, rank=rank, world_size=4)
        seen.append(flat(numbers(forked(stream, num_workers=num_workers))))
    assert seen == [[0], [1], [], []]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_skipping_what_was_read_goes_on_as_if_uninterrupted(place: Place, num_workers: int) -> None:
    """50 objects, batches of 4: five are read, then the dataset is made anew and 20 samples are skipped."""
    prefix = fill(place.root, 50)
    whole = numbers(forked(ObjectStoreMapDataset(prefix), batch_size=4, num_workers=num_workers))
    rest = Subset(ObjectStoreMapDataset(prefix), range(20, 50))
    assert numbers(forked(rest, batch_size=4, num_workers=num_workers)) == whole[5:]
    stream = numbers(forked(ObjectStoreIterableDataset(prefix, batch_size=4), batch_size=4, num_workers=num_workers))
    assert stream == whole


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("tail", [{}, {"pad": True}, {"drop_last": True}])
def test_len_of_a_data_loader_is_the_number_of_its_batches(place: Place, num_workers: int, tail: dict[str, bool]) -> None:
    prefix = fill(place.root, 50)
    for rank in range(3):
        stream = ObjectStoreIterableDataset(prefix, batch_size=4, rank=rank, world_size=3, **tail)
        loader = forked(stream, batch_size=4, num_workers=num_workers)
        assert len(loader) == len(list(loader))
    indexed = forked(ObjectStoreMapDataset(prefix), batch_size=4, num_workers=num_workers)
    assert len(indexed) == len(list(indexed)) == 13


def test_a_stream_that_was_not_told_its_batch_size_has_no_length(place: Place) -> None:
    with pytest.raises(TypeError, match="batch_size"):
        len(ObjectStoreIterableDataset(fill(place.root, 2)))


def test_a_stream_reads_no_more_than_its_window(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven objects are in flight, or here and not yet taken: each one taken makes room for one more."""
    dataset = ObjectStoreIterableDataset(fill(place.root, 40), prefetch=7)
    nothing_at_hand(monkeypatch)  # files that are in memory already would not be read ahead
    kind = type(open_store(parse(place.root + "k")))
    read_many, begun = kind.read_many, [0]

    def counting(store: Store, reads: Iterable[Read], *, window: int) -> Iterator[Outcome]:
        pending = iter(reads)

        class Counted(Iterator[Read]):
            def __next__(self) -> Read:
                read = next(pending)
                begun[0] += 1
                return read

        return read_many(store, Counted(), window=window)

    monkeypatch.setattr(kind, "read_many", counting)
    for taken, _ in enumerate(iter(dataset)):
        assert begun[0] <= taken + 7
        assert taken > 0 or begun[0] == 7
    assert begun[0] == 40


def test_a_batch_of_a_map_dataset_is_one_call(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ObjectStoreMapDataset(fill(place.root, 12), max_in_flight=3)
    calls: list[tuple[int, int]] = []
    read_now = s3dlio.bulk.get_many

    def get_many(uris: list[str], workers: int) -> list[BytesView]:
        calls.append((len(uris), workers))
        return read_now(uris, workers)

    monkeypatch.setattr(s3dlio.bulk, "get_many", get_many)
    assert len(list(DataLoader(dataset, batch_size=6))) == 2
    assert calls == [(6, 3), (6, 3)]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"prefetch": 0}, "prefetch=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"drop_last": True, "pad": True}, "contradict"),
        ({"rank": 1}, "rank=1 and world_size=None"),
        ({"world_size": 2}, "world_size=2"),
        ({"rank": 2, "world_size": 2}, "rank=2"),
        ({"rank": -1, "world_size": 2}, "rank=-1"),
    ],
)
def test_contradictions_are_errors_where_the_dataset_is_made(place: Place, wrong: dict[str, Any], named: str) -> None:
    prefix = fill(place.root, 2)
    with pytest.raises(ValueError, match=named):
        ObjectStoreIterableDataset(prefix, **wrong)


def test_the_launchers_environment_tells_the_rank(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ObjectStoreIterableDataset(fill(place.root, 6))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert [number(view) for view in dataset] == [1, 4]
    assert flat(numbers(forked(dataset, num_workers=2))) == [1, 4]


def test_the_package_names_both_datasets_lazily() -> None:
    assert s3dlio.ObjectStoreMapDataset is s3dlio.torch.ObjectStoreMapDataset
    assert s3dlio.ObjectStoreIterableDataset is s3dlio.torch.ObjectStoreIterableDataset


def test_a_stream_sent_to_another_rank_reads_that_ranks_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = pickle.dumps(ObjectStoreIterableDataset(fill(f"file://{tmp_path}/", 10), transform=number))
    parts = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        parts.append(list(pickle.loads(sent)))
    assert sorted(parts[0] + parts[1]) == list(range(10))


def test_an_error_of_the_transform_names_the_object(tmp_path: Path) -> None:
    def refuse(view: BytesView) -> None:
        raise ValueError("bad sample")

    prefix = fill(f"file://{tmp_path}/", 3)
    with pytest.raises(ValueError, match="bad sample") as caught:
        ObjectStoreMapDataset(prefix, transform=refuse)[1]
    assert caught.value.__notes__ == [f"while transforming {list(ObjectStoreMapDataset(prefix).uris)[1]}"]
    with pytest.raises(ValueError, match=f"while transforming {prefix}"):
        list(DataLoader(ObjectStoreMapDataset(prefix, transform=refuse), num_workers=1))
