"""`file://` and `direct://` on a real disk: odd names, links, permissions, full disks, crashes, forks."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import s3dlio
from s3dlio.storage import local, open_store
from s3dlio.storage.base import Read
from s3dlio.uri import parse

from .conftest import LocalPlace, eventually

Run = Callable[..., subprocess.CompletedProcess[str]]
needs_bytes_as_names = pytest.mark.skipif(sys.platform != "linux", reason="this file system takes UTF-8 names only")


def everything_in(folder: Path) -> list[str]:
    """All names below `folder`, hidden and temporary ones too."""
    return sorted(os.path.relpath(path, folder) for path in folder.rglob("*"))


class TestNames:
    @needs_bytes_as_names
    def test_an_undecodable_name_is_listed_and_read(self, local_place: LocalPlace) -> None:
        with open(os.fsencode(local_place.folder) + b"/bad\xff.bin", "wb") as file:
            file.write(b"x")
        local_place.put("good", b"y")
        uris = s3dlio.list(local_place.root, recursive=True)
        assert uris == [local_place.root + "bad\udcff.bin", local_place.root + "good"]
        assert [bytes(view) for view in s3dlio.get_many(uris)] == [b"x", b"y"]
        assert s3dlio.list_keys(local_place.root, pattern="bad?.bin") == ["bad\udcff.bin"]
        s3dlio.put_bytes(uris[0], b"new")
        assert s3dlio.stat(uris[0])["size"] == 3
        s3dlio.delete(uris[0])
        assert everything_in(local_place.folder) == ["good"]

    @pytest.mark.parametrize("name", ["x" * 255, "é" * 127 + "x", "日" * 85], ids=["ascii", "two bytes", "three bytes"])
    def test_the_longest_name_is_written_and_read(self, local_place: LocalPlace, name: str) -> None:
        s3dlio.put_bytes(local_place.root + name, b"x")
        with s3dlio.open_writer(local_place.root + name) as writer:
            writer.write(b"y" * 10)
        assert s3dlio.get(local_place.root + name) == b"y" * 10
        assert everything_in(local_place.folder) == [name]

    @pytest.mark.parametrize("verb", [s3dlio.get, s3dlio.stat, lambda uri: s3dlio.put_bytes(uri, b"x"), s3dlio.mkdir])
    def test_a_longer_name_is_an_error_that_names_it(self, local_place: LocalPlace, verb: Callable[[str], object]) -> None:
        with pytest.raises(s3dlio.S3dlioError) as caught:
            verb(local_place.root + "x" * 256)
        assert local_place.root + "x" * 256 in str(caught.value)

    def test_a_newline_in_a_name(self, local_place: LocalPlace) -> None:
        s3dlio.put_bytes(local_place.root + "a\nb/c\nd", b"x")
        assert s3dlio.list(local_place.root, recursive=True) == [local_place.root + "a\nb/c\nd"]
        assert s3dlio.list_keys(local_place.root, pattern="a*") == ["a\nb/"]
        assert s3dlio.get(local_place.root + "a\nb/c\nd") == b"x"

    def test_a_relative_path_is_resolved_when_it_is_used(
        self, local_place: LocalPlace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(local_place.folder)
        scheme = local_place.root.partition("://")[0]
        s3dlio.put_bytes(f"{scheme}://sub/k", b"x")
        with s3dlio.open_writer(f"{scheme}://bare") as writer:
            writer.write(b"y")
        assert everything_in(local_place.folder) == ["bare", "sub", "sub/k"]
        assert s3dlio.list(f"{scheme}://sub") == [f"{scheme}://sub/k"]
        assert s3dlio.get(f"{scheme}://./bare") == b"y"
        s3dlio.delete(f"{scheme}://sub", recursive=True)
        assert everything_in(local_place.folder) == ["bare"]


class TestLinks:
    @pytest.fixture
    def outside(self, tmp_path: Path) -> Path:
        folder = tmp_path / "outside"
        folder.mkdir()
        (folder / "precious").write_bytes(b"gold")
        return folder

    def test_a_delete_removes_links_and_follows_none(self, local_place: LocalPlace, outside: Path) -> None:
        tree = local_place.folder / "tree"
        tree.mkdir()
        (tree / "to-dir").symlink_to(outside)
        (tree / "to-file").symlink_to(outside / "precious")
        (tree / "dangling").symlink_to("nowhere")
        (local_place.folder / "link").symlink_to(outside)
        s3dlio.delete(local_place.root + "tree", recursive=True)
        s3dlio.delete(local_place.root + "link", recursive=True)
        assert everything_in(local_place.folder) == []
        assert everything_in(outside) == ["precious"]

    def test_a_slash_behind_a_link_does_not_reach_its_target(self, local_place: LocalPlace, outside: Path) -> None:
        (local_place.folder / "link").symlink_to(outside)
        with pytest.raises(s3dlio.S3dlioError, match="link/"):
            s3dlio.delete(local_place.root + "link/")
        s3dlio.delete(local_place.root + "link/", recursive=True)
        assert everything_in(local_place.folder) == []
        assert everything_in(outside) == ["precious"]

    def test_delete_without_recursive_removes_the_link(self, local_place: LocalPlace, outside: Path) -> None:
        for name, target in (("to-dir", outside), ("to-file", outside / "precious"), ("dangling", Path("nowhere"))):
            (local_place.folder / name).symlink_to(target)
            s3dlio.delete(local_place.root + name)
        assert everything_in(local_place.folder) == []
        assert everything_in(outside) == ["precious"]

    def test_a_listing_follows_links_once(self, local_place: LocalPlace, outside: Path) -> None:
        (local_place.folder / "to-dir").symlink_to(outside)
        (local_place.folder / "to-file").symlink_to(outside / "precious")
        assert s3dlio.list_keys(local_place.root, recursive=True) == ["to-dir/precious", "to-file"]
        assert s3dlio.get(local_place.root + "to-dir/precious") == b"gold"

    def test_links_that_lead_nowhere_are_left_out_of_listings(self, local_place: LocalPlace) -> None:
        local_place.put("good", b"x")
        (local_place.folder / "dangling").symlink_to("nowhere")
        (local_place.folder / "self").symlink_to("self")
        (local_place.folder / "through-a-file").symlink_to("good/below")
        (local_place.folder / "too-long").symlink_to("x" * 300)
        for recursive in (True, False):
            assert s3dlio.list_keys(local_place.root, recursive=recursive) == ["good"]
        for name in ("dangling", "self", "through-a-file"):
            assert not s3dlio.exists(local_place.root + name)
            with pytest.raises(s3dlio.NotFoundError, match=name):
                s3dlio.get(local_place.root + name)

    def test_a_link_to_a_directory_above_ends(self, local_place: LocalPlace) -> None:
        local_place.put("a/b/x", b"x")
        (local_place.folder / "a/b/up").symlink_to(local_place.folder)
        (local_place.folder / "a/b/here").symlink_to(".")
        assert s3dlio.list_keys(local_place.root, recursive=True) == ["a/b/x"]
        assert "up/" in s3dlio.list_keys(local_place.root + "a/b/")

    def test_writing_through_a_link_replaces_what_it_names(self, local_place: LocalPlace, outside: Path) -> None:
        link = local_place.folder / "link"
        link.symlink_to(outside / "precious")
        s3dlio.put_bytes(local_place.root + "link", b"new")
        assert link.is_symlink()
        assert (outside / "precious").read_bytes() == b"new"
        assert everything_in(outside) == ["precious"]

    def test_writing_through_a_link_in_a_circle_is_refused(self, local_place: LocalPlace) -> None:
        (local_place.folder / "self").symlink_to("self")
        with pytest.raises(s3dlio.S3dlioError, match="self"):
            s3dlio.put_bytes(local_place.root + "self", b"x")
        assert everything_in(local_place.folder) == ["self"]
        assert os.readlink(local_place.folder / "self") == "self"


class TestVanishing:
    def test_a_file_that_vanishes_during_the_walk_is_left_out(
        self, local_place: LocalPlace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("a", "b", "c"):
            local_place.put(f"dir/{name}", b"x")
        scandir = os.scandir

        def vanishing(path: str) -> object:
            entries = scandir(path)
            names = list(entries)
            if path.endswith("dir/"):
                os.unlink(path + "b")
                os.symlink(path + "b", path + "b")  # d_type says file, stat says otherwise
                os.unlink(path + "b")

            class Entries:
                def __enter__(self) -> Iterator[os.DirEntry[str]]:
                    return iter(names)

                def __exit__(self, *exc: object) -> None:
                    entries.close()

            return Entries()

        monkeypatch.setattr(os, "scandir", vanishing)
        assert s3dlio.list_keys(local_place.root + "dir/", recursive=True) == ["a", "c"]

    def test_a_directory_that_vanishes_during_the_walk_is_left_out(
        self, local_place: LocalPlace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for key in ("dir/a", "dir/gone/x", "dir/z"):
            local_place.put(key, b"x")
        identity = local.LocalStore._identity

        def vanishing(store: local.LocalStore, directory: str) -> tuple[int, int] | None:
            found = identity(store, directory)
            if directory.endswith("gone/"):
                shutil.rmtree(directory)
            return found

        monkeypatch.setattr(local.LocalStore, "_identity", vanishing)
        assert s3dlio.list_keys(local_place.root + "dir/", recursive=True) == ["a", "z"]

    def test_a_file_that_is_truncated_while_it_is_read_is_an_error(
        self, local_place: LocalPlace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        local_place.put("k", bytes(100_000))
        preadv = os.preadv

        def truncating(fd: int, buffers: list[memoryview], offset: int) -> int:
            os.truncate(local_place.folder / "k", 10)
            monkeypatch.setattr(os, "preadv", preadv)
            return preadv(fd, buffers, offset)

        store, key = open_store(parse(local_place.root)), parse(local_place.root).key + "k"
        monkeypatch.setattr(os, "preadv", truncating)
        with pytest.raises((s3dlio.ChangedError, s3dlio.IncompleteReadError), match="k"):
            store.read(Read(key, 0, None, lambda _, count: memoryview(bytearray(count))))


class TestPermissions:
    @pytest.fixture(params=["file", "direct"])
    def shared(self, request: pytest.FixtureRequest) -> Iterator[LocalPlace]:
        """A folder of the test's own user, outside pytest's folders, which are closed to others."""
        folder = Path(tempfile.mkdtemp(prefix="s3dlio-test-"))
        folder.chmod(0o755)
        yield LocalPlace(request.param, folder)
        for path in folder.rglob("*"):
            if path.is_dir():
                path.chmod(0o755)
        shutil.rmtree(folder)

    def closed(self, shared: LocalPlace, mode: int) -> Path:
        """A directory that the unprivileged user may not use, though root made it."""
        shared.put("closed/k", b"old")
        path = shared.folder / "closed"
        path.chmod(mode)
        return path

    def test_an_object_that_may_not_be_read(self, shared: LocalPlace, request: pytest.FixtureRequest) -> None:
        shared.put("k", b"x")
        (shared.folder / "k").chmod(0)
        request.getfixturevalue("unprivileged")
        for verb in (s3dlio.get, s3dlio.open_reader, lambda uri: s3dlio.get_many([uri])):
            with pytest.raises(s3dlio.AccessDeniedError) as caught:
                verb(shared.root + "k")
            assert isinstance(caught.value, PermissionError)
            assert shared.root + "k" in str(caught.value)
        assert s3dlio.stat(shared.root + "k")["size"] == 1

    def test_a_directory_that_may_not_be_entered(self, shared: LocalPlace, request: pytest.FixtureRequest) -> None:
        path = self.closed(shared, 0)
        request.getfixturevalue("unprivileged")
        uri = shared.root + "closed/k"
        verbs: list[Callable[[], object]] = [
            lambda: s3dlio.get(uri),
            lambda: s3dlio.stat(uri),
            lambda: s3dlio.exists(uri),  # a refusal is no "not there"
            lambda: s3dlio.put_bytes(uri, b"new"),
            lambda: s3dlio.put_many([(uri, b"new")]),
            lambda: s3dlio.delete(uri),
            lambda: s3dlio.delete(uri, recursive=True),
            lambda: s3dlio.mkdir(uri + "/below"),
            lambda: s3dlio.list(shared.root + "closed/"),
            lambda: s3dlio.list(shared.root + "closed"),
            lambda: s3dlio.list(shared.root, recursive=True),
            lambda: s3dlio.open_writer(uri).close(),
        ]
        for verb in verbs:
            with pytest.raises(s3dlio.AccessDeniedError, match=str(path)):
                verb()

    def test_a_directory_that_may_not_be_written(self, shared: LocalPlace, request: pytest.FixtureRequest) -> None:
        path = self.closed(shared, 0o555)
        request.getfixturevalue("unprivileged")
        for verb in (
            lambda: s3dlio.put_bytes(shared.root + "closed/new", b"x"),
            lambda: s3dlio.put_bytes(shared.root + "closed/k", b"x"),
            lambda: s3dlio.delete(shared.root + "closed/k"),
            lambda: s3dlio.delete(shared.root + "closed", recursive=True),
        ):
            with pytest.raises(s3dlio.AccessDeniedError, match="closed"):
                verb()
        assert everything_in(path) == ["k"]
        assert shared.get("closed/k") == b"old"

    def test_anothers_file_in_a_sticky_directory_stays(self, shared: LocalPlace, request: pytest.FixtureRequest) -> None:
        if os.geteuid() != 0:
            return  # one user alone cannot make another's file; CI runs as root
        path = self.closed(shared, 0o1777)
        request.getfixturevalue("unprivileged")
        with pytest.raises(s3dlio.AccessDeniedError, match="closed/k"):
            s3dlio.put_bytes(shared.root + "closed/k", b"new")
        s3dlio.put_bytes(shared.root + "closed/mine", b"new")
        assert everything_in(path) == ["k", "mine"]
        assert shared.get("closed/k") == b"old"

    def test_a_read_only_file_is_replaced_as_rename_does(self, local_place: LocalPlace) -> None:
        local_place.put("k", b"old")
        (local_place.folder / "k").chmod(0o444)
        s3dlio.put_bytes(local_place.root + "k", b"new")
        assert local_place.get("k") == b"new"

    @pytest.mark.parametrize(("umask", "mode"), [(0o027, 0o640), (0o022, 0o644), (0o077, 0o600)])
    def test_the_mode_follows_the_umask(self, local_place: LocalPlace, umask: int, mode: int) -> None:
        before = os.umask(umask)
        try:
            s3dlio.put_bytes(local_place.root + "put", b"x")
            with s3dlio.open_writer(local_place.root + "written") as writer:
                writer.write(b"x")
        finally:
            os.umask(before)
        for name in ("put", "written"):
            assert (local_place.folder / name).stat().st_mode & 0o777 == mode


class TestFullDisk:
    """A tmpfs of 2 MiB where root may mount one; else the system calls say that the disk is full."""

    @pytest.fixture(params=["file", "direct"])
    def small(self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalPlace]:
        folder = tmp_path / "small"
        folder.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True, check=False
        )
        place = LocalPlace(request.param, folder)
        if mounted.returncode == 0:
            yield place
            subprocess.run(["umount", "--lazy", folder], check=True)
            return
        pwrite, left = os.pwrite, 2 << 20

        def limited(fd: int, data: memoryview, offset: int) -> int:
            nonlocal left
            if left < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            left -= len(data)
            return pwrite(fd, data, offset)

        monkeypatch.setattr(os, "pwrite", limited)
        yield place

    @pytest.mark.filterwarnings("ignore:the file system of direct")
    def test_the_old_object_stays_and_nothing_is_left(self, small: LocalPlace) -> None:
        s3dlio.put_bytes(small.root + "k", b"old")
        big = bytes(4 << 20)
        writer = s3dlio.open_writer(small.root + "k")
        for write in (
            lambda: s3dlio.put_bytes(small.root + "k", big),
            lambda: s3dlio.put_many([(small.root + "k", big)]),
            lambda: (writer.write(big), writer.close()),
        ):
            with pytest.raises(s3dlio.OutOfSpaceError, match="No space left") as caught:
                write()
            assert small.root + "k" in str(caught.value)
            assert everything_in(small.folder) == ["k"]
            assert s3dlio.get(small.root + "k") == b"old"
        with pytest.raises(s3dlio.S3dlioError, match="not published"):
            writer.close()

    @pytest.mark.filterwarnings("ignore:the file system of direct")
    def test_after_some_space_is_freed_it_works(self, small: LocalPlace) -> None:
        with pytest.raises(s3dlio.OutOfSpaceError):
            s3dlio.put_many([(f"{small.root}k{number}", bytes(900_000)) for number in range(4)], max_in_flight=1)
        written = s3dlio.list(small.root)
        assert [s3dlio.stat(uri)["size"] for uri in written] == [900_000] * len(written)
        assert everything_in(small.folder) == [uri[len(small.root) :] for uri in written]

    def test_a_file_size_limit_is_an_error_that_names_the_object(self, local_place: LocalPlace, run_python: Run) -> None:
        local_place.put("k", b"old")
        done = run_python(
            "import resource, signal, sys, s3dlio\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
            "try: s3dlio.put_bytes(sys.argv[1], bytes(4 << 20))\n"
            "except s3dlio.S3dlioError as exc: print(exc)",
            local_place.root + "k",
        )
        assert local_place.root + "k" in done.stdout, done.stderr
        assert everything_in(local_place.folder) == ["k"]
        assert local_place.get("k") == b"old"


class TestElsewhere:
    def test_the_temporary_file_is_in_the_targets_own_directory(self, local_place: LocalPlace, run_python: Run) -> None:
        done = run_python(
            "import os, sys, s3dlio\n"
            "rename = os.rename\n"
            "os.rename = lambda old, new: (print(os.path.dirname(old), os.path.basename(old)), rename(old, new))\n"
            "s3dlio.put_bytes(sys.argv[1], b'x')\n"
            "w = s3dlio.open_writer(sys.argv[1]); w.write(b'y'); w.close()",
            local_place.root + "sub/k",
            TMPDIR="/nonexistent",
        )
        assert done.returncode == 0, done.stderr
        for line in done.stdout.splitlines():
            directory, _, name = line.partition(" ")
            assert directory == str(local_place.folder / "sub")
            assert local._TEMPORARY.fullmatch(name)
            assert name.startswith(".k.s3dlio-")

    def test_another_file_system_is_no_obstacle(self, run_python: Run) -> None:
        if not os.path.isdir("/dev/shm"):
            return  # only Linux has it
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            s3dlio.put_bytes(f"file://{folder}/d/f", b"x")
            assert s3dlio.get(f"file://{folder}/d/f") == b"x"


ENDS_OF_A_CHILD = ("w.abort()", "del w; gc.collect()", "sys.exit(0)", "os._exit(0)")
REFUSED_TO_A_CHILD = tuple(
    f"try:\n        {call}\n    except s3dlio.S3dlioError:\n        os._exit(0)\n    os._exit(1)"
    for call in ("w.write(b'x')", "w.close()")
)


class TestCrash:
    """Whatever ends a writer, the old object stays, and nothing half written is ever listed."""

    WAYS = (
        ("put_bytes", "s3dlio.put_bytes(uri, bytes(1 << 20))"),
        ("writer", "w = s3dlio.open_writer(uri); w.write(bytes(20 << 20)); w.close()"),
    )

    @pytest.mark.parametrize("way", [code for _, code in WAYS], ids=[name for name, _ in WAYS])
    def test_kill_in_the_middle_of_writing(self, local_place: LocalPlace, run_python: Run, way: str) -> None:
        local_place.put("k", b"old")
        done = run_python(
            "import os, signal, sys, s3dlio\n"
            "uri, pwrite = sys.argv[1], os.pwrite\n"
            "def dying(fd, data, offset):\n"
            "    pwrite(fd, data[:4096], offset)\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
            "os.pwrite = dying\n" + way,
            local_place.root + "k",
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert local_place.get("k") == b"old"
        assert len(everything_in(local_place.folder)) == 2, "the kill came before the temporary file"
        for recursive in (True, False):
            assert s3dlio.list_keys(local_place.root, recursive=recursive) == ["k"]

    def test_kill_between_writing_and_publishing(self, local_place: LocalPlace, run_python: Run) -> None:
        done = run_python(
            "import os, signal, sys, s3dlio\n"
            "os.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
            "s3dlio.put_bytes(sys.argv[1], b'complete')",
            local_place.root + "k",
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert s3dlio.list(local_place.root, recursive=True) == []
        assert not s3dlio.exists(local_place.root + "k")

    @pytest.mark.parametrize("way", ["sys.exit(3)", "raise ValueError('user')", "pass", "w.abort()", "os.kill(0, 2)"])
    def test_an_exit_publishes_nothing_and_leaves_nothing(self, local_place: LocalPlace, run_python: Run, way: str) -> None:
        local_place.put("k", b"old")
        done = run_python(
            "import os, sys, s3dlio\n"
            "os.setpgid(0, 0)\n"
            "w = s3dlio.open_writer(sys.argv[1]); w.write(bytes(9 << 20)); w.write(b'rest')\n"
            "assert len(os.listdir(os.path.dirname(w.uri.partition('://')[2]))) == 2\n" + way,
            local_place.root + "k",
        )
        assert "AssertionError" not in done.stderr
        assert everything_in(local_place.folder) == ["k"]
        assert local_place.get("k") == b"old"

    def test_an_exception_in_the_block_passes_unchanged(self, local_place: LocalPlace) -> None:
        local_place.put("k", b"old")
        mine = KeyError("mine")

        def save() -> None:
            with s3dlio.open_writer(local_place.root + "k") as writer:
                writer.write(bytes(9 << 20))
                raise mine

        with pytest.raises(KeyError) as caught:
            save()
        assert caught.value is mine
        assert everything_in(local_place.folder) == ["k"]
        assert local_place.get("k") == b"old"

    def test_garbage_collection_drops_what_was_written(self, local_place: LocalPlace) -> None:
        writer = s3dlio.open_writer(local_place.root + "k")
        writer.write(bytes(9 << 20))
        assert len(everything_in(local_place.folder)) == 1
        del writer
        gc.collect()
        assert eventually(lambda: everything_in(local_place.folder) == [])

    @pytest.mark.parametrize("end", [*ENDS_OF_A_CHILD, *REFUSED_TO_A_CHILD])
    def test_a_forked_child_leaves_the_parents_writer_alone(
        self, local_place: LocalPlace, run_python: Run, end: str
    ) -> None:
        done = run_python(
            "import gc, os, sys, s3dlio\n"
            "w = s3dlio.open_writer(sys.argv[1]); w.write(bytes(9 << 20))\n"
            "pid = os.fork()\n"
            f"if pid == 0:\n    {end}\n    os._exit(0)\n"
            "assert os.waitpid(pid, 0)[1] == 0\n"
            "w.write(b'end'); w.close()\n",
            local_place.root + "k",
        )
        assert done.returncode == 0, done.stderr
        content = local_place.get("k")
        assert content is not None
        assert (len(content), content[-3:]) == ((9 << 20) + 3, b"end")
        assert everything_in(local_place.folder) == ["k"]

    def test_a_durable_write_is_synced_before_it_is_published(
        self, local_place: LocalPlace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps: list[str] = []
        fsync, rename = os.fsync, os.rename

        def noted_fsync(fd: int) -> None:
            steps.append("directory" if os.path.isdir(f"/proc/self/fd/{fd}") else "file")
            fsync(fd)

        def noted_rename(old: str, new: str) -> None:
            steps.append("rename")
            rename(old, new)

        monkeypatch.setattr(os, "fsync", noted_fsync)
        monkeypatch.setattr(os, "rename", noted_rename)
        with s3dlio.open_writer(local_place.root + "k") as writer:
            writer.write(b"x")
        assert steps == ["file", "rename", "directory"]
        steps.clear()
        s3dlio.put_bytes(local_place.root + "k", b"y")
        assert steps == ["rename"]

    def test_directories_that_a_writer_made_are_durable_too(
        self, local_place: LocalPlace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each name lies in the directory above it."""
        synced: list[str] = []
        fsync = os.fsync

        def noted(fd: int) -> None:
            synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), local_place.folder))
            fsync(fd)

        monkeypatch.setattr(os, "fsync", noted)
        with s3dlio.open_writer(local_place.root + "a/b/k") as writer:
            writer.write(b"x")
        assert synced[1:] == ["a/b", "a", "."]

    def test_a_failed_rename_leaves_the_old_object_and_no_temporary_file(
        self, local_place: LocalPlace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        local_place.put("k", b"old")

        def failing(old: str, new: str) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "rename", failing)
        for write in (
            lambda: s3dlio.put_bytes(local_place.root + "k", b"new"),
            lambda: s3dlio.open_writer(local_place.root + "k").close(),
        ):
            with pytest.raises(s3dlio.S3dlioError, match="k"):
                write()
        assert everything_in(local_place.folder) == ["k"]
        assert local_place.get("k") == b"old"

    def test_concurrent_writers_of_one_name_leave_one_whole_object(self, local_place: LocalPlace) -> None:
        contents = [bytes([65 + number]) * 100_000 for number in range(6)]
        barrier = threading.Barrier(len(contents))

        def write(content: bytes) -> None:
            barrier.wait()
            for _ in range(5):
                s3dlio.put_bytes(local_place.root + "k", content)
                assert bytes(s3dlio.get(local_place.root + "k")) in contents

        threads = [threading.Thread(target=write, args=(content,)) for content in contents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert local_place.get("k") in contents
        assert everything_in(local_place.folder) == ["k"]


def test_no_descriptor_stays_open(local_place: LocalPlace) -> None:
    def use() -> None:
        s3dlio.put_bytes(local_place.root + "k", b"x")
        s3dlio.get(local_place.root + "k")
        s3dlio.list(local_place.root, recursive=True)
        for bad in (local_place.root + "missing", local_place.root):
            with pytest.raises(s3dlio.S3dlioError):
                s3dlio.get(bad)
        with pytest.raises(s3dlio.S3dlioError):
            s3dlio.put_bytes(local_place.root + "k/below", b"x")
        writer = s3dlio.open_writer(local_place.root + "w")
        writer.write(bytes(9 << 20))
        writer.abort()

    use()
    before = os.listdir("/dev/fd")
    use()
    assert os.listdir("/dev/fd") == before


def test_a_tree_of_a_thousand_levels_is_listed_and_deleted(local_place: LocalPlace) -> None:
    path = "d/" * 1200
    here = os.open(local_place.folder, os.O_RDONLY)
    try:
        for _ in range(1200):
            os.mkdir("d", dir_fd=here)
            below = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(os.open("k", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    finally:
        os.close(here)
    assert s3dlio.list(local_place.root, recursive=True) == [f"{local_place.root}{path}k"]
    s3dlio.delete(local_place.root + "d", recursive=True)
    assert list(local_place.folder.iterdir()) == []


def test_a_writer_of_a_relative_path_publishes_where_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    with s3dlio.open_writer("file://k") as file:
        file.write(bytes(9 << 20))
        monkeypatch.chdir(tmp_path / "there")
    assert (tmp_path / "k").stat().st_size == 9 << 20


def test_what_tells_no_size_is_not_taken_for_empty() -> None:
    with pytest.raises(s3dlio.ChangedError, match=r"file:///proc/self/status"):
        s3dlio.get("file:///proc/self/status")


def test_there_are_no_versions_to_ask_for(local_place: LocalPlace) -> None:
    local_place.put("k", b"x")
    for call in (s3dlio.get, s3dlio.stat):
        with pytest.raises(s3dlio.ConfigError, match="keeps no versions"):
            call(local_place.root + "k", version_id="1")


def test_an_absolute_path_needs_no_working_directory(
    local_place: LocalPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    s3dlio.put_bytes(local_place.root + "k", b"x")
    assert local_place.get("k") == b"x"


def test_a_marker_may_be_asked_to_be_new(local_place: LocalPlace) -> None:
    s3dlio.put_bytes(local_place.root + "d/", b"", if_absent=True)
    with pytest.raises(s3dlio.PreconditionFailedError, match="d/"):
        s3dlio.put_bytes(local_place.root + "d/", b"", if_absent=True)
    s3dlio.put_bytes(local_place.root + "d/", b"")
