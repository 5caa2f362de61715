"""What is bad in container files is passed over; what cannot be had in a pipe is filled or passed over, and told of."""

from __future__ import annotations

import functools
import io
import re
import tarfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.nodes import Loader
from torchdata.stateful_dataloader import StatefulDataLoader

import s3dlio
from s3dlio import BadSampleWarning, ShuffleWindow, TarReader, TarSampleReader, TFRecordReader
from s3dlio.torch import PipeDataset, nodes
from s3dlio.torch.datapipes import ListObjects, ReadObjects, ReadParquet, ReadTar, ReadTarSamples, ReadTFRecord

from .conftest import Place, make_place
from .faults import FaultServer, failing
from .objects import fill, framed, number, numbers
from .parquet_files import file_of, spoiled, table

pytestmark = [
    pytest.mark.filterwarnings("ignore:the file system of direct"),
    pytest.mark.filterwarnings("ignore::s3dlio.BadSampleWarning"),
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Workers that were forked inherit the filter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BadSampleWarning)
        yield


def records(first: int, bad_data: int | None = None, bad_length: int | None = None, keep: int = 10**6) -> bytes:
    """Ten records with their numbers, one of them damaged, the file cut to `keep` bytes."""
    frames = [bytearray(framed(b"%04d" % (first + index))) for index in range(10)]
    if bad_data is not None:
        frames[bad_data][12] ^= 1
    if bad_length is not None:
        frames[bad_length][0] ^= 1
    return b"".join(frames)[:keep]


def archive(names: list[str], keep: int | None = None) -> bytes:
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as tar:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = 4
            tar.addfile(entry, io.BytesIO(name[:4].encode()))
    return memory.getvalue()[:keep]


FRAME = len(framed(b"0000"))
SHARDS = {
    "0": records(0, bad_data=3),  # 0 1 2 . 4 … 9
    "1": records(10, bad_length=4),  # 10 … 13, and no more
    "2": records(20, keep=5 * FRAME + 7),  # 20 … 24, and no more
    "3": records(30),
}
LEFT = [0, 1, 2, *range(4, 10), *range(10, 14), *range(20, 25), *range(30, 40)]


def sharded(place: Place, shards: dict[str, bytes] = SHARDS) -> list[str]:
    for name, content in shards.items():
        place.put(f"shards/{name}", content)
    return [f"{place.root}shards/{name}" for name in ("0", "1", "missing", "2", "3")]


@pytest.fixture
def uris(place: Place) -> list[str]:
    return sharded(place)


@pytest.fixture
def local_uris(tmp_path: Path) -> list[str]:
    return sharded(make_place("file", tmp_path))


