"""What is remembered of Parquet files, and files that are missing, replaced, or no Parquet at all."""

from __future__ import annotations

import io
import multiprocessing
import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import s3dlio
from s3dlio.data.parquet import cut as parquet_cut
from s3dlio.data.parquet import decode as parquet_decode
from s3dlio.data.parquet import files as parquet_files
from s3dlio.data.parquet import read as parquet_read

from .conftest import LocalPlace, Place, eventually
from .faults import Fault, FaultServer, failing
from .parquet_files import file_of, joined, table, tables_of

pytestmark = pytest.mark.filterwarnings("ignore:the file system of direct")

FILE = file_of(table())


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    s3dlio.parquet_cache_clear()


def load(uri: str, **options: Any) -> Any:
    return s3dlio.create_async_loader(uri, {"format": "parquet", **options})


def rows(uri: str, decode: str = "batch", **options: Any) -> pa.Table:
    return joined(tables_of(load(uri, decode=decode, **options), decode))


class TestShapes:
    """Case O36."""

    @pytest.mark.parametrize("decode", ["raw", "arrow", "batch"])
    def test_files_without_row_groups_or_rows_give_nothing_and_what_is_no_parquet_is_left_alone(
        self, place: Place, decode: str
    ) -> None:
        place.put("d/a.parquet", file_of(table(num_rows=60)))
        place.put("d/empty.parquet", file_of(table(num_rows=0)))
        out = io.BytesIO()
        with pq.ParquetWriter(out, table(num_rows=0).schema):
            pass
        place.put("d/none.parquet", out.getvalue())
        for name in ("_SUCCESS", ".a.parquet.crc", "a.parquet.crc", "_delta_log/1.parquet"):
            place.put(f"d/{name}", b"")
        loader = load(place.root + "d/", decode=decode)
        assert [(item.uri, item.rg_idx) for item in loader] == [(f"{place.root}d/a.parquet", number) for number in range(2)]
        assert rows(place.root + "d", decode, columns=[0]).equals(table(num_rows=60).select(["x"]))

    @pytest.mark.parametrize("decode", ["raw", "arrow", "batch"])
    def test_row_groups_without_rows_between_others_are_left_out(self, decode: str) -> None:
        out, content = io.BytesIO(), table(num_rows=60)
        with pq.ParquetWriter(out, content.schema) as writer:
            for part in (content.slice(0, 0), content.slice(0, 50), content.slice(0, 0), content.slice(50)):
                writer.write_table(part)
        uri = "memory://between/a.parquet"
        s3dlio.put_bytes(uri, out.getvalue())
        assert [item.rg_idx for item in load(uri, decode=decode)] == [1, 3]
        assert rows(uri, decode).equals(content)
        assert s3dlio.parquet_rg_row_offsets(uri) == [0, 0, 50, 50, 60]
        index = s3dlio.PyParquetIndex()
        index.ensure_indexed([uri])
        assert [index.rg_for_sample(uri, sample) for sample in (0, 49, 50)] == [1, 1, 3]
        with pytest.raises(IndexError, match=r"row group 2 of .* has no rows"):
            s3dlio.parquet_get_rg(uri, 2, decode=decode)

    def test_partitions_whose_names_begin_with_an_underscore_are_data(self, place: Place) -> None:
        place.put("d/_day=1/a.parquet", FILE)
        assert len(load(place.root + "d/")) == 4

    def test_one_file_may_be_named(self, place: Place) -> None:
        place.put("d/a.parquet", FILE)
        place.put("d/a.parquet2/b.parquet", FILE)
        assert {item.uri for item in load(place.root + "d/a.parquet")} == {f"{place.root}d/a.parquet"}

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "it is no Parquet file: it has 0 bytes only"),
            (b"PAR1PAR1", "it is no Parquet file: it has 8 bytes only"),
            (
                FILE[:-1],
                "no Parquet file, or not a whole one: it ends in b'\\x00PAR', not in b'PAR1'; copy or write it once more",
            ),
            (FILE[:-4] + b"PARE", "encrypted"),
            (FILE[:-8] + (1 << 30).to_bytes(4, "little") + b"PAR1", "a footer of 1073741824 bytes does not fit"),
            (FILE[:-8] + bytes(4) + b"PAR1", "a footer of 0 bytes does not fit"),
            (FILE[:-208] + b"\xff" * 200 + FILE[-8:], "type 15 of Thrift does not occur in a footer"),
            (FILE[: len(FILE) // 2] + FILE[-8 - int.from_bytes(FILE[-8:-4], "little") :], "which its footer names as data"),
        ],
    )
    def test_a_broken_file_is_named(self, place: Place, content: bytes, message: str) -> None:
        place.put("d/a.parquet", FILE)
        place.put("d/broken.parquet", content)
        with pytest.raises(s3dlio.S3dlioError) as failure:
            list(load(place.root + "d/"))
        assert f"{place.root}d/broken.parquet" in str(failure.value)
        assert message in str(failure.value)

    def test_a_footer_that_lies_is_an_error_after_the_good_row_groups(self, place: Place) -> None:
        second = pq.ParquetFile(io.BytesIO(FILE)).metadata.row_group(1).column(0).dictionary_page_offset
        place.put("d/a.parquet", FILE)
        place.put("d/b.parquet", FILE[:second] + FILE[-8 - int.from_bytes(FILE[-8:-4], "little") :])
        items = iter(load(place.root + "d/"))
        found = joined(tables_of([next(items) for _ in range(5)], "raw"))
        assert found.equals(joined([table(), table().slice(0, 30)]))
        for _ in range(3):
            with pytest.raises(s3dlio.CorruptDataError, match=r"b\.parquet is damaged: it has no \d+ bytes from"):
                next(items)
        assert list(items) == []

    def test_pages_that_cannot_be_decoded_name_file_and_row_group(self, place: Place) -> None:
        chunk = pq.ParquetFile(io.BytesIO(FILE)).metadata.row_group(2).column(1)
        start = chunk.dictionary_page_offset
        place.put("d/a.parquet", FILE[:start] + b"\xff" * 60 + FILE[start + 60 :])
        items = iter(load(place.root + "d/", decode="arrow"))
        assert [next(items).rg_idx, next(items).rg_idx] == [0, 1]
        with pytest.raises(s3dlio.CorruptDataError, match=r"cannot decode row group 2 of .*d/a.parquet"):
            next(items)

    @pytest.mark.parametrize("others", [[], ["d/notes.txt", "d/_SUCCESS"]])
    def test_nothing_there_is_an_error_that_names_the_prefix(self, place: Place, others: list[str]) -> None:
        place.put("elsewhere/a.parquet", FILE)
        for key in others:
            place.put(key, b"x")
        with pytest.raises(s3dlio.NotFoundError, match=rf"no .parquet files under {place.root}d/"):
            load(place.root + "d/")

    @pytest.mark.parametrize("plaintext_footer", [False, True])
    def test_an_encrypted_file_is_named(self, local_place: LocalPlace, plaintext_footer: bool) -> None:
        factory = pe.CryptoFactory(lambda _: _Keys())
        keys = pe.EncryptionConfiguration("footer", column_keys={"col": ["x"]}, plaintext_footer=plaintext_footer)
        properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), keys)
        local_place.put("a.parquet", file_of(table(), encryption_properties=properties))
        with pytest.raises(s3dlio.S3dlioError, match=r"cannot read .*a.parquet: it is encrypted"):
            list(load(local_place.root))

    def test_a_file_that_points_at_other_files_is_named(self, local_place: LocalPlace) -> None:
        metadata = pq.read_metadata(io.BytesIO(FILE))
        metadata.set_file_path("elsewhere.parquet")
        metadata.write_metadata_file(local_place.folder / "all.parquet")
        with pytest.raises(s3dlio.S3dlioError, match=r"cannot read .*all.parquet: its columns are in other files"):
            list(load(local_place.root))


