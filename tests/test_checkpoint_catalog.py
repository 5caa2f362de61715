"""Which checkpoints there are, which is the latest, and what deletion and retention leave at every moment."""

from __future__ import annotations

import json
import logging
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta, TensorProperties

import s3dlio
from s3dlio import errors
from s3dlio.checkpoint import retention
from s3dlio.storage import open_store
from s3dlio.storage.base import HasUploads
from s3dlio.uri import parse

from .conftest import LocalPlace, Place, S3Place
from .test_checkpoints import MANIFEST, finalize, has_all, is_state, save_all, state

MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests have loaded plays no part."""
    monkeypatch.setattr(retention, "_loaded", set())
    monkeypatch.setattr(retention, "_saved", set())


def names(root: str, *args: Any) -> list[str]:
    return [found.uri.removeprefix(root) for found in s3dlio.list_checkpoints(root, *args)]


def save_steps(root: str, *numbers: int) -> None:
    for number in numbers:
        s3dlio.save_checkpoint(f"{root}step_{number}.pt", state(number))


class TestListing:
    def test_every_kind_is_told_from_what_lies_beside_it(self, place: Place) -> None:
        root = place.root
        for name, compress in (("a.pt", False), ("b.pt.zst", True), ("c", "gzip"), ("d.lz4", "lz4")):
            s3dlio.save_checkpoint(root + name, state(1), compress)
        with s3dlio.open_writer(root + "old") as file:
            torch.save(state(1), file, _use_new_zipfile_serialization=False)
        save_all(root + "dist/", 1)
        finalize(root + "dist/")
        save_all(root + "half/", 1)
        put_dcp(place, "dcp/", "__0_0.distcp")
        place.put("uncommitted/__0_0.distcp", b"12345")
        put_hugging_face(place, "hf/")
        place.put("model.safetensors", (2).to_bytes(8, "little") + b"{}")
        place.put("log.txt", b"started\n")
        place.put("empty.pt", b"")
        place.put("deeper/folder/step.pt", place.get("a.pt") or b"")
        place.put("image.npz", npz())
        place.put("log.gz", gzipped())
        singles = ["a.pt", "b.pt.zst", "c", "d.lz4", "model.safetensors", "old"]
        assert sorted(names(root)) == sorted([*singles, "dist/", "dcp/", "hf/"])
        kinds = {found.uri.removeprefix(root): (found.kind, found.size) for found in s3dlio.list_checkpoints(root)}
        assert kinds["dcp/"] == ("dcp", 5)
        assert kinds["hf/"] == ("huggingface", 20)
        assert kinds["dist/"][0] == "distributed"
        assert kinds["a.pt"] == ("single", s3dlio.stat(root + "a.pt")["size"])
        assert sorted(names(root, "*.pt")) == ["a.pt"]
        assert sorted(names(root, "d*")) == ["d.lz4", "dcp/", "dist/"]

    def test_they_come_in_the_order_of_their_commits(self, place: Place) -> None:
        """And those of the same second in natural order, since S3 knows no finer times."""
        save_steps(place.root, 9, 10, 11)
        assert names(place.root) == ["step_9.pt", "step_10.pt", "step_11.pt"]
        assert s3dlio.latest_checkpoint(place.root) == place.root + "step_11.pt"

    def test_time_comes_before_names(self, tmp_path: Path) -> None:
        save_steps(f"file://{tmp_path}/", 1, 2, 3)
        os.utime(tmp_path / "step_3.pt", (1, 1))
        assert names(f"file://{tmp_path}/") == ["step_3.pt", "step_1.pt", "step_2.pt"]

    def test_nothing_there_is_no_checkpoint_and_a_failure_is_an_error(self, s3_place: S3Place) -> None:
        assert s3dlio.list_checkpoints(s3_place.root + "nothing/") == []
        assert s3dlio.latest_checkpoint(s3_place.root + "nothing") is None
        with pytest.raises(errors.S3dlioError):
            s3dlio.latest_checkpoint("s3://no-such-bucket-here/checkpoints/")

    def test_what_vanishes_while_it_is_looked_at_is_left_out(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        save_steps(place.root, 1, 2)
        save_all(place.root + "d/", 1)
        finalize(place.root + "d/")
        walk = s3dlio.listing.walk  # type: ignore[attr-defined]

        def vanishing(*args: Any, **options: Any) -> Any:
            found = list(walk(*args, **options))
            s3dlio.delete(place.root + "step_2.pt")
            s3dlio.delete(place.root + "d/" + MANIFEST)
            return iter(found)

        monkeypatch.setattr("s3dlio.listing.walk", vanishing)
        assert names(place.root) == ["step_1.pt"]


def npz() -> bytes:
    import io

    file = io.BytesIO()
    np.savez(file, x=np.arange(3))
    return file.getvalue()


def gzipped() -> bytes:
    import gzip

    return gzip.compress(b"a log\n" * 100)


INDEX = "model.safetensors.index.json"
PARTS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def put_hugging_face(place: Place, folder: str) -> None:
    """A checkpoint of two files that can be told to be safetensors."""
    place.put_all([folder + name for name in PARTS], (2).to_bytes(8, "little") + b"{}")
    place.put(folder + INDEX, json.dumps({"weight_map": {"a": PARTS[0], "b": PARTS[1]}}).encode())


def put_dcp(place: Place, folder: str, *files: str) -> None:
    """A checkpoint of files of five bytes, by torch's own classes."""
    items = {MetadataIndex(f"{name}{end}"): _StorageInfo(name, 0, end) for name in files for end in (3, 5)}
    place.put(folder + ".metadata", pickle.dumps(Metadata({}, storage_data=items, storage_meta=StorageMeta())))
    place.put_all([folder + name for name in files], b"12345")


