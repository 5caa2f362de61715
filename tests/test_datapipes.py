"""DataPipes over objects and the records inside them: shared before they are read, shuffled, and resumed."""

from __future__ import annotations

import io
import itertools
import pickle
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader, IterDataPipe, MapDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
from torch.utils.data.datapipes.map import SequenceWrapper
from torchdata.stateful_dataloader import StatefulDataLoader

import s3dlio
from s3dlio import bulk
from s3dlio.torch import PipeDataset
from s3dlio.torch.datapipes import ListObjects, MapObjects, ReadObjects, ReadParquet, ReadTar, ReadTarSamples, ReadTFRecord
from s3dlio.torch.shared_pipe import functional
from tests.conftest import Place
from tests.objects import fill, flat, framed, number, threads_and_descriptors

NUM_OBJECTS = 23
NUM_SHARDS, PER_SHARD = 5, 4


def archive(numbers: range) -> bytes:
    """A tar archive of a sample with two files for each number."""
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as tar:
        for sample in numbers:
            for extension in ("bin", "cls"):
                entry = tarfile.TarInfo(f"{sample:04}.{extension}")
                entry.size = len(str(sample))
                tar.addfile(entry, io.BytesIO(str(sample).encode()))
    return memory.getvalue()


def table(numbers: range) -> bytes:
    """A Parquet file with a row group for each number."""
    memory = io.BytesIO()
    pq.write_table(pa.table({"x": list(numbers)}), memory, row_group_size=1)
    return memory.getvalue()


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> str:
    return fill(f"file://{tmp_path_factory.mktemp('pipes')}/", NUM_OBJECTS)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = f"file://{tmp_path_factory.mktemp('shards')}/"
    for shard in range(NUM_SHARDS):
        numbers = range(shard * PER_SHARD, (shard + 1) * PER_SHARD)
        s3dlio.put_bytes(f"{root}records/{shard}", b"".join(framed(str(sample).encode()) for sample in numbers))
        s3dlio.put_bytes(f"{root}tar/{shard}", archive(numbers))
        s3dlio.put_bytes(f"{root}rows/{shard}.parquet", table(numbers))
    return root


def member_number(member: Any) -> int:
    return number(member.data)


def sample_number(sample: Any) -> int:
    return number(sample["cls"])


def row_number(batch: Any) -> int:
    return int(batch["data"].column("x")[0].as_py())


def is_class(member: Any) -> bool:
    return bool(member.name.endswith(".cls"))


Make = Callable[[str, str], IterDataPipe[Any]]
MAKERS: dict[str, tuple[Make, int]] = {
    "objects": (lambda prefix, _: ReadObjects(prefix).map(number), NUM_OBJECTS),
    "records": (lambda _, shards: ReadTFRecord(f"{shards}records/").map(number), NUM_SHARDS * PER_SHARD),
    "members": (lambda _, shards: ReadTar(f"{shards}tar/").filter(is_class).map(member_number), NUM_SHARDS * PER_SHARD),
    "samples": (lambda _, shards: ReadTarSamples(f"{shards}tar/").map(sample_number), NUM_SHARDS * PER_SHARD),
    "rows": (lambda _, shards: ReadParquet(f"{shards}rows/").map(row_number), NUM_SHARDS * PER_SHARD),
    "rows of files": (
        lambda _, shards: ListObjects(f"{shards}rows/").s3dlio_parquet().map(row_number),
        NUM_SHARDS * PER_SHARD,
    ),
    "chain": (
        lambda prefix, _: IterableWrapper([prefix]).s3dlio_list().shuffle().sharding_filter().s3dlio_read().map(number),
        NUM_OBJECTS,
    ),
}
every_pipe = pytest.mark.parametrize("kind", MAKERS)


def loaded(pipe: Any, num_workers: int, **options: Any) -> Any:
    if num_workers:
        options = {"multiprocessing_context": "fork", "timeout": 60} | options
    return options.pop("kind", DataLoader)(pipe, batch_size=3, num_workers=num_workers, **options)


def numbers_of(loader: Any) -> list[int]:
    return flat(batch.tolist() for batch in loader)