class TestReaders:
    def test_a_record_is_passed_over_and_the_rest_of_a_file_where_nobody_knows_the_next(self, uris: list[str]) -> None:
        reader = TFRecordReader(uris, on_error="skip")
        assert list(map(number, reader)) == LEFT
        assert reader.num_skipped == 4
        told = [(entry.uri[entry.uri.rindex("/") + 1 :], entry.repeated) for entry in reader.skipped]
        assert told == [("0", ""), ("1", ""), ("missing", ""), ("2", "")]
        for entry, words in zip(reader.skipped, ["data of", "length of", "missing", "truncated"], strict=True):
            assert words in entry.error, entry

    def test_each_is_warned_about(self, local_uris: list[str]) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            list(TFRecordReader(local_uris, on_error="skip"))
        assert len(caught) == 4
        assert re.search(rf"skipped a part of .*shards/0 .*byte {3 * FRAME} is wrong", str(caught[0].message))

    def test_raising_is_the_default_and_the_position_stays(self, local_uris: list[str]) -> None:
        reader = TFRecordReader(local_uris)
        items = iter(reader)
        assert [number(next(items)) for _ in range(3)] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(s3dlio.CorruptDataError, match="shards/0 is corrupt"):
                next(items)
        assert reader.state_dict()["offset"] == 3 * FRAME
        assert reader.num_skipped == 0

    @pytest.mark.parametrize("num_taken", range(len(LEFT) + 1))
    def test_a_state_goes_on_behind_what_was_skipped(self, local_uris: list[str], num_taken: int) -> None:
        reader = TFRecordReader(local_uris, on_error="skip")
        items = iter(reader)
        taken = [number(next(items)) for _ in range(num_taken)]
        later = TFRecordReader(local_uris, on_error="skip")
        later.load_state_dict(reader.state_dict())
        assert taken + list(map(number, later)) == LEFT

    def test_a_state_behind_a_broken_last_file_is_the_end(self, local_uris: list[str]) -> None:
        reader, later = (TFRecordReader(local_uris[:2], on_error="skip") for _ in range(2))
        assert len(list(reader)) == 13
        later.load_state_dict(reader.state_dict())
        assert list(later) == []

    def test_a_shuffled_window_goes_on_too(self, local_uris: list[str]) -> None:
        def make() -> ShuffleWindow[Any]:
            return ShuffleWindow(TFRecordReader(local_uris, on_error="skip"), window=6, seed=2)

        whole = list(map(number, make()))
        assert sorted(whole) == sorted(LEFT)
        for num_taken in (3, 11, 20):
            first, later = make(), make()
            items = iter(first)
            taken = [number(next(items)) for _ in range(num_taken)]
            later.load_state_dict(first.state_dict())
            assert taken + list(map(number, later)) == whole

    def test_a_function_decides(self, local_uris: list[str]) -> None:
        asked: list[str] = []

        def decide(uri: str, error: Exception) -> bool:
            asked.append(uri)
            return isinstance(error, s3dlio.CorruptDataError)

        items = iter(TFRecordReader(local_uris, on_error=decide))
        with pytest.raises(s3dlio.NotFoundError):
            list(items)
        assert asked == local_uris[:3]

    def test_denied_access_is_not_skipped(self, faults: FaultServer) -> None:
        faults.s3.put("a", SHARDS["3"])
        faults.decide = lambda request: failing(403, "AccessDenied") if request.key == "b" else None
        items = iter(TFRecordReader(["s3://bkt/a", "s3://bkt/b"], on_error="skip"))
        with pytest.raises(s3dlio.AccessDeniedError, match="s3://bkt/b"):
            list(items)

    @pytest.mark.parametrize("kind", [TFRecordReader, TarReader, TarSampleReader])
    def test_other_choices_are_refused(self, kind: Callable[..., Any]) -> None:
        with pytest.raises(ValueError, match="on_error"):
            kind("memory://none/a", on_error="ignore")

    def test_a_broken_archive_ends_and_a_broken_sample_does_not(self, place: Place) -> None:
        place.put("a.tar", archive(["0000.x", "0000.y", "0001.x", "0001.x", "0001.y", "0002.x"]))
        place.put("b.tar", archive(["0003.x", "0004.x", "0005.x"], keep=5 * 512))  # its third header is not there
        broken = bytearray(archive(["0006.x", "0007.x"]))
        broken[1024] ^= 1
        place.put("c.tar", bytes(broken))
        place.put("d.tar", archive(["0008.x"]))
        uris = [f"{place.root}{name}.tar" for name in "abcd"]
        members, samples = TarReader(uris, on_error="skip"), TarSampleReader(uris, on_error="skip")
        assert [number(data) for _, data in members] == [0, 0, 1, 1, 1, 2, 3, 4, 6, 8]
        assert [entry.uri[-5:] for entry in members.skipped] == ["b.tar", "c.tar"]
        assert [sample["__key__"] for sample in samples] == ["0000", "0002", "0003", "0008"]
        assert [entry.uri[-5:] for entry in samples.skipped] == ["a.tar", "b.tar", "c.tar"]
        assert "0001.x comes twice" in samples.skipped[0].error
        with pytest.raises(s3dlio.CorruptDataError, match=r"0001\.x comes twice"):
            list(TarSampleReader(uris[:1]))


OBJECTS = 20
GONE = (0, 7, 8, 13, 19)
FILLED = [1, 1, 2, 3, 4, 5, 6, 6, 6, 9, 10, 11, 12, 12, 14, 15, 16, 17, 18, 18]


