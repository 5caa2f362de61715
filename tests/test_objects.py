"""The verbs on one URI: what they give, and what they say when they are used wrongly."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import s3dlio
from s3dlio.storage import local, open_store
from s3dlio.storage.base import HasDirectories
from s3dlio.uri import parse

from .conftest import LocalPlace, Place
from .contract import CONTENT, RANGES

Verb = Callable[[str], object]

READING: dict[str, Verb] = {
    "get": s3dlio.get,
    "get_object": s3dlio.get_object,
    "get_range": lambda uri: s3dlio.get_range(uri, 0, 1),
    "stat": s3dlio.stat,
    "stat_object": s3dlio.stat_object,
    "open_reader": s3dlio.open_reader,
    "get_many": lambda uri: s3dlio.get_many([uri]),
    "stat_many": lambda uri: s3dlio.stat_many([uri]),
}
WRITING: dict[str, Verb] = {
    "put_bytes": lambda uri: s3dlio.put_bytes(uri, b"x"),
    "put_many": lambda uri: s3dlio.put_many([(uri, b"x")]),
    "open_writer": lambda uri: write_through_writer(uri, b"x"),
}
ON_OBJECTS: dict[str, Verb] = {**READING, **WRITING, "exists": s3dlio.exists, "delete": s3dlio.delete, "mkdir": s3dlio.mkdir}
LISTING: dict[str, Verb] = {
    "list": s3dlio.list,
    "list_keys": s3dlio.list_keys,
    "list_full_uris": s3dlio.list_full_uris,
    "list recursive": lambda uri: s3dlio.list(uri, recursive=True),
    "delete recursive": lambda uri: s3dlio.delete(uri, recursive=True),
}
ALL = {**ON_OBJECTS, **LISTING}


def verbs(table: dict[str, Verb]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("verb", table.values(), ids=table.keys())


def write_through_writer(uri: str, data: object) -> None:
    with s3dlio.open_writer(uri) as writer:
        writer.write(data)


def has_directories(place: Place) -> bool:
    return isinstance(open_store(parse(place.root)), HasDirectories)


class TestWrongUris:
    @verbs(ALL)
    @pytest.mark.parametrize("uri", [None, 7, b"file:///x", Path("/x"), ["file:///x"]], ids=type)
    def test_what_is_no_string_is_a_type_error(self, verb: Verb, uri: object) -> None:
        with pytest.raises(TypeError, match="URI"):
            verb(uri)  # type: ignore[arg-type]

    @verbs(ALL)
    @pytest.mark.parametrize("uri", ["", "/tmp/x", "http://h/x", "s4://bucket/key", "file:/x", "://x", "memory:/b/k"])
    def test_an_unknown_scheme_is_named(self, verb: Verb, uri: str) -> None:
        with pytest.raises(s3dlio.ConfigError, match="scheme") as caught:
            verb(uri)
        assert repr(uri) in str(caught.value)

    @verbs(ALL)
    @pytest.mark.parametrize("uri", ["memory://", "memory:///key", "file://", "direct://", "s3:///key"])
    def test_an_empty_bucket_or_path_is_named(self, verb: Verb, uri: str) -> None:
        with pytest.raises(s3dlio.ConfigError) as caught:
            verb(uri)
        assert uri in str(caught.value)

    @verbs(ON_OBJECTS)
    @pytest.mark.parametrize("uri", ["memory://bucket", "memory://bucket/"])
    def test_a_bucket_is_no_object(self, verb: Verb, uri: str) -> None:
        with pytest.raises(s3dlio.ConfigError, match="bucket"):
            verb(uri)

    @verbs(ALL)
    @pytest.mark.parametrize("name", ["nul\0", "\ud800"], ids=["NUL", "lone surrogate"])
    def test_a_name_that_no_store_can_hold_is_refused(self, verb: Verb, place: Place, name: str) -> None:
        with pytest.raises(s3dlio.ConfigError, match="URI"):
            verb(place.root + name)
        assert s3dlio.list(place.root, recursive=True) == []


class TestWrongArguments:
    @pytest.mark.parametrize("value", ["0", 1.5, None, b"0", [0]], ids=repr)
    def test_an_offset_is_a_whole_number(self, place: Place, value: object) -> None:
        place.put("k", CONTENT)
        with pytest.raises(TypeError, match="offset"):
            s3dlio.get_range(place.root + "k", value)  # type: ignore[arg-type]
        if value is not None:
            with pytest.raises(TypeError, match="length"):
                s3dlio.get_range(place.root + "k", 0, value)  # type: ignore[arg-type]

    def test_a_negative_offset_or_length_is_a_value_error(self, place: Place) -> None:
        place.put("k", CONTENT)
        with pytest.raises(ValueError, match="offset=-1"):
            s3dlio.get_range(place.root + "k", -1)
        with pytest.raises(ValueError, match="length=-5"):
            s3dlio.get_range(place.root + "k", 0, -5)

    @pytest.mark.parametrize("data", ["text", 7, None, [1, 2], [b"x"], 1.5, {}, object()], ids=type)
    def test_a_payload_is_a_buffer_and_nothing_is_written_otherwise(self, place: Place, data: object) -> None:
        place.put("k", b"old")
        for write in (
            lambda: s3dlio.put_bytes(place.root + "k", data),
            lambda: s3dlio.put_many([(place.root + "other", b"fine"), (place.root + "k", data)]),
            lambda: write_through_writer(place.root + "k", data),
        ):
            with pytest.raises(TypeError, match=type(data).__name__):
                write()
        assert (place.keys(), place.get("k")) == (["k"], b"old")

    @pytest.mark.parametrize("pattern", [b"*", 7, ["*"]], ids=type)
    def test_a_pattern_is_a_string(self, place: Place, pattern: object) -> None:
        for verb in (s3dlio.list, s3dlio.list_keys, s3dlio.list_full_uris):
            with pytest.raises(TypeError, match="pattern"):
                verb(place.root, False, pattern)  # type: ignore[arg-type]

    def test_a_pattern_that_cannot_be_read_is_named(self, place: Place) -> None:
        with pytest.raises(s3dlio.ConfigError, match=r"re:\("):
            s3dlio.list(place.root, pattern="re:(")

    @pytest.mark.parametrize("level", [None, 3, "loud", ""], ids=repr)
    def test_a_log_level_is_one_of_five_words(self, level: object) -> None:
        with pytest.raises(s3dlio.ConfigError, match="trace, debug, info, warn, error"):
            s3dlio.init_logging(level)  # type: ignore[arg-type]


class TestMissing:
    @verbs(READING)
    def test_reading_what_is_not_there_names_it(self, place: Place, verb: Verb) -> None:
        place.put("k2", b"x")
        for name in ("k", "no/such/k", "k2/below"):
            with pytest.raises(s3dlio.NotFoundError) as caught:
                verb(place.root + name)
            assert isinstance(caught.value, FileNotFoundError)
            assert place.root + name in str(caught.value)

    def test_the_others_take_it_calmly(self, place: Place) -> None:
        uri = place.root + "no/such"
        s3dlio.delete(uri)
        s3dlio.delete(uri, recursive=True)
        assert s3dlio.exists(uri) is False
        assert (s3dlio.list(uri), s3dlio.list(uri + "/"), s3dlio.list(uri, recursive=True)) == ([], [], [])

    @verbs(READING)
    def test_a_prefix_is_no_object(self, place: Place, verb: Verb) -> None:
        place.put("dir/x", b"x")
        self.check_missing(place.root + "dir", verb)

    @verbs(READING)
    def test_a_prefix_with_its_slash_is_no_object(self, exact_place: Place, verb: Verb) -> None:
        exact_place.put("dir/x", b"x")
        self.check_missing(exact_place.root + "dir/", verb)

    def check_missing(self, uri: str, verb: Verb) -> None:
        with pytest.raises(s3dlio.NotFoundError) as caught:
            verb(uri)
        assert uri in str(caught.value)
        assert not s3dlio.exists(uri)


class TestDirectoriesInTheWay:
    @verbs(WRITING)
    def test_a_directory_is_not_overwritten(self, local_place: LocalPlace, verb: Verb) -> None:
        local_place.put("dir/x", b"x")
        with pytest.raises(s3dlio.S3dlioError) as caught:
            verb(local_place.root + "dir")
        assert local_place.root + "dir" in str(caught.value)
        assert local_place.keys() == ["dir/x"]

    @verbs({**WRITING, "mkdir": s3dlio.mkdir})
    def test_a_file_is_no_parent(self, local_place: LocalPlace, verb: Verb) -> None:
        local_place.put("file", b"old")
        for name in ("file/x", "file/x/y"):
            with pytest.raises(s3dlio.S3dlioError) as caught:
                verb(local_place.root + name)
            assert local_place.root + name in str(caught.value)
        assert (local_place.keys(), local_place.get("file")) == (["file"], b"old")

    def test_mkdir_on_a_file_is_refused(self, local_place: LocalPlace) -> None:
        local_place.put("file", b"old")
        with pytest.raises(s3dlio.PreconditionFailedError, match="file"):
            s3dlio.mkdir(local_place.root + "file")
        assert local_place.get("file") == b"old"


class TestSpecialFiles:
    """They neither block nor pass as objects, and are not replaced by files."""

    @pytest.fixture(params=["fifo", "socket"])
    def special(self, request: pytest.FixtureRequest, local_place: LocalPlace) -> str:
        if request.param == "fifo":
            os.mkfifo(local_place.folder / "fifo")
        else:
            here = os.open(local_place.folder, os.O_RDONLY)  # the path may exceed what a socket's name may have
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(f"/proc/self/fd/{here}/socket")
            os.close(here)
        return local_place.root + request.param

    @verbs(READING)
    def test_reading_one_ends_at_once_with_an_error(self, special: str, verb: Verb) -> None:
        for uri in (special, special.partition("://")[0] + ":///dev/zero"):
            with pytest.raises(s3dlio.S3dlioError) as caught:
                verb(uri)
            assert uri in str(caught.value)

    def test_it_does_not_exist_as_an_object(self, special: str) -> None:
        assert not s3dlio.exists(special)
        assert s3dlio.list(special.rpartition("/")[0] + "/", recursive=True) == []

    @verbs(WRITING)
    def test_writing_one_is_refused(self, special: str, verb: Verb) -> None:
        path = special.partition("://")[2]
        before = os.stat(path)
        with pytest.raises(s3dlio.S3dlioError) as caught:
            verb(special)
        assert special in str(caught.value)
        assert os.path.samestat(before, os.stat(path))
        assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]

    def test_it_can_be_deleted(self, special: str) -> None:
        s3dlio.delete(special)
        assert not os.path.lexists(special.partition("://")[2])


class TestReading:
    @pytest.mark.parametrize(("offset", "length"), RANGES)
    def test_get_range_is_the_slice(self, place: Place, offset: int, length: int | None) -> None:
        place.put("k", CONTENT)
        part = s3dlio.get_range(place.root + "k", offset, length)
        assert part == (CONTENT[offset:] if length is None else CONTENT[offset : offset + length])
        assert part.uri == place.root + "k"

    def test_get_range_takes_numpy_numbers(self, place: Place) -> None:
        place.put("k", CONTENT)
        assert s3dlio.get_range(place.root + "k", np.int64(3), np.uint8(5)) == CONTENT[3:8]  # type: ignore[arg-type]

    def test_get_gives_the_whole_object_and_its_uri(self, place: Place) -> None:
        for size in (0, 1, 4095, 4096, 10_000):
            place.put("k", CONTENT[:size])
            for verb in (s3dlio.get, s3dlio.get_object):
                view = verb(place.root + "k")
                assert (bytes(view), len(view), view.byte_count) == (CONTENT[:size], size, size)
                assert view.uri == place.root + "k"
                assert view.flags.writeable

    def test_stat_has_sixteen_facts(self, place: Place) -> None:
        place.put("k", CONTENT)
        facts = s3dlio.stat(place.root + "k")
        assert s3dlio.stat_object(place.root + "k") == facts
        assert len(facts) == 16
        assert facts["size"] == len(CONTENT)
        assert isinstance(facts["etag"], str)
        written = datetime.fromisoformat(facts["last_modified"])
        assert written.utcoffset() == timedelta(0)
        assert facts["last_modified"].endswith("Z")
        assert facts["metadata"] == {}


class TestWriting:
    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"bytes",
            bytearray(b"array"),
            memoryview(b"view"),
            memoryview(np.arange(6, dtype=np.float32)),
            np.arange(12, dtype=np.int16).reshape(3, 4),
            np.arange(12, dtype=np.int16).reshape(3, 4).T,
            np.arange(10, dtype=np.uint8)[::2],
            np.array(7.5),
            np.zeros((0, 4)),
        ],
        ids=["empty", "bytes", "bytearray", "memoryview", "floats", "2-D", "transposed", "strided", "0-D", "empty 2-D"],
    )
    def test_any_buffer_is_written_as_its_bytes(self, place: Place, data: object) -> None:
        s3dlio.put_bytes(place.root + "put", data)
        s3dlio.put_many([(place.root + "many", data)])
        write_through_writer(place.root + "writer", data)
        expected = memoryview(data).tobytes()  # type: ignore[arg-type]
        assert [place.get(key) for key in ("put", "many", "writer")] == [expected] * 3

    def test_a_view_from_get_can_be_put(self, place: Place) -> None:
        place.put("k", CONTENT)
        s3dlio.put_bytes(place.root + "copy", s3dlio.get(place.root + "k"))
        s3dlio.put_bytes(place.root + "part", s3dlio.get(place.root + "k")[100:5100])
        assert (place.get("copy"), place.get("part")) == (CONTENT, CONTENT[100:5100])

    def test_empty_data_replaces_the_old_object(self, place: Place) -> None:
        place.put("k", b"old")
        s3dlio.put_bytes(place.root + "k", b"")
        assert place.get("k") == b""
        assert s3dlio.stat(place.root + "k")["size"] == 0
        place.put("k", b"old")
        write_through_writer(place.root + "k", b"")
        assert place.get("k") == b""

    def test_parents_are_made(self, place: Place) -> None:
        s3dlio.put_bytes(place.root + "a/b/c", b"x")
        write_through_writer(place.root + "d/e/f", b"y")
        assert sorted(place.keys()) == ["a/b/c", "d/e/f"]


class TestListing:
    KEYS = ("data/1.npz", "data/2.txt", "data/sub/3.npz", "data2/3", "data.bak/4")

    @pytest.fixture
    def tree(self, place: Place) -> Place:
        for key in self.KEYS:
            place.put(key, b"x")
        return place

    def test_a_neighbour_is_never_listed(self, tree: Place) -> None:
        for uri in (tree.root + "data/", tree.root + "data"):
            assert s3dlio.list(uri, recursive=True) == [tree.root + key for key in self.KEYS[:3]]
            assert s3dlio.list(uri) == [tree.root + key for key in ("data/1.npz", "data/2.txt", "data/sub/")]
        assert s3dlio.list(tree.root + "dat") == []

    def test_a_name_without_slash_is_the_object_itself_too(self, tree: Place) -> None:
        assert s3dlio.list(tree.root + "data/1.npz") == [tree.root + "data/1.npz"]
        assert s3dlio.list_keys(tree.root + "data/1.npz") == ["1.npz"]
        assert s3dlio.list(tree.root + "data/1.npz/") == []

    def test_an_object_and_a_prefix_of_one_name_are_both_listed(self, tree: Place) -> None:
        if has_directories(tree):
            with pytest.raises(s3dlio.S3dlioError, match="data"):
                s3dlio.put_bytes(tree.root + "data", b"x")
            return
        tree.put("data", b"x")
        assert s3dlio.list(tree.root + "data", recursive=True) == [tree.root + key for key in ("data", *self.KEYS[:3])]
        assert s3dlio.list(tree.root) == [tree.root + key for key in ("data", "data.bak/", "data/", "data2/")]

    def test_each_listed_uri_can_be_read_or_listed(self, tree: Place) -> None:
        for uri in s3dlio.list(tree.root + "data/"):
            assert s3dlio.list(uri) if uri.endswith("/") else s3dlio.get(uri) == b"x"

    def test_list_keys_is_relative_and_list_full_uris_is_list(self, tree: Place) -> None:
        for uri in (tree.root + "data", tree.root + "data/"):
            assert s3dlio.list_keys(uri) == ["1.npz", "2.txt", "sub/"]
            assert s3dlio.list_keys(uri, recursive=True) == ["1.npz", "2.txt", "sub/3.npz"]
            assert s3dlio.list_full_uris(uri, True) == s3dlio.list(uri, True)

    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [
            ("*.npz", ["1.npz", "sub/3.npz"]),
            ("sub/*", ["sub/3.npz"]),
            ("*/*", ["sub/3.npz"]),
            ("**", ["1.npz", "2.txt", "sub/3.npz"]),
            ("**/3.npz", ["sub/3.npz"]),
            ("?.txt", ["2.txt"]),
            ("[12].*", ["1.npz", "2.txt"]),
            ("[!12].*", ["sub/3.npz"]),
            ("re:^\\d", ["1.npz", "2.txt"]),
            ("nothing", []),
            ("", []),
        ],
    )
    def test_a_pattern_chooses_among_the_relative_keys(self, tree: Place, pattern: str, expected: list[str]) -> None:
        assert s3dlio.list_keys(tree.root + "data/", recursive=True, pattern=pattern) == expected

    def test_markers_keep_their_slash(self, place: Place) -> None:
        s3dlio.mkdir(place.root + "train/cls0")
        s3dlio.mkdir(place.root + "train/cls0/")
        s3dlio.put_bytes(place.root + "train/cls0/1.jpg", b"x")
        markers = [] if has_directories(place) else ["train/cls0/"]
        found = s3dlio.list_keys(place.root, recursive=True)
        assert found == [*markers, "train/cls0/1.jpg"]
        assert s3dlio.list(place.root + "train/") == [place.root + "train/cls0/"]

    def test_many_keys_are_all_listed(self, place: Place) -> None:
        names = [f"{number:05d}" for number in range(2_503)]
        place.put_all(["p/" + name for name in names], b"")
        assert s3dlio.list_keys(place.root + "p/") == names
        assert s3dlio.list(place.root + "p") == [f"{place.root}p/{name}" for name in names]


class TestDeleting:
    def test_a_recursive_delete_touches_no_neighbour(self, place: Place) -> None:
        neighbours = ["data.bak/4", "data2/3", "other"]
        for uri in (place.root + "data", place.root + "data/"):
            for key in ("data/1", "data/a/b/2", *neighbours):
                place.put(key, b"x")
            s3dlio.delete(uri, recursive=True)
            assert sorted(place.keys()) == neighbours

    def test_wildcards_mean_themselves(self, place: Place) -> None:
        for key in ("a", "b", "*", "x/1", "x/2"):
            place.put(key, b"x")
        s3dlio.delete(place.root + "*")
        s3dlio.delete(place.root + "x/*")
        s3dlio.delete(place.root + "x/?", recursive=True)
        s3dlio.delete(place.root + "[ab]", recursive=True)
        assert sorted(place.keys()) == ["a", "b", "x/1", "x/2"]

    def test_a_directory_goes_only_when_empty_or_told(self, local_place: LocalPlace) -> None:
        local_place.put("dir/x", b"x")
        for name in ("dir", "dir/"):
            with pytest.raises(s3dlio.NotEmptyError, match="recursive=True"):
                s3dlio.delete(local_place.root + name)
        assert local_place.keys() == ["dir/x"]
        s3dlio.delete(local_place.root + "dir/x")
        s3dlio.delete(local_place.root + "dir/")
        assert not (local_place.folder / "dir").exists()

    def test_a_slash_behind_an_object_is_another_name(self, place: Place) -> None:
        place.put("k", b"x")
        s3dlio.delete(place.root + "k/")
        assert place.keys() == ["k"]

    def test_the_file_systems_root_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        removed: list[str] = []
        monkeypatch.setattr(local, "_remove_tree", removed.append)  # or a mistake would cost the machine
        for uri in ("file:///", "file:////", "direct:///", "file:///tmp/.."):
            with pytest.raises(s3dlio.ConfigError, match="root"):
                s3dlio.delete(uri, recursive=True)
        assert removed == []


def test_logging_tells_what_is_done(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run_python(
        "import s3dlio; s3dlio.init_logging('debug'); s3dlio.init_logging('DEBUG')\n"
        "s3dlio.put_bytes('memory://b/k', b'abc'); s3dlio.init_logging('error'); s3dlio.get('memory://b/k')"
    )
    assert [line.partition(": ")[2] for line in done.stderr.splitlines()] == ["put_bytes memory://b/k 3 bytes"]
