"""Samples that cannot be had: raised, or filled with a good one of the batch, in loaders, datasets and their workers."""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils import data as torch_data

import s3dlio
import s3dlio.torch
from s3dlio import BadSampleWarning, ObjectStoreIterableDataset, ObjectStoreMapDataset, PyBytesAsyncDataLoader, PyDataset
from s3dlio.data.bad_samples import Filler, OnError, Skipped, checked_on_error
from s3dlio.torch.bad_samples import Board

from .conftest import Place, make_place
from .faults import FaultServer, failing
from .objects import fill, flat, number, numbers


def filler(on_error: OnError = "skip") -> tuple[Filler, list[Skipped]]:
    seen: list[Skipped] = []
    return Filler(on_error, seen.append), seen


def batch_of(fill_up: Filler, *outcomes: tuple[str, Any]) -> list[Any]:
    """A whole batch."""
    samples = [sample for uri, outcome in outcomes for sample in fill_up.add(uri, outcome)]
    fill_up.end_batch()
    return samples


GONE = s3dlio.NotFoundError("s3://b/gone: no such object")


@pytest.mark.filterwarnings("ignore::s3dlio.BadSampleWarning")
class TestFiller:
    def test_a_bad_position_gets_the_last_good_sample_of_the_batch_else_the_next(self) -> None:
        fill_up, seen = filler()
        assert batch_of(fill_up, ("a", [1]), ("b", GONE), ("c", [3]), ("d", GONE)) == [[1], [1], [3], [3]]
        assert batch_of(fill_up, ("e", GONE), ("f", GONE), ("g", [7])) == [[7], [7], [7]]
        assert [(entry.uri, entry.repeated) for entry in seen] == [("b", "a"), ("d", "c"), ("e", "g"), ("f", "g")]
        assert seen[0].error == str(GONE)

    def test_a_repeated_sample_shares_no_memory(self) -> None:
        first, second = batch_of(filler()[0], ("a", bytearray(b"x")), ("b", GONE))
        first[0] = 0
        assert second == b"x"

    def test_a_batch_without_a_good_sample_raises_and_names_them(self) -> None:
        fill_up, _ = filler()
        batch_of(fill_up, ("a", 1))
        with pytest.raises(s3dlio.S3dlioError, match=r"no sample of a batch of 2 is good: b, c; the last error: .*gone"):
            batch_of(fill_up, ("b", GONE), ("c", GONE))
        assert batch_of(fill_up, ("d", 4)) == [4]

    @pytest.mark.parametrize(
        "kind", [s3dlio.AccessDeniedError, s3dlio.ConfigError, s3dlio.MissingPackageError, s3dlio.OutOfSpaceError]
    )
    def test_what_every_sample_would_meet_is_never_skipped(self, kind: type[Exception]) -> None:
        with pytest.raises(kind):
            batch_of(filler()[0], ("a", 1), ("b", kind("no")))

    @pytest.mark.parametrize(
        "error",
        [GONE, s3dlio.ChangedError("x"), s3dlio.ThrottledError("x"), s3dlio.S3dlioError("x"), ValueError("broken JPEG")],
    )
    def test_what_is_wrong_with_one_sample_is_skipped(self, error: Exception) -> None:
        assert batch_of(filler()[0], ("a", 1), ("b", error)) == [1, 1]

    @pytest.mark.parametrize(("answer", "is_skipped"), [(True, True), (False, False), (None, False)])
    def test_a_function_decides(self, answer: Any, is_skipped: bool) -> None:
        asked: list[tuple[str, Exception]] = []
        denied = s3dlio.AccessDeniedError("no")

        def decide(uri: str, error: Exception) -> bool:
            asked.append((uri, error))
            return answer  # type: ignore[no-any-return]

        fill_up, seen = filler(decide)
        if is_skipped:
            assert batch_of(fill_up, ("a", 1), ("b", denied)) == [1, 1]
            assert len(seen) == 1
        else:
            with pytest.raises(s3dlio.AccessDeniedError):
                batch_of(fill_up, ("a", 1), ("b", denied))
        assert asked == [("b", denied)]

    @pytest.mark.parametrize("wrong", ["ignore", None, True, 3])
    def test_other_values_are_refused(self, wrong: Any) -> None:
        with pytest.raises(ValueError, match="on_error"):
            checked_on_error(wrong)