class _Keys(pe.KmsClient):
    def __init__(self) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return key_bytes.hex()

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return bytes.fromhex(wrapped_key)


class TestSecondEpoch:
    def test_a_second_loader_reads_no_footer_and_a_larger_cap_changes_nothing(self, faults: FaultServer) -> None:
        for number in range(3):
            s3dlio.put_bytes(f"s3://bkt/d/{number}.parquet", file_of(table(number)))
        load("s3://bkt/d/")
        assert (len(faults.asked("LIST")), len(faults.asked("GET"))) == (1, 3)
        for _ in range(2):
            load("s3://bkt/d/", footer_cap=10)
        assert (len(faults.asked("LIST")), len(faults.asked("GET")), len(faults.asked("HEAD"))) == (3, 3, 0)
        assert s3dlio.parquet_cache_len() == 3

    def test_a_cap_that_is_too_small_costs_one_more_request_for_exactly_the_rest(self, faults: FaultServer) -> None:
        s3dlio.put_bytes("s3://bkt/d/a.parquet", FILE)
        load("s3://bkt/d/", footer_cap=100)
        first, second = (request.headers["range"] for request in faults.asked("GET"))
        footer = len(FILE) - 8 - int.from_bytes(FILE[-8:-4], "little")
        assert first == f"bytes={len(FILE) - 100}-{len(FILE) - 1}"
        assert second == f"bytes={footer}-{len(FILE) - 101}"

    @pytest.mark.parametrize("decode", ["raw", "arrow"])
    def test_a_file_that_was_rewritten_is_read_anew(self, place: Place, decode: str) -> None:
        """Case O37."""
        place.put("d/f.parquet", file_of(table(num_rows=200), 100))
        assert rows(place.root + "d/", decode).equals(table(num_rows=200))
        place.put("d/f.parquet", file_of(table(5, num_rows=200), 40))
        place.put("d/g.parquet", file_of(table(6)))
        assert rows(place.root + "d/", decode).equals(joined([table(5, num_rows=200), table(6)]))
        assert len(load(place.root + "d/")) == 5 + 4

    def test_columns_that_lie_apart_come_in_one_request_where_little_lies_between(self, faults: FaultServer) -> None:
        s3dlio.put_bytes("s3://bkt/d/a.parquet", FILE)
        loader = load("s3://bkt/d/", columns=["x", "when"])
        num_footers = len(faults.asked("GET"))
        list(loader)
        assert len(faults.asked("GET")) - num_footers == 4
        assert all(request.headers["if-match"] for request in faults.asked("GET"))

    def test_the_cache_forgets_the_least_recently_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(3):
            s3dlio.put_bytes(f"memory://lru/{number}.parquet", FILE)
        index = parquet_files.indexes(*_found("memory://lru/0.parquet"), 1 << 20)[0]
        monkeypatch.setattr(parquet_files.cache, "limit", 2 * index.num_bytes)
        load("memory://lru/1.parquet")
        load("memory://lru/0.parquet")
        load("memory://lru/2.parquet")
        assert [s3dlio.parquet_cache_invalidate(f"memory://lru/{number}.parquet") for number in range(3)] == [
            True,
            False,
            True,
        ]
        assert s3dlio.parquet_cache_len() == 0

    def test_a_forked_child_knows_what_its_parent_knew(self, local_place: LocalPlace) -> None:
        local_place.put("a.parquet", FILE)
        load(local_place.root)
        with parquet_files.cache._lock:  # a fork while another thread holds the lock must not matter
            child = multiprocessing.get_context("fork").Process(target=_child, args=(local_place.root,))
            threading.Thread(target=child.start).start()
            assert eventually(lambda: child.pid is not None)
        child.join(60)
        assert child.exitcode == 0


