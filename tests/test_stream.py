"""`PyDataset` and `PyBytesAsyncDataLoader`: the window, the orders, errors at their turn, leaving early, the account."""

from __future__ import annotations

import asyncio
import gc
import itertools
import multiprocessing
import os
import pickle
import random
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import s3dlio
from s3dlio import PyBytesAsyncDataLoader, PyDataset
from s3dlio.data.bad_samples import Filler
from s3dlio.data.options import LoaderOptions
from s3dlio.data.stats import Stats
from s3dlio.storage import memory
from s3dlio.storage.base import Read, ReadResult
from s3dlio.storage.cloud import wire

from .conftest import Place, eventually
from .fake_s3 import Reply, Request
from .faults import Fault, FaultServer, answering, failing
from .objects import fill, flat, number, threads_and_descriptors

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def numbered(faults: FaultServer, count: int) -> PyDataset:
    """Objects on the fault server whose bytes are their numbers."""
    for index in range(count):
        faults.s3.put(f"p/{index:04}", str(index).encode())
    return PyDataset.from_uris([f"s3://bkt/p/{index:04}" for index in range(count)])


class TestDataset:
    def test_markers_are_no_samples(self, exact_place: Place) -> None:
        for key in ("train/cls0/1.jpg", "train/2.jpg"):
            exact_place.put(key, b"x")
        s3dlio.mkdir(exact_place.root + "train/cls1/")
        dataset = PyDataset(exact_place.root + "train/")
        assert list(dataset.keys()) == [exact_place.root + "train/2.jpg", exact_place.root + "train/cls0/1.jpg"]

    def test_markers_on_s3(self, faults: FaultServer) -> None:
        for key in ("train/", "train/cls0/", "train/cls0/1.jpg", "train/2.jpg", "train2/3.jpg"):
            faults.s3.put(key, b"" if key.endswith("/") else b"x")
        dataset = PyDataset("s3://bkt/train/")
        assert list(dataset.uris()) == ["s3://bkt/train/2.jpg", "s3://bkt/train/cls0/1.jpg"]

    def test_more_objects_than_a_page_of_a_listing(self, faults: FaultServer) -> None:
        for index in range(2503):
            faults.s3.put(f"p/{index:05}", b"")
        dataset = PyDataset("s3://bkt/p/")
        assert len(dataset) == 2503
        assert len(set(dataset.keys())) == 2503
        assert len(faults.asked("LIST")) <= 5

    def test_many_objects_are_listed_in_few_requests_and_kept_in_little_memory(self, faults: FaultServer) -> None:
        names = [f"p/{index % 50:02}/{index:06}" for index in range(20_000)]
        for name in names:
            faults.s3.put(name, b"")
        dataset = PyDataset("s3://bkt/p/")
        assert len(dataset) == 20_000
        assert len(faults.asked("LIST")) <= 20_000 // 1000 + 60
        assert dataset.keys().num_bytes < 20_000 * 40
        assert dataset.keys()[0] == "s3://bkt/p/00/000000"

    def test_items_by_index_and_in_a_batch(self, place: Place) -> None:
        dataset = PyDataset(fill(place.root, 12))
        assert (number(dataset[0]), number(dataset[11]), number(dataset[-1])) == (0, 11, 11)
        assert list(map(number, dataset.__getitems__([5, 5, 2]))) == [5, 5, 2]
        assert list(map(number, dataset)) == list(range(12))
        assert dataset[3].uri == dataset.keys()[3]
        with pytest.raises(IndexError):
            dataset[12]
        assert number(asyncio.run(dataset.get_item(7))) == 7

    def test_a_pattern_and_wrong_options(self, place: Place) -> None:
        prefix = fill(place.root, 12)
        assert len(PyDataset(prefix, pattern="*1")) == len(PyDataset(prefix, {"pattern": "*1"})) == 2
        assert len(PyDataset(prefix, {})) == 12
        with pytest.raises(ValueError, match=r"unknown option \['prefetch'\].*'pattern'"):
            PyDataset(prefix, {"prefetch": 3})

    def test_an_empty_prefix_is_an_error_that_names_it(self, place: Place) -> None:
        with pytest.raises(FileNotFoundError, match=place.root + "nothing/"):
            PyDataset(place.root + "nothing/")

    @pytest.mark.parametrize("status", [403, 503])
    def test_a_listing_that_fails_is_not_an_empty_one(self, faults: FaultServer, impatient: None, status: int) -> None:
        faults.decide = lambda _: failing(status, {403: "AccessDenied", 503: "SlowDown"}[status])
        with pytest.raises(s3dlio.S3dlioError, match="s3://bkt/p/") as caught:
            PyDataset("s3://bkt/p/")
        assert not isinstance(caught.value, FileNotFoundError)

    @pytest.mark.parametrize("wrong", ["s3://b/k", ["s3://b/"], ["no uri"], [3]])
    def test_a_wrong_list_is_refused_at_once(self, wrong: Any) -> None:
        with pytest.raises((TypeError, s3dlio.ConfigError)):
            PyDataset.from_uris(wrong)

    def test_any_iterable_of_uris_will_do(self, place: Place) -> None:
        uris = s3dlio.list(fill(place.root, 5))
        assert list(map(number, PyDataset.from_uris(uri for uri in uris))) == [0, 1, 2, 3, 4]

    def test_names_are_compact_to_pickle(self) -> None:
        dataset = PyDataset.from_uris(f"s3://bucket/train/{index:08}" for index in range(50_000))
        data = pickle.dumps(dataset)
        assert len(data) < 50_000 * 40
        again = pickle.loads(data)
        assert (len(again), again.keys()[49_999]) == (50_000, "s3://bucket/train/00049999")