def test_each_skipped_sample_is_warned_about() -> None:
    with pytest.warns(BadSampleWarning, match=r"skipped b \(.*gone.*\); a is repeated in its place"):
        batch_of(filler()[0], ("a", 1), ("b", GONE))


@pytest.fixture
def holed(place: Place) -> PyDataset:
    """Twenty numbered objects, of which 0, 7 and 8 are gone."""
    return with_holes(place)


def with_holes(place: Place) -> PyDataset:
    dataset = PyDataset(fill(place.root, 20))
    for index in (0, 7, 8):
        s3dlio.delete(dataset.keys()[index])
    return dataset


FILLED = [1, 1, 2, 3, 4, 5, 6, 6, 6, *range(9, 20)]


@pytest.mark.filterwarnings("ignore::s3dlio.BadSampleWarning")
class TestObjectLoader:
    def test_positions_never_shift(self, holed: PyDataset) -> None:
        loader = PyBytesAsyncDataLoader(holed, {"on_error": "skip", "prefetch": 4})
        assert list(map(number, loader)) == FILLED
        account = loader.stats()
        assert (account["objects"], account["errors"], account["num_skipped"]) == (17, 3, 3)
        names = holed.keys()
        assert [(entry["uri"], entry["repeated"]) for entry in account["skipped"]] == [
            (names[0], names[1]),
            (names[7], names[6]),
            (names[8], names[6]),
        ]
        assert names[7] in account["skipped"][1]["error"]

    def test_in_completion_order_as_many_come(self, holed: PyDataset) -> None:
        loader = PyBytesAsyncDataLoader(holed, {"on_error": "skip"})
        seen = list(map(number, loader.items()))
        assert len(seen) == 20
        assert set(seen) == set(range(20)) - {0, 7, 8}
        items, batches = loader.items(), []
        while batch := items.collect_batch(8):
            batches.append(len(batch))
        assert batches == [8, 8, 4]

    def test_a_batch_is_filled_from_itself(self, holed: PyDataset) -> None:
        loader = PyBytesAsyncDataLoader(holed, {"on_error": "skip", "batch_size": 4})
        assert numbers(loader) == [[1, 1, 2, 3], [4, 5, 6, 6], [9, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19]]

    def test_a_batch_without_a_good_sample_raises_and_the_next_ones_come(self, holed: PyDataset) -> None:
        batches = iter(PyBytesAsyncDataLoader(holed, {"on_error": "skip", "batch_size": 1}))
        with pytest.raises(s3dlio.S3dlioError, match=f"no sample of a batch of 1 is good: {holed.keys()[0]}"):
            next(batches)
        assert numbers([next(batches)]) == [[1]]

    def test_nothing_good_at_all_is_no_empty_epoch(self, place: Place) -> None:
        dataset = PyDataset.from_uris([place.root + "a", place.root + "b"])
        with pytest.raises(s3dlio.S3dlioError, match="no sample of a batch of 2 is good"):
            list(PyBytesAsyncDataLoader(dataset, {"on_error": "skip"}))

    def test_a_denied_object_ends_it(self, faults: FaultServer) -> None:
        for key in "abc":
            faults.s3.put(key, key.encode())
        faults.decide = lambda request: failing(403, "AccessDenied") if request.key == "b" else None
        dataset = PyDataset.from_uris([f"s3://bkt/{key}" for key in "abc"])
        with pytest.raises(PermissionError, match="s3://bkt/b"):
            list(PyBytesAsyncDataLoader(dataset, {"on_error": "skip"}))
        loader = PyBytesAsyncDataLoader(dataset, {"on_error": lambda uri, error: True})
        assert [bytes(view) for view in loader] == [b"a", b"a", b"c"]

    def test_what_ends_a_batch_is_not_hidden_by_what_was_to_be_skipped(self, faults: FaultServer) -> None:
        for key in "bcd":
            faults.s3.put(key, key.encode())
        faults.decide = lambda request: failing(403, "AccessDenied") if request.key == "b" else None
        dataset = PyDataset.from_uris([f"s3://bkt/{key}" for key in "abcd"])
        loader = PyBytesAsyncDataLoader(dataset, {"on_error": "skip", "batch_size": 4})
        batches = iter(loader)
        with pytest.raises(PermissionError, match="s3://bkt/b"):
            next(batches)
        assert [bytes(view) for view in next(batches)] == [b"c", b"c", b"d"]  # the first position is not lost with the batch
        assert [entry["uri"] for entry in loader.stats()["skipped"]] == ["s3://bkt/a"]

    def test_a_server_that_fails_for_good_is_skipped_after_its_retries(self, faults: FaultServer, impatient: None) -> None:
        for key in "abc":
            faults.s3.put(key, key.encode())
        faults.decide = lambda request: failing(500, "InternalError") if request.key == "b" else None
        loader = PyBytesAsyncDataLoader(PyDataset.from_uris([f"s3://bkt/{key}" for key in "abc"]), {"on_error": "skip"})
        assert [bytes(view) for view in loader] == [b"a", b"a", b"c"]
        assert loader.stats()["retries"] > 0


