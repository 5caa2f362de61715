"""kill -9 at random moments of a save: what `latest_checkpoint` names always loads, bit by bit, and so does the one before.

20 trials of each kind, half of them on each scheme; `scripts/soak` runs more (`--kills`).
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

import s3dlio
from s3dlio.checkpoint import retention

from .conftest import LocalPlace, Place, S3Place
from .saver import state

NUM_FLOATS = {("s3", 1): 1_400_000, ("s3", 2): 200_000, ("file", 1): 250_000, ("file", 2): 150_000}
PART_BYTES = {"s3": 5 << 20, "file": 64 << 10}  # 2 parts, 1 request; 16 and 10 parts


@pytest.fixture(params=["file", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "s3":
        place: S3Place = request.getfixturevalue("s3_place")
        return place
    return LocalPlace("file", tmp_path)


@pytest.fixture
def saver(place: Place) -> Iterator[subprocess.Popen[str]]:
    """The process that forks the victims; it has the environment of this test."""
    command = [sys.executable, "-m", "tests.saver"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=30)


expected = lru_cache(maxsize=8)(state)


def is_right(found: dict[str, Any], number: int, num_floats: int) -> bool:
    whole = expected(number, num_floats)
    return found["number"] == number and all(torch.equal(found[name], whole[name]) for name in ("first", "second"))


def number_of(uri: str) -> int:
    found = re.search(r"step_(\d+)", uri)
    assert found is not None
    return int(found[1])


def require_single(uri: str, num_floats: int) -> int:
    """The checkpoint loads and is one that was saved; returns its number."""
    found = s3dlio.load_checkpoint_with_validation(uri, ["number"])
    assert is_right(found, found["number"], num_floats)
    return int(found["number"])


def require_distributed(uri: str, num_floats: int) -> int:
    shards = s3dlio.load_checkpoint(uri)
    number = shards[0]["number"] // 10
    assert [shard["rank"] for shard in shards] == [0, 1]
    assert all(is_right(shard, number * 10 + rank, num_floats) for rank, shard in enumerate(shards)), "two saves are mixed"
    return int(number)


def run_trial(saver: subprocess.Popen[str], **command: Any) -> int:
    assert saver.stdin is not None
    assert saver.stdout is not None
    saver.stdin.write(json.dumps(command) + "\n")
    saver.stdin.flush()
    return int(json.loads(saver.stdout.readline()))


@pytest.mark.parametrize(
    ("world_size", "require"), [(1, require_single), (2, require_distributed)], ids=["single", "two ranks"]
)
def test_kill_at_random_moments(
    place: Place, saver: subprocess.Popen[str], world_size: int, require: Any, num_kills: int
) -> None:
    choose = random.Random(0)
    scheme = place.root.partition(":")[0]
    num_floats, current = NUM_FLOATS[scheme, world_size], place.root + ("current.pt" if world_size == 1 else "current/")
    last = 0
    for attempt in range(max(1, num_kills // 2)):
        numbers = list(range(last + 1, last + 4))
        told = run_trial(
            saver,
            root=place.root,
            numbers=numbers,
            num_floats=num_floats,
            part_bytes=PART_BYTES[scheme],
            wait_for=int(attempt == 0),
            moments=[choose.uniform(0, 1.5) for _ in range(world_size)],
            attempt=f"{attempt}",
        )
        steps = s3dlio.list_checkpoints(place.root, "step_*")
        latest = s3dlio.latest_checkpoint(place.root, "step_*")
        assert latest == (steps[-1].uri if steps else None)
        if latest is not None:
            assert require(latest, num_floats) == number_of(latest) >= max(told, last)
            last = number_of(latest)
        for before in steps[-2:-1]:
            assert require(before.uri, num_floats) == number_of(before.uri)
        if s3dlio.latest_checkpoint(place.root, "current*") is not None:
            assert max(told, 0) <= require(current, num_floats) <= last
        retention._loaded.clear()  # else what was looked at here is kept
        s3dlio.keep_last(place.root, 3, pattern="step_*", stale_after=0)
        assert len(s3dlio.list_checkpoints(place.root, "step_*")) == min(3, len(steps))
    left = [name for name in sorted(place.keys()) if not re.match(r"(step_\d+|current)(\.pt$|/)", name)]
    assert left == [], "keep_last has swept what the dead have left"
    if isinstance(place, S3Place):
        assert place.uploads() == []
