"""The Parquet loader as an iterable: bad row groups, event loops, its account, several iterations at once, leaving early."""

from __future__ import annotations

import asyncio
import gc
import itertools
import multiprocessing
import pickle
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper
from torchdata.stateful_dataloader import StatefulDataLoader

import s3dlio
import s3dlio.torch
from s3dlio import BadSampleWarning
from s3dlio.data.parquet import decode as parquet_decode
from s3dlio.data.parquet import items as parquet_items
from s3dlio.data.parquet import read as parquet_read
from s3dlio.data.parquet.groups import RowGroups
from s3dlio.data.parquet.index import FileIndex
from s3dlio.storage.cloud import wire
from s3dlio.torch import ParquetDataset
from s3dlio.torch.datapipes import ReadObjects, ReadParquet

from .conftest import LocalPlace, Place, eventually, make_place
from .faults import Fault, FaultServer, failing
from .objects import threads_and_descriptors
from .parquet_files import file_of, joined, spoiled, table, tables_of

pytestmark = pytest.mark.filterwarnings("ignore:the file system of direct")

FILES = [file_of(table(number)) for number in range(3)]
BAD = [spoiled(FILES[0], 0, 2), FILES[1], spoiled(FILES[2], 1, 3)]
GOOD = [0, 30, 60, 90, 1000, 1030, 1060, 1090, 2000, 2030, 2060, 2090]
FILLED = [30, 30, 30, 90, 1000, 1030, 1060, 1090, 2000, 2000, 2060, 2060]
"""The first label of each row group, and of each of `BAD`, in which a good one stands for a bad one."""


def load(uri: str, **options: Any) -> Any:
    return s3dlio.create_async_loader(uri, {"format": "parquet", "columns": ["label"], "decode": "batch", **options})


def first_of(item: Any) -> int:
    return int(item["label"][0]) if isinstance(item, dict) else int(item.data.column("label")[0].as_py())


def firsts(items: Any) -> list[int]:
    return [first_of(item) for item in items]


def filled(place: Place, files: list[bytes]) -> str:
    for number, content in enumerate(files):
        place.put(f"d/{number}.parquet", content)
    return place.root + "d/"


@pytest.fixture
def bad(place: Place) -> str:
    return filled(place, BAD)


@pytest.fixture
def local_bad(local_place: LocalPlace) -> str:
    return filled(local_place, BAD)


@pytest.fixture
def good(local_place: LocalPlace) -> str:
    return filled(local_place, FILES)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Workers that were forked inherit the filter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BadSampleWarning)
        yield


def test_a_warning_names_file_and_row_group(local_bad: str) -> None:
    with pytest.warns(BadSampleWarning) as caught:
        firsts(load(local_bad, on_error="skip"))
    assert re.search(r"skipped .*0\.parquet \(row group 2: cannot decode (.|\n)*; .*is repeated", str(caught[1].message))