@pytest.fixture
def holed(tmp_path: Path) -> list[str]:
    """Twenty numbered objects, some of which are gone."""
    prefix = fill(make_place("file", tmp_path).root, OBJECTS)
    uris = list(s3dlio.list(prefix))
    for index in GONE:
        s3dlio.delete(uris[index])
    return uris


def row_groups(tmp_path: Path) -> str:
    """Two files of four row groups, three of which cannot be decoded."""
    place = make_place("file", tmp_path)
    place.put("parquet/0.parquet", spoiled(file_of(table(0)), 0, 2))
    place.put("parquet/1.parquet", spoiled(file_of(table(1)), 0))
    return place.root + "parquet/"


def labels(items: Any) -> list[int]:
    return [int(item.data.column("label")[0].as_py()) for item in items]


GROUPS = [30, 30, 30, 90, 90, 1030, 1060, 1090]


class TestPipes:
    def test_objects_are_filled(self, holed: list[str]) -> None:
        pipe = ReadObjects(holed, prefetch=4, on_error="skip")
        assert list(map(number, pipe)) == FILLED
        assert pipe.num_skipped == len(pipe.skipped) == len(GONE)
        assert (pipe.skipped[1].uri, pipe.skipped[1].repeated) == (holed[7], holed[6])

    @pytest.mark.parametrize("over_files", [False, True])
    def test_row_groups_are_filled(self, tmp_path: Path, over_files: bool) -> None:
        prefix = row_groups(tmp_path)
        pipe = ReadParquet(ListObjects(prefix) if over_files else prefix, on_error="skip")
        assert labels(pipe) == GROUPS
        assert [entry.error.split(":")[0] for entry in pipe.skipped] == ["row group 0", "row group 2", "row group 0"]
        with pytest.raises(s3dlio.CorruptDataError):
            labels(ReadParquet(prefix))

    def test_records_are_passed_over(self, local_uris: list[str]) -> None:
        pipe = ReadTFRecord(local_uris, on_error="skip")
        assert list(map(number, pipe)) == LEFT
        assert pipe.num_skipped == 4
        with pytest.raises(s3dlio.CorruptDataError):
            list(ReadTFRecord(local_uris))

    @pytest.mark.parametrize("kind", [ReadTar, ReadTarSamples])
    def test_a_truncated_archive_is_left_where_it_ends(self, tmp_path: Path, kind: Callable[..., Any]) -> None:
        place = make_place("file", tmp_path)
        place.put("tar/a.tar", archive(["0000.x", "0001.x", "0002.x"], keep=5 * 512))
        place.put("tar/b.tar", archive(["0003.x"]))
        pipe = kind(place.root + "tar/", on_error="skip")
        assert len(list(pipe)) == (3 if kind is ReadTar else 2)
        assert [entry.uri for entry in pipe.skipped] == [place.root + "tar/a.tar"]

    @pytest.mark.parametrize("make", [ReadObjects, ReadTFRecord, ReadTar, ReadTarSamples])
    def test_other_choices_are_refused(self, make: Callable[..., Any], holed: list[str]) -> None:
        with pytest.raises(ValueError, match="on_error"):
            make(holed, on_error="ignore")

    @pytest.mark.parametrize(("num_workers", "method"), [(2, "fork"), (1, "spawn")])
    def test_the_main_process_knows_what_workers_skipped(
        self, holed: list[str], num_workers: int, method: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYTHONWARNINGS", "ignore")  # of spawned workers
        pipe = ReadObjects(holed, on_error="skip")
        aware = functools.partial(is_aware_of, pipe)  # pickled beside the pipe, which is still one in the worker
        batches = DataLoader(
            pipe, batch_size=4, num_workers=num_workers, multiprocessing_context=method, timeout=120, worker_init_fn=aware
        )
        seen = sorted(value for batch in numbers(batches) for value in batch)
        assert len(seen) == OBJECTS
        assert set(seen) == set(range(OBJECTS)) - set(GONE)
        assert pipe.num_skipped == len(pipe.skipped) == len(GONE)


def is_aware_of(pipe: ReadObjects, worker: int) -> None:
    assert pipe.num_skipped <= len(GONE)


MAKERS: dict[str, Callable[[Any], Any]] = {
    "objects": lambda uris: PipeDataset(ReadObjects(uris, on_error="skip").map(number)),
    "objects at the end": lambda uris: PipeDataset(ReadObjects(uris, on_error="skip"), shuffle=True, seed=4),
    "records": lambda uris: PipeDataset(ReadTFRecord(uris, on_error="skip").map(number)),
    "records at the end": lambda uris: PipeDataset(ReadTFRecord(uris, on_error="skip")),
}


def value(item: Any) -> int:
    return item if isinstance(item, int) else number(item)


class TestResuming:
    @pytest.mark.parametrize(("num_workers", "steps"), [(0, range(1, 20, 3)), (2, (4, 9))])
    @pytest.mark.parametrize("kind", MAKERS)
    def test_a_pipe_dataset_goes_on_exactly(
        self, kind: str, num_workers: int, steps: Any, holed: list[str], tmp_path: Path
    ) -> None:
        uris = sharded(make_place("file", tmp_path)) if "records" in kind else holed

        def make() -> Any:
            fork = {"multiprocessing_context": "fork", "timeout": 60} if num_workers else {}
            return StatefulDataLoader(MAKERS[kind](uris), batch_size=None, num_workers=num_workers, **fork)

        whole = list(map(value, make()))
        assert set(whole) == (set(LEFT) if "records" in kind else set(range(OBJECTS)) - set(GONE))
        for num_taken in steps:
            first, later = make(), make()
            items = iter(first)
            taken = [value(next(items)) for _ in range(num_taken)]
            later.load_state_dict(first.state_dict())
            del items
            assert taken + list(map(value, later)) == whole

    def test_a_pipe_dataset_tells_of_all_its_pipes(self, holed: list[str]) -> None:
        stream = PipeDataset(ReadObjects(holed, on_error="skip").map(number))
        list(DataLoader(stream, batch_size=None, num_workers=1, multiprocessing_context="fork", timeout=60))
        assert stream.num_skipped == len(stream.skipped) == len(GONE)

    @pytest.mark.parametrize("over_files", [False, True])
    @pytest.mark.parametrize("num_taken", range(9))
    def test_row_groups_go_on_exactly(self, tmp_path: Path, over_files: bool, num_taken: int) -> None:
        prefix = row_groups(tmp_path)

        def make() -> Any:
            return PipeDataset(ReadParquet(ListObjects(prefix) if over_files else prefix, on_error="skip"))

        first, later = make(), make()
        items = iter(first)
        taken = labels(next(items) for _ in range(num_taken))
        later.load_state_dict(first.state_dict())
        assert taken + labels(later) == GROUPS

    @pytest.mark.parametrize("kind", ["objects", "parquet", "tfrecord"])
    def test_nodes(self, kind: str, holed: list[str], tmp_path: Path) -> None:
        prefix, shards = row_groups(tmp_path), sharded(make_place("file", tmp_path))

        def make() -> Any:
            if kind == "objects":
                return nodes.objects(holed[0].rpartition("/")[0] + "/", on_error="skip", transform=no_fives)
            if kind == "parquet":
                return nodes.parquet(prefix, on_error="skip", columns=["label"])
            return nodes.tfrecord(shards, on_error="skip")

        def values(items: Any) -> list[int]:
            return [int(item["label"][0]) if kind == "parquet" else value(item) for item in items]

        node = make()
        whole = values(Loader(node))
        assert node.num_skipped == len(node.skipped) == {"objects": 3, "parquet": 3, "tfrecord": 4}[kind]
        for num_taken in (1, 4, 7):
            first, later = Loader(make()), Loader(make())
            items = iter(first)
            taken = values(next(items) for _ in range(num_taken))
            later.load_state_dict(first.state_dict())
            assert taken + values(later) == whole


def no_fives(view: Any) -> int:
    if number(view) % 5 == 0:
        raise ValueError("no fives")
    return number(view)
