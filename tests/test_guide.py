"""Every example of the Python API guide for the names that exist, on every scheme; only the bucket's name is another."""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import numpy as np
import pytest
import torch

import s3dlio

from .conftest import Place, S3Place
from .servers import SeaweedFS


@pytest.fixture
def level() -> Iterator[None]:
    """The level of the log is what it was."""
    logger = logging.getLogger("s3dlio")
    before, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(before)
    logger.handlers[:] = handlers


def test_quick_start(place: Place, level: None) -> None:
    bucket = place.root.rstrip("/")
    s3dlio.init_logging("info")

    s3dlio.put_bytes(f"{bucket}/data.bin", b"Hello, World!")

    data = s3dlio.get(f"{bucket}/data.bin")
    assert len(data) == 13
    assert bytes(data) == b"Hello, World!"

    chunk = s3dlio.get_range(f"{bucket}/data.bin", offset=0, length=5)
    assert bytes(chunk) == b"Hello"

    s3dlio.put_bytes(f"{bucket}/prefix/a", b"")
    assert s3dlio.list(f"{bucket}/prefix/") == [f"{bucket}/prefix/a"]

    metadata = s3dlio.stat(f"{bucket}/data.bin")
    assert f"Size: {metadata['size']} bytes" == "Size: 13 bytes"

    if s3dlio.exists(f"{bucket}/data.bin"):
        s3dlio.delete(f"{bucket}/data.bin")
    assert place.keys() == ["prefix/a"]