def _found(uri: str) -> Any:
    return s3dlio.objects.resolve(uri)[0], parquet_files.find(uri)


def _child(root: str) -> None:
    assert s3dlio.parquet_cache_len() == 1
    assert rows(root).equals(table())


class TestMeanwhile:
    """A file that is replaced or deleted while an epoch runs: an error that names it, never a mixture."""

    @pytest.mark.parametrize("decode", ["raw", "batch"])
    def test_a_replaced_file_fails_by_name_after_the_good_row_groups(self, place: Place, decode: str) -> None:
        place.put("d/a.parquet", FILE)
        place.put("d/b.parquet", file_of(table(1)))
        items = iter(load(place.root + "d/", prefetch=1, decode=decode))
        taken = [next(items) for _ in range(4)]
        place.put("d/b.parquet", file_of(table(2)))
        with pytest.raises(s3dlio.ChangedError, match=r"d/b.parquet was replaced since its footer was read: make a new"):
            next(items)
        assert joined(tables_of(taken, decode)).equals(table())

    def test_a_deleted_file_fails_by_name(self, place: Place) -> None:
        place.put("d/a.parquet", FILE)
        place.put("d/b.parquet", FILE)
        items = iter(load(place.root + "d/", prefetch=1))
        for _ in range(4):
            next(items)
        s3dlio.delete(place.root + "d/b.parquet")
        with pytest.raises(s3dlio.NotFoundError, match=r"d/b.parquet"):
            next(items)

    def test_a_denied_row_group_raises_at_its_turn(self, faults: FaultServer) -> None:
        s3dlio.put_bytes("s3://bkt/d/a.parquet", FILE)
        loader = load("s3://bkt/d/", prefetch=4)
        start = parquet_cut.layout_of(loader.groups.files[0], 2, None).spans[0][0]
        faults.decide = lambda request: (
            failing(403, "AccessDenied") if request.headers.get("range", "").startswith(f"bytes={start}-") else None
        )
        items = iter(loader)
        assert [next(items).rg_idx, next(items).rg_idx] == [0, 1]
        with pytest.raises(s3dlio.AccessDeniedError, match=r"s3://bkt/d/a.parquet"):
            next(items)

    @pytest.mark.usefixtures("short_pauses")
    def test_a_body_that_breaks_off_goes_on_in_its_place(self, faults: FaultServer) -> None:
        s3dlio.put_bytes("s3://bkt/d/a.parquet", FILE)
        loader = load("s3://bkt/d/")
        broken: set[str] = set()

        def decide(request: Any) -> Fault | None:
            first_time = request.target not in broken and request.verb == "GET"
            broken.add(request.target)
            return Fault(cut=700) if first_time else None

        faults.decide = decide
        assert joined(tables_of(loader, "raw")).equals(table())
        assert broken