class TestCompleteness:
    @pytest.mark.parametrize("kind", ["dcp", "huggingface"])
    def test_a_copy_that_lacks_a_file_is_no_checkpoint(self, place: Place, kind: str) -> None:
        """`.metadata` comes before the data in the order of names, and so in that of most copies."""
        if kind == "dcp":
            put_dcp(place, "d/", *PARTS)
        else:
            put_hugging_face(place, "d/")
        content = place.get(f"d/{PARTS[1]}") or b""
        s3dlio.delete(f"{place.root}d/{PARTS[1]}")
        assert s3dlio.list_checkpoints(place.root) == s3dlio.list_checkpoints(place.root + "d/") == []
        s3dlio.keep_last(place.root, 1, stale_after=-5)
        place.put(f"d/{PARTS[1]}", content)
        assert [found.kind for found in s3dlio.list_checkpoints(place.root)] == [kind], "keep_last has left the rest alone"

    def test_a_file_of_dcp_that_was_cut_short_is_noticed(self, place: Place) -> None:
        put_dcp(place, "d/", "__0_0.distcp", "__1_0.distcp")
        place.put("d/__1_0.distcp", b"1234")
        assert s3dlio.latest_checkpoint(place.root) is None
        place.put("d/__1_0.distcp", b"123456")
        assert s3dlio.latest_checkpoint(place.root) == place.root + "d/"

    def test_metadata_may_name_no_file(self, place: Place) -> None:
        put_dcp(place, "empty/")
        assert names(place.root) == ["empty/"]

    def test_metadata_of_a_writer_that_keeps_other_facts_commits_as_it_is(self, place: Place) -> None:
        facts: list[Any] = ["__0_0.distcp", 5, TensorProperties(), StorageMeta(), _StorageInfo("deeper/file", 0, 5)]
        items = {MetadataIndex(str(number)): fact for number, fact in enumerate(facts)}
        place.put("d/.metadata", pickle.dumps(Metadata({}, storage_data=items)))
        assert names(place.root) == ["d/"]

    def test_metadata_of_a_writer_that_keeps_no_facts_commits_as_it_is(self, place: Place) -> None:
        place.put("d/.metadata", pickle.dumps(Metadata({})))
        assert names(place.root) == ["d/"]

    @pytest.mark.parametrize(("commit", "content"), [(".metadata", b"x"), (".metadata", pickle.dumps({})), (INDEX, b"{}")])
    def test_a_damaged_commit_commits_nothing_and_is_told_of(
        self, commit: str, content: bytes, place: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        place.put("d/" + commit, content)
        with caplog.at_level(logging.WARNING, "s3dlio"):
            assert s3dlio.latest_checkpoint(place.root) is None
        assert f"{place.root}d/{commit} is damaged" in caplog.text

    def test_nothing_that_metadata_names_is_run(self, place: Place, tmp_path: Path) -> None:
        class Evil:
            def __reduce__(self) -> Any:
                return os.mkdir, (str(tmp_path / "run"),)

        place.put("d/.metadata", pickle.dumps(Metadata({"a": Evil()}, storage_data={})))  # type: ignore[dict-item]
        assert names(place.root) == ["d/"], "loading it is what fails"
        assert not (tmp_path / "run").exists()

    def test_a_commit_is_read_once_for_each_version(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        put_dcp(place, "d/", "__0_0.distcp")
        reads: list[str] = []
        store = type(open_store(parse(place.root)))
        read = store.read
        monkeypatch.setattr(store, "read", lambda self, what: reads.append(what.key) or read(self, what))
        for _ in range(2):
            assert names(place.root) == ["d/"]
        assert len(reads) == 1
        put_dcp(place, "d/", "__0_1.distcp", "__0_2.distcp")
        assert names(place.root) == ["d/"]
        assert len(reads) == 2

    def test_one_that_is_replaced_while_it_is_looked_at_counts(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        put_dcp(place, "d/", "__0_0.distcp")
        walk = s3dlio.listing.walk  # type: ignore[attr-defined]

        def then_replaced(*args: Any, **options: Any) -> Any:
            found = list(walk(*args, **options))
            monkeypatch.setattr("s3dlio.listing.walk", walk)
            put_dcp(place, "d/", "__0_1.distcp")
            s3dlio.delete(place.root + "d/__0_0.distcp")
            return iter(found)

        monkeypatch.setattr("s3dlio.listing.walk", then_replaced)
        assert names(place.root) == ["d/"]


class TestDeleting:
    def test_exactly_the_checkpoint_goes(self, place: Place) -> None:
        save_steps(place.root, 1, 11)
        for number in (1, 2):
            save_all(f"{place.root}d{number}/", number)
            finalize(f"{place.root}d{number}/")
        place.put("d1/notes.txt", b"mine")
        put_dcp(place, "dcp/", "__0_0.distcp")
        place.put("apart/__0.metadata", b"x")
        place.put("apart/__0_0.distcp", b"12345")
        put_hugging_face(place, "hf/")
        place.put("hf/adapter.safetensors", b"mine")
        for name in ("step_1.pt", "d1/", "dcp", "apart", "hf", "d2", "missing", "missing/"):
            s3dlio.delete_checkpoint(place.root + name)
        assert place.keys() == ["d1/notes.txt", "hf/adapter.safetensors", "step_11.pt"]
        if isinstance(place, LocalPlace):
            left = sorted(path.name for path in place.folder.iterdir())
            assert left == ["d1", "hf", "step_11.pt"], "no empty directory is left"

    def test_a_damaged_index_lets_its_files_stay(self, tmp_path: Path) -> None:
        place = LocalPlace("file", tmp_path)
        put_hugging_face(place, "hf/")
        place.put("hf/" + INDEX, b"{")
        s3dlio.delete_checkpoint(place.root + "hf/")
        assert place.keys() == [f"hf/{name}" for name in PARTS]
        assert s3dlio.list_checkpoints(place.root + "hf/") == [], "parts are no checkpoints"

    @pytest.mark.parametrize("kind", ["distributed", "dcp", "huggingface"])
    def test_one_that_is_deleted_by_half_is_no_checkpoint_and_can_be_deleted_again(
        self, place: Place, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Stopped after each single delete in turn."""
        store = open_store(parse(place.root))
        delete = type(store).delete
        left = 0
        num_stops = 0

        def dying(self: Any, key: str) -> None:
            nonlocal left
            if left == 0:
                raise errors.S3dlioError("stopped")
            left -= 1
            delete(self, key)

        monkeypatch.setattr("s3dlio.checkpoint.catalog.REQUESTS_IN_FLIGHT", 1)
        for stop in range(1, 8):
            if kind == "distributed":
                save_all(place.root + "d/", 1)
                finalize(place.root + "d/")
            elif kind == "dcp":
                put_dcp(place, "d/", *(f"__{rank}_0.distcp" for rank in range(3)))
            else:
                put_hugging_face(place, "d/")
            left = stop
            monkeypatch.setattr(type(store), "delete", dying)
            try:
                s3dlio.delete_checkpoint(place.root + "d/")
            except errors.S3dlioError:
                num_stops += 1
                assert s3dlio.list_checkpoints(place.root) == []
                assert s3dlio.list_checkpoints(place.root + "d/") == []
            monkeypatch.setattr(type(store), "delete", delete)
            s3dlio.delete_checkpoint(place.root + "d/")
            assert place.keys() == []
        assert num_stops >= 2


class TestRetention:
    def test_the_newest_are_kept(self, place: Place) -> None:
        save_steps(place.root, 1, 2, 3, 4, 5)
        place.put("log.txt", b"mine")
        deleted = s3dlio.keep_last(place.root, 2)
        assert deleted == [f"{place.root}step_{number}.pt" for number in (1, 2, 3)]
        assert place.keys() == ["log.txt", "step_4.pt", "step_5.pt"]
        assert s3dlio.keep_last(place.root, 2) == []
        assert s3dlio.keep_last(place.root, 1) == [place.root + "step_4.pt"]
        assert is_state(s3dlio.load_checkpoint(place.root + "step_5.pt"), 5)

    @pytest.mark.parametrize("n", [0, -1, True, 1.0, "2", None])
    def test_fewer_than_one_is_refused(self, n: Any, tmp_path: Path) -> None:
        save_steps(f"file://{tmp_path}/", 1)
        with pytest.raises(ValueError, match="the newest checkpoint is always kept"):
            s3dlio.keep_last(f"file://{tmp_path}/", n)
        assert names(f"file://{tmp_path}/") == ["step_1.pt"]

    def test_what_a_run_resumed_from_is_kept(self, place: Place) -> None:
        """Loaded, and not saved, by this process; or protected, as what another process loaded."""
        save_steps(place.root, 1, 2, 3)
        save_all(place.root + "d/", 1)
        finalize(place.root + "d/")
        retention._saved.clear()  # another process did
        s3dlio.load_distributed_shard(place.root + "d", 0)
        s3dlio.load_checkpoint(place.root + "step_1.pt")
        save_steps(place.root, 4, 5, 6)
        s3dlio.load_checkpoint(place.root + "step_4.pt")  # its own, to look at it
        s3dlio.keep_last(place.root, 1, protect=[place.root + "step_2.pt"])
        assert sorted(names(place.root)) == ["d/", "step_1.pt", "step_2.pt", "step_6.pt"]
        assert has_all(place.root + "d/", 1)

    def test_it_is_kept_whatever_its_name_was_when_it_was_loaded(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root = f"file://{tmp_path}/"
        save_steps(root, 1, 2, 3, 4)
        retention._saved.clear()
        monkeypatch.chdir(tmp_path)
        (tmp_path / "latest.link").symlink_to("step_2.pt")
        for uri in ("file://step_1.pt", "file://latest.link", f"direct://{tmp_path}/./step_3.pt"):
            s3dlio.load_checkpoint(uri)
        save_steps(root, 5, 6)
        s3dlio.keep_last(root, 1, pattern="step_*")
        assert names(root, "step_*") == ["step_1.pt", "step_2.pt", "step_3.pt", "step_6.pt"]

    @pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")
    def test_it_is_kept_whatever_function_has_loaded_it(self, place: Place) -> None:
        from torch.distributed.checkpoint import state_dict_loader

        from s3dlio.torch import StorageReader, dcp, safetensors

        weights = {"weight": torch.ones(3)}
        dcp.save(weights, place.root + "a")
        dcp.save(weights, place.root + "b", format="safetensors")
        safetensors.save_file(weights, place.root + "c")
        dcp.save(weights, place.root + "d")
        retention._saved.clear()
        state_dict_loader.load(weights, storage_reader=StorageReader(place.root + "a"), no_dist=True)
        dcp.load(weights, place.root + "b", format="safetensors")
        safetensors.load_file(place.root + "c")
        save_steps(place.root, 1)
        s3dlio.keep_last(place.root, 1)
        assert sorted(names(place.root)) == ["a/", "b/", "c", "step_1.pt"]

    def test_what_is_saved_over_meanwhile_is_the_newest_and_stays(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root = f"file://{tmp_path}/"
        save_steps(root, 1)
        save_all(root + "d/", 1)
        finalize(root + "d/")
        for path in (tmp_path / "step_1.pt", tmp_path / "d" / MANIFEST):
            os.utime(path, (1000, 1000))
        save_steps(root, 2)
        listed = retention.list_checkpoints

        def then_saved_over(*args: Any) -> Any:
            found = listed(*args)
            save_steps(root, 1)
            save_all(root + "d/", 5)
            finalize(root + "d/")
            return found

        monkeypatch.setattr(retention, "list_checkpoints", then_saved_over)
        assert s3dlio.keep_last(root, 1) == []
        assert has_all(root + "d/", 5)
        assert sorted(names(root)) == ["d/", "step_1.pt", "step_2.pt"]

    def test_a_pattern_leaves_the_prefix_itself_out(self, place: Place) -> None:
        put_dcp(place, "", "__0_0.distcp")
        save_steps(place.root, 1, 2)
        assert names(place.root)[0] == ""
        assert names(place.root, "step_*") == ["step_1.pt", "step_2.pt"]
        s3dlio.keep_last(place.root, 1, pattern="step_*", stale_after=-5)
        assert place.keys() == [".metadata", "__0_0.distcp", "step_2.pt"]

    def test_only_what_the_pattern_names_goes(self, place: Place) -> None:
        save_steps(place.root, 1, 2)
        s3dlio.save_checkpoint(place.root + "best.pt", state(7))
        save_steps(place.root, 3)
        s3dlio.keep_last(place.root, 1, pattern="step_*")
        assert sorted(names(place.root)) == ["best.pt", "step_3.pt"]

    def test_the_rest_of_dead_saves_goes_when_it_is_old(self, place: Place) -> None:
        save_all(place.root + "d/", 1)
        finalize(place.root + "d/")
        committed = place.keys()
        s3dlio.save_distributed_shard(place.root + "d/shard_0.bin", state(9), 0, 2, save_id="dead")
        place.put("d/shard_1.bin.dead.s3dlio-shard.json", b"")  # killed while it wrote
        place.put("d/shard_1.bin.dead", b"half")
        s3dlio.save_distributed_shard(place.root + "e/shard_0.bin", state(9), 0, 2)
        place.put("f/__0_0.distcp", b"x")
        committed += ["g/__0.metadata", "g/__0_0.distcp", f"hf/{PARTS[0]}"]  # of ranks apart; of who knows whom
        place.put_all(committed[-3:], b"x")
        everything = place.keys()
        assert s3dlio.keep_last(place.root, 1) == []
        assert place.keys() == everything, "a save may be on its way"
        s3dlio.keep_last(place.root, 1, stale_after=-5)
        assert place.keys() == committed
        assert has_all(place.root + "d/", 1)

    def test_a_damaged_manifest_lets_nothing_be_swept(self, place: Place) -> None:
        save_all(place.root + "d/", 1)
        finalize(place.root + "d/")
        place.put("d/" + MANIFEST, b"{")
        everything = place.keys()
        s3dlio.keep_last(place.root, 1, stale_after=-5)
        assert place.keys() == everything


class TestUploadsThatNobodyEnded:
    def test_old_temporary_files_go(self, local_place: LocalPlace) -> None:
        store = open_store(parse(local_place.root))
        assert isinstance(store, HasUploads)
        (local_place.folder / "d").mkdir()
        old = [local_place.folder / name for name in (".k.s3dlio-1-00000000.tmp", "d/.k.s3dlio-12-0123abcd.tmp")]
        kept = [
            local_place.folder / name for name in (".k.tmp", "d/k.s3dlio-12-0123abcd.tmp", "d/.new.s3dlio-1-0123abcd.tmp")
        ]
        for path in (*old, *kept):
            path.write_bytes(b"x")
            os.utime(path, (1000, 1000))
        os.utime(kept[-1])
        other = local_place.root + "other/"
        assert store.drop_uploads(parse(other).key, time.time() - 60) == 0
        assert store.drop_uploads(parse(local_place.root).key, time.time() - 60) == 2
        assert not any(path.exists() for path in old)
        assert all(path.exists() for path in kept)

    def test_old_uploads_to_s3_are_aborted(self, s3_place: S3Place) -> None:
        prefixes = ("a b+/", "other/")
        for prefix in prefixes:
            for number in range(2):
                s3_place.client.create_multipart_upload(Bucket=s3_place.bucket, Key=f"{s3_place.prefix}{prefix}{number}")
        store = open_store(parse(s3_place.root))
        assert isinstance(store, HasUploads)
        key = parse(s3_place.root + prefixes[0]).key
        assert store.drop_uploads(key, time.time() - 3600) == 0
        assert len(s3_place.uploads()) == 4
        assert store.drop_uploads(key, time.time() + 3600) == 2
        assert sorted(s3_place.uploads()) == ["other/0", "other/1"]
        s3dlio.keep_last(s3_place.root, 1, stale_after=-3600)
        assert s3_place.uploads() == []

    def test_a_server_that_lists_none_is_no_obstacle(
        self, s3_place: S3Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuse(*args: object) -> int:
            raise errors.AccessDeniedError("no ListBucketMultipartUploads for you")

        monkeypatch.setattr("s3dlio.storage.cloud.s3_uploads.drop", refuse)
        save_steps(s3_place.root, 1, 2)
        assert s3dlio.keep_last(s3_place.root, 1) == [s3_place.root + "step_1.pt"]
        assert "no ListBucketMultipartUploads for you" in caplog.text

    def test_a_writer_goes_on_while_others_are_swept(self, place: Place) -> None:
        with s3dlio.open_writer(place.root + "k") as file:
            file.write(bytes(9 * MIB))
            s3dlio.keep_last(place.root, 1)
            file.write(b"end")
        assert s3dlio.stat(place.root + "k")["size"] == 9 * MIB + 3


PAGES = [
    b"<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><EncodingType>url</EncodingType>"
    b"<NextKeyMarker>p/a+b</NextKeyMarker><NextUploadIdMarker>u1</NextUploadIdMarker>"
    b"<Upload><Key>p/a+b</Key><UploadId>u1</UploadId><Initiated>2020-01-01T00:00:00.000Z</Initiated></Upload>"
    b"</ListMultipartUploadsResult>",
    b"<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>"
    b"<Upload><Key>p/c</Key><UploadId>u2</UploadId><Initiated>2020-01-01T00:00:00.000Z</Initiated></Upload>"
    b"<Upload><Key>p/new</Key><UploadId>u3</UploadId><Initiated>2999-01-01T00:00:00.000Z</Initiated></Upload>"
    b"<Upload><Key>elsewhere</Key><UploadId>u4</UploadId><Initiated>2020-01-01T00:00:00.000Z</Initiated></Upload>"
    b"</ListMultipartUploadsResult>",
]


def test_the_list_of_uploads_is_read_page_by_page() -> None:
    from s3dlio.storage.cloud import s3_uploads

    asked: list[tuple[str, str | None, dict[str, str]]] = []
    pages = iter(PAGES)

    def perform(method: str, key: str | None, *, action: str, query: Any) -> bytes:
        asked.append((method, key, dict(query)))
        if key == "p/c":
            raise errors.NotFoundError("ended meanwhile")
        return next(pages) if method == "GET" else b""

    assert s3_uploads.drop(perform, "p/", time.time()) == 2
    assert asked[1][2]["key-marker"] == "p/a b"
    assert asked[1][2]["upload-id-marker"] == "u1"
    assert [(method, key, query.get("uploadId")) for method, key, query in asked[2:]] == [
        ("DELETE", "p/a b", "u1"),
        ("DELETE", "p/c", "u2"),
    ]


@pytest.mark.parametrize(
    "body", [b"", b"<ListMultipartUploadsResult>", b"<Other/>", PAGES[0].replace(b"NextKeyMarker", b"X")]
)
def test_a_broken_list_of_uploads_is_an_error(body: bytes) -> None:
    from s3dlio.storage.cloud import s3_uploads

    answer: Callable[..., bytes] = lambda *args, **options: body  # noqa: E731
    with pytest.raises(errors.S3dlioError, match="cannot list the uploads under p/"):
        s3_uploads.drop(answer, "p/", 0.0)