def test_objects_are_listed_and_read_on_every_scheme(place: Place) -> None:
    for name in ("b", "a", "c/d", "c/e.txt"):
        place.put(f"train/{name}", name.encode())
    place.put("trainer", b"neighbour")
    prefix = f"{place.root}train/"
    assert list(ListObjects(prefix)) == [f"{prefix}{name}" for name in ("a", "b", "c/d", "c/e.txt")]
    assert list(ListObjects(prefix, "*.txt")) == [f"{prefix}c/e.txt"]
    assert list(ListObjects([f"{prefix}c/", f"{prefix}a"])) == [f"{prefix}{name}" for name in ("c/d", "c/e.txt", "a")]
    views = list(ReadObjects(prefix))
    assert [(view.uri, bytes(view)) for view in views] == [
        (f"{prefix}{name}", name.encode()) for name in ("a", "b", "c/d", "c/e.txt")
    ]
    assert [bytes(view) for view in ReadObjects([f"{prefix}b", f"{prefix}a", f"{prefix}b"])] == [b"b", b"a", b"b"]
    with pytest.raises(s3dlio.NotFoundError, match="nothing"):
        ListObjects(f"{place.root}nothing/")
    s3dlio.delete(f"{prefix}a")
    with pytest.raises(s3dlio.NotFoundError, match="train/a"):
        list(ReadObjects([f"{prefix}a"]))


@every_pipe
@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_every_item_comes_once_whatever_the_workers(kind: str, prefix: str, shards: str, num_workers: int) -> None:
    make, num_items = MAKERS[kind]
    loader = loaded(make(prefix, shards), num_workers)
    assert sorted(numbers_of(loader)) == list(range(num_items))
    assert sorted(numbers_of(loader)) == list(range(num_items)), "a second epoch is as complete"


def test_a_spawned_worker_gets_the_pipe(prefix: str) -> None:
    pipe = ReadObjects(prefix)
    assert next(iter(pipe)) == b"0"
    loader = loaded(pipe.map(number), 1, multiprocessing_context="spawn")
    assert numbers_of(loader) == list(range(NUM_OBJECTS))


@every_pipe
def test_ranks_and_workers_share_by_the_protocol_of_pytorch(kind: str, prefix: str, shards: str) -> None:
    from torch.utils.data.graph_settings import apply_sharding

    make, num_items = MAKERS[kind]
    seen: list[int] = []
    for rank in range(2):
        for worker in range(3):
            pipe = make(prefix, shards)
            apply_sharding(pipe, 2, rank, SHARDING_PRIORITIES.DISTRIBUTED)
            apply_sharding(pipe, 3, worker, SHARDING_PRIORITIES.MULTIPROCESSING)
            seen += pipe
    assert sorted(seen) == list(range(num_items))


def test_a_reader_shares_what_no_pipe_before_it_shares(prefix: str) -> None:
    uris = s3dlio.list(prefix)
    for pipe in (IterableWrapper(uris).s3dlio_read(), IterableWrapper(uris).map(str).shuffle().s3dlio_read()):
        assert sorted(numbers_of(loaded(pipe.map(number), 2))) == list(range(NUM_OBJECTS))
    assert not hasattr(ReadObjects(prefix), "apply_sharding"), "its source shares"
    twice = ReadObjects(prefix).sharding_filter().map(number)
    with pytest.raises(RuntimeError, match="Sharding twice"):
        list(loaded(twice, 0))