class TestWindow:
    @pytest.mark.parametrize("small_bytes", [0, 1 << 30], ids=["threads", "polling"])
    def test_no_more_row_groups_are_begun_than_prefetch_says(
        self, faults: FaultServer, small_bytes: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(parquet_read, "SMALL_BYTES", small_bytes)
        s3dlio.put_bytes("s3://bkt/d/a.parquet", file_of(table(), 5))
        loader = load("s3://bkt/d/", prefetch=3)
        num_footers = len(faults.asked("GET"))
        items = iter(loader)
        for num_taken in range(1, 10):
            next(items)
            assert len(faults.asked("GET")) - num_footers <= num_taken + 2
        assert joined(tables_of(items, "raw")).equals(table().slice(45))

    @pytest.mark.parametrize("small_bytes", [0, 1 << 30], ids=["threads", "polling"])
    @pytest.mark.parametrize("how", ["break", "raise", "collected"])
    def test_leaving_early_stops_and_leaves_nothing_behind(
        self, place: Place, how: str, small_bytes: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(parquet_read, "SMALL_BYTES", small_bytes)
        place.put("d/a.parquet", file_of(table(), 5))
        loader = load(place.root + "d/", prefetch=4)
        process = psutil.Process()
        list(loader)
        before = process.num_fds(), process.num_threads()
        for _ in range(30):
            _leave(loader, how)
        after = process.num_fds(), process.num_threads()
        assert after[0] <= before[0] + 5
        assert after[1] <= before[1] + 17
        assert rows(place.root + "d/").equals(table())

    def test_large_chunks_come_in_pieces(self, faults: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("S3DLIO_CHUNK_SIZE", "4096")
        content = table(num_rows=3000)
        s3dlio.put_bytes("s3://bkt/d/a.parquet", file_of(content, 1500, compression="none"))
        loader = load("s3://bkt/d/", prefetch=2)
        num_footers = len(faults.asked("GET"))
        assert joined(tables_of(loader, "raw")).equals(content)
        lengths = [_length(request.headers["range"]) for request in faults.asked("GET")[num_footers:]]
        assert 4096 <= min(lengths) <= max(lengths) < 2 * 4096
        assert len(lengths) > 8

    @pytest.mark.parametrize("decode", ["arrow", "batch"])
    def test_large_row_groups_that_are_kept_keep_their_values_while_memory_is_used_again(
        self, local_place: LocalPlace, decode: str
    ) -> None:
        rows = parquet_cut.LARGE_BYTES // 8
        content = pa.table({"x": np.random.default_rng(0).integers(0, 1 << 60, 8 * rows)})
        local_place.put("d/a.parquet", file_of(content, rows, compression="none", use_dictionary=False))
        loader = load(local_place.root + "d/", decode=decode, prefetch=6)
        first, second = list(loader), list(loader)
        assert joined(tables_of(first, decode)).equals(content)
        assert joined(tables_of(second, decode)).equals(content)


@pytest.mark.parametrize("is_held", [False, True])
def test_memory_is_used_again_unless_arrow_refers_to_it(monkeypatch: pytest.MonkeyPatch, is_held: bool) -> None:
    held: list[Any] = []
    given: list[Any] = []

    def py_buffer(memory: Any) -> Any:
        buffer = pa.py_buffer(memory)
        held.extend([buffer] if is_held else [])
        return buffer

    monkeypatch.setattr(parquet_decode, "pyarrow", lambda: SimpleNamespace(**{**vars(pa), "py_buffer": py_buffer}))
    monkeypatch.setattr(parquet_decode.spare, "give", given.append)
    content = pa.table({"x": np.arange(parquet_cut.LARGE_BYTES // 8)})
    s3dlio.put_bytes("memory://kept/a.parquet", file_of(content, content.num_rows, compression="none"))
    assert rows("memory://kept/").equals(content)
    assert len(given) == (not is_held)


def _length(header: str) -> int:
    first, last = header.removeprefix("bytes=").split("-")
    return int(last) - int(first) + 1


def _leave(loader: Any, how: str) -> None:
    if how == "collected":
        items: Any = iter(loader)
        next(items)
        del items
        return
    try:
        for _ in loader:
            if how == "break":
                break
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass


class TestLookup:
    """Names that readers of benchmarks use."""

    def test_where_samples_are(self, place: Place) -> None:
        place.put("a.parquet", FILE)
        uri = place.root + "a.parquet"
        index = s3dlio.PyParquetIndex(col_indices=[0, 1], footer_cap=1 << 20)
        assert not index.is_indexed(uri)
        index.ensure_indexed([uri], epoch=1, batch_size=4)
        assert (index.is_indexed(uri), index.file_count(), index.file_rg_count(uri)) == (True, 1, 4)
        assert [index.rg_for_sample(uri, sample) for sample in (0, 29, 30, 99)] == [0, 0, 1, 3]
        column = pq.ParquetFile(io.BytesIO(FILE)).metadata.row_group(1)
        start = column.column(0).dictionary_page_offset
        last = column.column(1)
        assert index.rg_range(uri, 1) == (start, last.dictionary_page_offset + last.total_compressed_size - start)
        assert index.rg_lookup(uri, 31) == (1, *index.rg_range(uri, 1))
        assert s3dlio.parquet_rg_row_offsets(uri) == [0, 30, 60, 90, 100]
        for sample in (-1, 100):
            with pytest.raises(IndexError, match=f"has no row {sample}: it has 100"):
                index.rg_lookup(uri, sample)
        with pytest.raises(KeyError, match="ensure_indexed"):
            index.file_rg_count(uri + "2")

    def test_marks(self) -> None:
        index = s3dlio.PyParquetIndex()
        s3dlio.put_bytes("memory://marks/a.parquet", FILE)
        index.ensure_indexed(["memory://marks/a.parquet"])
        assert [index.check_and_mark("memory://marks/a.parquet", 1) for _ in range(2)] == [False, True]
        assert not index.was_fetched("memory://marks/a.parquet", 0)
        index.invalidate_uri("memory://marks/a.parquet")
        assert not index.was_fetched("memory://marks/a.parquet", 1)
        assert (index.file_count(), s3dlio.parquet_cache_len()) == (0, 0)
        index.clear()

    @pytest.mark.parametrize("decode", ["raw", "arrow", "batch"])
    def test_one_row_group(self, place: Place, decode: str) -> None:
        place.put("a.parquet", FILE)
        item = s3dlio.parquet_get_rg(place.root + "a.parquet", 2, [0, 3], 4194304, decode)
        assert tables_of([item], decode)[0].equals(table().slice(60, 30).select(["x", "kind"]).combine_chunks())
        assert (item.uri, item.rg_idx) == (place.root + "a.parquet", 2)

    def test_arrow_is_the_default_and_nothing_is_asked_twice(self, faults: FaultServer) -> None:
        s3dlio.put_bytes("s3://bkt/a.parquet", FILE)
        for number in range(4):
            s3dlio.parquet_get_rg("s3://bkt/a.parquet", number)
        assert (len(faults.asked("HEAD")), len(faults.asked("GET"))) == (1, 1 + 4)
        item = s3dlio.parquet_get_rg("s3://bkt/a.parquet", 0)
        assert pa.ipc.open_stream(pa.py_buffer(item)).read_all().num_rows == 30

    def test_a_file_that_was_replaced_since_gives_its_new_rows(self, place: Place) -> None:
        place.put("a.parquet", FILE)
        s3dlio.parquet_get_rg(place.root + "a.parquet", 0)
        place.put("a.parquet", file_of(table(7), 50))
        item = s3dlio.parquet_get_rg(place.root + "a.parquet", 1, decode="batch")
        assert item.data.column("label").to_pylist() == list(range(7050, 7100))
        index = s3dlio.PyParquetIndex()
        index.ensure_indexed([place.root + "a.parquet"], epoch=2)
        assert index.file_rg_count(place.root + "a.parquet") == 2

    @pytest.mark.parametrize("number", [-1, 4])
    def test_a_row_group_that_does_not_exist(self, number: int) -> None:
        s3dlio.put_bytes("memory://lookup/a.parquet", FILE)
        with pytest.raises(IndexError, match=f"no row group {number}: it has 4"):
            s3dlio.parquet_get_rg("memory://lookup/a.parquet", number)
        with pytest.raises(s3dlio.ConfigError, match="decode='csv'"):
            s3dlio.parquet_get_rg("memory://lookup/a.parquet", 0, decode="csv")

    def test_the_number_of_threads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("S3DLIO_WORKER_THREADS", "5")
        s3dlio.configure_tokio_threads()
        assert os.environ["S3DLIO_WORKER_THREADS"] == "5"
        s3dlio.configure_tokio_threads(3)
        assert s3dlio.config.snapshot().worker_threads == 3
        with pytest.raises(s3dlio.ConfigError, match="too small"):
            s3dlio.configure_tokio_threads(0)


def test_without_pyarrow_the_error_names_the_extra(run_python: Callable[..., Any]) -> None:
    code = """
import sys
sys.modules["pyarrow"] = None
import s3dlio
try:
    s3dlio.create_async_loader("memory://x/", {"format": "parquet"})
except s3dlio.MissingPackageError as exc:
    print(exc)
"""
    done = run_python(code)
    assert done.stdout == "reading Parquet needs pyarrow: pip install 's3dlio[parquet]'\n", done.stderr
