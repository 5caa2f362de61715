"""Threads, windows, forks and signals: nothing waits on itself, on the dead, or without end."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import s3dlio
from s3dlio import runtime
from s3dlio.runtime import LATER, Later, Threads, each

from .conftest import LocalPlace, Place

Run = Callable[..., subprocess.CompletedProcess[str]]


class TestThreads:
    def test_no_more_threads_than_the_limit_and_all_tasks_run(self) -> None:
        threads = Threads("test", lambda: 3)
        seen: set[int] = set()

        def task(number: int) -> int:
            seen.add(threading.get_ident())
            return number

        futures = [threads.submit(lambda number=number: task(number)) for number in range(200)]
        assert [future.result(30) for future in futures] == list(range(200))
        assert 1 <= len(seen) <= 3

    def test_threads_are_daemons_and_named(self) -> None:
        threads = Threads("test", lambda: 1)
        thread = threads.submit(threading.current_thread).result(30)
        assert thread.daemon
        assert thread.name == "s3dlio-test-1"

    def test_an_exception_is_the_futures(self) -> None:
        threads = Threads("test", lambda: 1)
        assert isinstance(threads.submit(lambda: 1 // 0).exception(30), ZeroDivisionError)
        assert threads.submit(lambda: "still alive").result(30) == "still alive"

    def test_an_idle_thread_keeps_no_result_alive(self) -> None:
        class Result:
            pass

        threads = Threads("test", lambda: 1)
        reference = weakref.ref(threads.submit(Result).result(30))
        threads.submit(lambda: None).result(30)
        gc.collect()
        assert reference() is None


def noted(numbers: Iterable[int], begun: list[int]) -> Iterator[int]:
    """The same numbers; those that were taken are added to `begun`."""
    for number in numbers:
        begun.append(number)
        yield number


class TestEach:
    @pytest.mark.parametrize("window", [1, 2, 7, 100])
    def test_each_item_comes_once_with_its_result(self, window: int) -> None:
        outcomes = dict(each(lambda number: number * 2, range(50), window=window))
        assert outcomes == {number: number * 2 for number in range(50)}

    @pytest.mark.parametrize("window", [1, 4])
    def test_an_error_is_an_outcome_among_others(self, window: int) -> None:
        outcomes = dict(each(lambda number: 12 // number, range(4), window=window))
        assert isinstance(outcomes.pop(0), ZeroDivisionError)
        assert outcomes == {1: 12, 2: 6, 3: 4}

    def test_an_exit_raised_in_a_thread_is_an_outcome_not_a_hang(self) -> None:
        def leave(_: int) -> None:
            raise SystemExit

        assert [type(result) for _, result in each(leave, range(3), window=2)] == [SystemExit] * 3

    def test_the_items_are_advanced_only_as_far_as_the_window(self) -> None:
        begun: list[int] = []
        for consumed, _ in enumerate(each(lambda item: item, noted(range(100), begun), window=5)):
            assert len(begun) - consumed <= 5

    @pytest.mark.parametrize("window", [2, 5, 100])
    def test_what_can_be_had_at_once_or_later_needs_no_thread(self, window: int) -> None:
        def begin(number: int) -> tuple[int, int] | Later | None:
            return [None, LATER, work(number)][number % 3]

        def work(number: int) -> tuple[int, int]:
            return number, threading.get_ident()

        begun: list[int] = []
        outcomes = {}
        for consumed, (item, result) in enumerate(each(work, noted(range(100), begun), window=window, begin=begin)):
            assert len(begun) - consumed <= window
            assert not isinstance(result, BaseException)
            outcomes[item] = result
        assert {item: number for item, (number, _) in outcomes.items()} == {number: number for number in range(100)}
        here = {item for item, (_, thread) in outcomes.items() if thread == threading.get_ident()}
        assert here == {number for number in range(100) if number % 3}

    @pytest.mark.parametrize("others", [0, LATER], ids=str)
    def test_what_a_thread_has_ended_does_not_wait_for_all_others(self, others: Any) -> None:
        until = time.monotonic() + 30
        for number, _ in each(lambda _: None, itertools.count(), window=4, begin=lambda number: others if number else None):
            if number == 0:
                return
            assert time.monotonic() < until

    def test_an_error_that_came_at_once_is_an_outcome(self) -> None:
        outcomes = dict(each(lambda _: "by a thread", range(2), window=3, begin=lambda number: [OSError(), None][number]))
        assert isinstance(outcomes.pop(0), OSError)
        assert outcomes == {1: "by a thread"}

    def test_an_error_of_what_was_put_off_is_an_outcome(self) -> None:
        outcomes = dict(each(lambda number: 12 // number, range(4), window=3, begin=lambda _: LATER))
        assert isinstance(outcomes.pop(0), ZeroDivisionError)
        assert outcomes == {1: 12, 2: 6, 3: 4}

    @pytest.mark.parametrize("begun", [[LATER], [LATER, 0], [LATER, None], [0, None]], ids=str)
    def test_items_that_pause_are_asked_again_after_each_result(self, begun: list[Any]) -> None:
        consumed: list[int] = []

        class Pausing(Iterator[int]):
            num_given = 0

            def __next__(self) -> int:
                if self.num_given - len(consumed) == 2 or self.num_given == 10:
                    raise StopIteration
                self.num_given += 1
                return self.num_given

        for item, _ in each(lambda _: 0, Pausing(), window=4, begin=lambda number: begun[number % len(begun)]):
            consumed.append(item)
        assert sorted(consumed) == list(range(1, 11))

    def test_leaving_early_waits_for_what_runs_and_begins_nothing_new(self) -> None:
        started, release = threading.Event(), threading.Event()
        ran: list[int] = []

        def work(number: int) -> None:
            if number:
                started.set()
                release.wait(30)
            ran.append(number)

        results = each(work, range(1000), window=2)
        next(results)
        started.wait(30)
        closer = threading.Thread(target=results.close)  # type: ignore[attr-defined]
        closer.start()
        assert 1 not in ran
        release.set()
        closer.join(30)
        assert not closer.is_alive()
        assert 1 in ran
        assert len(ran) <= 4

    def test_who_has_no_buffers_of_callers_leaves_before_what_runs_has_ended(self) -> None:
        started, release = threading.Event(), threading.Event()
        ended: list[int] = []

        def work(number: int) -> None:
            if number:
                started.set()
                release.wait(30)
                ended.append(number)

        results = each(work, range(1000), window=2, patience=0.0)
        next(results)
        assert started.wait(30)
        results.close()  # type: ignore[attr-defined]
        assert not ended
        release.set()

    def test_an_error_of_the_items_passes_after_what_runs_has_ended(self) -> None:
        def items() -> Iterator[int]:
            yield from range(5)
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            list(each(lambda item: item, items(), window=2))


class TestLeavingEarly:
    def test_a_hundred_early_ends_leave_no_thread_and_no_descriptor(self, place: Place) -> None:
        from s3dlio.objects import resolve
        from s3dlio.storage.base import Read

        for number in range(50):
            place.put(f"k{number:02d}", b"x" * 100)
        store, base = resolve(place.root + "k")

        def leave_early() -> None:
            into = lambda _, count: memoryview(bytearray(count))  # noqa: E731
            reads = store.read_many((Read(f"{base}{n:02d}", 0, None, into) for n in range(50)), window=8)
            for number, _ in enumerate(reads):
                if number == 3:
                    break

        leave_early()
        s3dlio.get_many([f"{place.root}k{number:02d}" for number in range(50)])
        threads, descriptors = threading.active_count(), len(os.listdir("/dev/fd"))
        for _ in range(100):
            leave_early()
        assert threading.active_count() <= max(threads, 16 + threads)
        assert len(os.listdir("/dev/fd")) <= descriptors

    SIGNALLED = (
        "import os, signal, sys, threading, s3dlio\n"
        "uri, verb = sys.argv[1:]\n"
        "stat, preadv, scandir = os.stat, os.preadv, os.scandir\n"
        "def interrupt(function):\n"
        "    def call(*args):\n"
        "        if not signalled.is_set():\n"
        "            signalled.set(); os.kill(os.getpid(), signal.SIGINT)\n"
        "        return function(*args)\n"
        "    return call\n"
        "signalled = threading.Event()\n"
        "os.preadv, os.scandir = interrupt(preadv), interrupt(scandir)\n"
        "try:\n"
        "    while True:\n"
        "        eval(verb)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
        "    raise\n"
    )

    @pytest.mark.parametrize(
        "verb", ["s3dlio.get(uri + 'k')", "s3dlio.list(uri, recursive=True)", "s3dlio.get_many([uri + 'k'] * 200)"]
    )
    def test_an_interrupt_ends_the_call_and_the_process(self, local_place: LocalPlace, run_python: Run, verb: str) -> None:
        local_place.put("k", bytes(100_000))
        done = run_python(self.SIGNALLED, local_place.root, verb, timeout=30)
        assert done.stdout == "interrupted\n", done.stderr
        assert done.returncode in (-signal.SIGINT, 130, 1)

    def test_an_error_of_the_users_loop_ends_the_process_with_1(self, local_place: LocalPlace, run_python: Run) -> None:
        local_place.put("k", b"x")
        done = run_python(
            "import sys, s3dlio\ns3dlio.get_many([sys.argv[1]] * 50)\nraise ValueError('mine')", local_place.root + "k"
        )
        assert done.returncode == 1
        assert done.stderr.rstrip().endswith("ValueError: mine")


class TestFork:
    def test_a_child_starts_with_no_threads_and_new_stores(self, local_place: LocalPlace, run_python: Run) -> None:
        local_place.put("k", b"x" * 10_000)
        done = run_python(
            "import asyncio, os, sys, s3dlio\n"
            "uris = [sys.argv[1]] * 40\n"
            "def use():\n"
            "    assert [len(view) for view in s3dlio.get_many(uris)] == [10_000] * 40\n"
            "    assert len(asyncio.run(s3dlio.get_async(uris[0]))) == 10_000\n"
            "    assert s3dlio.list(uris[0]) == uris[:1]\n"
            "use()\n"
            "for _ in range(3):\n"
            "    pid = os.fork()\n"
            "    if pid == 0:\n"
            "        use()\n"
            "        grandchild = os.fork()\n"
            "        if grandchild == 0:\n"
            "            use(); os._exit(0)\n"
            "        os._exit(0 if os.waitpid(grandchild, 0)[1] == 0 else 1)\n"
            "    assert os.waitpid(pid, 0)[1] == 0\n"
            "    use()\n",
            local_place.root + "k",
        )
        assert done.returncode == 0, done.stderr

    def test_a_fork_from_one_thread_while_others_are_inside_calls(self, place: Place, run_python: Run) -> None:
        code = (
            "import os, sys, threading, s3dlio\n"
            "uri = sys.argv[1]\n"
            "s3dlio.put_bytes(uri, bytes(100_000))\n"
            "stop = threading.Event()\n"
            "def busy():\n"
            "    while not stop.is_set():\n"
            "        s3dlio.get_many([uri] * 8); s3dlio.get(uri); s3dlio.put_bytes(uri + '2', b'x')\n"
            "threads = [threading.Thread(target=busy) for _ in range(3)]\n"
            "[thread.start() for thread in threads]\n"
            "for _ in range(20):\n"
            "    pid = os.fork()\n"
            "    if pid == 0:\n"
            "        assert len(s3dlio.get(uri)) == 100_000\n"
            "        assert [len(view) for view in s3dlio.get_many([uri] * 8)] == [100_000] * 8\n"
            "        s3dlio.put_bytes(uri + '3', b'y')\n"
            "        os._exit(0)\n"
            "    assert os.waitpid(pid, 0)[1] == 0\n"
            "stop.set()\n"
            "[thread.join() for thread in threads]\n"
            "assert len(s3dlio.get(uri)) == 100_000\n"
        )
        done = run_python(code, place.root + "k")
        assert done.returncode == 0, done.stderr

    def test_a_child_that_collects_a_running_window_does_not_wait(self, run_python: Run) -> None:
        done = run_python(
            "import gc, os, threading\n"
            "from s3dlio import runtime\n"
            "release = threading.Event()\n"
            "results = runtime.each(lambda n: n and release.wait(), range(10), window=4)\n"
            "next(results)\n"
            "pid = os.fork()\n"
            "if pid == 0:\n"
            "    del results; gc.collect(); os._exit(0)\n"
            "assert os.waitpid(pid, 0)[1] == 0\n"
            "release.set()\n"
            "assert len(list(results)) == 9\n",
            timeout=30,
        )
        assert done.returncode == 0, done.stderr

    def test_what_is_registered_runs_in_the_child_only(self) -> None:
        called: list[int] = []
        drop = runtime.after_fork(lambda: called.append(os.getpid()))
        try:
            reader, writer = os.pipe()
            pid = os.fork() if sys.version_info < (3, 12) else fork_quietly()
            if pid == 0:
                os.write(writer, b"%d" % len(called))
                os._exit(0)
            os.waitpid(pid, 0)
            assert os.read(reader, 10) == b"1"
            assert called == []
            os.close(reader)
            os.close(writer)
        finally:
            runtime._dropped_after_fork.remove(drop)


def fork_quietly() -> int:
    """Python 3.12 and later warn of a fork beside threads."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


