"""torch.save and torch.load through `open_writer` and `open_reader`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import s3dlio
from s3dlio.storage import local, memory
from s3dlio.storage.base import Read, ReadResult
from s3dlio.storage.cloud import s3
from tests.conftest import Place

MIB = 2**20


def large_state() -> dict[str, torch.Tensor]:
    """300 tensors, one of 100 MiB."""
    torch.manual_seed(0)
    state = {f"layer{index}": torch.randn(index + 1, 37) for index in range(299)}
    state["embedding"] = torch.arange(100 * MIB // 4, dtype=torch.int32)
    return state


def assert_equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


class Count:
    """Bytes and requests that stores have read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_bytes = 0
        self.num_requests = 0
        for kind in (local.LocalStore, memory.MemoryStore, s3.S3Store):
            monkeypatch.setattr(kind, "read", self._counting(kind.read))

    def _counting(self, read: Callable[..., ReadResult]) -> Callable[..., ReadResult]:
        def counting(store: object, request: Read) -> ReadResult:
            result = read(store, request)
            self.num_bytes += result.data.nbytes
            self.num_requests += 1
            return result

        return counting


def test_300_tensors_come_back_and_each_byte_is_read_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    state = large_state()
    uri = f"{place.root}checkpoints/step 1+.pt"
    with s3dlio.open_writer(uri) as writer:
        torch.save(state, writer)
    size = s3dlio.stat(uri)["size"]
    count = Count(monkeypatch)
    with s3dlio.open_reader(uri) as reader:
        assert reader.seekable()
        assert_equal(torch.load(reader, weights_only=True), state)
    assert 0.99 * size < count.num_bytes < 1.02 * size
    assert count.num_requests < 40


def test_the_old_format_comes_back(place: Place) -> None:
    state = {"weight": torch.randn(1000, 700), "steps": torch.tensor(7), "empty": torch.empty(0)}
    uri = f"{place.root}old.pt"
    with s3dlio.open_writer(uri) as writer:
        torch.save(state, writer, _use_new_zipfile_serialization=False)
    for weights_only in (True, False):
        with s3dlio.open_reader(uri) as reader:
            assert_equal(torch.load(reader, weights_only=weights_only), state)


def test_what_torch_wrote_itself_is_read_and_the_reverse(tmp_path: Path) -> None:
    state = {"weight": torch.randn(300, 700), "bias": torch.zeros(3)}
    torch.save(state, tmp_path / "theirs.pt")
    with s3dlio.open_reader(f"file://{tmp_path}/theirs.pt") as reader:
        assert_equal(torch.load(reader, weights_only=True), state)
    with s3dlio.open_writer(f"direct://{tmp_path}/ours.pt") as writer:
        torch.save(state, writer)
    assert_equal(torch.load(tmp_path / "ours.pt", weights_only=True, mmap=True), state)


def test_the_state_of_a_model_and_its_optimizer_comes_back(place: Place) -> None:
    model = torch.nn.Linear(30, 20)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 30)).sum().backward()
    optimizer.step()
    uri = f"{place.root}model.pt"
    with s3dlio.open_writer(uri) as writer:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, writer)
    with s3dlio.open_reader(uri) as reader:
        state = torch.load(reader, weights_only=True)
    again = torch.nn.Linear(30, 20)
    again.load_state_dict(state["model"])
    torch.optim.AdamW(again.parameters()).load_state_dict(state["optimizer"])
    assert_equal(again.state_dict(), model.state_dict())
    assert state["epoch"] == 3


def test_views_and_tensors_that_share_memory_are_saved_once(place: Place) -> None:
    whole = torch.arange(1_000_000)
    uri = f"{place.root}shared.pt"
    with s3dlio.open_writer(uri) as writer:
        torch.save({"whole": whole, "part": whole[500:900], "turned": whole.view(1000, 1000).T}, writer)
    assert s3dlio.stat(uri)["size"] < 1.01 * 8 * 10**6
    with s3dlio.open_reader(uri) as reader:
        state = torch.load(reader, weights_only=True)
    assert torch.equal(state["part"], whole[500:900])
    assert torch.equal(state["turned"], whole.view(1000, 1000).T)


class Refuses:
    """An object whose pickling fails when much of the checkpoint is written already."""

    def __reduce__(self) -> tuple[object, ...]:
        raise ZeroDivisionError("cannot be saved")


@pytest.mark.parametrize("old_format", [True, False])
@pytest.mark.parametrize("where", ["in torch.save", "after torch.save"])
def test_a_save_that_fails_leaves_the_old_checkpoint_loadable(place: Place, old_format: bool, where: str) -> None:
    uri = f"{place.root}model.pt"
    with s3dlio.open_writer(uri) as writer:
        torch.save({"weight": torch.ones(5)}, writer)

    def fail() -> None:
        state = {"weight": torch.zeros(5 * MIB), "more": Refuses() if where == "in torch.save" else None}
        with s3dlio.open_writer(uri) as writer:
            torch.save(state, writer, _use_new_zipfile_serialization=not old_format)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with s3dlio.open_reader(uri) as reader:
        assert_equal(torch.load(reader, weights_only=True), {"weight": torch.ones(5)})
    assert place.keys() == ["model.pt"]


def test_a_checkpoint_that_was_cut_short_is_an_error(place: Place) -> None:
    with s3dlio.open_writer(f"{place.root}whole.pt") as writer:
        torch.save({"weight": torch.ones(3 * MIB)}, writer)
    whole = s3dlio.get(f"{place.root}whole.pt")
    place.put("cut.pt", bytes(whole[: len(whole) // 2]))
    with s3dlio.open_reader(f"{place.root}cut.pt") as reader, pytest.raises(RuntimeError, match="PytorchStreamReader"):
        torch.load(reader, weights_only=True)


SAVE = """
state = {f"layer{index}": torch.ones(64 * 2**20 // 4) for index in range(6)}
before = memory("VmRSS")
with s3dlio.open_writer(uri) as writer:
    torch.save(state, writer)
"""
LOAD = """
before = memory("VmRSS") + 1024
with s3dlio.open_reader(uri) as reader:
    state = torch.load(reader, weights_only=True)
assert all(tensor.numel() == 64 * 2**20 // 4 and tensor[-1] == 1 for tensor in state.values()) and len(state) == 6
"""
MEASURE = """
import sys, torch, s3dlio

def memory(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) / 1024

uri = sys.argv[1]
with s3dlio.open_writer(uri + ".small") as writer:
    torch.save({"a": torch.ones(9)}, writer)
with s3dlio.open_reader(uri + ".small") as reader:
    torch.load(reader)
"""


def test_a_state_of_384_mib_is_saved_and_loaded_in_little_more_memory(
    tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """The peak of the process: less than 200 MiB to save, less than 100 MiB beyond the tensors to load."""
    uri = f"file://{tmp_path}/large.pt"
    extra = {}
    for name, code in (("save", SAVE), ("load", LOAD)):
        report = "import json\nprint(json.dumps(memory('VmHWM') - before))"
        done = run_python(MEASURE + code + report, uri, timeout=120)
        assert done.returncode == 0, done.stderr
        extra[name] = json.loads(done.stdout)
    (tmp_path / "large.pt").unlink()
    assert extra["save"] < 200, extra
    assert extra["load"] < 100, extra
