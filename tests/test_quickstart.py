"""The quickstart: what the README's first command runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil

from .conftest import S3Place

RECIPE = Path(__file__).parent.parent / "recipes" / "quickstart.py"


def _run(uri: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RECIPE), *options],
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, "S3DLIO_URI": uri},
        check=False,
    )


def test_digits_are_written_learned_and_the_killed_training_resumes_among_older_data(tmp_path: Path) -> None:
    old = tmp_path / "checkpoints" / "epoch-00099.pt"
    old.parent.mkdir()
    old.write_bytes(b"of another run")

    result = _run(f"file://{tmp_path}", "--epochs=3", "--keep")

    assert result.returncode == 0, result.stdout + result.stderr
    assert "wrote 1797 objects" in result.stdout
    assert re.findall(r"^epoch (\d): .* samples/s, .* MB/s, checkpoint saved$", result.stdout, re.MULTILINE) == list("123")
    assert "killed (SIGKILL) in epoch 2 of 3\nresumed from checkpoints/epoch-00001.pt" in result.stdout
    (found,) = re.findall(r"^accuracy (\d\.\d+) ", result.stdout, re.MULTILINE)
    assert float(found) >= 0.9
    (run,) = tmp_path.glob("run-*")
    assert len(list(run.glob("train/*"))) + len(list(run.glob("test/*"))) == 1797
    assert len(list(run.glob("checkpoints/*.pt"))) == 3
    left = [
        process.pid for process in psutil.process_iter(["cmdline"]) if str(run) in " ".join(process.info["cmdline"] or ())
    ]
    assert left == []


def test_it_runs_on_s3_and_leaves_nothing_behind(s3_place: S3Place) -> None:
    result = _run(s3_place.root, "--epochs=2")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "killed (SIGKILL) in epoch 2 of 2\nresumed from checkpoints/epoch-00001.pt" in result.stdout
    assert (s3_place.keys(), s3_place.uploads()) == ([], [])


def test_a_store_that_cannot_hold_it_is_refused_before_anything_is_written() -> None:
    result = _run("memory://bucket/")
    assert result.returncode == 2
    assert "memory:// lives in one process" in result.stderr