def test_configure_s3(s3_place: S3Place, s3_environment: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_CA_BUNDLE"):
        monkeypatch.setenv(name, "")  # and what the example sets is taken back
    my_bucket = s3_place.root.rstrip("/")
    s3_place.put("file.bin", b"content")

    s3dlio.configure_s3(
        endpoint_url=s3_environment.tls_url,
        region="us-east-1",
        ca_bundle=str(s3_environment.ca_bundle),
    )
    assert os.environ["AWS_ENDPOINT_URL"] == s3_environment.tls_url
    assert os.environ["AWS_DEFAULT_REGION"] == "us-east-1"
    assert os.environ["AWS_CA_BUNDLE"] == str(s3_environment.ca_bundle)

    keys = s3dlio.list(f"{my_bucket}/", recursive=False)
    data = s3dlio.get(f"{my_bucket}/file.bin")
    s3dlio.put_bytes(f"{my_bucket}/out.bin", data)
    info = s3dlio.stat(f"{my_bucket}/file.bin")
    s3dlio.delete(f"{my_bucket}/file.bin")
    assert (keys, info["size"], s3_place.keys(), s3_place.get("out.bin")) == (
        [f"{my_bucket}/file.bin"],
        7,
        ["out.bin"],
        b"content",
    )


def test_core_storage_operations(place: Place, tmp_path: Path) -> None:
    bucket = place.root.rstrip("/")
    s3dlio.put_bytes(f"{bucket}/key", b"data")

    (tmp_path / "local_file.bin").write_bytes(bytes(range(256)) * 32)
    with open(tmp_path / "local_file.bin", "rb") as f:
        s3dlio.put_bytes(f"{bucket}/key", f.read())
    asyncio.run(s3dlio.put_bytes_async(f"{bucket}/other", b"data"))

    data = s3dlio.get(f"{bucket}/key")
    mv = memoryview(data)
    arr = numpy.frombuffer(data, dtype=np.uint8)
    raw = bytes(data)
    assert len(data) == len(mv) == len(arr) == len(raw) == 8192

    chunk = s3dlio.get_range(f"{bucket}/key", offset=1024, length=4096)
    tail = s3dlio.get_range(f"{bucket}/key", offset=1024)
    assert (chunk, tail) == (raw[1024:5120], raw[1024:])

    for key in ("prefix/file1.dat", "prefix/file2.dat", "prefix/deep/x.npz"):
        s3dlio.put_bytes(f"{bucket}/{key}", b"x")
    uris = s3dlio.list(f"{bucket}/prefix/")
    assert uris == [f"{bucket}/prefix/deep/", f"{bucket}/prefix/file1.dat", f"{bucket}/prefix/file2.dat"]
    assert f"{bucket}/prefix/deep/x.npz" in s3dlio.list(f"{bucket}/prefix/", recursive=True)
    assert s3dlio.list(f"{bucket}/prefix/", pattern="*.dat") == uris[1:]

    meta = s3dlio.stat(f"{bucket}/key")
    assert (type(meta["size"]), type(meta["last_modified"]), type(meta["etag"])) == (int, str, str)
    meta = asyncio.run(s3dlio.stat_async(f"{bucket}/key"))
    metas = asyncio.run(s3dlio.stat_many_async([f"{bucket}/key", f"{bucket}/other"]))
    assert [meta["size"], *(each["size"] for each in metas)] == [8192, 8192, 4]

    assert s3dlio.exists(f"{bucket}/key")
    assert asyncio.run(s3dlio.exists_async(f"{bucket}/key"))
    s3dlio.delete(f"{bucket}/key")
    assert not s3dlio.exists(f"{bucket}/key")

    s3dlio.mkdir(f"{bucket}/output/subdir")
    asyncio.run(s3dlio.mkdir_async(f"{bucket}/prefix2/"))
    assert {f"{bucket}/output/", f"{bucket}/prefix2/"} <= set(s3dlio.list(bucket))


def test_zero_copy_data_flow(place: Place) -> None:
    place.put("model_weights.bin", np.arange(1000, dtype=np.float32).tobytes())
    data = s3dlio.get(f"{place.root}model_weights.bin")
    mv = memoryview(data)
    weights = np.frombuffer(data, dtype=np.float32)
    tensor = torch.frombuffer(data, dtype=torch.float32)
    tensor[1] = 77
    assert (weights[1], mv.nbytes, bytes(data)[4:8]) == (77, 4000, np.float32(77).tobytes())


def test_batch_operations(place: Place) -> None:
    bucket = place.root.rstrip("/")
    items = [
        (f"{bucket}/file1.bin", b"data1"),
        (f"{bucket}/file2.bin", b"data2"),
        (f"{bucket}/file3.bin", b"data3"),
    ]
    s3dlio.put_many(items)
    asyncio.run(s3dlio.put_many_async(items))

    uris = [f"{bucket}/file1.bin", f"{bucket}/file2.bin"]
    results = s3dlio.get_many(uris, workers=64)
    assert results == asyncio.run(s3dlio.get_many_async(uris)) == [b"data1", b"data2"]


def test_bucket_management(s3_environment: SeaweedFS) -> None:
    name = f"my-bucket-{uuid.uuid4().hex}"
    s3dlio.create_bucket(name)
    s3dlio.delete_bucket(name)


def test_thread_safety(place: Place) -> None:
    data = bytes(1000)

    def upload_one(i: int) -> None:
        s3dlio.put_bytes(f"{place.root}obj_{i}.bin", data)

    with ThreadPoolExecutor(max_workers=16) as pool:
        list(pool.map(upload_one, range(200)))
    assert len(place.keys()) == 200


def test_helpers(place: Place) -> None:
    for name in ("file1.bin", "file2.bin"):
        place.put(f"prefix/{name}", b"x")
    assert s3dlio.list_keys(f"{place.root}prefix/") == ["file1.bin", "file2.bin"]
    assert s3dlio.list_full_uris(f"{place.root}prefix/") == s3dlio.list(f"{place.root}prefix/")
    assert s3dlio.get_object(f"{place.root}prefix/file1.bin") == b"x"
    assert s3dlio.stat_object(f"{place.root}prefix/file1.bin")["size"] == 1


def test_npz_files(place: Place) -> None:
    import io

    file = io.BytesIO()
    np.savez(file, x=np.arange(5))
    place.put("data.npz", file.getvalue())
    data = s3dlio.get(f"{place.root}data.npz")
    with np.load(io.BytesIO(bytes(data))) as arrays:
        assert arrays["x"].tolist() == [0, 1, 2, 3, 4]


def test_large_objects_come_in_ranges(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3DLIO_ENABLE_RANGE_OPTIMIZATION", "1")
    monkeypatch.setenv("S3DLIO_RANGE_THRESHOLD_MB", "1")
    monkeypatch.setenv("S3DLIO_RANGE_CONCURRENCY", "32")
    monkeypatch.setenv("S3DLIO_CHUNK_SIZE", "1048576")
    content = bytes(range(256)) * 40_000
    place.put("large-checkpoint.bin", content)
    assert s3dlio.get(f"{place.root}large-checkpoint.bin") == content
