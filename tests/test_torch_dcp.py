"""Distributed checkpoints of one process: what comes back, what is read, what is refused, what a failed save leaves."""

from __future__ import annotations

import codecs
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp

import s3dlio
from s3dlio.errors import ConfigError, PreconditionFailedError, S3dlioError
from s3dlio.storage import local, memory
from s3dlio.storage.base import Read, ReadResult
from s3dlio.storage.cloud import s3
from s3dlio.torch import StorageReader, StorageWriter, dcp
from tests.conftest import LocalPlace, Place, S3Place

MIB = 2**20

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")  # by torch's own functions


def all_kinds() -> dict[str, Any]:
    """Tensors of every kind, of sizes around those of blocks and parts, and what is no tensor."""
    torch.manual_seed(0)
    return {
        "weights": {"a": torch.arange(12.0).reshape(3, 4), "large": torch.randn(2_500_001), "scalar": torch.tensor(5)},
        "turned": torch.randn(1000, 1500).t(),
        "part": torch.randn(2000, 1000)[:, 3:700],
        "empty": torch.empty(0, 3),
        "bfloat16": torch.randn(300).to(torch.bfloat16),
        "float8": torch.randn(30).to(torch.float8_e4m3fn),
        "uint16": torch.arange(7).to(torch.uint16),
        "bool": torch.tensor([True, False, True]),
        "complex": torch.randn(5, dtype=torch.complex64).conj(),
        "block": torch.arange(MIB // 4),
        "step": 17,
        "names": ["one", "two"],
    }


def blank(state: Any) -> Any:
    """The same tree, with nothing in it."""
    if isinstance(state, dict):
        return {name: blank(value) for name, value in state.items()}
    return torch.zeros_like(state) if isinstance(state, torch.Tensor) else None


def plain_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_conj().reshape(-1).view(torch.uint8)


def assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            assert_same(ours[name], theirs[name])
    elif isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype
        assert ours.size() == theirs.size()
        assert torch.equal(plain_bytes(ours), plain_bytes(theirs))
    else:
        assert ours == theirs


class Count:
    """Bytes that stores have read, and how often each was."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_bytes = 0
        for kind in (local.LocalStore, memory.MemoryStore, s3.S3Store):
            monkeypatch.setattr(kind, "read", self._counting(kind.read))

    def _counting(self, read: Any) -> Any:
        def counting(store: Any, request: Read) -> ReadResult:
            result: ReadResult = read(store, request)
            self.num_bytes += result.data.nbytes
            return result

        return counting


def data_files(place: Place) -> list[str]:
    return [key for key in sorted(place.keys()) if key.endswith(".distcp")]


def test_every_kind_of_tensor_comes_back_and_each_byte_is_read_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    state, uri = all_kinds(), f"{place.root}run 1+/step"
    dcp.save(state, uri)
    size = sum(s3dlio.stat(entry)["size"] for entry in s3dlio.list(uri, recursive=True))
    loaded = blank(state)
    count = Count(monkeypatch)
    dcp.load(loaded, uri)
    assert_same(loaded, state)
    assert 0.9 * size < count.num_bytes <= size


def test_torch_reads_ours_and_we_read_what_torch_wrote(local_place: LocalPlace) -> None:
    state = all_kinds()
    dcp.save(state, local_place.root + "ours")
    loaded = blank(state)
    torch_dcp.load(loaded, storage_reader=torch_dcp.FileSystemReader(local_place.folder / "ours"))
    assert_same(loaded, state)
    torch_dcp.save(state, storage_writer=torch_dcp.FileSystemWriter(local_place.folder / "theirs", sync_files=False))
    loaded = blank(state)
    dcp.load(loaded, local_place.root + "theirs")
    assert_same(loaded, state)
    assert {found.uri for found in s3dlio.list_checkpoints(local_place.root)} == {
        *(f"{local_place.root}{name}/" for name in ("ours", "theirs"))
    }


def test_a_checkpoint_of_torch_is_read_straight_into_the_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"large": torch.randn(2_000_000), "other": torch.randn(3_000, 900)}
    torch_dcp.save(state, storage_writer=torch_dcp.FileSystemWriter(tmp_path / "theirs", sync_files=False))

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("torch.load would copy the tensor")

    loaded = blank(state)
    with monkeypatch.context() as patched:
        patched.setattr(torch, "load", refuse)
        dcp.load(loaded, f"file://{tmp_path}/theirs")
    assert_same(loaded, state)


def test_torch_itself_can_use_the_writer_and_the_reader(place: Place) -> None:
    state = {"weight": torch.randn(100)}
    torch_dcp.save(state, storage_writer=StorageWriter(place.root + "a"), checkpoint_id=place.root + "b")
    reader = pickle.loads(pickle.dumps(StorageReader(place.root + "b")))
    loaded = blank(state)
    torch_dcp.load(loaded, storage_reader=reader)
    assert_same(loaded, state)
    assert [key for key in sorted(place.keys()) if key.startswith("a")] == []


def test_nothing_that_is_stored_names_a_module_of_this_package(place: Place) -> None:
    """So that modules may move, and a machine without the package can read it."""
    for format, state in (("torch", all_kinds()), ("safetensors", {"weight": torch.ones(3)})):
        dcp.save(state, f"{place.root}{format}", format=format)
    stored = {key: place.get(key) or b"" for key in sorted(place.keys())}
    assert len(stored) > 2
    assert [key for key, data in stored.items() if b"s3dlio." in data] == []


@pytest.mark.parametrize("kind", [StorageReader, StorageWriter])
def test_torch_is_told_which_places_are_known_here(kind: type[StorageReader | StorageWriter], tmp_path: Path) -> None:
    known = ["s3://bucket/run", "memory://bucket", tmp_path, "folder"]
    assert all(map(kind.validate_checkpoint_id, known))
    assert not any(map(kind.validate_checkpoint_id, ["hdfs://bucket/run", "s3://", 17]))
    assert kind(tmp_path).checkpoint_id == f"file://{tmp_path}/"
    with pytest.raises(ConfigError, match="hdfs"):
        kind("hdfs://bucket/run")


def test_one_tensor_of_many_costs_its_own_bytes_alone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 of 100 tensors of 512 KiB: less than 2 % of the bytes of the checkpoint."""
    state = {f"layer{number}": torch.full((MIB // 8,), number, dtype=torch.int32) for number in range(100)}
    dcp.save(state, place.root + "step")
    size = sum(len(place.get(key) or b"") for key in sorted(place.keys()))
    count = Count(monkeypatch)
    loaded = {"layer63": torch.zeros(MIB // 8, dtype=torch.int32)}
    dcp.load(loaded, place.root + "step")
    assert_same(loaded["layer63"], state["layer63"])
    assert count.num_bytes < 0.02 * size


def test_a_tensor_of_another_dtype_or_layout_is_converted(tmp_path: Path) -> None:
    state = {"a": torch.randn(1500, 1000), "b": torch.randn(4, 5)}
    dcp.save(state, tmp_path / "step")
    loaded = {"a": torch.zeros(1000, 1500).t(), "b": torch.zeros(4, 5, dtype=torch.float64)}
    dcp.load(loaded, tmp_path / "step")
    assert torch.equal(loaded["a"], state["a"])
    assert torch.equal(loaded["b"], state["b"].double())


def test_a_state_of_another_shape_is_refused(tmp_path: Path) -> None:
    dcp.save({"a": torch.zeros(4, 5)}, tmp_path / "step")
    with pytest.raises(S3dlioError, match="a"):
        dcp.load({"a": torch.zeros(4, 6)}, tmp_path / "step")


class Unknown:
    """Calls what a checkpoint may name, with what that does not know."""

    def __reduce__(self) -> tuple[Any, ...]:
        return codecs.encode, ("x", "no such encoding")


class TestDamage:
    @pytest.fixture
    def state(self) -> dict[str, Any]:
        return {"small": torch.randn(100), "large": torch.randn(700_000), "step": 5}

    @pytest.fixture
    def saved(self, state: dict[str, Any], tmp_path: Path) -> Path:
        dcp.save(state, tmp_path / "step")
        return tmp_path / "step"

    def test_a_flipped_bit_is_an_error_or_lies_where_nothing_is_read(self, state: dict[str, Any], saved: Path) -> None:
        """30 bits anywhere: in the tensors each is noticed; the archives around them, which are for torch, are not read."""
        [data] = saved.glob("*.distcp")
        good, num_noticed = data.read_bytes(), 0
        for bit in random.Random(1).sample(range(8 * len(good)), 30):
            bad = bytearray(good)
            bad[bit // 8] ^= 1 << bit % 8
            data.write_bytes(bad)
            loaded = blank(state)
            try:
                dcp.load(loaded, saved)
            except S3dlioError as exc:
                assert "CRC-32C" in str(exc)  # noqa: PT017 - it either fails so or has done no harm
                num_noticed += 1
            else:
                assert_same(loaded, state)
        assert num_noticed >= 25

    def test_a_flipped_bit_in_each_item_is_an_error(self, state: dict[str, Any], saved: Path) -> None:
        [data] = saved.glob("*.distcp")
        good = data.read_bytes()
        for item in (state["small"].numpy().tobytes(), state["large"].numpy().tobytes()[-1000:]):
            position = good.index(item) + len(item) - 1
            data.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
            with pytest.raises(S3dlioError, match="CRC-32C"):
                dcp.load(blank(state), saved)

    def test_a_truncated_file_is_an_error(self, state: dict[str, Any], saved: Path) -> None:
        [data] = saved.glob("*.distcp")
        good = data.read_bytes()
        for length in (0, len(good) // 2, len(good) - 2000):
            data.write_bytes(good[:length])
            with pytest.raises(S3dlioError, match="cut short"):
                dcp.load(blank(state), saved)

    def test_a_missing_file_is_an_error(self, state: dict[str, Any], saved: Path) -> None:
        [data] = saved.glob("*.distcp")
        data.unlink()
        with pytest.raises(S3dlioError, match=data.name):
            dcp.load(blank(state), saved)

    def test_a_damaged_metadata_is_an_error(self, state: dict[str, Any], saved: Path) -> None:
        good = (saved / ".metadata").read_bytes()
        flipped = bytearray(good)
        flipped[len(good) // 2] ^= 4
        broken = pickle.dumps(Unknown())  # raises LookupError; others raise nearly anything
        for bad in (b"", good[: len(good) // 2], good[:-3], bytes(flipped), pickle.dumps({"no": "checkpoint"}), broken):
            (saved / ".metadata").write_bytes(bad)
            with pytest.raises(S3dlioError, match=r"metadata is damaged \("):
                dcp.load(blank(state), saved)

    def test_a_directory_without_a_commit_is_no_checkpoint(self, state: dict[str, Any], saved: Path) -> None:
        (saved / ".metadata").unlink()
        with pytest.raises(S3dlioError, match="holds no complete checkpoint"):
            dcp.load(blank(state), saved)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("this code ran",)


def test_a_metadata_that_would_run_code_is_refused_with_advice(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(S3dlioError, match=r"builtins\.print.*weights_only=False"):
        dcp.load({"a": torch.zeros(1)}, tmp_path)
    assert "this code ran" not in capfd.readouterr().out


def test_an_object_that_weights_only_refuses_is_refused_with_advice(tmp_path: Path) -> None:
    state = {"config": Path("/somewhere"), "weight": torch.ones(3)}
    dcp.save(state, tmp_path / "step")
    loaded = {"config": None, "weight": torch.zeros(3)}
    with pytest.raises(S3dlioError, match=r"config of the checkpoint.*PosixPath"):
        dcp.load(loaded, tmp_path / "step")
    dcp.load(loaded, tmp_path / "step", weights_only=False)
    assert loaded["config"] == Path("/somewhere")


class TestOverwriting:
    def test_the_new_one_replaces_the_old_one_and_its_files(self, place: Place) -> None:
        for number in (1.0, 2.0):
            dcp.save({"weight": torch.full((9,), number)}, place.root + "last")
            [name] = data_files(place)
            assert place.keys() == ["last/.metadata", name]
        loaded = {"weight": torch.zeros(9)}
        dcp.load(loaded, place.root + "last")
        assert loaded["weight"].tolist() == [2.0] * 9

    def test_it_is_refused_on_request(self, place: Place) -> None:
        dcp.save({"weight": torch.ones(3)}, place.root + "last", overwrite=False)
        before = place.keys()
        with pytest.raises(S3dlioError, match="overwrite=False"):
            dcp.save({"weight": torch.zeros(3)}, place.root + "last", overwrite=False)
        assert place.keys() == before

    def test_of_two_saves_that_overlap_one_fails(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        dcp.save({"weight": torch.zeros(3)}, place.root + "last")
        finish = StorageWriter.finish

        def late(writer: StorageWriter, **facts: Any) -> None:
            monkeypatch.setattr(StorageWriter, "finish", finish)
            dcp.save({"weight": torch.ones(3)}, place.root + "last")
            finish(writer, **facts)

        monkeypatch.setattr(StorageWriter, "finish", late)
        with pytest.raises(S3dlioError, match="written by somebody else"):
            dcp.save({"weight": torch.full((3,), 7.0)}, place.root + "last")
        loaded = {"weight": torch.zeros(3)}
        dcp.load(loaded, place.root + "last")
        assert loaded["weight"].tolist() == [1.0] * 3
        assert len(data_files(place)) == 1

    @pytest.mark.parametrize("answer", ["lost", "lost, and nobody can look"])
    def test_a_commit_whose_answer_is_lost_stands(
        self, tmp_path: Path, answer: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its files stay, whatever save raises: only what is surely not committed is removed."""
        put, read, is_lost = local.LocalStore.put, local.LocalStore.read, False

        def lost(store: Any, key: str, data: memoryview, **options: Any) -> Any:
            nonlocal is_lost
            info = put(store, key, data, **options)
            if not key.endswith(".metadata"):
                return info
            is_lost = True
            raise PreconditionFailedError("a second try finds what the first one wrote")

        def unreadable(store: Any, request: Read) -> ReadResult:
            if is_lost:
                raise s3dlio.errors.ThrottledError("come back later")
            return read(store, request)

        with monkeypatch.context() as patched:
            patched.setattr(local.LocalStore, "put", lost)
            if answer == "lost":
                dcp.save({"weight": torch.ones(9)}, tmp_path / "step")
            else:
                patched.setattr(local.LocalStore, "read", unreadable)
                with pytest.raises(S3dlioError, match="nobody knows whether"):
                    dcp.save({"weight": torch.ones(9)}, tmp_path / "step")
        loaded = {"weight": torch.zeros(9)}
        dcp.load(loaded, tmp_path / "step")
        assert loaded["weight"].tolist() == [1.0] * 9

    def test_what_cannot_be_removed_after_the_commit_is_no_failure(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        dcp.save({"weight": torch.zeros(9)}, tmp_path / "last")

        def fail(*arguments: Any) -> None:
            raise ZeroDivisionError("an old file that nobody expected")

        monkeypatch.setattr(StorageWriter, "_names_in", fail)
        dcp.save({"weight": torch.ones(9)}, tmp_path / "last")
        loaded = {"weight": torch.zeros(9)}
        dcp.load(loaded, tmp_path / "last")
        assert loaded["weight"].tolist() == [1.0] * 9
        assert "an old file that nobody expected" in caplog.text

    def test_a_plan_that_torch_keeps_does_not_write_into_old_files(self, tmp_path: Path) -> None:
        for number in (1.0, 2.0, 3.0):
            planner = torch_dcp.DefaultSavePlanner(enable_plan_caching=True)
            dcp.save({"weight": torch.full((9,), number)}, tmp_path / "last", planner=planner)
            loaded = {"weight": torch.zeros(9)}
            dcp.load(loaded, tmp_path / "last")
            assert loaded["weight"].tolist() == [number] * 9


class Refuses:
    def __reduce__(self) -> tuple[Any, ...]:
        raise ZeroDivisionError("cannot be saved")


class TestFailingSave:
    """Whatever fails, save raises, nothing of it is left, and the checkpoint that stood there still loads."""

    @pytest.fixture
    def before(self, place: Place) -> Iterator[Place]:
        dcp.save({"weight": torch.ones(9)}, place.root + "last")
        keys = place.keys()
        yield place
        loaded = {"weight": torch.zeros(9)}
        dcp.load(loaded, place.root + "last")
        assert loaded["weight"].tolist() == [1.0] * 9
        assert place.keys() == keys
        if isinstance(place, S3Place):
            assert place.uploads() == []

    def large(self) -> dict[str, Any]:
        return {f"layer{number}": torch.zeros(3 * MIB) for number in range(4)}

    def test_an_item_that_cannot_be_pickled(self, before: Place) -> None:
        with pytest.raises(S3dlioError, match="cannot be saved"):
            dcp.save({**self.large(), "bad": Refuses()}, before.root + "last")

    @pytest.mark.parametrize("number", [0, 3])
    def test_one_file_of_several(self, before: Place, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """A thread of torch's own writer would take such a failure with it."""
        write = StorageWriter._write_file

        def failing(writer: StorageWriter, planner: Any, stop: Any, name: str, items: Any) -> Any:
            results = write(writer, planner, stop, name, items)
            if name.startswith(f"__0_{number}."):
                raise ZeroDivisionError("a thread fails")
            return results

        monkeypatch.setattr(StorageWriter, "_write_file", failing)
        monkeypatch.setattr("s3dlio.torch.dcp.writer.FILE_BYTES", MIB)
        with pytest.raises(S3dlioError, match="a thread fails"):
            dcp.save(self.large(), before.root + "last")


def test_a_full_disk_fails_the_save_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dcp.save({"weight": torch.ones(9)}, tmp_path / "last")
    before = sorted(tmp_path.rglob("*"))
    limit = 3 * MIB
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    import signal

    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(S3dlioError, match="File too large"):
            dcp.save({"weight": torch.zeros(4 * MIB)}, tmp_path / "last")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert sorted(tmp_path.rglob("*")) == before
    loaded = {"weight": torch.zeros(9)}
    dcp.load(loaded, tmp_path / "last")
    assert loaded["weight"].tolist() == [1.0] * 9


def test_a_prefix_that_is_read_only_is_an_error(tmp_path: Path, unprivileged: None) -> None:
    with pytest.raises(S3dlioError, match="cannot write"):
        dcp.save({"weight": torch.ones(9)}, "file:///proc/nowhere")


def test_an_empty_state_comes_back_as_one(place: Place) -> None:
    dcp.save({}, place.root + "step")
    dcp.load({}, place.root + "step")
    assert place.keys() == ["step/.metadata"]
    assert s3dlio.latest_checkpoint(place.root) == place.root + "step/"


def test_a_checkpoint_that_was_copied_elsewhere_is_complete(s3_place: S3Place, tmp_path: Path) -> None:
    state = all_kinds()
    dcp.save(state, tmp_path / "step 1+")
    for file in (tmp_path / "step 1+").iterdir():
        s3_place.put(f"copy/{file.name}", file.read_bytes())
    loaded = blank(state)
    dcp.load(loaded, s3_place.root + "copy")
    assert_same(loaded, state)
    assert s3dlio.latest_checkpoint(s3_place.root) == s3_place.root + "copy/"


def test_nothing_is_written_outside_of_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/nonexistent")
    dcp.save({"weight": torch.ones(9)}, tmp_path / "step")
    assert [entry.name for entry in tmp_path.iterdir()] == ["step"]


def test_files_that_dead_saves_left_go_with_the_second_save_after_them(place: Place) -> None:
    """Not with the first: what is younger than the commit that is replaced may be of a save on its way."""
    dcp.save({"weight": torch.zeros(9)}, place.root + "last")
    place.put("last/__0_0.0123456789abcdef.distcp", b"left")
    place.put("last/notes.distcp", b"the user's")
    for _ in range(3):
        dcp.save({"weight": torch.ones(9)}, place.root + "last")
    assert len(data_files(place)) in (2, 3)  # 3 where the store's clock counts seconds and all of it took less than one
    assert place.get("last/notes.distcp") == b"the user's"


MEASURE = """
import sys, torch, warnings
warnings.simplefilter("ignore")
from s3dlio.torch import dcp

def memory(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) / 1024

uri = sys.argv[1]
dcp.save({"weight": torch.ones(9)}, uri + "-small")
state = {f"layer{number}": torch.full((2**23,), number, dtype=torch.int32) for number in range(int(sys.argv[2]))}
state["turned"] = torch.ones(2**11, 2**12).t()
before = memory("VmRSS")
dcp.save(state, uri, files_per_rank=2)
print(memory("VmHWM") - before)
"""


@pytest.mark.parametrize(("scheme", "num_layers"), [("file", 2), ("s3", 6)])
def test_a_large_save_needs_little_memory_beside_the_tensors(
    scheme: str, num_layers: int, s3_place: S3Place, tmp_path: Path, run_python: Any
) -> None:
    """At most twice the parts in flight: 2 files of 4 parts of 8 MiB on s3://, of one part on file://.

    That is less than the 96 and 224 MiB that are saved.
    """
    uri = f"file://{tmp_path}/large" if scheme == "file" else s3_place.root + "large"
    done = run_python(MEASURE, uri, str(num_layers), timeout=120)
    assert done.returncode == 0, done.stderr
    s3dlio.delete(uri, recursive=True)
    assert float(done.stdout) < 24 + {"file": 2 * 2 * 8, "s3": 2 * 2 * 4 * 8}[scheme]  # 24: threads and their stacks


def test_a_tensor_of_more_than_4_gib_has_an_archive_that_others_read(tmp_path: Path) -> None:
    """The raw bytes as a hole in a file: torch and zipfile find the records around it."""
    from zipfile import ZipFile

    from s3dlio.torch.dcp.zip import RawTensor, archive_around, layout_of

    tensor = RawTensor(torch.uint8, (5, 2**30))
    head, tail = archive_around(tensor)
    with open(tmp_path / "tensor.pt", "wb") as file:
        file.write(head)
        file.seek(tensor.num_bytes - 1, 1)
        file.write(b"\7" + tail)
        length = file.tell()
    with ZipFile(tmp_path / "tensor.pt") as archive:
        assert archive.getinfo("archive/data/0").file_size == 5 * 2**30
        assert archive.read("archive/version") == b"3\n"
    loaded = torch.load(tmp_path / "tensor.pt", weights_only=True, mmap=True)
    assert (loaded.dtype, tuple(loaded.size()), int(loaded[-1, -1])) == (torch.uint8, (5, 2**30), 7)
    layout = layout_of(head[:4096], tail, length)
    assert layout is not None
    assert layout == (tensor, len(head))


def test_control_c_is_no_failed_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that falls back to an older checkpoint when one cannot be loaded must not do so then."""
    dcp.save({"a": torch.ones(3)}, str(tmp_path))

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(StorageReader, "read_data", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dcp.load({"a": torch.zeros(3)}, str(tmp_path))


def test_control_c_is_no_failed_save_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(tasks: list[Any], stop: Any) -> None:
        for task in tasks:
            task.result(60)
        raise KeyboardInterrupt

    monkeypatch.setattr("s3dlio.torch.dcp.writer._all_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dcp.save({"a": torch.ones(3)}, str(tmp_path / "d"))
    assert list((tmp_path / "d").iterdir()) == []
