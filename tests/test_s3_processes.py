"""`s3://` across forks, in DataLoader workers of every start method, and what a process may hold: bytes and descriptors."""

from __future__ import annotations

import gc
import multiprocessing.forkserver
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader

import s3dlio
from s3dlio import ObjectStoreIterableDataset, ObjectStoreMapDataset

from .conftest import S3Place
from .servers import SeaweedFS

Run = Callable[..., Any]


@pytest.fixture(params=["http", "https"])
def either_place(
    request: pytest.FixtureRequest, s3_place: S3Place, s3_environment: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> S3Place:
    """The same place, plain and over TLS."""
    if request.param == "https":
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3_environment.tls_url)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(s3_environment.ca_bundle))
    return s3_place


# Each child proves its bytes by itself and tells by its exit code.
FORKS = """
import os, random, sys, threading
import s3dlio
root = sys.argv[1]
uris = [f"{root}{number:03d}" for number in range(100)]

def content(number):
    return (b"%03d" % number) * (1 + 13 * number)

def check(seed, count):
    choose = random.Random(seed)
    done = 0
    while done < count:
        numbers = [choose.randrange(100) for _ in range(choose.choice([1, 7, 40]))]
        if len(numbers) == 1:
            views = [s3dlio.get(uris[numbers[0]])]
        else:
            views = s3dlio.get_many([uris[number] for number in numbers], workers=choose.choice([1, 4, 16]))
        for number, view in zip(numbers, views, strict=True):
            assert view == content(number), number
        done += len(numbers)

s3dlio.put_many((uri, content(number)) for number, uri in enumerate(uris))
failed = []

def load(seed):
    try:
        check(seed, 625)
    except BaseException as exc:
        failed.append(exc)
        raise

check(0, 100)  # the parent has connections, and threads, and then more of them while it forks
threads = [threading.Thread(target=load, args=(seed,)) for seed in (1, 2)]
for thread in threads:
    thread.start()
children = []
for seed in range(8):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            check(100 + seed, 500)
            code = 0
        finally:
            os._exit(code)
    children.append(child)
load(3)
for thread in threads:
    thread.join()
assert not failed
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
check(4, 100)
"""


def test_forks_under_load_and_reading_at_once_get_right_bytes(either_place: S3Place, run_python: Run) -> None:
    """5,900 reads: 8 children are forked while three threads of the parent read; nothing hangs, no byte is wrong."""
    done = run_python(FORKS, either_place.root, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_child_leaves_its_parents_connections_alone(either_place: S3Place, run_python: Run) -> None:
    """A child that ends closes its descriptors only: the parent's connections serve on, none is made anew."""
    code = """
import os, sys, s3dlio
uri = sys.argv[1] + "k"
s3dlio.put_bytes(uri, b"x" * 1000)
def sockets():
    return sorted(os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
                  if os.path.islink(f"/proc/self/fd/{name}") and "socket" in os.readlink(f"/proc/self/fd/{name}"))
s3dlio.get(uri)
before = sockets()
for _ in range(5):
    child = os.fork()
    if child == 0:
        inherited = set(before) & set(sockets())
        os._exit(0 if s3dlio.get(uri) == b"x" * 1000 and not inherited else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert s3dlio.get(uri) == b"x" * 1000
assert sockets() == before, (before, sockets())
"""
    done = run_python(code, either_place.root)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def fresh_forkserver() -> Iterator[None]:
    """The server that children are forked from has the environment of this test, and no later test has this one's."""
    stop: Callable[[], None] = multiprocessing.forkserver._forkserver._stop  # type: ignore[attr-defined]
    stop()
    yield
    stop()


WORKERS = [("http", "fork", 4), ("https", "fork", 4), ("https", "spawn", 1), ("http", "forkserver", 1)]


@pytest.mark.parametrize(("either_place", "method", "num_workers"), WORKERS, indirect=["either_place"])
def test_workers_read_what_the_parent_has_listed_and_read(
    either_place: S3Place, fresh_forkserver: None, method: str, num_workers: int
) -> None:
    s3dlio.put_many((f"{either_place.root}{number:05}", b"%d" % number) for number in range(30))
    datasets = (ObjectStoreMapDataset(either_place.root), ObjectStoreIterableDataset(either_place.root, batch_size=4))
    for dataset in datasets:
        expected = numbers(DataLoader(dataset, batch_size=4))
        loader = DataLoader(dataset, batch_size=4, num_workers=num_workers, multiprocessing_context=method, timeout=60)
        assert numbers(loader) == expected
        assert numbers(DataLoader(dataset, batch_size=4)) == expected, "the parent still works"
        assert [number for batch in expected for number in batch] == list(range(30))


def numbers(batches: Any) -> list[list[int]]:
    return [[int(bytes(view)) for view in batch] for batch in batches]


def test_a_refusal_in_a_worker_arrives_as_itself(s3_place: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    s3dlio.put_many((f"{s3_place.root}{number}", b"x") for number in range(8))
    dataset = ObjectStoreMapDataset(s3_place.root)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    loader = DataLoader(dataset, batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=60)
    batches = iter(loader)
    with pytest.raises(s3dlio.AccessDeniedError, match="403 SignatureDoesNotMatch") as caught:
        next(batches)
    batches._shutdown_workers()  # type: ignore[attr-defined]  # in torch's cycle of exception and frames that takes 10 s
    assert s3_place.root in str(caught.value)
    assert "not-the-secret" not in str(caught.value)


def test_descriptors_stay_level(either_place: S3Place) -> None:
    """Over reads of every kind, early ends, errors, writers and workers: one connection per request in flight at most."""
    uris = [f"{either_place.root}{number:02d}" for number in range(40)]

    def use() -> None:
        s3dlio.put_many((uri, b"x" * 10_000) for uri in uris)
        s3dlio.get_many(uris, workers=16)
        s3dlio.list(either_place.root)
        for number, _ in enumerate(ObjectStoreIterableDataset(either_place.root, prefetch=8)):
            if number == 3:
                break
        with pytest.raises(s3dlio.NotFoundError):
            s3dlio.get_many([*uris, either_place.root + "missing"], workers=16)
        with s3dlio.open_writer(uris[0]) as file:
            file.write(bytes(6 * 2**20))
        list(DataLoader(ObjectStoreMapDataset.from_uris(uris[1:9]), num_workers=1, multiprocessing_context="fork"))

    use()
    gc.collect()
    before = len(os.listdir("/dev/fd"))
    for _ in range(10):
        use()
    gc.collect()
    assert len(os.listdir("/dev/fd")) <= before + 5


def test_connections_that_nobody_needs_are_closed_without_a_warning(either_place: S3Place, run_python: Run) -> None:
    """As when a process goes through many settings; under `-W error` an unclosed socket would be reported."""
    code = """
import gc, os, sys, s3dlio
from s3dlio import storage
from s3dlio.storage.cloud import wire
s3dlio.put_many((f"{sys.argv[1]}{number}", b"x") for number in range(8))
before = len(os.listdir("/dev/fd"))
storage._open.cache_clear()
storage._last_opened.clear()
wire.wire_to.cache_clear()
gc.collect()
assert len(os.listdir("/dev/fd")) < before
"""
    done = run_python(code, either_place.root)
    assert (done.returncode, done.stderr) == (0, "")