def odd_only(view: Any) -> int:
    """A transform that cannot read some of the samples."""
    value = number(view)
    if value % 7 == 3:
        raise ValueError(f"{value} is no picture")
    return value


EXPECTED = [[0, 1, 2, 2], [4, 5, 6, 7], [8, 9, 9, 11], [12, 13, 14, 15], [16, 16, 18, 19]]


@pytest.fixture
def quiet() -> Iterator[None]:
    """Workers that were forked inherit the filter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BadSampleWarning)
        yield


KINDS = [
    lambda prefix: ObjectStoreMapDataset(prefix, transform=odd_only, on_error="skip"),
    lambda prefix: ObjectStoreIterableDataset(prefix, transform=odd_only, batch_size=4, on_error="skip"),
]


@pytest.mark.usefixtures("quiet")
class TestDatasets:
    @pytest.mark.parametrize(
        ("kind", "num_workers", "method"),
        [(KINDS[0], 0, None), (KINDS[1], 0, None), (KINDS[0], 2, "fork"), (KINDS[1], 2, "fork"), (KINDS[1], 1, "spawn")],
        ids=["map", "iterable", "map-fork", "iterable-fork", "iterable-spawn"],
    )
    def test_batches_are_filled_and_the_main_process_knows(
        self, tmp_path: Any, kind: Any, num_workers: int, method: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYTHONWARNINGS", "ignore")  # of spawned workers
        prefix = fill(make_place("file", tmp_path).root, 20)
        dataset = kind(prefix)
        batches = s3dlio.torch.loader(
            dataset,
            batch_size=4,
            num_workers=num_workers,
            multiprocessing_context=method,
            timeout=120 * bool(num_workers),
        )
        assert [batch.tolist() for batch in batches] == EXPECTED
        account = batches.stats()
        assert account["num_skipped"] == dataset.num_skipped == len(dataset.skipped) == 3
        by_name = {entry["uri"]: (entry["repeated"], entry["error"]) for entry in account["skipped"]}
        assert by_name == {
            f"{prefix}{bad:05}": (f"{prefix}{good:05}", f"{bad} is no picture") for bad, good in ((3, 2), (10, 9), (17, 16))
        }

    @pytest.mark.parametrize("kind", KINDS, ids=["map", "iterable"])
    @pytest.mark.parametrize("step", [1, 3])
    def test_a_resumed_epoch_goes_on_as_if_nothing_were_bad(self, tmp_path: Any, kind: Any, step: int) -> None:
        prefix = fill(make_place("file", tmp_path).root, 20)
        batches = s3dlio.torch.loader(kind(prefix), batch_size=4)
        iterator = iter(batches)
        for _ in range(step):
            next(iterator)
        other = s3dlio.torch.loader(kind(prefix), batch_size=4)
        other.load_state_dict(batches.state_dict())
        assert [batch.tolist() for batch in other] == EXPECTED[step:]

    @pytest.mark.parametrize(("batch_size", "num_taken"), [*((None, taken) for taken in range(20)), (4, 4), (4, 16)])
    def test_a_resumed_stream_repeats_what_the_whole_epoch_repeats(
        self, tmp_path: Any, batch_size: int | None, num_taken: int
    ) -> None:
        prefix = fill(make_place("file", tmp_path).root, 20)

        def make() -> ObjectStoreIterableDataset:
            return ObjectStoreIterableDataset(prefix, transform=odd_only, batch_size=batch_size, on_error="skip")

        first, later = make(), make()
        items = iter(first)
        taken = [next(items) for _ in range(num_taken)]
        later.load_state_dict(first.state_dict())
        assert taken + list(later) == flat(EXPECTED)

    @pytest.mark.parametrize("kind", [ObjectStoreMapDataset, ObjectStoreIterableDataset])
    def test_a_batch_is_never_filled_from_the_one_before(self, tmp_path: Any, kind: Any) -> None:
        prefix = fill(make_place("file", tmp_path).root, 12)
        options = {"batch_size": 4} if kind is ObjectStoreIterableDataset else {}
        dataset = kind(prefix, transform=no_fourths, on_error="skip", **options)
        batches = torch_data.DataLoader(dataset, batch_size=4)
        assert [batch.tolist() for batch in batches] == [[1, 1, 2, 3], [5, 5, 6, 7], [9, 9, 10, 11]]

    def test_objects_that_are_gone_are_filled_too(self, place: Place) -> None:
        dataset = with_holes(place)
        for samples in (
            ObjectStoreMapDataset.from_uris(dataset.keys(), on_error="skip"),
            ObjectStoreMapDataset.from_uris(
                dataset.keys(), on_error=lambda uri, error: isinstance(error, FileNotFoundError)
            ),
        ):
            batches = numbers(torch_data.DataLoader(samples, batch_size=4))
            assert batches == [[1, 1, 2, 3], [4, 5, 6, 6], [9, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19]]
            assert samples.num_skipped == len(samples.skipped) == 3

    def test_a_stream_without_a_batch_size_is_one_batch(self, tmp_path: Any) -> None:
        prefix = fill(make_place("file", tmp_path).root, 11)
        stream = ObjectStoreIterableDataset(prefix, transform=odd_only, on_error="skip")
        assert list(stream) == [0, 1, 2, 2, 4, 5, 6, 7, 8, 9, 9]
        assert stream.num_skipped == 2

    def test_ranks_stay_in_step(self, tmp_path: Any) -> None:
        prefix = fill(make_place("file", tmp_path).root, 20)
        lengths = []
        for rank in range(2):
            stream = ObjectStoreIterableDataset(
                prefix, transform=odd_only, batch_size=5, rank=rank, world_size=2, on_error="skip"
            )
            lengths.append([len(batch) for batch in torch_data.DataLoader(stream, batch_size=5)])
        assert lengths == [[5, 5], [5, 5]]

    @pytest.mark.parametrize("num_workers", [0, 1])
    def test_a_batch_without_a_good_sample_raises(self, tmp_path: Any, num_workers: int) -> None:
        prefix = fill(make_place("file", tmp_path).root, 6)
        dataset = ObjectStoreMapDataset(prefix, transform=never, on_error="skip")
        loader = torch_data.DataLoader(
            dataset, batch_size=3, num_workers=num_workers, multiprocessing_context="fork" if num_workers else None
        )
        with pytest.raises(s3dlio.S3dlioError, match="no sample of a batch of 3 is good"):
            list(loader)

    def test_raising_is_the_default(self, tmp_path: Any) -> None:
        prefix = fill(make_place("file", tmp_path).root, 6)
        dataset = ObjectStoreMapDataset(prefix, transform=odd_only)
        with pytest.raises(ValueError, match="3 is no picture"):
            list(torch_data.DataLoader(dataset, batch_size=3))
        assert (dataset.num_skipped, dataset.skipped) == (0, [])

    def test_more_than_fit_are_counted_all_the_same(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("s3dlio.torch.bad_samples.TEXT_BYTES", 16 * 1024)
        prefix = fill(make_place("file", tmp_path).root, 400)
        dataset = ObjectStoreMapDataset(prefix, transform=first_only, on_error="skip")
        assert flat(batch.tolist() for batch in torch_data.DataLoader(dataset, batch_size=400)) == [0] * 400
        assert dataset.num_skipped == 399
        assert 10 < len(dataset.skipped) < 399
        assert pickle.loads(pickle.dumps(dataset)).num_skipped == 399


class TestBoard:
    def test_none_is_lost_however_many_write_at_once(self) -> None:
        board = Board()
        start = multiprocessing.get_context("fork").Barrier(4)
        with children(4, writes, board, start, 200):
            pass
        assert board.num_skipped == 800
        assert len(set(board.skipped())) == 4 * 200  # each from its own process, and none of them spoiled

    def test_threads_write_one_after_another(self) -> None:
        board, start = Board(), threading.Barrier(4)
        threads = [threading.Thread(target=writes, args=(board, start, 200)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert board.num_skipped == len(board.skipped()) == 800

    def test_a_writer_that_is_killed_keeps_nobody_waiting(self) -> None:
        board = Board()
        board.add(Skipped("a", "reason", ""))
        with children(1, is_killed_at_its_turn, board):
            pass
        board.add(Skipped("b", "reason", ""))
        assert board.skipped() == [Skipped("a", "reason", ""), Skipped("b", "reason", "")]

    def test_a_copy_counts_for_itself(self) -> None:
        board = Board()
        board.add(Skipped("a", "reason", ""))
        other = copy.deepcopy(board)
        other.add(Skipped("b", "reason", ""))
        assert (board.num_skipped, other.num_skipped) == (1, 2)

    def test_a_board_that_nobody_has_any_more_leaves_no_descriptor(self) -> None:
        board = Board()
        os.fstat(number := board._file)
        del board
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)

    @pytest.mark.usefixtures("quiet")
    def test_several_loaders_of_one_dataset_are_counted_together(self, tmp_path: Any) -> None:
        prefix = fill(make_place("file", tmp_path).root, 40)
        dataset = ObjectStoreMapDataset(prefix, transform=odd_only, on_error="skip")
        bad = sum(number % 7 == 3 for number in range(40))
        loaders = [
            torch_data.DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context="fork", timeout=120)
            for _ in range(3)
        ]
        for _ in zip(*loaders, strict=True):
            continue
        assert dataset.num_skipped == len(dataset.skipped) == 3 * bad


@contextlib.contextmanager
def children(count: int, target: Any, *args: Any) -> Iterator[None]:
    """Forked processes, each of which runs `target(*args)`."""
    processes = [multiprocessing.get_context("fork").Process(target=target, args=args) for _ in range(count)]
    for process in processes:
        process.start()
    yield
    for process in processes:
        process.join(60)
        assert process.exitcode is not None


def writes(board: Board, start: Any, count: int) -> None:
    start.wait(60)
    for index in range(count):
        board.add(Skipped(f"{os.getpid()}-{threading.get_ident()}-{index}", "x" * 100, ""))


def is_killed_at_its_turn(board: Board) -> None:
    with board._alone():
        os.pwrite(board._file, b"half a line", 16 + board._head()[1])
        os.kill(os.getpid(), signal.SIGKILL)


def no_fourths(view: Any) -> int:
    if number(view) % 4 == 0:
        raise ValueError("no fourths")
    return number(view)


def never(view: Any) -> None:
    raise ValueError("never")


def first_only(view: Any) -> int:
    if number(view):
        raise ValueError("x" * 1000)
    return 0