INTERRUPTED = """
import os, random, signal, sys, time, s3dlio
uris = [f"{sys.argv[1]}{number:03d}" for number in range(100)]
s3dlio.put_many([(uri, bytes(20_000)) for uri in uris])
signal.signal(signal.SIGALRM, signal.default_int_handler)
random.seed(1)
num_open = len(os.listdir("/proc/self/fd"))
num_interrupted = 0
for _ in range(400):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.01))
        s3dlio.get_many(uris)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        num_interrupted += 1
signal.setitimer(signal.ITIMER_REAL, 0)
assert [len(view) for view in s3dlio.get_many(uris)] == [20_000] * 100
assert num_interrupted > 50, num_interrupted
until = time.monotonic() + 20  # a thread may have been left with one
while len(os.listdir("/proc/self/fd")) > num_open:
    assert time.monotonic() < until, (len(os.listdir("/proc/self/fd")), num_open)
    time.sleep(0.01)
"""


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_interrupts_at_any_place_leave_a_package_that_works(tmp_path: Path, run_python: Run, scheme: str) -> None:
    root = f"file://{tmp_path}/" if scheme == "file" else "memory://interrupted/"
    done = run_python(INTERRUPTED, root)
    assert done.returncode == 0, done.stderr


def test_threads_that_could_not_be_started_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads = runtime.Threads("few", lambda: 2)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(5):
            with pytest.raises(RuntimeError, match="can't start"):
                threads.submit(lambda: 1)
    assert threads.submit(lambda: 2).result(timeout=20) == 2
