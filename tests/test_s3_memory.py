"""What reading and writing large objects on `s3://` costs in memory, and that no upload is left behind."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import pytest

import s3dlio

from .conftest import S3Place

Run = Callable[..., Any]

# Peak: the largest resident size since the last reset.
PEAK = """
import sys, s3dlio
MIB = 2**20
def reset():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))
root = sys.argv[1]
"""
READ = """
content = memoryview(bytes(range(256)) * (50 * MIB // 256))
uris = [f"{root}{number:02d}" for number in range(12)]
for uri in uris:
    s3dlio.put_bytes(uri, content)
del content
reset()
for first in range(0, 24, 8):
    views = s3dlio.get_many((uris + uris)[first : first + 8], workers=8)
    assert [len(view) for view in views] == [50 * MIB] * 8
    assert all(view[0] == 0 and view[-1] == 255 for view in views)
    del views
peak = status("VmHWM")
assert peak < (8 * 50 + 150) * MIB, peak / MIB
from s3dlio import ObjectStoreIterableDataset  # with PyTorch, which counts for itself
before = status("VmRSS")
reset()
assert sum(view.nbytes for view in ObjectStoreIterableDataset(root, prefetch=8)) == 600 * MIB
peak = status("VmHWM") - before
assert peak < (8 * 50 + 150) * MIB, peak / MIB
"""
TORCH = """
import torch
state = {str(number): torch.full((16 * MIB,), number, dtype=torch.float32) for number in range(8)}
reset()
before = status("VmRSS")
with s3dlio.open_writer(root + "model.pt") as file:
    torch.save(state, file)
added = status("VmHWM") - before
assert added < 200 * MIB, added / MIB
del state
reset()
before = status("VmRSS")
with s3dlio.open_reader(root + "model.pt") as file:
    state = torch.load(file, weights_only=True)
added = status("VmHWM") - before - 512 * MIB
assert added < 100 * MIB, added / MIB
assert all((tensor == int(name)).all() for name, tensor in state.items())
"""


def test_a_window_of_eight_large_objects_costs_eight_of_them(new_bucket: str, run_python: Run) -> None:
    s3dlio.create_bucket(new_bucket)
    done = run_python(PEAK + READ, f"s3://{new_bucket}/", timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_checkpoint_streams_in_both_directions(new_bucket: str, run_python: Run) -> None:
    s3dlio.create_bucket(new_bucket)
    done = run_python(PEAK + TORCH, f"s3://{new_bucket}/", timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


class TestNothingIsLeftBehind:
    """What ends a writer other than `close` leaves the old object and no pending upload."""

    PIECE = bytes(9 * 2**20)

    def check(self, place: S3Place) -> None:
        deadline = time.monotonic() + 30
        while place.uploads() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert (place.uploads(), place.keys(), place.get("k")) == ([], ["k"], b"old")

    @pytest.fixture
    def uri(self, s3_place: S3Place) -> str:
        s3_place.put("k", b"old")
        return s3_place.root + "k"

    def begun(self, uri: str, place: S3Place) -> Any:
        writer = s3dlio.open_writer(uri)
        writer.write(self.PIECE)
        writer.write(self.PIECE)
        assert place.uploads() == ["k"]
        return writer

    def test_an_exception(self, uri: str, s3_place: S3Place) -> None:
        with pytest.raises(KeyError, match="mine"), self.begun(uri, s3_place):
            raise KeyError("mine")
        self.check(s3_place)

    def test_an_abort(self, uri: str, s3_place: S3Place) -> None:
        writer = self.begun(uri, s3_place)
        writer.abort()
        writer.abort()
        writer.close()
        self.check(s3_place)

    def test_a_collected_writer(self, uri: str, s3_place: S3Place) -> None:
        writer = self.begun(uri, s3_place)
        del writer
        gc.collect()
        self.check(s3_place)

    @pytest.mark.parametrize("end", ["pass", "sys.exit(0)", "raise KeyError('mine')", "os.kill(os.getpid(), 2)"])
    def test_the_end_of_the_process(self, uri: str, s3_place: S3Place, run_python: Run, end: str) -> None:
        code = (
            "import os, sys, s3dlio\n"
            "writer = s3dlio.open_writer(sys.argv[1])\n"
            "writer.write(bytes(9 * 2**20)); writer.write(bytes(9 * 2**20))\n"
            f"{end}\n"
        )
        run_python(code, uri)
        self.check(s3_place)

    def test_a_part_that_the_server_refuses(self, uri: str, s3_place: S3Place) -> None:
        writer = self.begun(uri, s3_place)
        name = {"Bucket": s3_place.bucket, "Key": s3_place.prefix + "k"}
        (upload,) = [
            entry["UploadId"]
            for entry in s3_place.client.list_multipart_uploads(Bucket=s3_place.bucket)["Uploads"]
            if entry["Key"] == name["Key"]
        ]
        s3_place.client.abort_multipart_upload(**name, UploadId=upload)
        with pytest.raises(s3dlio.NotFoundError, match="NoSuchUpload") as caught:
            self.go_on(writer)
        assert uri in str(caught.value)
        self.check(s3_place)
        with pytest.raises(s3dlio.S3dlioError, match="k"):
            writer.close()

    def go_on(self, writer: Any) -> None:
        for _ in range(5):
            writer.write(self.PIECE)
        writer.close()

    def test_an_empty_writer_makes_an_empty_object(self, uri: str, s3_place: S3Place) -> None:
        with s3dlio.open_writer(uri):
            pass
        assert (s3_place.get("k"), s3_place.uploads()) == (b"", [])
