"""save_checkpoint and its kin: the guide's examples, what is loaded is what was saved, and nothing torn is ever loaded."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import s3dlio
from s3dlio import errors
from s3dlio.checkpoint import catalog, shards
from s3dlio.storage import local, open_store
from s3dlio.uri import parse

from .conftest import LocalPlace, Place, S3Place
from .test_guide_examples import run
from .test_torch_checkpoint import assert_equal

MIB = 1024 * 1024
MANIFEST = "s3dlio-manifest.json"

pytestmark = pytest.mark.filterwarnings("ignore:the file system of direct")


def state(number: int, num_floats: int = 1000) -> dict[str, Any]:
    """A small checkpoint that no other number has."""
    generator = torch.Generator().manual_seed(number)
    return {"epoch": number, "model": {"w": torch.randn(num_floats, generator=generator), "empty": torch.empty(0)}}


def is_state(found: Any, number: int, num_floats: int = 1000) -> bool:
    expected = state(number, num_floats)
    return found["epoch"] == number and all(
        torch.equal(found["model"][key], expected["model"][key]) for key in ("w", "empty")
    )


def save_all(base: str, number: int, *, world_size: int = 2, **options: Any) -> None:
    """A distributed checkpoint whose shards are states."""
    for rank in range(world_size):
        s3dlio.save_distributed_shard(f"{base}shard_{rank}.bin", state(number + rank), rank, world_size, **options)


def finalize(base: str, world_size: int = 2, **options: Any) -> None:
    s3dlio.finalize_distributed_checkpoint(base, world_size, **{"timeout": 0.1, **options})


def has_all(base: str, number: int, world_size: int = 2) -> bool:
    found = s3dlio.load_checkpoint(base)
    return len(found) == world_size and all(is_state(part, number + rank) for rank, part in enumerate(found))


class TestTheGuide:
    def test_save_and_load(self, place: Place) -> None:
        model = torch.nn.Linear(3, 4)
        left = run(
            place,
            """
            # Save checkpoint to any backend
            s3dlio.save_checkpoint(
                uri="s3://bucket/checkpoints/epoch_10.bin",
                data={"epoch": 10, "model": model.state_dict()},
                compress=True
            )

            # Load checkpoint
            ckpt = s3dlio.load_checkpoint("s3://bucket/checkpoints/epoch_10.bin")
            first = ckpt

            # Load with validation
            ckpt = s3dlio.load_checkpoint_with_validation(
                uri="s3://bucket/checkpoints/epoch_10.bin",
                expected_keys=["epoch", "model"]
            )
            model.load_state_dict(ckpt["model"])
            """,
            model=model,
        )
        assert left["first"]["epoch"] == left["ckpt"]["epoch"] == 10
        assert_equal(left["first"]["model"], model.state_dict())
        stored = place.get("checkpoints/epoch_10.bin")
        assert stored is not None
        assert stored.startswith(b"\x28\xb5\x2f\xfd"), "zstd, and no suffix was added to the name"

    def test_distributed_checkpointing(self, place: Place) -> None:
        world_size = 3
        for rank in (2, 1, 0):
            run(
                place,
                """
                # Each rank saves its shard
                s3dlio.save_distributed_shard(
                    uri=f"s3://bucket/ckpt/shard_{rank}.bin",
                    shard_data=local_state,
                    rank=rank,
                    world_size=world_size
                )

                # Rank 0 finalizes
                if rank == 0:
                    s3dlio.finalize_distributed_checkpoint(
                        base_uri="s3://bucket/ckpt/",
                        world_size=world_size
                    )
                """,
                rank=rank,
                world_size=world_size,
                local_state=state(rank),
            )
        for base in (place.root + "ckpt/", place.root + "ckpt"):
            assert has_all(base, 0, 3)
            assert is_state(s3dlio.load_distributed_shard(base, 1), 1)
        assert s3dlio.latest_checkpoint(place.root) == place.root + "ckpt/"
        assert [found.kind for found in s3dlio.list_checkpoints(place.root + "ckpt")] == ["distributed"]


class TestSingle:
    @pytest.mark.parametrize("compress", [False, True, "zstd", "gzip", "lz4"])
    def test_it_comes_back_however_it_is_compressed(self, tmp_path: Path, compress: bool | str) -> None:
        uri = f"file://{tmp_path}/step 1+.bin"
        saved = {**state(1, 300_000), "text": "x" * 1000, "list": [torch.arange(9), 3.5, None]}
        s3dlio.save_checkpoint(uri, saved, compress)
        for found in (s3dlio.load_checkpoint(uri), s3dlio.load_checkpoint_with_validation(uri, ["epoch"])):
            assert is_state(found, 1, 300_000)
            assert found["text"] == saved["text"]
            assert torch.equal(found["list"][0], torch.arange(9))

    @pytest.mark.parametrize("data", [{}, [], None, 3, torch.arange(5), {"a": {}}], ids=repr)
    def test_what_is_hardly_anything_comes_back(self, place: Place, data: Any) -> None:
        """O23, and what is no dict."""
        for compress in (False, True):
            s3dlio.save_checkpoint(place.root + "k", data, compress=compress)
            found = s3dlio.load_checkpoint(place.root + "k")
            assert torch.equal(found, data) if isinstance(data, torch.Tensor) else found == data

    def test_what_torch_wrote_is_read_and_the_reverse(self, tmp_path: Path) -> None:
        torch.save(state(1), tmp_path / "zip.pt")
        torch.save(state(2), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
        s3dlio.save_checkpoint(f"file://{tmp_path}/ours.pt", state(3))
        assert is_state(s3dlio.load_checkpoint_with_validation(f"file://{tmp_path}/zip.pt"), 1)
        assert is_state(s3dlio.load_checkpoint_with_validation(f"file://{tmp_path}/old.pt"), 2)
        assert is_state(torch.load(tmp_path / "ours.pt", mmap=True), 3)

    def test_missing_keys_are_named(self, tmp_path: Path) -> None:
        uri = f"file://{tmp_path}/k"
        s3dlio.save_checkpoint(uri, state(1))
        with pytest.raises(errors.S3dlioError, match=r"lacks the keys \['optimizer'\].*'epoch', 'model'"):
            s3dlio.load_checkpoint_with_validation(uri, ["epoch", "optimizer"])
        s3dlio.save_checkpoint(uri, [1, 2])
        with pytest.raises(errors.S3dlioError, match="lacks the keys"):
            s3dlio.load_checkpoint_with_validation(uri, ["epoch"])

    def test_wrong_arguments_are_refused_before_anything_is_written(self, tmp_path: Path) -> None:
        uri = f"file://{tmp_path}/k"
        for wrong in ({"compress": "brotli"}, {"compress": True, "compression_level": 23}):
            with pytest.raises(ValueError, match="compression"):
                s3dlio.save_checkpoint(uri, {}, **wrong)
        with pytest.raises(TypeError, match="either data or shard_data"):
            s3dlio.save_distributed_shard(uri, {}, 0, 1, shard_data={})
        with pytest.raises(TypeError, match="either data or shard_data"):
            s3dlio.save_distributed_shard(uri, rank=0, world_size=1)
        for rank, world_size in ((2, 2), (-1, 2), (0, 0)):
            with pytest.raises(ValueError, match="world_size"):
                s3dlio.save_distributed_shard(uri, {}, rank, world_size)
        for save_id in ("a/b", "", ".", "x" * 101, "ä", 7):
            with pytest.raises(ValueError, match="save_id"):
                s3dlio.save_distributed_shard(uri, {}, 0, 1, save_id=save_id)  # type: ignore[arg-type]
        for name in ("", MANIFEST):
            with pytest.raises(ValueError, match="cannot be a shard"):
                s3dlio.save_distributed_shard(f"file://{tmp_path}/{name}", {}, 0, 1)
        with pytest.raises(ValueError, match="world_size=0"):
            s3dlio.finalize_distributed_checkpoint(uri, 0)
        assert list(tmp_path.iterdir()) == []

    def test_a_missing_one_is_not_found(self, place: Place) -> None:
        for uri in (place.root + "k", place.root + "k/"):
            with pytest.raises(errors.NotFoundError, match="k"):
                s3dlio.load_checkpoint(uri)


class Custom:
    """What weights_only does not build."""


class TestPickles:
    @pytest.mark.parametrize("compress", [False, True])
    def test_a_refused_pickle_says_what_to_do_and_is_never_loaded_otherwise(
        self, place: Place, compress: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        uri = place.root + "k"
        s3dlio.save_checkpoint(uri, {"a": Custom()}, compress=compress)
        loads: list[Any] = []
        load = torch.load
        monkeypatch.setattr(
            torch, "load", lambda *args, **kwargs: (loads.append(kwargs["weights_only"]), load(*args, **kwargs))[1]
        )
        for function in (s3dlio.load_checkpoint, s3dlio.load_checkpoint_with_validation):
            with pytest.raises(errors.UnsafePickleError, match=r"Custom.*add_safe_globals.*weights_only=False"):
                function(uri)
        assert loads == [True, True]
        assert isinstance(s3dlio.load_checkpoint(uri, weights_only=False)["a"], Custom)
        with torch.serialization.safe_globals([Custom]):
            assert isinstance(s3dlio.load_checkpoint(uri)["a"], Custom)

    def test_a_shard_too(self, place: Place) -> None:
        s3dlio.save_distributed_shard(place.root + "s", Custom(), 0, 1)
        finalize(place.root, 1)
        with pytest.raises(errors.UnsafePickleError, match="weights_only=False"):
            s3dlio.load_checkpoint(place.root)
        assert isinstance(s3dlio.load_distributed_shard(place.root, 0, weights_only=False), Custom)

    @pytest.mark.parametrize(
        "content", [b"", b"x", b"PK\x03\x04 but no archive", b"some text\n" * 50, bytes(1000), b"\x80\x02}q"]
    )
    def test_what_is_no_checkpoint_is_named(self, place: Place, content: bytes) -> None:
        place.put("k", content)
        with pytest.raises(errors.CorruptDataError, match=f"cannot load {place.root}k"):
            s3dlio.load_checkpoint(place.root + "k")


def damaged(place: Place, name: str, damage: Callable[[bytearray], Any]) -> None:
    content = bytearray(place.get(name) or b"")
    replaced = damage(content)
    place.put(name, bytes(content if replaced is None else replaced))


def flip(content: bytearray) -> None:
    """One bit in the bytes of the tensor `w` of `state`, or in the middle of what is compressed."""
    at = content.find(state(1)["model"]["w"].numpy().tobytes())
    content[(at if at > 0 else len(content) // 2) + 100] ^= 16


def cut(content: bytearray) -> bytearray:
    return content[:-1]


class TestDamage:
    """A shard or object whose bytes changed is never returned as if nothing was."""

    @pytest.mark.parametrize("compress", [False, True, "gzip", "lz4"])
    @pytest.mark.parametrize("damage", [flip, cut])
    def test_a_damaged_object(self, tmp_path: Path, compress: bool | str, damage: Any) -> None:
        place = LocalPlace("file", tmp_path)
        s3dlio.save_checkpoint(place.root + "k", state(1), compress=compress)
        damaged(place, "k", damage)
        with pytest.raises(errors.CorruptDataError, match="k"):
            s3dlio.load_checkpoint_with_validation(place.root + "k")

    @pytest.mark.parametrize("compress", [False, True])
    @pytest.mark.parametrize("damage", [flip, cut, lambda content: content + b"x", lambda content: b""])
    def test_a_damaged_shard(self, place: Place, compress: bool, damage: Any) -> None:
        save_all(place.root, 1, compress=compress)
        finalize(place.root)
        (name,) = [name for name in sorted(place.keys()) if name.startswith("shard_0") and not name.endswith("json")]
        damaged(place, name, damage)
        for load in (s3dlio.load_checkpoint, s3dlio.load_checkpoint_with_validation):
            with pytest.raises(errors.CorruptDataError, match="shard_0"):
                load(place.root)
        with pytest.raises(errors.CorruptDataError, match="shard_0"):
            s3dlio.load_distributed_shard(place.root, 0)
        assert is_state(s3dlio.load_distributed_shard(place.root, 1), 2)

    def test_a_missing_shard(self, place: Place) -> None:
        save_all(place.root, 1)
        finalize(place.root)
        (name,) = [name for name in sorted(place.keys()) if name.startswith("shard_1") and not name.endswith("json")]
        s3dlio.delete(place.root + name)
        for load in (s3dlio.load_checkpoint, lambda base: s3dlio.load_distributed_shard(base, 1)):
            with pytest.raises(errors.NotFoundError, match=r"manifest names shard_1.*which is missing"):
                load(place.root)
        assert s3dlio.latest_checkpoint(place.root) is None, "it is not complete"

    def test_a_shard_of_another_save_in_its_place(self, place: Place) -> None:
        save_all(place.root + "a/", 1, save_id="one")
        save_all(place.root + "b/", 7, save_id="one")
        finalize(place.root + "a/", save_id="one")
        place.put("a/shard_1.bin.one", place.get("b/shard_1.bin.one") or b"")
        with pytest.raises(errors.CorruptDataError, match=r"shard_1\.bin\.one is damaged: its checksum is"):
            s3dlio.load_checkpoint(place.root + "a/")

    @pytest.mark.parametrize(
        "change",
        [
            lambda content: content["shards"]["shard_1.bin"].update(save_id="other"),
            lambda content: content["shards"].pop("shard_1.bin"),
            lambda content: content["shards"]["shard_1.bin"].update(rank=0),
            lambda content: content["shards"]["shard_1.bin"].update(key="../elsewhere"),
            lambda content: content["shards"]["shard_1.bin"].update(size="7"),
            lambda content: content["shards"]["shard_1.bin"].update(checksum="md5:00"),
            lambda content: content.update(world_size=3),
            lambda content: content.update(format="another"),
            lambda content: content.update(shards=[]),
        ],
    )
    def test_a_manifest_that_says_something_else(self, tmp_path: Path, change: Any) -> None:
        base = f"file://{tmp_path}/"
        save_all(base, 1)
        finalize(base)
        content = json.loads((tmp_path / MANIFEST).read_bytes())
        change(content)
        (tmp_path / MANIFEST).write_text(json.dumps(content))
        with pytest.raises(errors.CorruptDataError, match=r"s3dlio-manifest|md5"):
            s3dlio.load_checkpoint(base)

    def test_a_torn_manifest_commits_nothing_and_is_replaced(self, place: Place, caplog: pytest.LogCaptureFixture) -> None:
        place.put(MANIFEST, b'{"format": "s3dl')
        with pytest.raises(errors.CorruptDataError, match="s3dlio-manifest"):
            s3dlio.load_checkpoint(place.root)
        assert s3dlio.list_checkpoints(place.root) == []
        save_all(place.root, 1)
        finalize(place.root)
        assert has_all(place.root, 1)
        assert "damaged" in caplog.text

    def test_a_file_of_another_format_is_told_from_damage(self, tmp_path: Path) -> None:
        from s3dlio.torch import safetensors

        uri = f"file://{tmp_path}/k.safetensors"
        safetensors.save_file({"weight": torch.ones(3)}, uri)
        for load in (s3dlio.load_checkpoint, s3dlio.load_checkpoint_with_validation):
            with pytest.raises(errors.S3dlioError, match=r"k.safetensors is a safetensors file: load it by") as caught:
                load(uri)
            assert not isinstance(caught.value, errors.CorruptDataError)

    def test_a_newer_version_is_told_from_damage(self, tmp_path: Path) -> None:
        (tmp_path / MANIFEST).write_text('{"format": "s3dlio-checkpoint", "version": 2}')
        with pytest.raises(errors.S3dlioError, match="use a newer s3dlio"):
            s3dlio.load_checkpoint(f"file://{tmp_path}/")

    def test_a_checkpoint_of_another_kind_is_named(self, tmp_path: Path) -> None:
        (tmp_path / ".metadata").write_bytes(b"x")
        with pytest.raises(errors.S3dlioError, match=r"kind dcp: load it by s3dlio\.torch\.dcp\.load"):
            s3dlio.load_checkpoint(f"file://{tmp_path}")


class TestCommit:
    def test_what_is_saved_does_not_count_before_the_commit(self, place: Place) -> None:
        save_all(place.root, 1)
        finalize(place.root)
        save_all(place.root, 5)
        assert has_all(place.root, 1), "a save does not touch what is committed"
        finalize(place.root)
        assert has_all(place.root, 5)
        assert len(place.keys()) == 5, "the shards before are gone"

    def test_missing_ranks_are_named_and_nothing_is_committed(self, place: Place) -> None:
        """O35: a prefix with a space and a plus."""
        base = place.root + "step 1+/"
        for rank in (0, 2):
            s3dlio.save_distributed_shard(f"{base}shard_{rank}.bin", state(rank), rank, 4)
        with pytest.raises(errors.S3dlioError, match=r"step 1\+/: after 0.1 s the shard of rank 1, 3 is missing"):
            finalize(base, 4)
        assert s3dlio.latest_checkpoint(place.root) is None
        assert s3dlio.latest_checkpoint(base) is None, "shards are no checkpoints of their own"
        assert "manifest" not in " ".join(place.keys())
        with pytest.raises(errors.NotFoundError, match="no complete checkpoint"):
            s3dlio.load_checkpoint(base)

    def test_a_shard_that_the_manifest_before_names_counts_as_missing(self, place: Place) -> None:
        save_all(place.root, 1)
        finalize(place.root)
        s3dlio.save_distributed_shard(place.root + "shard_0.bin", state(9), 0, 2)
        with pytest.raises(errors.S3dlioError, match="of rank 1 is missing"):
            finalize(place.root)
        assert has_all(place.root, 1)

    def test_saves_with_ids_do_not_mix(self, place: Place) -> None:
        s3dlio.save_distributed_shard(place.root + "shard_1.bin", state(1), 1, 2, save_id="step-1")  # then it died
        s3dlio.save_distributed_shard(place.root + "shard_0.bin", state(5), 0, 2, save_id="step-2")
        with pytest.raises(errors.S3dlioError, match=r"save_id='step-2' of rank 1 is missing"):
            finalize(place.root)  # it knows the id of its own shard
        s3dlio.save_distributed_shard(place.root + "shard_1.bin", state(6), 1, 2, save_id="step-2")
        finalize(place.root, save_id="step-2")
        assert has_all(place.root, 5)
        assert place.get("shard_1.bin.step-1") is not None, "that of the dead save waits for keep_last"

    def test_an_id_of_a_save_long_ago_is_not_taken_for_a_save_without_one(self, tmp_path: Path) -> None:
        base = f"file://{tmp_path}/"
        s3dlio.save_distributed_shard(base + "shard_0.bin", state(1), 0, 2, save_id="old")  # another process finalized it
        save_all(base, 5)
        finalize(base)
        assert has_all(base, 5)

    @pytest.mark.parametrize(("order", "is_told_apart"), [("aabb", True), ("abba", False), ("abab", False)])
    def test_two_saves_without_ids_never_mix(self, tmp_path: Path, order: str, is_told_apart: bool) -> None:
        base, next_rank = f"file://{tmp_path}/d/", {"a": 0, "b": 0}
        for second, save in enumerate(order, 1):
            rank = next_rank[save]
            next_rank[save] = rank + 1
            known = set((tmp_path / "d").glob("*"))
            s3dlio.save_distributed_shard(f"{base}shard_{rank}.bin", state("ab".index(save)), rank, 2)
            for path in set((tmp_path / "d").glob("*.s3dlio-shard.json")) - known:
                os.utime(path, (second, second))
        if is_told_apart:
            finalize(base)
            assert all(is_state(data, 1) for data in s3dlio.load_checkpoint(base))
        else:
            with pytest.raises(errors.S3dlioError, match=r"two saves have overlapped. Nothing was committed"):
                finalize(base)
            assert s3dlio.latest_checkpoint(base) is None

    def test_a_shard_that_comes_while_two_saves_seem_to_overlap_is_waited_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        base, moment = f"file://{tmp_path}/d/", itertools.count(1)

        def save(number: int, rank: int) -> None:
            known = set((tmp_path / "d").glob("*"))
            s3dlio.save_distributed_shard(f"{base}shard_{rank}.bin", state(number), rank, 2)
            for path in set((tmp_path / "d").glob("*.s3dlio-shard.json")) - known:
                os.utime(path, (second := next(moment), second))

        save(0, 1)
        save(0, 0)
        save(1, 0)  # and rank 1 has not yet: its newest one is that of before
        coming = [1]
        monkeypatch.setattr(shards.time, "sleep", lambda _: save(1, coming.pop()) if coming else None)
        finalize(base, timeout=60)
        assert all(is_state(data, 1) for data in s3dlio.load_checkpoint(base))

    def test_the_bytes_of_a_shard_whose_rank_died_are_no_checkpoint_and_are_swept(self, tmp_path: Path) -> None:
        """Killed between its bytes and its facts, on the first save of all: nothing else tells what they are."""
        base = f"file://{tmp_path}/"
        child = os.fork()
        if child == 0:
            writer = shards.ShardWriter(base + "shard_0.bin", rank=0, world_size=1, save_id="a")
            torch.save(state(1), writer.__enter__())
            writer._file.close()
            os.kill(os.getpid(), signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        assert torch.load(tmp_path / "shard_0.bin.a")["epoch"] == 1, "the bytes are whole"
        assert s3dlio.list_checkpoints(base) == []
        with pytest.raises(errors.S3dlioError, match="of rank 0 is missing"):
            finalize(base, 1, save_id="a")
        s3dlio.keep_last(base, 1, stale_after=-5)
        assert list(tmp_path.iterdir()) == []

    def test_finalize_waits_for_the_slow(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        base = f"file://{tmp_path}/"
        s3dlio.save_distributed_shard(base + "s0", state(1), 0, 2)
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                s3dlio.save_distributed_shard(base + "s1", state(2), 1, 2)

        monkeypatch.setattr(shards.time, "sleep", pause)
        finalize(base, timeout=300)
        assert len(pauses) == 3
        assert has_all(base, 1)

    def test_again_it_does_nothing(self, place: Place) -> None:
        save_all(place.root, 1, save_id="a")
        finalize(place.root, save_id="a")
        before = s3dlio.stat(place.root + MANIFEST)
        finalize(place.root, save_id="a")
        assert s3dlio.stat(place.root + MANIFEST)["etag"] == before["etag"]
        with pytest.raises(ValueError, match="committed checkpoint of save_id='a' already"):
            s3dlio.save_distributed_shard(place.root + "shard_0.bin", state(9), 0, 2, save_id="a")
        assert has_all(place.root, 1)

    def test_a_dead_save_is_done_again_under_its_id(self, place: Place) -> None:
        s3dlio.save_distributed_shard(place.root + "shard_0.bin", state(3), 0, 2, save_id="step-1")
        save_all(place.root, 1, save_id="step-1")
        finalize(place.root, save_id="step-1")
        assert has_all(place.root, 1)

    @pytest.mark.parametrize("fails", [False, True])
    def test_a_late_shard_is_not_written_into_what_was_committed_meanwhile(
        self, place: Place, fails: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The finalizer took what a dead try had left under the same id, just before the rank began to save again."""
        save_all(place.root, 1, save_id="step-1")
        wait = shards._Gathering.wait
        late: list[shards.ShardWriter] = []

        def then_a_rank_begins(self: Any, timeout: float) -> Any:
            found = wait(self, timeout)
            late.append(shards.ShardWriter(place.root + "shard_1.bin", rank=1, world_size=2, save_id="step-1"))
            return found

        monkeypatch.setattr(shards._Gathering, "wait", then_a_rank_begins)
        finalize(place.root, save_id="step-1")

        def go_on() -> None:
            with late[0] as file:
                file.write(b"another try")
                if fails:
                    raise ValueError("the user's own")

        with pytest.raises(
            ValueError, match="the user's own" if fails else "committed checkpoint of save_id='step-1' already"
        ):
            go_on()
        assert has_all(place.root, 1)

    def test_a_shard_whose_facts_may_be_known_is_not_removed(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """The answer to their put is lost, and the finalizer has read them."""
        kind = type(open_store(parse(place.root)))
        put = kind.put

        def lost(self: Any, key: str, data: memoryview, **options: Any) -> Any:
            info = put(self, key, data, **options)
            if key.endswith(".s3dlio-shard.json") and data.nbytes:
                finalize(place.root, 1, save_id="a")
                raise errors.ThrottledError("no answer")
            return info

        monkeypatch.setattr(kind, "put", lost)
        with pytest.raises(errors.ThrottledError, match="no answer"):
            s3dlio.save_distributed_shard(place.root + "s", state(1), 0, 1, save_id="a")
        assert has_all(place.root, 1, 1)

    def test_what_was_loaded_is_plain_and_can_be_saved_again(self, tmp_path: Path) -> None:
        base = f"file://{tmp_path}/"
        save_all(base + "d/", 1)
        finalize(base + "d/")
        s3dlio.save_checkpoint(base + "single", s3dlio.load_checkpoint(base + "d/"))
        assert is_state(s3dlio.load_checkpoint(base + "single")[1], 2)

    def test_another_world_size_is_refused_at_once(self, place: Place) -> None:
        save_all(place.root, 1, world_size=3, save_id="a")
        with pytest.raises(errors.S3dlioError, match="was saved for a world size of 3, not 2"):
            finalize(place.root, 2, save_id="a", timeout=300)
        save_all(place.root + "b/", 1, world_size=3)
        with pytest.raises(errors.S3dlioError, match=r"rank 0, 1 is missing; there are shards of a world size of \[3\]"):
            finalize(place.root + "b/", 2)

    def test_two_shards_of_one_rank_are_refused(self, place: Place) -> None:
        for name in ("model", "optimizer"):
            s3dlio.save_distributed_shard(place.root + name, state(1), 0, 1, save_id="a")
        with pytest.raises(errors.S3dlioError, match="rank 0 has saved model and optimizer"):
            finalize(place.root, 1, save_id="a", timeout=300)

    def test_a_rank_that_was_not_there_is_told_how_many_were(self, place: Place) -> None:
        save_all(place.root, 1)
        finalize(place.root)
        for rank in (2, -1):
            with pytest.raises(errors.S3dlioError, match=f"no shard of rank {rank}: it was saved by 2 ranks"):
                s3dlio.load_distributed_shard(place.root, rank)

    def test_of_two_finalizers_one_wins(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """The manifest is put under the condition that nobody else has put one meanwhile."""
        save_all(place.root, 1, save_id="a")
        save_all(place.root, 5, save_id="b")
        wait = shards._Gathering.wait

        def meanwhile(self: Any, timeout: float) -> Any:
            monkeypatch.setattr(shards._Gathering, "wait", wait)
            finalize(place.root, save_id="b")
            return wait(self, timeout)

        monkeypatch.setattr(shards._Gathering, "wait", meanwhile)
        with pytest.raises(errors.PreconditionFailedError):
            finalize(place.root, save_id="a")
        assert has_all(place.root, 5)

    def test_a_reader_goes_on_with_the_next_checkpoint(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """The shards of its manifest are gone when it comes to them, since the next one was committed."""
        save_all(place.root, 1)
        finalize(place.root)
        read = catalog.read_manifest
        manifest = read(place.root)
        save_all(place.root, 5)
        finalize(place.root)
        answers = [manifest]
        monkeypatch.setattr("s3dlio.torch.checkpoint.read_manifest", lambda uri: answers.pop() if answers else read(uri))
        assert has_all(place.root, 5)

    def test_what_cannot_be_deleted_after_the_commit_is_no_failure(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        base = f"file://{tmp_path}/"
        save_all(base, 1)
        finalize(base)
        save_all(base, 5)

        def refuse(self: object, key: str) -> None:
            raise errors.AccessDeniedError("no")

        monkeypatch.setattr(local.LocalStore, "delete", refuse)
        finalize(base)
        assert has_all(base, 5)
        assert "stay until keep_last sweeps them" in caplog.text

    def test_a_copied_checkpoint_is_complete(self, s3_place: S3Place, tmp_path: Path) -> None:
        """O35: the mark is an object, and keys are relative."""
        base = f"file://{tmp_path}/step 1+/"
        save_all(base, 1)
        finalize(base)
        for name in s3dlio.list_keys(base):
            s3dlio.put_bytes(f"{s3_place.root}copy/{name}", s3dlio.get(base + name))
        assert has_all(s3_place.root + "copy/", 1)
        assert s3dlio.latest_checkpoint(s3_place.root) == s3_place.root + "copy/"


@pytest.mark.parametrize(
    "verb",
    [
        lambda path: s3dlio.save_checkpoint(path, {}),
        s3dlio.load_checkpoint,
        s3dlio.load_checkpoint_with_validation,
        s3dlio.list_checkpoints,
        s3dlio.latest_checkpoint,
        s3dlio.delete_checkpoint,
        lambda path: s3dlio.keep_last(path, 1),
        lambda path: s3dlio.save_distributed_shard(path, {}, 0, 1, save_id="s"),
        lambda path: s3dlio.finalize_distributed_checkpoint(path, 1, save_id="s"),
        lambda path: s3dlio.load_distributed_shard(path, 0),
    ],
)
def test_a_path_instead_of_a_uri_is_a_type_error_that_says_so(verb: Callable[[Any], Any], tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"a URI is a str such as .*, not PosixPath"):
        verb(tmp_path / "x.pt")
    assert not [*tmp_path.iterdir()]
