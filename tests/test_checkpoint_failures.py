"""A save that fails raises what failed, in bounded time and memory, and the checkpoint before still loads."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import s3dlio
from s3dlio import errors
from s3dlio.checkpoint import checked
from s3dlio.storage import open_store
from s3dlio.storage.memory import MemoryStore, MemoryUpload
from s3dlio.uri import parse

from .conftest import Place, S3Place
from .fake_s3 import Request
from .faults import Fault, FaultServer, failing
from .servers import READ_ONLY_KEY, READ_ONLY_SECRET
from .test_checkpoints import finalize, has_all, is_state, save_all, state

pytestmark = pytest.mark.filterwarnings("ignore:the file system of direct")

MIB = 1024 * 1024
BIG = 3_000_000  # floats: 12 MB, two parts


def both_fail(root: str, kind: type[Exception], match: str) -> None:
    """Neither kind of save succeeds, and what was there before is there still."""
    with pytest.raises(kind, match=match):
        s3dlio.save_checkpoint(root + "single", state(9, BIG))
    with pytest.raises(kind, match=match):
        save_all_big(root + "d/")


def save_all_big(base: str) -> None:
    for rank in range(2):
        s3dlio.save_distributed_shard(f"{base}shard_{rank}.bin", state(9 + rank, BIG), rank, 2)
    finalize(base)


def save_before(root: str) -> None:
    s3dlio.save_checkpoint(root + "single", state(1))
    save_all(root + "d/", 5)
    finalize(root + "d/")


def require_before(root: str) -> None:
    assert is_state(s3dlio.load_checkpoint(root + "single"), 1)
    assert has_all(root + "d/", 5)
    assert {found.uri for found in s3dlio.list_checkpoints(root)} == {root + "single", root + "d/"}


@pytest.fixture
def tired(short_pauses: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails for ever is given up soon; what is only slow, as on a busy machine, is not."""
    monkeypatch.setenv("S3DLIO_OPERATION_TIMEOUT_SECS", "0.8")


@pytest.fixture
def fault_root(faults: FaultServer, tired: None) -> Iterator[str]:
    root = "s3://bkt/"
    save_before(root)
    yield root
    faults.decide = lambda _: None
    require_before(root)
    assert faults.s3.uploads == {}


@pytest.mark.parametrize("verb", ["CREATE", "PART", "COMPLETE"])
@pytest.mark.parametrize(
    ("fault", "kind"),
    [(failing(503, "SlowDown"), errors.ThrottledError), (failing(403, "AccessDenied"), errors.AccessDeniedError)],
    ids=["503 storm", "403"],
)
def test_a_failing_step_of_an_upload(
    faults: FaultServer, fault_root: str, verb: str, fault: Fault, kind: type[Exception]
) -> None:
    faults.decide = lambda request: fault if request.verb == verb else None
    both_fail(fault_root, kind, "s3://bkt/")


def test_a_part_that_fails_in_the_middle_of_the_archive(faults: FaultServer, fault_root: str) -> None:
    """The first parts are stored; torch, which goes on to end its archive, does not hide the reason."""
    faults.decide = lambda request: failing(500, "InternalError") if request.verb == "PART" and is_part(request, 2) else None
    both_fail(fault_root, errors.S3dlioError, "500 InternalError")


def is_part(request: Request, number: int) -> bool:
    return request.query.get("partNumber") == str(number)


@pytest.mark.parametrize("name", ["s3dlio-shard.json", "s3dlio-manifest.json"])
def test_facts_or_a_manifest_that_cannot_be_put(faults: FaultServer, fault_root: str, name: str) -> None:
    faults.decide = lambda request: (
        failing(503, "SlowDown") if request.method == "PUT" and request.key.endswith(name) else None
    )
    with pytest.raises(errors.ThrottledError, match=name):
        save_all_big(fault_root + "d/")


def test_a_shard_that_fails_leaves_nothing(faults: FaultServer, tired: None) -> None:
    faults.decide = lambda request: failing(403, "AccessDenied") if request.verb == "PART" else None
    with pytest.raises(errors.AccessDeniedError):
        s3dlio.save_distributed_shard("s3://bkt/d/shard_0.bin", state(1, BIG), 0, 1)
    faults.decide = lambda _: None
    assert s3dlio.list("s3://bkt/d/", recursive=True) == []


def test_an_error_of_the_users_own_data_stays_what_it_is(place: Place) -> None:
    s3dlio.save_checkpoint(place.root + "k", state(1))

    class Unpicklable:
        def __reduce__(self) -> Any:
            raise KeyError("mine")

    for save in (
        lambda data: s3dlio.save_checkpoint(place.root + "k", data),
        lambda data: s3dlio.save_distributed_shard(place.root + "d/s", data, 0, 1),
    ):
        with pytest.raises(KeyError, match="mine"):
            save({"a": torch.ones(BIG), "b": Unpicklable()})
    assert is_state(s3dlio.load_checkpoint(place.root + "k"), 1)
    assert place.keys() == ["k"]


def test_a_read_only_prefix(s3_place: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    save_before(s3_place.root)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", READ_ONLY_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", READ_ONLY_SECRET)
    both_fail(s3_place.root, errors.AccessDeniedError, s3_place.root)
    with pytest.raises(errors.AccessDeniedError):
        s3dlio.delete_checkpoint(s3_place.root + "d/")
    require_before(s3_place.root)