class TestOptions:
    def test_the_defaults_of_the_guide(self) -> None:
        options = LoaderOptions.of({})
        assert options == LoaderOptions.of(None)
        assert options.prefetch == 32
        assert options.of_reads().skip_head is True

    @pytest.mark.parametrize(
        "opts",
        [
            *({"prefetch": value} for value in (0, -1, True, 2.0, "8", None, 10**30)),
            *({"skip_head": value} for value in (0, "yes", None)),
            *({"batch_size": value} for value in (0, "4", 1.5, True, 10**30)),
            *({name: value} for name in ("drop_last", "shuffle") for value in (1, None)),
            *({name: value} for name in ("seed", "shard_rank") for value in (-1, "0", None)),
            *(
                {"part_size": 1},
                {"max_inflight_parts": 0},
                {"reader_mode": "fast"},
                {"reader_mode": ["range"]},
                {"on_error": "ignore"},
                {"on_error": None},
            ),
            *({"prefetchs": 3}, {"num_workers": 2}, {3: 3}, [("prefetch", 3)], "prefetch", {"shard_rank": 1}),
            {"shard_rank": 2, "shard_world_size": 2},
        ],
        ids=str,
    )
    def test_what_does_not_belong_there_is_a_value_error(self, opts: Any) -> None:
        with pytest.raises(ValueError) as caught:
            PyBytesAsyncDataLoader(PyDataset.from_uris(["s3://b/k"]), opts)
        if "shard_rank" not in str(opts):
            for name in ("prefetch", "skip_head"):
                assert name in str(caught.value), "the known options are listed"

    def test_numbers_of_numpy_are_numbers(self) -> None:
        assert LoaderOptions.of({"prefetch": np.int64(3)}).prefetch == 3

    def test_a_loader_takes_a_dataset(self) -> None:
        with pytest.raises(TypeError, match="PyDataset"):
            PyBytesAsyncDataLoader("s3://bucket/train/")  # type: ignore[arg-type]

    def test_batches_shards_and_shuffling(self, tmp_path: Path) -> None:
        dataset = PyDataset(fill(f"file://{tmp_path}/", 23))

        def epoch(**opts: Any) -> list[Any]:
            return [[number(view) for view in batch] for batch in PyBytesAsyncDataLoader(dataset, opts)]

        assert epoch(batch_size=10) == [list(range(10)), list(range(10, 20)), [20, 21, 22]]
        assert epoch(batch_size=10, drop_last=True) == [list(range(10)), list(range(10, 20))]
        shuffled = epoch(batch_size=4, shuffle=True, seed=5)
        assert shuffled == epoch(batch_size=4, shuffle=True, seed=5)
        assert shuffled != epoch(batch_size=4, shuffle=True, seed=6)
        shards = [epoch(batch_size=4, shuffle=True, shard_rank=rank, shard_world_size=3) for rank in range(3)]
        assert sorted(sample for shard in shards for batch in shard for sample in batch) == list(range(23))
        loader = PyBytesAsyncDataLoader(dataset, {"batch_size": 10, "shard_world_size": 2})
        assert len(loader) == len(list(loader))

    def test_each_epoch_has_an_order_of_its_own(self, tmp_path: Path) -> None:
        loader = PyBytesAsyncDataLoader(PyDataset(fill(f"file://{tmp_path}/", 30)), {"shuffle": True, "seed": 1})
        orders = [list(map(number, loader)) for _ in range(2)]
        assert orders[0] != orders[1]
        assert all(sorted(order) == list(range(30)) for order in orders)
        assert loader.epoch == 2
        loader.set_epoch(0)
        assert list(map(number, loader)) == orders[0]

    def test_the_way_of_reading_large_objects(self, faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("S3DLIO_RANGE_THRESHOLD_MB", "1")
        faults.s3.put("k", bytes(3 * 2**20))
        dataset = PyDataset.from_uris(["s3://bkt/k"])
        for opts, num_requests in (({"part_size": 2**20}, 3), ({"part_size": 2**22}, 2), ({"reader_mode": "sequential"}, 1)):
            faults.requests.clear()
            assert [len(view) for view in PyBytesAsyncDataLoader(dataset, opts)] == [3 * 2**20]
            assert len(faults.requests) == num_requests


class TestOrder:
    @pytest.mark.parametrize("prefetch", [1, 2, 7, 64])
    def test_every_object_once_in_order_or_as_it_comes(self, place: Place, prefetch: int) -> None:
        dataset = PyDataset(fill(place.root, 40))
        loader = PyBytesAsyncDataLoader(dataset, {"prefetch": prefetch})
        for _ in range(2):
            assert list(map(number, loader)) == list(range(40))
            assert sorted(map(number, loader.items())) == list(range(40))
        batches = []
        items = loader.items()
        while batch := items.collect_batch(7):
            batches.append(list(map(number, batch)))
        assert [len(batch) for batch in batches] == [7] * 5 + [5]
        assert sorted(flat(batches)) == list(range(40))
        assert items.collect_batch(7) == []

    def test_a_slow_object_holds_back_its_own_turn_only(self, faults: FaultServer) -> None:
        others = threading.Event()
        faults.decide = lambda request: others.wait(20) and None if request.key == "p/0000" else None
        loader = PyBytesAsyncDataLoader(numbered(faults, 20), {"prefetch": 4})
        items = loader.items()
        assert number(items.__next__()) != 0
        others.set()
        assert sorted([*map(number, items)])[0] == 0
        assert list(map(number, loader)) == list(range(20))

    def test_duplicates_and_several_buckets(self, faults: FaultServer) -> None:
        faults.s3.buckets["other"] = {}
        faults.s3.put("k", b"1")
        faults.s3.put("k", b"2", bucket="other")
        uris = ["s3://bkt/k", "s3://other/k", "s3://other/k", "s3://bkt/k"]
        loader = PyBytesAsyncDataLoader(PyDataset.from_uris(uris))
        assert [(view.uri, bytes(view)) for view in loader] == list(zip(uris, [b"1", b"2", b"2", b"1"], strict=True))
        assert sorted(view.uri for view in loader.items()) == sorted(uris)

    def test_objects_of_no_bytes_are_objects(self, place: Place) -> None:
        for index in range(6):
            place.put(f"{index}", b"" if index % 2 else b"x")
        loader = PyBytesAsyncDataLoader(PyDataset(place.root))
        assert [bytes(view) for view in loader] == [b"x", b""] * 3
        assert sorted(len(item) for item in loader.items()) == [0, 0, 0, 1, 1, 1]
        assert len(loader.items().collect_batch(10)) == 6

    def test_an_event_loop_gets_the_same_without_waiting(self, place: Place) -> None:
        dataset = PyDataset(fill(place.root, 30))

        async def epochs() -> list[list[Any]]:
            loader = PyBytesAsyncDataLoader(dataset, {"prefetch": 4})
            batches = PyBytesAsyncDataLoader(dataset, {"prefetch": 4, "batch_size": 20})
            first, second = await asyncio.gather(collected(loader), collected(loader))
            return [first, second, [len(batch) async for batch in batches]]

        async def collected(loader: PyBytesAsyncDataLoader) -> list[int]:
            return [number(view) async for view in loader]

        assert asyncio.run(epochs()) == [list(range(30)), list(range(30)), [20, 10]]

    def test_a_cancelled_wait_loses_nothing(self, faults: FaultServer) -> None:
        go_on = threading.Event()
        faults.decide = lambda request: go_on.wait(20) and None

        async def epoch() -> list[int]:
            items = PyBytesAsyncDataLoader(dataset, {"prefetch": 3}).__aiter__()
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(items.__anext__(), 0.05)
            go_on.set()
            return [number(view) async for view in items]

        dataset = numbered(faults, 8)
        assert asyncio.run(epoch()) == list(range(8))


class TestWindow:
    @pytest.mark.parametrize("prefetch", [1, 2, 5, 32])
    @pytest.mark.parametrize("in_order", [True, False])
    def test_at_most_prefetch_objects_are_under_way_or_ready(
        self, faults: FaultServer, prefetch: int, in_order: bool
    ) -> None:
        """The server answers the first ones when there are as many as the window allows."""
        num_consumed, num_ahead = 0, []
        full = threading.Event()
        lock = threading.Lock()

        def decide(request: Request) -> None:
            with lock:
                num_ahead.append(request.number + 1 - num_consumed)
            if request.number + 1 == prefetch:
                full.set()
            assert full.wait(20)

        dataset = numbered(faults, 60)
        faults.decide = decide
        loader = PyBytesAsyncDataLoader(dataset, {"prefetch": prefetch})
        for _ in loader if in_order else loader.items():
            num_consumed += 1
        assert num_consumed == 60
        assert max(num_ahead) == prefetch

    def test_the_default_is_32(self, faults: FaultServer) -> None:
        full = threading.Event()

        def decide(request: Request) -> None:
            if request.number + 1 == 32:
                full.set()
            assert full.wait(20)

        dataset = numbered(faults, 40)
        faults.decide = decide
        items = PyBytesAsyncDataLoader(dataset).items()
        next(items)
        assert len(faults.requests) <= 33
        items.close()

    def test_nothing_is_fetched_before_it_is_asked_for(self, faults: FaultServer) -> None:
        loader = PyBytesAsyncDataLoader(numbered(faults, 4))
        iter(loader)
        loader.items()
        assert not faults.requests

    def test_memory_is_that_of_the_window(self, tmp_path: Path, run_python: Run) -> None:
        """100 objects of 8 MiB through a window of 4: far less than they are together; flat over epochs."""
        for index in range(4):
            (tmp_path / f"{index}").write_bytes(os.urandom(8 * 2**20))
        code = (
            "import gc, sys, psutil, s3dlio\n"
            "uris = [f'file://{sys.argv[1]}/{index % 4}' for index in range(100)]\n"
            "loader = s3dlio.PyBytesAsyncDataLoader(s3dlio.PyDataset.from_uris(uris), {'prefetch': 4})\n"
            "process = psutil.Process()\n"
            "before, most = process.memory_info().rss, 0\n"
            "for epoch in range(3):\n"
            "    for view in (loader if epoch % 2 else loader.items()):\n"
            "        most = max(most, process.memory_info().rss)\n"
            "assert most - before < (4 * 8 + 100) * 2**20, most - before\n"
        )
        done = run_python(code, str(tmp_path), timeout=60)
        assert done.returncode == 0, done.stderr

    def test_memory_threads_and_descriptors_stay_level_over_20_epochs(self, tmp_path: Path) -> None:
        root = f"file://{tmp_path}/"
        sizes = random.Random(1).choices(range(100_000, 400_000), k=24)
        s3dlio.put_many((f"{root}{index}", bytes(size)) for index, size in enumerate(sizes))
        loader = PyBytesAsyncDataLoader(PyDataset(root), {"prefetch": 8})
        usage = {}
        for epoch in range(1, 21):
            assert sum(view.nbytes for view in loader.items()) == sum(sizes)
            if epoch in (3, 20):
                usage[epoch] = (psutil.Process().memory_info().rss, threads_and_descriptors())
        assert usage[20][0] <= usage[3][0] + 50 * 2**20
        assert usage[20][1] <= usage[3][1]


class TestErrors:
    def test_a_missing_object_raises_at_its_turn_and_the_rest_comes(self, place: Place) -> None:
        dataset = PyDataset(fill(place.root, 12))
        s3dlio.delete(dataset.keys()[5])
        for items in (iter(PyBytesAsyncDataLoader(dataset)), PyBytesAsyncDataLoader(dataset, {"prefetch": 3}).items()):
            seen: list[int] = []
            errors = []
            while True:
                try:
                    seen.append(number(next(items)))
                except StopIteration:
                    break
                except s3dlio.NotFoundError as exc:
                    errors.append(str(exc))
            assert sorted(seen) == [index for index in range(12) if index != 5]
            assert len(errors) == 1
            assert dataset.keys()[5] in errors[0]
        in_order = iter(PyBytesAsyncDataLoader(dataset))
        assert [number(next(in_order)) for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(FileNotFoundError):
            next(in_order)

    def test_collect_batch_first_hands_out_the_good_ones(self, place: Place) -> None:
        dataset = PyDataset(fill(place.root, 12))
        s3dlio.delete(dataset.keys()[5])
        batches: list[Any] = []
        items = iter(PyBytesAsyncDataLoader(dataset, {"batch_size": 4}))
        while True:
            try:
                batches.append(list(map(number, next(items))))
            except StopIteration:
                break
            except s3dlio.NotFoundError as exc:
                batches.append(dataset.keys()[5] in str(exc))
        assert batches == [[0, 1, 2, 3], [4], True, [6, 7, 8, 9], [10, 11]]

    @pytest.mark.parametrize("how", ["next", "collect_batch"])
    def test_a_signal_handler_that_takes_an_item_gets_an_error_and_spoils_nothing(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, how: str
    ) -> None:
        refused: list[BaseException] = []
        clock = Stats.clock

        def handling(stats: Stats) -> float:  # as if a signal came here
            if not refused:
                with pytest.raises(s3dlio.S3dlioError, match="one thread at a time") as caught:
                    _ = next(items) if how == "next" else items.collect_batch(3)
                refused.append(caught.value)
            return clock(stats)

        monkeypatch.setattr(Stats, "clock", handling)
        loader = PyBytesAsyncDataLoader(PyDataset(fill(place.root, 12)), {"prefetch": 2})
        items = iter(loader)
        assert list(map(number, items)) == list(range(12))
        assert len(refused) == 1
        assert loader.stats()["errors"] == 0

    @pytest.mark.parametrize("on_error", ["raise", "skip"])
    def test_a_batch_that_is_interrupted_is_not_lost(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, on_error: str
    ) -> None:
        items = iter(PyBytesAsyncDataLoader(PyDataset(fill(place.root, 12)), {"on_error": on_error}))
        assert len(items.collect_batch(2)) == 2
        end_batch, leave = Filler.end_batch, Stats.leave

        def interrupted(who: Any) -> None:
            (leave if on_error == "raise" else end_batch)(who)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(*((Stats, "leave") if on_error == "raise" else (Filler, "end_batch")), interrupted)
            with pytest.raises(KeyboardInterrupt):
                items.collect_batch(5)
        assert list(map(number, [*items.collect_batch(3), *items])) == list(range(2, 12))

    @pytest.mark.parametrize("n", [0, -1, True, 1.5, "3"])
    def test_a_batch_holds_at_least_one_item(self, n: Any) -> None:
        with pytest.raises(ValueError, match=r"n is a whole number|n=-?\d is too small: 1 at least"):
            PyBytesAsyncDataLoader(PyDataset.from_uris(["memory://b/k"])).items().collect_batch(n)

    def test_an_event_loop_gets_the_error_at_its_turn_too(self, place: Place) -> None:
        dataset = PyDataset(fill(place.root, 6))
        s3dlio.delete(dataset.keys()[2])

        async def epoch() -> list[Any]:
            seen: list[Any] = []
            items = PyBytesAsyncDataLoader(dataset).__aiter__()
            while True:
                try:
                    seen.append(number(await items.__anext__()))
                except StopAsyncIteration:
                    return seen
                except s3dlio.NotFoundError:
                    seen.append("missing")

        assert asyncio.run(epoch()) == [0, 1, "missing", 3, 4, 5]

    def test_a_denied_object_is_denied_by_name(self, faults: FaultServer) -> None:
        faults.decide = lambda request: failing(403, "AccessDenied") if request.key == "p/0003" else None
        items = PyBytesAsyncDataLoader(numbered(faults, 6)).items()
        with pytest.raises(PermissionError, match=r"s3://bkt/p/0003.*AccessDenied"):
            list(items)

    @pytest.mark.parametrize("times", [1, 1000])
    def test_a_body_that_ends_early(self, faults: FaultServer, impatient: None, times: int) -> None:
        faults.s3.put("k", bytes(range(200)) * 50)
        num_cut = 0

        def decide(request: Request) -> Fault | None:
            nonlocal num_cut
            num_cut += 1
            return Fault(cut=5_000) if num_cut <= times and "-" in request.headers.get("range", "-") else None

        if times == 1:
            faults.decide = decide
            (view,) = PyBytesAsyncDataLoader(PyDataset.from_uris(["s3://bkt/k"])).items()
            assert view == bytes(range(200)) * 50
        else:
            faults.decide = lambda _: Fault(cut=0)
            with pytest.raises(s3dlio.S3dlioError, match="s3://bkt/k"):
                list(PyBytesAsyncDataLoader(PyDataset.from_uris(["s3://bkt/k"])).items())

    def test_a_server_that_throttles_each_object_thrice_gives_all_of_them(
        self, faults: FaultServer, short_pauses: None
    ) -> None:
        asked: dict[str, int] = {}

        def decide(request: Request) -> Fault | None:
            asked[request.key] = asked.get(request.key, 0) + 1
            return failing(503, "SlowDown") if asked[request.key] <= 3 else None

        dataset = numbered(faults, 30)
        faults.decide = decide
        loader = PyBytesAsyncDataLoader(dataset, {"prefetch": 32})
        assert sorted(map(number, loader.items())) == list(range(30))
        assert loader.stats()["retries"] == 90
        assert set(asked.values()) == {4}

    @pytest.mark.parametrize("opts", [{"skip_head": False}, {}, {"prefetch": 1}], ids=str)
    def test_an_object_replaced_between_its_ranges_is_all_old_or_all_new(
        self, faults: FaultServer, monkeypatch: pytest.MonkeyPatch, opts: dict[str, Any]
    ) -> None:
        monkeypatch.setenv("S3DLIO_RANGE_THRESHOLD_MB", "1")
        monkeypatch.setenv("S3DLIO_CHUNK_SIZE", str(2**18))
        faults.s3.put("k", b"\1" * 2**22)

        def decide(request: Request) -> None:
            if request.number == 3:
                faults.s3.put("k", b"\2" * 2**22)

        faults.decide = decide
        (view,) = PyBytesAsyncDataLoader(PyDataset.from_uris(["s3://bkt/k"]), opts)
        assert view == b"\2" * 2**22

    def test_a_replaced_object_comes_in_its_new_version_whole(self, place: Place) -> None:
        dataset = PyDataset(fill(place.root, 6))
        loader = PyBytesAsyncDataLoader(dataset, {"prefetch": 1})
        items = iter(loader)
        assert number(next(items)) == 0
        s3dlio.put_bytes(dataset.keys()[4], b"4" * 1000)
        seen = [bytes(view) for view in items]
        assert seen == [b"1", b"2", b"3", b"4" * 1000, b"5"]

    def test_an_error_of_the_iteration_itself_is_no_early_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The server's address cannot be read: no object is to blame, and asking again gives the error again."""
        monkeypatch.setenv("AWS_ENDPOINT_URL", "no address")
        monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
        items = PyBytesAsyncDataLoader(PyDataset.from_uris(["s3://nowhere/k"])).items()
        for _ in range(3):
            with pytest.raises(s3dlio.ConfigError):
                next(items)


def num_connections(faults: FaultServer) -> int:
    """The client's connections, but for those at rest."""
    wire.close_idle()
    return len(faults._open)


def break_off(loader: PyBytesAsyncDataLoader) -> None:
    for _ in loader.items():
        break


def raise_own_error(loader: PyBytesAsyncDataLoader) -> None:
    try:
        for _ in loader:
            raise KeyError("mine")
    except KeyError:
        return


def forget(loader: PyBytesAsyncDataLoader) -> None:
    items = loader.items()
    next(items)
    del items


def close(loader: PyBytesAsyncDataLoader) -> None:
    items = iter(loader)
    next(items)
    loader.close()
    assert list(items) == []


def end_a_block(loader: PyBytesAsyncDataLoader) -> None:
    with loader.items() as items:
        next(items)
    assert items.collect_batch(3) == []


def leave_a_loop(loader: PyBytesAsyncDataLoader) -> None:
    async def some() -> None:
        async for _ in loader:
            break

    asyncio.run(some())


def leave_a_loop_of_batches(loader: PyBytesAsyncDataLoader) -> None:
    async def some() -> None:
        items = PyBytesAsyncDataLoader(loader.dataset, {"batch_size": 2}).__aiter__()
        await items.__anext__()
        await items.aclose()
        assert [batch async for batch in items] == []

    asyncio.run(some())


WAYS_OUT = [break_off, raise_own_error, forget, close, end_a_block, leave_a_loop, leave_a_loop_of_batches]


class TestLeavingEarly:
    @staticmethod
    def stalling(faults: FaultServer, num_good: int) -> PyBytesAsyncDataLoader:
        """A loader of whose objects only the first come; all others are held back until the client leaves."""
        dataset = numbered(faults, 100)
        faults.decide = lambda request: Fault(stall=0) if request.key >= f"p/{num_good:04}" else None
        return PyBytesAsyncDataLoader(dataset, {"prefetch": 16})

    @pytest.mark.parametrize("leave", WAYS_OUT, ids=lambda leave: leave.__name__)
    def test_every_way_out_ends_all_requests(
        self, faults: FaultServer, leave: Callable[[PyBytesAsyncDataLoader], None]
    ) -> None:
        leave(self.stalling(faults, 3))
        assert eventually(lambda: num_connections(faults) == 0, 5)

    def test_another_thread_ends_a_wait(self, faults: FaultServer) -> None:
        loader = self.stalling(faults, 0)
        ended: list[Any] = []
        items = loader.items()
        thread = threading.Thread(target=lambda: ended.extend(items))
        thread.start()
        assert eventually(lambda: len(faults.requests) == 16)
        loader.close()
        thread.join(10)
        assert not thread.is_alive()
        assert ended == []
        assert eventually(lambda: num_connections(faults) == 0, 5)

    def test_who_asks_while_another_thread_closes_finds_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        items = PyBytesAsyncDataLoader(PyDataset(fill("memory://closing/", 20)), {"prefetch": 4}).items()
        read, numbers, release = memory.MemoryStore.read, itertools.count(), threading.Event()

        def held(store: memory.MemoryStore, request: Read) -> ReadResult:
            assert next(numbers) == 0 or release.wait(60)
            return read(store, request)

        monkeypatch.setattr(memory.MemoryStore, "read", held)
        next(items)
        closing = threading.Thread(target=items.close)  # which waits for reads that run
        closing.start()
        assert eventually(lambda: items._arrivals.gi_running)
        try:
            for _ in range(2):
                with pytest.raises(StopIteration):
                    next(items)
        finally:
            release.set()
            closing.join(60)

    def test_a_wait_that_was_cancelled_and_forgotten_ends(self, faults: FaultServer) -> None:
        loader = self.stalling(faults, 0)

        async def give_up() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(loader.__aiter__().__anext__(), 0.2)

        asyncio.run(give_up())
        gc.collect()
        assert eventually(lambda: num_connections(faults) == 0, 10)

    def test_a_hundred_early_ends_leave_no_thread_and_no_descriptor(self, place: Place) -> None:
        loader = PyBytesAsyncDataLoader(PyDataset(fill(place.root, 40)), {"prefetch": 8})

        def leave_early() -> None:
            for step, _ in enumerate(loader.items()):
                if step == 2:
                    break

        leave_early()
        before = threads_and_descriptors()
        for _ in range(100):
            leave_early()
        after = threads_and_descriptors()
        assert all(now <= then + 5 for now, then in zip(after, before, strict=True)), (before, after)

    CONTROL_C = (
        "import os, signal, sys, threading, urllib.request, s3dlio\n"
        "uris = [f's3://bkt/p/{index:04}' for index in range(100)]\n"
        "loader = s3dlio.PyBytesAsyncDataLoader(s3dlio.PyDataset.from_uris(uris))\n"
        "def interrupt():\n"
        "    urllib.request.urlopen(sys.argv[1]).close()\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=interrupt, daemon=True).start()\n"
        "try:\n"
        "    list(loader.items() if sys.argv[2] == 'items' else loader)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )

    @pytest.mark.parametrize("order", ["items", "iter"])
    def test_control_c_ends_the_wait_and_the_process(self, faults: FaultServer, run_python: Run, order: str) -> None:
        numbered(faults, 100)

        def decide(request: Request) -> Fault | None:
            if request.bucket == "ready":
                assert eventually(lambda: any(seen.bucket == "bkt" for seen in list(faults.requests)))
                return answering(Reply(200))
            return Fault(stall=0)

        faults.decide = decide
        path = str(Path(s3dlio.__file__).parent.parent)
        done = run_python(self.CONTROL_C, f"{faults.url}/ready", order, timeout=30, PYTHONPATH=path)
        assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n", "", 0)

    def test_control_c_ends_the_wait_for_the_ranges_of_a_large_object(self, faults: FaultServer, run_python: Run) -> None:
        numbered(faults, 100)
        faults.s3.put("p/0000", bytes(5 * 2**20))

        def is_further_range(request: Request) -> bool:
            return request.bucket == "bkt" and not request.headers.get("range", "").startswith("bytes=0-")

        def decide(request: Request) -> Fault | None:
            if request.bucket == "ready":
                assert eventually(lambda: any(map(is_further_range, list(faults.requests))))
                return answering(Reply(200))
            return Fault(stall=0) if is_further_range(request) else None

        faults.decide = decide
        path = str(Path(s3dlio.__file__).parent.parent)
        small = {"S3DLIO_RANGE_THRESHOLD_MB": "1", "S3DLIO_CHUNK_SIZE": str(2**20)}
        done = run_python(self.CONTROL_C, f"{faults.url}/ready", "iter", timeout=30, PYTHONPATH=path, **small)
        assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n", "", 0)


def _epoch_of(loader: PyBytesAsyncDataLoader) -> list[int]:
    return sorted(map(number, loader.items()))


class TestProcesses:
    # memory:// is that of a process; the server that forks may have begun under the environment of another test.
    @pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
    def test_a_loader_of_files_that_was_used_works_in_other_processes(self, local_place: Place, method: str) -> None:
        self._works_in_other_processes(local_place, method)

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_a_loader_of_s3_that_was_used_works_in_other_processes(self, s3_place: Place, method: str) -> None:
        self._works_in_other_processes(s3_place, method)

    @staticmethod
    def _works_in_other_processes(place: Place, method: str) -> None:
        loader = PyBytesAsyncDataLoader(PyDataset(fill(place.root, 30)), {"prefetch": 4})
        assert _epoch_of(loader) == list(range(30))
        with multiprocessing.get_context(method).Pool(2 if method == "fork" else 1) as pool:
            results = pool.map_async(_epoch_of, [loader] * 3).get(60)
        assert results == [list(range(30))] * 3
        assert _epoch_of(pickle.loads(pickle.dumps(loader))) == list(range(30))

    def test_a_child_does_not_go_on_with_the_iteration_of_its_parent(self, place: Place, run_python: Run) -> None:
        code = (
            "import os, sys, s3dlio\n"
            "prefix = sys.argv[1]\n"
            "s3dlio.put_many([(f'{prefix}{index:02}', b'%d' % index) for index in range(40)])\n"
            "loader = s3dlio.PyBytesAsyncDataLoader(s3dlio.PyDataset(prefix), {'prefetch': 4})\n"
            "items = iter(loader)\n"
            "first = [bytes(next(items)) for _ in range(3)]\n"
            "pid = os.fork()\n"
            "if pid == 0:\n"
            "    try:\n"
            "        next(items)\n"
            "    except RuntimeError as exc:\n"
            "        ok = 'the process that made it' in str(exc) and len(list(loader)) == 40\n"
            "    os._exit(0 if ok else 1)\n"
            "assert os.waitpid(pid, 0)[1] == 0\n"
            "assert first + [bytes(view) for view in items] == [b'%d' % index for index in range(40)]\n"
        )
        done = run_python(code, place.root, timeout=60)
        assert done.returncode == 0, done.stderr

    def test_workers_share_the_names_of_a_large_dataset(self, run_python: Run) -> None:
        code = (
            "import os, psutil, s3dlio\n"
            "dataset = s3dlio.PyDataset.from_uris(f'memory://bucket/train/{index:08}' for index in range(100_000))\n"
            "pids = []\n"
            "for _ in range(4):\n"
            "    pid = os.fork()\n"
            "    if pid == 0:\n"
            "        before = psutil.Process().memory_full_info().uss\n"
            "        assert sum(len(name) for name in dataset.keys()) == 100_000 * 30\n"
            "        os._exit(0 if psutil.Process().memory_full_info().uss - before < 5 * 2**20 else 1)\n"
            "    pids.append(pid)\n"
            "assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)\n"
        )
        done = run_python(code, timeout=60)
        assert done.returncode == 0, done.stderr


class TestAccount:
    def test_it_counts_what_came(self, place: Place) -> None:
        loader = PyBytesAsyncDataLoader(PyDataset(fill(place.root, 20)))
        assert (loader.stats()["objects"], loader.stats()["dominant"]) == (0, "nothing")
        for _ in range(2):
            list(loader.items())
            account = loader.stats()
            assert (account["objects"], account["bytes"], account["errors"], account["retries"]) == (20, 30, 0, 0)
        parts = [account[f"waiting_for_{name}_seconds"] for name in ("first_byte", "body", "consumer")]
        assert min(parts) >= 0.0
        assert account["seconds"] == pytest.approx(sum(parts))
        assert (account["num_skipped"], account["skipped"]) == (0, [])

    @pytest.mark.parametrize(
        ("fault", "busy", "dominant"),
        [(Fault(delay=0.2), 0.0, "first byte"), (Fault(drip=(500, 0.05)), 0.0, "body"), (None, 0.05, "consumer")],
        ids=["first byte", "body", "consumer"],
    )
    def test_it_says_what_dominates(self, faults: FaultServer, fault: Fault | None, busy: float, dominant: str) -> None:
        for index in range(8):
            faults.s3.put(f"p/{index:04}", bytes(3000))
        faults.decide = lambda _: fault
        loader = PyBytesAsyncDataLoader(PyDataset.from_uris([f"s3://bkt/p/{index:04}" for index in range(8)]))
        done = threading.Event()
        for _ in loader.items():
            done.wait(busy)
        account = loader.stats()
        assert account["dominant"] == dominant, account
        assert account["advice"]

    def test_errors_are_counted(self, place: Place) -> None:
        dataset = PyDataset(fill(place.root, 4))
        s3dlio.delete(dataset.keys()[1])
        loader = PyBytesAsyncDataLoader(dataset)
        items = loader.items()
        for _ in range(4):
            try:
                next(items)
            except s3dlio.NotFoundError:
                continue
        account = loader.stats()
        assert (account["objects"], account["errors"]) == (3, 1)