@pytest.mark.usefixtures("quiet")
class TestBadRowGroups:
    @pytest.mark.parametrize("prefetch", [1, 32])
    def test_positions_never_shift(self, bad: str, prefetch: int) -> None:
        loader = load(bad, on_error="skip", prefetch=prefetch)
        assert len(loader) == 12
        assert firsts(loader) == FILLED
        account = loader.stats()
        assert (account["objects"], account["errors"], account["num_skipped"]) == (8, 4, 4)
        skipped = [(entry["uri"], entry["error"].split(":")[0], entry["repeated"]) for entry in account["skipped"]]
        assert skipped == [
            (f"{bad}0.parquet", "row group 0", f"{bad}0.parquet"),
            (f"{bad}0.parquet", "row group 2", f"{bad}0.parquet"),
            (f"{bad}2.parquet", "row group 1", f"{bad}2.parquet"),
            (f"{bad}2.parquet", "row group 3", f"{bad}2.parquet"),
        ]

    def test_a_resumed_iteration_looks_back_by_one_row_group_at_a_time(
        self, local_bad: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loader = load(local_bad, on_error="skip", prefetch=8)
        begun: list[int] = []
        cut = RowGroups.cut
        monkeypatch.setattr(
            RowGroups, "cut", lambda groups, number, decode: begun.append(number) or cut(groups, number, decode)
        )
        loader.load_state_dict({**loader.state_dict(), "position": 9})
        assert firsts(loader) == FILLED[9:]
        assert sorted(begun) == [8, 9, 10, 11]

    def test_a_repeated_row_group_shares_no_memory(self, local_bad: str) -> None:
        for decode in ("batch", "arrow"):
            items = list(load(local_bad, on_error="skip", decode=decode))
            assert [(item.rg_idx, item.uri[-9]) for item in items[:4]] == [(1, "0"), (1, "0"), (1, "0"), (3, "0")]
            tables = tables_of(items[:3], decode)
            assert tables[0].equals(tables[1])
            buffers = {item.column("label").chunk(0).buffers()[1].address for item in tables}
            assert len(buffers) == 3

    @pytest.mark.parametrize("is_good", [True, False])
    def test_a_function_is_asked_with_the_file_and_its_error(self, local_bad: str, is_good: bool) -> None:
        asked: list[tuple[str, Exception]] = []

        def decide(uri: str, error: Exception) -> bool:
            asked.append((uri, error))
            return is_good

        loader = load(local_bad, on_error=decide, prefetch=1)
        if is_good:
            assert firsts(loader) == FILLED
            assert [uri[-9] for uri, _ in asked] == ["0", "0", "2", "2"]
        else:
            with pytest.raises(s3dlio.CorruptDataError, match="row group 0"):
                next(iter(loader))
        assert all(isinstance(error, s3dlio.CorruptDataError) for _, error in asked)

    def test_a_denied_row_group_is_not_skipped(self, faults: FaultServer) -> None:
        faults.s3.put("d/a.parquet", FILES[0])
        loader = load("s3://bkt/d/", on_error="skip")
        start = loader.groups.cut(2, "raw").layout.spans[0][0]
        faults.decide = lambda request: (
            failing(403, "AccessDenied") if request.headers.get("range", "").startswith(f"bytes={start}-") else None
        )
        items = iter(loader)
        assert firsts([next(items), next(items)]) == [0, 30]
        with pytest.raises(PermissionError):
            next(items)
        assert firsts(items) == [90]

    def test_nothing_good_is_no_empty_epoch(self, local_place: LocalPlace) -> None:
        local_place.put("d/0.parquet", spoiled(FILES[0], 0, 1, 2, 3))
        with pytest.raises(s3dlio.S3dlioError, match=r"no sample of a batch of 4 is good: row group 0 of .*0\.parquet"):
            list(load(local_place.root + "d/", on_error="skip"))

    @pytest.mark.parametrize("num_taken", range(13))
    def test_a_state_resumes_at_its_position(self, local_bad: str, num_taken: int) -> None:
        loader = load(local_bad, on_error="skip")
        items = iter(loader)
        taken = firsts(next(items) for _ in range(num_taken))
        assert taken == FILLED[:num_taken]
        assert loader.state_dict()["position"] == num_taken
        later = load(local_bad, on_error="skip")
        later.load_state_dict(loader.state_dict())
        assert firsts(later) == FILLED[num_taken:]

    @pytest.mark.parametrize("wrong", ["ignore", None, True])
    def test_other_choices_are_refused(self, good: str, wrong: Any) -> None:
        with pytest.raises(ValueError, match="on_error"):
            load(good, on_error=wrong)
        with pytest.raises(ValueError, match="on_error"):
            ParquetDataset(good, on_error=wrong)


BROKEN = [FILES[0][:-1], FILES[1], FILES[2][:-300] + b"\xff" * 200 + FILES[2][-100:], b"short"]


@pytest.mark.usefixtures("quiet")
class TestBrokenFooters:
    @pytest.fixture
    def broken(self, place: Place) -> str:
        return filled(place, BROKEN)

    @pytest.fixture
    def local_broken(self, local_place: LocalPlace) -> str:
        return filled(local_place, BROKEN)

    def test_the_file_is_left_out_and_told(self, broken: str) -> None:
        with pytest.warns(BadSampleWarning) as caught:
            loader = load(broken, on_error="skip")
        assert [str(warning.message).partition(" (")[0] for warning in caught] == [
            f"skipped {broken}{number}.parquet" for number in (0, 2, 3)
        ]
        for _ in range(2):
            assert firsts(loader) == GOOD[4:8]
            account = loader.stats()
            assert (account["objects"], account["errors"], account["num_skipped"]) == (4, 0, 3)
            assert [(entry["uri"][-9], entry["repeated"]) for entry in account["skipped"]] == [
                ("0", ""),
                ("2", ""),
                ("3", ""),
            ]
            assert all("is damaged: " in entry["error"] for entry in account["skipped"])

    def test_raising_is_the_default(self, broken: str) -> None:
        with pytest.raises(s3dlio.CorruptDataError, match=r"d/\d.parquet is damaged"):
            load(broken)

    @pytest.mark.parametrize("is_good", [True, False])
    def test_a_function_is_asked(self, local_broken: str, is_good: bool) -> None:
        asked: list[str] = []
        decide = lambda uri, error: asked.append(uri[-9]) or (is_good and isinstance(error, ValueError))  # noqa: E731
        if is_good:
            assert firsts(load(local_broken, on_error=decide)) == GOOD[4:8]
            assert asked == ["0", "2", "3"]
        else:
            with pytest.raises(s3dlio.CorruptDataError, match=r"0\.parquet is damaged"):
                load(local_broken, on_error=decide)

    @pytest.mark.parametrize("lying", [[("label", "<", 5)], None])
    def test_what_only_filters_find_is_left_out_as_well(
        self, local_place: LocalPlace, lying: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        uri = filled(local_place, FILES[:2])

        def check_claims(index: Any, leaves: Any) -> None:
            if index.uri.endswith("1.parquet"):
                raise s3dlio.CorruptDataError("it contradicts itself")

        monkeypatch.setattr(FileIndex, "check_claims", check_claims)
        assert len(load(uri, on_error="skip", filters=lying)) == (1 if lying else 8)

    def test_nothing_good_is_no_empty_epoch(self, local_place: LocalPlace) -> None:
        uri = filled(local_place, [BROKEN[0], BROKEN[3]])
        match = r"none of the 2 \.parquet files under .*d/ can be read: .*1\.parquet is damaged"
        with pytest.raises(s3dlio.S3dlioError, match=match):
            load(uri, on_error="skip")
        with pytest.raises(s3dlio.S3dlioError, match=match):
            ParquetDataset(uri, on_error="skip")
        with pytest.raises(s3dlio.S3dlioError, match=match):
            ReadParquet(uri, on_error="skip")

    @pytest.mark.parametrize("status", [403, 404, 500])
    @pytest.mark.usefixtures("short_pauses")
    def test_a_request_that_fails_raises_as_other_ranks_may_succeed(self, faults: FaultServer, status: int) -> None:
        faults.s3.put("d/a.parquet", FILES[0])
        faults.s3.put("d/b.parquet", FILES[1])
        codes = {403: "AccessDenied", 404: "NoSuchKey", 500: "InternalError"}
        faults.decide = lambda request: failing(status, codes[status]) if "b.parquet" in request.target else None
        with pytest.raises(s3dlio.S3dlioError, match=r"d/b\.parquet") as caught:
            load("s3://bkt/d/", on_error="skip")
        assert not isinstance(caught.value, s3dlio.CorruptDataError)

    @pytest.mark.parametrize("num_taken", range(5))
    def test_a_state_fits_while_the_same_files_are_left_out(self, local_broken: str, num_taken: int) -> None:
        loader = load(local_broken, on_error="skip", shuffle=True, seed=3)
        items = iter(loader)
        taken = firsts(next(items) for _ in range(num_taken))
        later = load(local_broken, on_error="skip", shuffle=True)
        later.load_state_dict(loader.state_dict())
        assert taken + firsts(later) == firsts(load(local_broken, on_error="skip", shuffle=True, seed=3))

    def test_a_state_is_refused_when_a_file_was_mended(self, local_place: LocalPlace) -> None:
        uri = filled(local_place, BROKEN)
        state = load(uri, on_error="skip").state_dict()
        local_place.put("d/0.parquet", FILES[0])
        with pytest.raises(ValueError, match="4"):
            load(uri, on_error="skip").load_state_dict(state)

    @pytest.mark.parametrize("context", [None, "fork"])
    def test_datasets_and_pipes_leave_it_out_in_all_workers(self, local_broken: str, context: str | None) -> None:
        uris = [f"{local_broken}{number}.parquet" for number in range(4)]
        workers = {"num_workers": 2, "multiprocessing_context": context, "timeout": 60} if context else {}
        dataset = ParquetDataset(local_broken, columns=["label"], on_error="skip")
        assert sorted(firsts(s3dlio.torch.loader(dataset, batch_size=None, **workers))) == GOOD[4:8]
        assert (dataset.num_skipped, [skipped.uri for skipped in dataset.skipped]) == (3, [uris[0], *uris[2:]])
        for source in (local_broken, IterableWrapper(uris)):
            pipe = ReadParquet(source, columns=["label"], on_error="skip")
            items = DataLoader(pipe, batch_size=None, **workers)
            assert sorted(firsts(items)) == GOOD[4:8]
            assert pipe.num_skipped == 3


def odd(batch: dict[str, Any]) -> Any:
    """A transform that knows no file 1."""
    if first_of(batch) == 1030:
        raise ValueError("unknown")
    return batch


@pytest.mark.usefixtures("quiet")
class TestBadBatches:
    """ParquetDataset."""

    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_every_position_gives_a_batch_and_the_main_process_knows(self, local_bad: str, num_workers: int) -> None:
        dataset = ParquetDataset(local_bad, odd, columns=["label"], on_error="skip")
        fork = {"multiprocessing_context": "fork", "timeout": 60} if num_workers else {}
        batches = s3dlio.torch.loader(dataset, batch_size=None, num_workers=num_workers, **fork)
        seen = firsts(batches)
        sound = [first for first, filler in zip(GOOD, FILLED, strict=True) if first == filler and first != 1030]
        assert len(seen) == 12
        assert all(here == there for here, there in zip(seen, GOOD, strict=True) if there in sound)
        account = batches.stats()
        assert account["num_skipped"] == dataset.num_skipped == 5
        assert sorted(entry["error"].split(":")[0] for entry in account["skipped"]) == sorted(
            f"row group {number}" for number in (0, 2, 1, 1, 3)
        )

    @pytest.mark.parametrize(("num_workers", "num_taken"), [*((0, taken) for taken in range(12)), (2, 4), (2, 7), (2, 11)])
    @pytest.mark.parametrize("kind", ["ours", "torchdata"])
    def test_a_resumed_epoch_is_the_same(self, tmp_path: Any, num_workers: int, num_taken: int, kind: str) -> None:
        local_bad = filled(make_place("file", tmp_path), BAD)

        def make() -> Any:
            dataset = ParquetDataset(local_bad, columns=["label"], on_error="skip", shuffle=True, seed=5)
            fork: dict[str, Any] = {"num_workers": num_workers}
            if num_workers:
                fork |= {"multiprocessing_context": "fork", "timeout": 60}
            if kind == "ours":
                return s3dlio.torch.loader(dataset, batch_size=None, **fork)
            return StatefulDataLoader(dataset, batch_size=None, **fork)

        whole = firsts(make())
        first = make()
        steps = iter(first)
        taken = firsts(next(steps) for _ in range(num_taken))
        state = first.state_dict()
        del steps
        later = make()
        later.load_state_dict(state)
        rest = firsts(later)
        assert taken + rest == whole

    def test_raising_is_the_default(self, local_bad: str) -> None:
        with pytest.raises(s3dlio.CorruptDataError, match="row group 0"):
            next(iter(ParquetDataset(local_bad, columns=["label"])))
        with pytest.raises(ValueError, match="unknown") as caught:
            list(ParquetDataset(local_bad, odd, columns=["label"], filters=[("label", ">=", 1000)]))
        assert "row group 1 of" in caught.value.__notes__[0]


class TestEventLoop:
    def test_of_two_tasks_that_ask_at_once_one_gets_the_item_and_the_other_an_error(self, good: str) -> None:
        async def ask() -> tuple[list[Any], list[Any]]:
            items = aiter(load(good))
            both = await asyncio.gather(anext(items), anext(items), return_exceptions=True)
            return both, [item async for item in items]

        (first, second), rest = asyncio.run(ask())
        assert isinstance(second, s3dlio.S3dlioError)
        assert firsts([first, *rest]) == GOOD

    @pytest.mark.parametrize("decode", ["raw", "batch"])
    def test_it_gets_the_same_without_waiting(self, place: Place, decode: str) -> None:
        uri = filled(place, FILES)
        loader = s3dlio.create_async_loader(uri, {"format": "parquet", "decode": decode, "prefetch": 3})

        async def take() -> tuple[list[Any], int]:
            ticks, is_over = 0, False

            async def tick() -> None:
                nonlocal ticks
                while not is_over:
                    ticks += 1
                    await asyncio.sleep(0)

            ticking = asyncio.create_task(tick())
            items = [item async for item in loader]
            is_over = True
            await ticking
            return items, ticks

        items, ticks = asyncio.run(take())
        assert joined(tables_of(items, decode)).equals(joined(map(table, range(3))))
        assert ticks > 1
        assert (loader.epoch, loader.stats()["objects"]) == (1, 12)

    def test_errors_come_at_their_turns(self, local_bad: str) -> None:
        async def take() -> list[Any]:
            seen: list[Any] = []
            items = aiter(load(local_bad))
            while True:
                try:
                    seen.append(first_of(await anext(items)))
                except s3dlio.CorruptDataError:
                    seen.append("bad")
                except StopAsyncIteration:
                    return seen

        assert asyncio.run(take()) == ["bad", 30, "bad", 90, 1000, 1030, 1060, 1090, 2000, "bad", 2060, "bad"]

    def test_a_cancelled_wait_loses_nothing_and_is_in_no_state(self, faults: FaultServer) -> None:
        faults.s3.put("d/a.parquet", FILES[0])
        loader = load("s3://bkt/d/", prefetch=1)
        held, go = threading.Event(), threading.Event()

        def decide(_: Any) -> None:
            held.set()
            assert go.wait(30)

        faults.decide = decide

        async def give_up() -> list[int]:
            items = aiter(loader)
            wait = asyncio.ensure_future(anext(items))
            await asyncio.to_thread(held.wait, 30)
            wait.cancel()
            go.set()
            await asyncio.to_thread(lambda: eventually(lambda: items._step.done()))
            assert loader.state_dict()["position"] == 0
            seen = [first_of(await anext(items))]
            assert loader.state_dict()["position"] == 1
            return seen + [first_of(item) async for item in items]

        assert asyncio.run(give_up()) == GOOD[:4]


class TestAccount:
    @pytest.mark.parametrize("small_bytes", [0, 1 << 30], ids=["threads", "polling"])
    @pytest.mark.parametrize("decode", ["raw", "arrow", "batch"])
    def test_it_counts_what_came(self, place: Place, decode: str, small_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(parquet_read, "SMALL_BYTES", small_bytes)
        loader = load(filled(place, FILES), decode=decode)
        assert (loader.stats()["objects"], loader.stats()["dominant"]) == (0, "nothing")
        num_read = sum(loader.groups.cut(number, decode).num_bytes for number in range(12))
        for _ in range(2):
            list(loader)
            account = loader.stats()
            assert (account["objects"], account["rows"], account["bytes"], account["errors"]) == (12, 300, num_read, 0)
        parts = [account[f"waiting_for_{name}_seconds"] for name in ("first_byte", "body", "decoding", "consumer")]
        assert min(parts) >= 0.0
        assert account["seconds"] == pytest.approx(sum(parts))
        assert account["first_byte_seconds_per_object"] > 0.0
        assert (account["num_skipped"], account["skipped"], account["retries"]) == (0, [], 0)

    def test_its_keys_are_those_of_the_object_loader(self, good: str) -> None:
        objects = s3dlio.create_async_loader(good, {})
        more = {"rows", "waiting_for_decoding_seconds", "decoding_seconds_per_object"}
        assert load(good).stats().keys() == objects.stats().keys() | more

    @pytest.mark.parametrize(
        ("fault", "busy", "dominant"),
        [(Fault(delay=0.2), 0.0, "first byte"), (Fault(drip=(300, 0.05)), 0.0, "body"), (None, 0.05, "consumer")],
        ids=["first byte", "body", "consumer"],
    )
    def test_it_says_what_dominates(self, faults: FaultServer, fault: Fault | None, busy: float, dominant: str) -> None:
        faults.s3.put("d/a.parquet", FILES[0])
        loader = s3dlio.create_async_loader("s3://bkt/d/", {"format": "parquet"})
        list(loader)  # modules are loaded
        faults.decide = lambda _: fault
        done = threading.Event()
        for _ in loader:
            done.wait(busy)
        account = loader.stats()
        assert account["dominant"] == dominant, account
        assert account["advice"]

    def test_decoding_is_told_apart(self, good: str, monkeypatch: pytest.MonkeyPatch) -> None:
        decoded = parquet_decode.decoded

        def slow(cut: Any) -> Any:
            threading.Event().wait(0.05)
            return decoded(cut)

        monkeypatch.setattr(parquet_items, "decoded", slow)
        monkeypatch.setattr(parquet_read, "SMALL_BYTES", 0)
        loader = load(good, prefetch=2)
        list(loader)
        assert loader.stats()["dominant"] == "decoding", loader.stats()


class TestIterations:
    def test_two_at_once_give_all_and_the_state_is_that_of_the_later_one(self, good: str) -> None:
        loader = load(good, shuffle=True, seed=3)
        whole = firsts(load(good, shuffle=True, seed=3))
        first, second = iter(loader), iter(loader)
        seen = [firsts([next(first)])[0] for _ in range(4)], [firsts([next(second)])[0] for _ in range(2)]
        assert loader.state_dict()["position"] == 2
        assert seen[0] + firsts(first) == whole
        assert (loader.epoch, loader.state_dict()["position"]) == (0, 2)
        assert seen[1] + firsts(second) == whole
        assert (loader.epoch, loader.state_dict()["position"]) == (1, 0)

    def test_an_epoch_that_was_named_is_not_changed_by_an_older_iteration(self, good: str) -> None:
        loader = load(good)
        items = iter(loader)
        next(items)
        loader.set_epoch(7)
        assert firsts(items) == GOOD[1:]
        assert (loader.epoch, loader.state_dict()["position"]) == (7, 0)

    def test_the_same_of_a_loader_of_batches(self, good: str) -> None:
        batches = s3dlio.torch.loader(ParquetDataset(good, columns=["label"]), batch_size=None)
        items = iter(batches)
        next(items)
        batches.set_epoch(7)
        next(items)
        assert (batches.epoch, batches.state_dict()["position"]) == (7, 0)
        assert len(list(items)) == 10
        assert (batches.epoch, batches.state_dict()["position"]) == (7, 0)

    def test_threads_have_iterations_of_their_own(self, good: str) -> None:
        loader = load(good, prefetch=4)
        seen: list[list[int]] = []
        threads = [threading.Thread(target=lambda: seen.append(firsts(loader))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert seen == [GOOD] * 4

    def test_a_second_thread_is_told_so_and_moves_no_position(self, faults: FaultServer) -> None:
        faults.s3.put("d/a.parquet", FILES[0])
        loader = load("s3://bkt/d/")
        held, go = threading.Event(), threading.Event()

        def decide(_: Any) -> None:
            held.set()
            assert go.wait(30)

        faults.decide = decide
        items, seen = iter(loader), list[int]()
        thread = threading.Thread(target=lambda: seen.extend(firsts(itertools.islice(items, 2))))
        thread.start()
        assert held.wait(30)
        with pytest.raises(s3dlio.S3dlioError, match="waited for by another thread"):
            next(items)
        go.set()
        thread.join(60)
        assert (seen, loader.state_dict()["position"]) == (GOOD[:2], 2)
        assert firsts(items) == GOOD[2:4]

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_a_loader_in_use_goes_to_other_processes(self, tmp_path: Any, method: str) -> None:
        good = filled(make_place("file", tmp_path), FILES)
        loader = load(good, on_error="skip")
        items = iter(loader)
        next(items)
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.map_async(firsts, [loader]).get(60) == [GOOD]
        later = load(good)
        later.load_state_dict(loader.state_dict())
        assert firsts(pickle.loads(pickle.dumps(later))) == GOOD[1:]
        assert firsts(items) == GOOD[1:]


def break_off(loader: Any) -> None:
    for _ in loader:
        break


def forget(loader: Any) -> None:
    items = iter(loader)
    next(items)
    del items, loader
    gc.collect()


def close(loader: Any) -> None:
    items = iter(loader)
    next(items)
    loader.close()
    assert list(items) == []
    assert loader.epoch == 0


def end_a_block(loader: Any) -> None:
    with iter(loader) as items:
        next(items)
    assert list(items) == []


def leave_a_loop(loader: Any) -> None:
    async def some() -> None:
        async for _ in loader:
            break

    asyncio.run(some())


def close_a_loop(loader: Any) -> None:
    async def some() -> None:
        items = aiter(loader)
        await anext(items)
        await items.aclose()
        assert [item async for item in items] == []

    asyncio.run(some())


def connections(faults: FaultServer) -> int:
    wire.close_idle()
    return len(faults._open)


@pytest.mark.parametrize("small_bytes", [0, 1 << 30], ids=["threads", "polling"])
class TestLeavingEarly:
    @pytest.fixture
    def stalling(self, faults: FaultServer, small_bytes: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
        """A loader of whose row groups only the first come; all others are held back until the client leaves."""
        monkeypatch.setattr(parquet_read, "SMALL_BYTES", small_bytes)
        faults.s3.put("d/a.parquet", file_of(table(), 5))

        def make(num_good: int) -> Any:
            loader = s3dlio.create_async_loader("s3://bkt/d/", {"format": "parquet", "prefetch": 6})
            end = loader.groups.cut(num_good - 1, "raw").layout.spans[-1][1] if num_good else 0
            faults.decide = lambda request: Fault(stall=0) if _start(request) >= end else None
            return loader

        return make

    @pytest.mark.parametrize("leave", [break_off, forget, close, end_a_block, leave_a_loop, close_a_loop])
    def test_every_way_out_ends(
        self, faults: FaultServer, stalling: Callable[[int], Any], leave: Callable[[Any], None], small_bytes: int
    ) -> None:
        leave(stalling(2))
        if small_bytes:  # threads that wait for a stalled server end by its timeout; nobody waits for them
            assert eventually(lambda: connections(faults) == 0, 5)

    def test_another_thread_ends_a_wait(self, faults: FaultServer, stalling: Callable[[int], Any]) -> None:
        loader = stalling(0)
        ended: list[Any] = []
        num_footers = len(faults.requests)
        thread = threading.Thread(target=lambda: ended.extend(loader))
        thread.start()
        assert eventually(lambda: len(faults.requests) >= num_footers + 6)
        loader.close()
        thread.join(10)
        assert not thread.is_alive()
        assert ended == []
        assert loader.epoch == 0

    def test_a_wait_that_was_cancelled_and_forgotten_ends(self, stalling: Callable[[int], Any]) -> None:
        loader = stalling(0)
        steps: list[Any] = []

        async def give_up() -> None:
            items = aiter(loader)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(items), 0.2)
            steps.append(items._step)

        asyncio.run(give_up())
        gc.collect()
        assert eventually(steps[0].done, 10)

    def test_thirty_early_ends_leave_nothing(self, good: str, small_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(parquet_read, "SMALL_BYTES", small_bytes)
        loader = load(good, prefetch=4)
        for leave in (leave_a_loop, break_off):
            leave(loader)
        before = threads_and_descriptors()
        for _ in range(15):
            leave_a_loop(loader)
            break_off(loader)
        after = threads_and_descriptors()
        assert all(now <= then + 17 for now, then in zip(after, before, strict=True)), (before, after)


def _start(request: Any) -> int:
    return int(request.headers.get("range", "bytes=0-").removeprefix("bytes=").split("-")[0])


ODD_NAMES = [
    "sp ace",
    "per%cent",
    "per%2Fcent",
    "pl+us",
    "ünï/日本",
    "q?x",
    "h#x",
    "am&p;",
    "a=b/c d",
    "dou//ble",
    "/lead",
    "a/../b/c",
]


def kinds(uri: str) -> list[Any]:
    """All that has epochs."""
    objects = s3dlio.create_async_loader(uri)
    streams = [ParquetDataset(uri), s3dlio.ObjectStoreIterableDataset(uri), s3dlio.torch.PipeDataset(ReadObjects(uri))]
    windows = [s3dlio.ShuffleWindow([], window=1), s3dlio.torch.ResumableSampler([1])]
    return [objects, load(uri), s3dlio.torch.loader(streams[0], None), *streams, *windows]


@pytest.mark.parametrize("wrong", ["1", 1.5, None, -1, True, 10**30])
def test_an_epoch_is_a_whole_number_everywhere(good: str, wrong: Any) -> None:
    for kind in kinds(good):
        with pytest.raises(s3dlio.ConfigError, match="epoch"):
            kind.set_epoch(wrong)
        kind.set_epoch(np.int64(3))
        assert kind.epoch == 3


@pytest.mark.parametrize("wrong", [None, [], 5, "state"])
def test_a_state_is_a_dict_everywhere(good: str, wrong: Any) -> None:
    readers = [s3dlio.TFRecordReader(good), ReadObjects(good)]
    for kind in [*kinds(good)[1:], *readers]:
        with pytest.raises(TypeError, match="a state is the dict"):
            kind.load_state_dict(wrong)


def test_names_of_any_characters(exact_place: Place) -> None:
    names = ODD_NAMES if exact_place.root.startswith("memory") else ODD_NAMES[:9]  # paths are tidied up
    keys = [f"k/{name}.parquet" for name in names]
    for key in keys:
        exact_place.put(key, FILES[0])
    uris = sorted(exact_place.root + key for key in keys)
    by_name = [uri for uri in uris if "/../" not in uri]  # what begins with a dot is set aside in a listing
    for decode in ("raw", "arrow", "batch"):
        items = list(load(exact_place.root + "k/", decode=decode))
        assert sorted({item.uri for item in items}) == by_name
    objects = s3dlio.create_async_loader(exact_place.root + "k/")
    assert sorted(view.uri for view in objects) == uris
    assert sorted(item.uri for item in objects.items()) == uris
    for uri in uris:
        assert firsts(load(uri)) == GOOD[:4]


@pytest.mark.parametrize("decode", ["raw", "batch"])
def test_a_loader_that_is_gone_leaves_its_iteration_whole(good: str, decode: str) -> None:
    loader = load(good, decode=decode)
    items = iter(loader)
    first = next(items)
    del loader
    gc.collect()
    assert len([first, *items]) == 12


def test_files_of_one_row_and_of_none(place: Place) -> None:
    for name, num_rows in (("a", 1), ("b", 0), ("c", 2)):
        place.put(f"d/{name}.parquet", file_of(table(num_rows=num_rows), 1))
    for decode in ("raw", "arrow", "batch"):
        loader = s3dlio.create_async_loader(place.root + "d/", {"format": "parquet", "decode": decode})
        assert [found.num_rows for found in tables_of(loader, decode)] == [1, 1, 1]
        assert loader.stats()["rows"] == 3