def test_nothing_is_read_for_another_worker(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    arrivals = bulk.arrivals

    def watched(uris: Any, *, window: int) -> Iterator[Any]:
        def noted() -> Iterator[str]:
            for uri in uris:
                asked.append(uri)
                yield uri

        return arrivals(noted(), window=window)

    monkeypatch.setattr(bulk, "arrivals", watched)
    pipe: Any = ReadObjects(prefix, prefetch=2)
    pipe.source_datapipe.apply_sharding(4, 1)
    assert [number(view) for view in pipe] == list(range(1, NUM_OBJECTS, 4))
    assert asked == s3dlio.list(prefix)[1::4]
    asked.clear()
    pipe.load_state_dict({"version": 1, "taken": 4})
    assert [number(view) for view in pipe] == list(range(1, NUM_OBJECTS, 4))[4:]
    assert asked == s3dlio.list(prefix)[1::4][4:]


class Endless(IterDataPipe[str]):
    """Names over and over again: nobody knows how many there are."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __iter__(self) -> Iterator[str]:
        return itertools.cycle(self.names)

    def __len__(self) -> int:
        raise TypeError("there is no length")  # as PyTorch's own pipes say


ENDLESS: dict[str, tuple[Callable[[Any], Any], str, Callable[[Any], Any]]] = {
    "objects": (ReadObjects, "tar/", bytes),
    "parquet": (ReadParquet, "rows/", row_number),
    "tfrecord": (ReadTFRecord, "records/", number),
    "tar": (ReadTar, "tar/", member_number),
    "tar samples": (ReadTarSamples, "tar/", sample_number),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_pipe_of_names_may_have_no_end(kind: str, shards: str) -> None:
    make, folder, value = ENDLESS[kind]
    whole = list(map(value, make(ListObjects(shards + folder))))
    endless = make(Endless(s3dlio.list(shards + folder)))
    assert list(map(value, itertools.islice(endless, 2 * len(whole)))) == whole * 2


def test_a_pipe_goes_on_in_names_without_an_end(shards: str) -> None:
    def make() -> PipeDataset:
        return PipeDataset(ReadTFRecord(Endless(s3dlio.list(shards + "records/"))))

    expected = list(map(number, itertools.islice(make(), 50)))
    for num_taken in (1, 4, 23):
        first, later = make(), make()
        items = iter(first)
        taken = [number(next(items)) for _ in range(num_taken)]
        later.load_state_dict(first.state_dict())
        assert taken + list(map(number, itertools.islice(later, 50 - num_taken))) == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_data_loader_shuffles_names_by_its_own_seed(prefix: str, num_workers: int) -> None:
    def epochs(seed: int) -> list[list[int]]:
        import torch

        generator = torch.Generator().manual_seed(seed)
        loader = loaded(ReadObjects(prefix).map(number), num_workers, shuffle=True, generator=generator)
        return [numbers_of(loader), numbers_of(loader)]

    first = epochs(1)
    assert first == epochs(1)
    assert first[0] != first[1] != epochs(2)[1]
    assert [sorted(epoch) for epoch in first] == [list(range(NUM_OBJECTS))] * 2


def test_a_shuffled_list_is_a_function_of_its_seed(prefix: str) -> None:
    pipe = ListObjects(prefix, shuffle=True, seed=4)
    assert list(pipe) == list(pipe) == list(ListObjects(prefix, shuffle=True, seed=4)) != s3dlio.list(prefix)
    assert list(pipe.set_seed(5)) != list(ListObjects(prefix, shuffle=True, seed=4))
    assert list(pipe.set_shuffle(False)) == s3dlio.list(prefix)


def test_the_functional_forms_are_there_and_may_be_registered_again(prefix: str, shards: str) -> None:
    uris = IterableWrapper(s3dlio.list(f"{shards}records/"))
    assert [number(record) for record in uris.s3dlio_tfrecord()] == list(range(NUM_SHARDS * PER_SHARD))
    archives = IterableWrapper([f"{shards}tar/"]).s3dlio_list()
    assert [member.name for member in archives.s3dlio_tar()][:3] == ["0000.bin", "0000.cls", "0001.bin"]
    assert [sample["__key__"] for sample in archives.s3dlio_tar_samples()][:2] == ["0000", "0001"]
    functional("s3dlio_read")(ReadObjects)
    assert [number(view) for view in IterableWrapper([prefix]).s3dlio_list().s3dlio_read()] == list(range(NUM_OBJECTS))
    assert number(SequenceWrapper(s3dlio.list(prefix)).s3dlio_read()[-1]) == NUM_OBJECTS - 1


def test_a_list_of_many_names_is_not_pickled_to_find_the_pipes_of_a_graph(prefix: str) -> None:
    from torch.utils.data.graph import traverse_dps

    pickled: list[Any] = []
    pipe: Any = ReadObjects(prefix)
    held = pipe.source_datapipe._held

    class Watched(type(held)):  # type: ignore[misc]
        def __reduce__(self) -> Any:
            pickled.append(self)
            return super().__reduce__()

    held.__class__ = Watched
    traverse_dps(pipe)
    assert not pickled


def test_objects_by_index(prefix: str) -> None:
    pipe = MapObjects(prefix)
    assert isinstance(pipe, MapDataPipe)
    assert (len(pipe), pipe[3].uri) == (NUM_OBJECTS, f"{prefix}00003")
    assert [number(view) for view in pipe.__getitems__([5, 2])] == [5, 2]
    assert numbers_of(loaded(pipe.map(number), 2)) == list(range(NUM_OBJECTS))
    assert sorted(numbers_of(loaded(pipe.map(number), 2, shuffle=True))) == list(range(NUM_OBJECTS))
    assert number(MapObjects([f"{prefix}00007"])[0]) == 7
    assert len(MapObjects(prefix, "*1")) == 3


def stateful(kind: str, prefix: str, shards: str, num_workers: int, persistent: bool = False, **options: Any) -> Any:
    make, _ = MAKERS[kind]
    dataset = PipeDataset(make(prefix, shards), shuffle=True, seed=3, **options)
    loading = {"multiprocessing_context": "fork", "persistent_workers": persistent, "timeout": 60} if num_workers else {}
    return StatefulDataLoader(dataset, batch_size=3, num_workers=num_workers, **loading)


def take(loader: Any, epoch: int, num_batches: int | None = None) -> list[list[int]]:
    loader.dataset.set_epoch(epoch)
    taken: list[list[int]] = []
    for batch in loader:
        taken.append(batch.tolist())
        if len(taken) == num_batches:
            break
    return taken


@every_pipe
@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, True)])
def test_a_pipe_dataset_resumes_exactly_and_again(
    kind: str, prefix: str, shards: str, num_workers: int, persistent: bool
) -> None:
    """In the middle, twice, at the last batch and after it, in the second epoch."""

    def make() -> Any:
        return stateful(kind, prefix, shards, num_workers, persistent)

    whole = make()
    epochs = [take(whole, epoch) for epoch in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    assert [sorted(flat(epoch)) for epoch in epochs] == [list(range(MAKERS[kind][1]))] * 3

    seen: list[list[int]] = []
    state = None
    for stop in (2, 1, len(epochs[1]) - 3, None):
        run = make()
        if state is not None:
            run.load_state_dict(state)
        seen += take(run, 1, stop)
        state = run.state_dict()
    assert seen == epochs[1]
    run = make()
    run.load_state_dict(state)
    assert take(run, 2) == epochs[2]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("make", [ReadObjects, ReadTFRecord], ids=lambda kind: kind.__name__)
def test_a_reader_at_the_end_of_a_graph_resumes_with_workers(make: Any, prefix: str, shards: str, num_workers: int) -> None:
    """Also when a worker gave nothing since it was resumed, and in the epoch after."""

    def run() -> Any:
        dataset = PipeDataset(make(prefix if make is ReadObjects else f"{shards}records/"), shuffle=True)
        return loaded(dataset, num_workers, kind=StatefulDataLoader)

    def take(loader: Any, epoch: int, num_batches: int | None = None) -> list[list[int]]:
        loader.dataset.set_epoch(epoch)
        batches = itertools.islice(loader, num_batches)
        return [[number(view) for view in batch] for batch in batches]

    expected = [take(run(), epoch) for epoch in range(2)]
    seen: list[list[int]] = []
    state = None
    for stop in (1, 1, 2, None):
        loader = run()
        if state is not None:
            loader.load_state_dict(state)
        seen += take(loader, 0, stop)
        state = loader.state_dict()
    assert seen == expected[0]
    assert take(loader, 1) == expected[1]
    loader = run()
    loader.load_state_dict(state)
    assert take(loader, 1) == expected[1]


@pytest.mark.parametrize("kind", ["read", "tfrecord", "tar_samples"])
def test_a_reader_at_the_end_of_a_graph_resumes_without_reading_again(
    kind: str, prefix: str, shards: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipes: dict[str, Callable[[], Any]] = {
        "read": lambda: ReadObjects(prefix, prefetch=1),
        "tfrecord": lambda: ReadTFRecord(f"{shards}records/"),
        "tar_samples": lambda: ReadTarSamples(f"{shards}tar/"),
    }
    expected = list(PipeDataset(pipes[kind](), shuffle=True))
    dataset = PipeDataset(pipes[kind](), shuffle=True)
    iterator = iter(dataset)
    first = [next(iterator) for _ in range(14)]
    state = pickle.loads(pickle.dumps(dataset.state_dict()))
    resumed = PipeDataset(pipes[kind](), shuffle=True)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    asked: set[str] = set()
    resolve, places_of = s3dlio.objects.resolve, s3dlio.objects.places_of

    def noted(uri: str) -> str:
        asked.add(uri)
        return uri

    monkeypatch.setattr(s3dlio.objects, "resolve", lambda uri: resolve(noted(uri)))
    monkeypatch.setattr(s3dlio.objects, "places_of", lambda uris: places_of(map(noted, uris)))
    assert [*first, *resumed] == expected
    assert len(asked) == {"read": NUM_OBJECTS - 14, "tfrecord": 2, "tar_samples": 2}[kind]


def test_a_pipe_dataset_refuses_what_is_not_its_own(prefix: str) -> None:
    with pytest.raises(TypeError, match="MapObjects"):
        PipeDataset(MapObjects(prefix))  # type: ignore[arg-type]
    dataset = PipeDataset(ReadObjects(prefix))
    state = dataset.state_dict()
    other = PipeDataset(ReadObjects(prefix), rank=1, world_size=2)
    with pytest.raises(ValueError, match="num_ranks=1, and here it is 2"):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="no state of a PipeDataset"):
        dataset.load_state_dict({"version": 1})
    with pytest.raises(ValueError, match="no state of ReadObjects"):
        ReadObjects(prefix).load_state_dict({"version": 1, "taken": -1})
    with pytest.raises(ValueError, match="epoch=-1"):
        dataset.set_epoch(-1)


def test_ranks_of_a_pipe_dataset_share_every_epoch(prefix: str) -> None:
    ranks = [PipeDataset(ReadObjects(prefix).map(number), shuffle=True, rank=rank, world_size=3) for rank in range(3)]
    for epoch in range(2):
        hands = []
        for dataset in ranks:
            dataset.set_epoch(epoch)
            hands.append(numbers_of(loaded(dataset, 2)))
        assert sorted(flat(hands)) == list(range(NUM_OBJECTS))


@pytest.mark.parametrize("kind", ["objects", "records"])
def test_leaving_early_leaves_nothing_behind(kind: str, prefix: str, shards: str) -> None:
    def once() -> None:
        for _ in MAKERS[kind][0](prefix, shards):
            break

    once()
    before = threads_and_descriptors()
    for _ in range(5):
        once()
    after = threads_and_descriptors()
    assert after[0] <= before[0]
    assert after[1] <= before[1]


def test_indexes_beside_the_shards_are_no_shards(shards: str, tmp_path: Any) -> None:
    for shard in range(2):
        for kind in ("records", "tar"):
            s3dlio.put_bytes(f"file://{tmp_path}/{kind}/{shard}", s3dlio.get(f"{shards}{kind}/{shard}"))
        s3dlio.create_tfrecord_index(f"file://{tmp_path}/records/{shard}")
        s3dlio.create_tar_index(f"file://{tmp_path}/tar/{shard}")
    assert [bytes(record) for record in ReadTFRecord(f"file://{tmp_path}/records/")] == [
        b"%d" % i for i in range(2 * PER_SHARD)
    ]
    assert len(list(ReadTar(f"file://{tmp_path}/tar"))) == 4 * PER_SHARD
    assert [sample["__key__"] for sample in ReadTarSamples(f"file://{tmp_path}/tar/1")] == [
        f"{number:04}" for number in range(PER_SHARD, 2 * PER_SHARD)
    ]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_raw_row_groups_keep_what_they_know_in_a_batch(shards: str, num_workers: int) -> None:
    pipe = ReadParquet(f"{shards}rows/", decode="raw")
    loader = DataLoader(pipe, batch_size=PER_SHARD, num_workers=num_workers)
    items = [item for batch in loader for item in batch]
    assert sorted((item.uri, item["rg_idx"]) for item in items) == [
        (f"{shards}rows/{shard}.parquet", row_group) for shard in range(NUM_SHARDS) for row_group in range(PER_SHARD)
    ]
    for item in items:
        shard = int(item.uri.removesuffix(".parquet")[-1])
        assert pq.read_table(io.BytesIO(item)).column("x").to_pylist() == [shard * PER_SHARD + item.rg_idx]


def test_a_place_in_the_files_of_one_rank_is_none_in_those_of_another(shards: str) -> None:
    def records(rank: int) -> PipeDataset:
        return PipeDataset(ReadTFRecord([f"{shards}records/{shard}" for shard in range(4)]), rank=rank, world_size=2)

    first, second = records(0), records(1)
    next(iter(first))
    second.load_state_dict(first.state_dict())
    with pytest.raises(ValueError, match="other names"):
        list(second)


def test_a_failure_of_a_pipe_is_told_again_and_ends_no_epoch(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    names = [f"file://{tmp_path}/{name}" for name in ("a", "gone", "a")]
    items = iter(PipeDataset(ReadObjects(IterableWrapper(names))))
    assert bytes(next(items)) == b"a"
    for _ in range(2):
        with pytest.raises(s3dlio.NotFoundError, match="gone"):
            next(items)