def test_a_read_only_directory(request: pytest.FixtureRequest) -> None:
    folder = Path(tempfile.mkdtemp(prefix="s3dlio-"))  # that of the test run may be entered by its owner only
    folder.chmod(0o755)
    try:
        save_before(f"file://{folder}/")
        for path in (folder / "d", folder):
            path.chmod(0o555)
        request.getfixturevalue("unprivileged")
        both_fail(f"file://{folder}/", errors.AccessDeniedError, str(folder))
        require_before(f"file://{folder}/")
    finally:
        os.seteuid(os.getuid())
        for path in (folder, folder / "d"):
            path.chmod(0o755)
        shutil.rmtree(folder)


@pytest.mark.parametrize("scheme", ["file", "direct"])
def test_a_file_that_may_not_grow(scheme: str, tmp_path: Path) -> None:
    """O43 by a limit on the size of files, which needs no rights, in a child."""
    root = f"{scheme}://{tmp_path}/"
    save_before(root)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4 * MIB, 4 * MIB))
            both_fail(root, errors.S3dlioError, root)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    require_before(root)
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".tmp")]


def test_a_full_disk(tmp_path: Path) -> None:
    """O43 on a tmpfs of 8 MiB, where one can be mounted."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no rights to mount; test_a_file_that_may_not_grow stands for it")
    try:
        root = f"file://{folder}/"
        save_before(root)
        both_fail(root, errors.OutOfSpaceError, "No space left")
        require_before(root)
        assert sorted(path.name for path in folder.rglob("*.tmp")) == []
        s3dlio.save_checkpoint(root + "single", state(2))
        assert is_state(s3dlio.load_checkpoint(root + "single"), 2)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


class Counting(MemoryUpload):
    """Knows how many bytes of parts are on their way at most, apart from those in the caller's own memory."""

    largest = 0

    def part(self, number: int, offset: int, data: Any) -> None:
        Counting.largest = max(Counting.largest, sum(buffer.nbytes for buffer in data))
        MemoryUpload.part(self, number, offset, [memoryview(b"")])


@pytest.mark.parametrize("compress", [False, True])
def test_saving_takes_memory_for_parts_only(compress: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 MB in one tensor, and small ones, to a store that keeps nothing: the peak is a few parts, not the model."""
    import tracemalloc

    store = open_store(parse("memory://nothing-kept/"))
    assert isinstance(store, MemoryStore)
    monkeypatch.setattr(MemoryStore, "begin_upload", lambda self, key: Counting(self, key))
    noise = torch.frombuffer(bytearray(os.urandom(4 * MIB)), dtype=torch.uint8)
    model = {"large": noise.repeat(25), "small": [noise[start::1000].clone() for start in range(1000)] * 2}
    limit = 2 * 8 * MIB * store.limits.parallel_parts
    tracemalloc.start()
    s3dlio.save_checkpoint("memory://nothing-kept/k", {"warm": noise}, compress)
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    s3dlio.save_checkpoint("memory://nothing-kept/k", model, compress)
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert Counting.largest >= 8 * MIB
    assert peak < limit


def test_loading_a_shard_reads_each_byte_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checksum needs no second look at it."""
    s3dlio.save_distributed_shard(place.root + "s", state(1, BIG), 0, 1)
    finalize(place.root, 1)
    size = max(s3dlio.stat(uri)["size"] for uri in s3dlio.list(place.root))
    num_bytes = 0
    request, fill = checked.ObjectReader._request, checked.ObjectReader._next_bytes

    def counted(self: Any, start: int, length: int, match: str | None) -> Any:
        nonlocal num_bytes
        info, view = request(self, start, length, match)
        num_bytes += view.nbytes
        return info, view

    def filled(self: Any, into: memoryview, position: int) -> int:
        nonlocal num_bytes
        copied = self._copy(into, position)
        count = copied or fill(self, into, position)
        if not copied and into.nbytes >= MIB:
            num_bytes += count
        return count

    monkeypatch.setattr(checked.ObjectReader, "_request", counted)
    monkeypatch.setattr(checked.ObjectReader, "_next_bytes", filled)
    assert is_state(s3dlio.load_checkpoint(place.root)[0], 1, BIG)
    assert size <= num_bytes < 1.15 * size


class TestProgress:
    def test_one_line_with_bytes_seconds_and_speed(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        uri = f"file://{tmp_path}/k"
        s3dlio.save_checkpoint(uri, state(1), progress=True)
        s3dlio.load_checkpoint(uri, progress=True)
        s3dlio.save_distributed_shard(f"file://{tmp_path}/d/s", state(1), 0, 1, progress=True)
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 3
        for line, words in zip(lines, (f"save {uri}", f"load {uri}", f"rank 0: save file://{tmp_path}/d/s"), strict=True):
            assert re.fullmatch(rf"{re.escape(words)}: [1-9]\d{{3,}} bytes in \d+\.\d\d s, \d+\.\d MB/s", line)

    def test_it_is_silent_unless_asked_and_after_a_failure(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        uri = f"file://{tmp_path}/k"
        s3dlio.save_checkpoint(uri, state(1))
        s3dlio.load_checkpoint(uri)
        with pytest.raises(errors.NotFoundError):
            s3dlio.load_checkpoint(uri + "2", progress=True)
        assert capsys.readouterr() == ("", "")

    def test_a_bar_on_a_terminal(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        from s3dlio import progress

        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        monkeypatch.setattr(progress, "REDRAW_SECONDS", 0.0)
        with progress.Progress("load x", shown=True, total=100) as shown:
            shown.advance(50)
            shown.advance(70)
        with progress.Progress("save y", shown=True, rank=3) as shown:
            shown.advance(2_500_000)
        text = capsys.readouterr().err
        assert f"\rload x [{'#' * 15:30}]  50%" in text
        assert f"[{'#' * 30}] 100%" in text
        assert "\rrank 3: save y 2.5 MB" in text
