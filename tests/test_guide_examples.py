"""The Python API guide's examples of the verbs on objects, as they stand there, on every scheme.

Only the URIs are put where the test may write; an `await` at the top runs in a loop.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import logging
import re
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import s3dlio

from .conftest import Place

BUCKETS = re.compile("s3://my-bucket/|s3://bucket/|file:///tmp/|file:///data/|direct:///data/")
WEIGHTS = np.arange(2_000, dtype=np.float32).tobytes()


@pytest.fixture(autouse=True)
def quiet_again() -> Iterator[None]:
    """Undo what `init_logging` does to the process."""
    log = logging.getLogger("s3dlio")
    level, handlers = log.level, log.handlers[:]
    yield
    log.setLevel(level)
    log.handlers[:] = handlers


def run(place: Place, code: str, **names: object) -> dict[str, Any]:
    """Run an example; returns the names that it leaves."""
    code = BUCKETS.sub(lambda _: place.root, code)
    scope: dict[str, Any] = {"s3dlio": s3dlio, "asyncio": asyncio, "np": np, "numpy": np, **names}
    compiled = compile(textwrap.dedent(code), "<guide>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if compiled.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(compiled, scope))
    else:
        exec(compiled, scope)
    return scope


def test_quick_start(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.put("prefix/x", b"x")
    left = run(
        place,
        """
        import s3dlio

        # Initialize logging (optional)
        s3dlio.init_logging("info")  # Options: trace, debug, info, warn, error

        # Put data to storage — works with S3, Azure, GCS, local filesystem
        s3dlio.put_bytes("s3://my-bucket/data.bin", b"Hello, World!")
        s3dlio.put_bytes("file:///tmp/local.bin", b"Local data")

        # Get data — returns BytesView (zero-copy from Rust memory)
        data = s3dlio.get("s3://my-bucket/data.bin")
        print(len(data))       # 13
        print(bytes(data))     # b'Hello, World!'

        # Range request — server-side, only fetches needed bytes
        chunk = s3dlio.get_range("s3://my-bucket/data.bin", offset=0, length=5)

        # List objects — returns full URIs
        objects = s3dlio.list("s3://my-bucket/prefix/")

        # Metadata
        metadata = s3dlio.stat("s3://my-bucket/data.bin")
        print(f"Size: {metadata['size']} bytes")

        # Check existence
        if s3dlio.exists("s3://my-bucket/data.bin"):
            s3dlio.delete("s3://my-bucket/data.bin")
        """,
    )
    assert capsys.readouterr().out == "13\nb'Hello, World!'\nSize: 13 bytes\n"
    assert left["chunk"] == b"Hello"
    assert left["objects"] == [place.root + "prefix/x"]
    assert sorted(place.keys()) == ["local.bin", "prefix/x"]
    assert place.get("local.bin") == b"Local data"


def test_init_logging_takes_each_level_of_the_guide() -> None:
    for level in ("trace", "debug", "info", "warn", "error"):
        assert s3dlio.init_logging(level) is None


def test_calls_after_configure(place: Place) -> None:
    place.put("file.bin", b"abc")
    left = run(
        place,
        """
        keys  = s3dlio.list("s3://my-bucket/", recursive=False)
        data  = s3dlio.get("s3://my-bucket/file.bin")
        s3dlio.put_bytes("s3://my-bucket/out.bin", data)
        info  = s3dlio.stat("s3://my-bucket/file.bin")
        s3dlio.delete("s3://my-bucket/file.bin")
        """,
    )
    assert left["keys"] == [place.root + "file.bin"]
    assert left["info"]["size"] == 3
    assert (place.keys(), place.get("out.bin")) == (["out.bin"], b"abc")


def test_put_bytes(place: Place, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "local_file.bin").write_bytes(b"from a file")
    monkeypatch.chdir(tmp_path)
    run(
        place,
        """
        # Upload bytes to any backend
        s3dlio.put_bytes("s3://bucket/key", b"data")

        # Upload from file
        with open("local_file.bin", "rb") as f:
            s3dlio.put_bytes("s3://bucket/key2", f.read())

        # Async version (for use with asyncio)
        await s3dlio.put_bytes_async("s3://bucket/key3", b"data")
        """,
    )
    assert [place.get(key) for key in ("key", "key2", "key3")] == [b"data", b"from a file", b"data"]


def test_get(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.put("key", b"0123456789")
    left = run(
        place,
        """
        # Returns BytesView — zero-copy wrapper around Rust Bytes
        data = s3dlio.get("s3://bucket/key")

        # BytesView supports Python buffer protocol:
        mv = memoryview(data)                          # Zero-copy memoryview
        arr = numpy.frombuffer(data, dtype=np.uint8)   # Zero-copy NumPy array
        raw = bytes(data)                              # Creates a copy (only if needed)
        print(len(data))                               # Size in bytes
        """,
    )
    assert capsys.readouterr().out == "10\n"
    assert left["mv"] == left["raw"] == b"0123456789"
    left["arr"][0] = ord("x")
    assert (left["data"][0], left["mv"][0], left["raw"][0]) == (ord("x"), ord("x"), ord("0"))


def test_get_range(place: Place) -> None:
    content = bytes(range(256)) * 32
    place.put("key", content)
    left = run(
        place,
        """
        # Fetch only bytes 1024-5119 from the server (saves bandwidth)
        chunk = s3dlio.get_range("s3://bucket/key", offset=1024, length=4096)

        # Fetch from offset to end of object
        tail = s3dlio.get_range("s3://bucket/key", offset=1024)
        """,
    )
    assert (left["chunk"], left["tail"]) == (content[1024:5120], content[1024:])


def test_list(place: Place) -> None:
    for key in ("prefix/file1.dat", "prefix/file2.dat", "prefix/a.npz", "prefix/sub/b.npz", "prefix2/c.npz"):
        place.put(key, b"x")
    for start, names in (
        ("", ["a.npz", "file1.dat", "file2.dat", "sub/"]),
        (", recursive=True", ["a.npz", "file1.dat", "file2.dat", "sub/b.npz"]),
        (', pattern="*.npz"', ["a.npz"]),
    ):
        left = run(place, f'uris = s3dlio.list("s3://bucket/prefix/"{start})')
        assert left["uris"] == [f"{place.root}prefix/{name}" for name in names]


def test_stat(place: Place) -> None:
    for key in ("key", "a", "b"):
        place.put(key, b"abc" + key.encode())
    left = run(
        place,
        """
        meta = s3dlio.stat("s3://bucket/key")
        sizes = [meta['size'], meta['last_modified'], meta['etag']]

        # Async version
        meta = await s3dlio.stat_async("s3://bucket/key")

        # Batch stat (async)
        metas = await s3dlio.stat_many_async(["s3://bucket/a", "s3://bucket/b"])
        """,
    )
    assert [type(value) for value in left["sizes"]] == [int, str, str]
    assert left["meta"]["size"] == 6
    assert [meta["size"] for meta in left["metas"]] == [4, 4]


def test_exists_and_delete(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.put("key", b"x")
    left = run(
        place,
        """
        if s3dlio.exists("s3://bucket/key"):
            print("Found")

        # Async version
        found = await s3dlio.exists_async("s3://bucket/key")

        s3dlio.delete("s3://bucket/key")
        gone = not s3dlio.exists("s3://bucket/key")
        """,
    )
    assert capsys.readouterr().out == "Found\n"
    assert left["found"] is True
    assert left["gone"] is True


def test_mkdir(place: Place) -> None:
    run(
        place,
        """
        s3dlio.mkdir("file:///data/output/subdir")
        await s3dlio.mkdir_async("s3://bucket/prefix/")
        """,
    )
    assert s3dlio.list(place.root) == [place.root + "output/", place.root + "prefix/"]
    assert s3dlio.list(place.root + "output") == [place.root + "output/subdir/"]
    assert s3dlio.list(place.root + "prefix/") == []


def test_using_bytes_view(place: Place) -> None:
    place.put("model_weights.bin", WEIGHTS)
    left = run(
        place,
        """
        data = s3dlio.get("s3://bucket/model_weights.bin")

        # 1. Zero-copy memoryview (fastest — no allocation)
        mv = memoryview(data)

        # 2. Zero-copy NumPy array
        import numpy as np
        weights = np.frombuffer(data, dtype=np.float32)

        # 3. Zero-copy PyTorch tensor
        import torch
        tensor = torch.frombuffer(data, dtype=torch.float32)

        # 4. Convert to bytes (creates copy — only when needed)
        raw = bytes(data)
        """,
    )
    assert left["raw"] == WEIGHTS
    left["weights"][5] = -1.0
    assert left["tensor"][5].item() == -1.0
    assert left["mv"][20:24] == np.float32(-1.0).tobytes()
    assert left["raw"] == WEIGHTS


def test_put_many(place: Place) -> None:
    code = """
        # List of (uri, data) tuples
        items = [
            ("s3://bucket/file1.bin", b"data1"),
            ("s3://bucket/file2.bin", b"data2"),
            ("s3://bucket/file3.bin", b"data3"),
        ]
        """
    for call in ("s3dlio.put_many(items)", "await s3dlio.put_many_async(items)"):
        run(place, textwrap.dedent(code) + call)
        assert [place.get(f"file{number}.bin") for number in (1, 2, 3)] == [b"data1", b"data2", b"data3"]
        for number in (1, 2, 3):
            s3dlio.delete(f"{place.root}file{number}.bin")


def test_get_many(place: Place) -> None:
    for name in ("file1", "file2", "file3", "file1.npz", "file2.npz"):
        place.put(name, name.encode())
    left = run(
        place,
        """
        uris = ["s3://bucket/file1", "s3://bucket/file2", "s3://bucket/file3"]
        results = s3dlio.get_many(uris, workers=64)

        # Async version
        again = await s3dlio.get_many_async(uris)

        # O_DIRECT reads — bypass page cache (v0.9.95: now correctly uses O_DIRECT)
        direct = s3dlio.get_many(["direct:///data/file1.npz", "direct:///data/file2.npz"])
        """,
    )
    assert left["results"] == left["again"] == [b"file1", b"file2", b"file3"]
    assert left["direct"] == [b"file1.npz", b"file2.npz"]
    assert {type(view) for view in left["results"]} == {s3dlio.BytesView}


def test_thread_safety(place: Place) -> None:
    run(
        place,
        """
        from concurrent.futures import ThreadPoolExecutor

        def upload_one(i):
            s3dlio.put_bytes(f"s3://bucket/obj_{i}.bin", data)

        # 16 threads uploading concurrently — no runtime conflicts
        with ThreadPoolExecutor(max_workers=16) as pool:
            list(pool.map(upload_one, range(1000)))
        """,
        data=b"payload",
    )
    uris = s3dlio.list(place.root)
    assert sorted(uris) == sorted(f"{place.root}obj_{i}.bin" for i in range(1000))
    with ThreadPoolExecutor(max_workers=64) as pool:
        assert set(map(bytes, pool.map(s3dlio.get, uris))) == {b"payload"}


def test_npz(place: Place) -> None:
    import io

    buffer = io.BytesIO()
    np.savez(buffer, x=np.arange(6), y=np.eye(2))
    place.put("data.npz", buffer.getvalue())
    left = run(
        place,
        """
        # Read NumPy .npz files directly from any backend
        data = s3dlio.get("s3://bucket/data.npz")
        import numpy as np, io
        arrays = np.load(io.BytesIO(bytes(data)))
        """,
    )
    assert left["arrays"]["x"].tolist() == [0, 1, 2, 3, 4, 5]
    assert left["arrays"]["y"].tolist() == [[1, 0], [0, 1]]


def test_convenience_helpers(place: Place) -> None:
    for key in ("prefix/file1.bin", "prefix/file2.bin", "key"):
        place.put(key, b"x")
    left = run(
        place,
        """
        # list_keys — returns relative keys (not full URIs)
        keys = s3dlio.list_keys("s3://bucket/prefix/")  # ['file1.bin', 'file2.bin']

        # list_full_uris — returns full URIs (alias for list())
        uris = s3dlio.list_full_uris("s3://bucket/prefix/")

        # get_object — same as get()
        data = s3dlio.get_object("s3://bucket/key")

        # stat_object — same as stat()
        meta = s3dlio.stat_object("s3://bucket/key")
        """,
    )
    assert left["keys"] == ["file1.bin", "file2.bin"]
    assert left["uris"] == [place.root + "prefix/file1.bin", place.root + "prefix/file2.bin"]
    assert left["data"] == b"x"
    assert left["meta"] == s3dlio.stat(place.root + "key")


@pytest.mark.parametrize("threshold_mb", ["1", "64"])
def test_large_objects_with_the_range_options(place: Place, monkeypatch: pytest.MonkeyPatch, threshold_mb: str) -> None:
    monkeypatch.setenv("S3DLIO_ENABLE_RANGE_OPTIMIZATION", "1")
    monkeypatch.setenv("S3DLIO_RANGE_THRESHOLD_MB", threshold_mb)
    monkeypatch.setenv("S3DLIO_RANGE_CONCURRENCY", "32")
    monkeypatch.setenv("S3DLIO_CHUNK_SIZE", "1048576")
    content = WEIGHTS * 500
    place.put("large-checkpoint.bin", content)
    left = run(place, 'data = s3dlio.get("s3://bucket/large-checkpoint.bin")')
    assert left["data"] == content
