"""Every async name is the blocking verb in a thread: real coroutines, for any running loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading

import pytest

import s3dlio
from s3dlio import aio, buckets, bulk, objects

from .conftest import Place

TWINS = {name: getattr(s3dlio, name) for name in aio.__all__}


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_is_a_coroutine_function_of_the_same_signature(name: str) -> None:
    twin, verb = TWINS[name], getattr(s3dlio, name.removesuffix("_async"))
    assert inspect.iscoroutinefunction(twin)
    assert inspect.signature(twin) == inspect.signature(verb)
    assert twin.__name__ == name
    assert verb.__name__ in twin.__doc__


def test_every_verb_has_a_twin() -> None:
    without = {"open_reader", "open_writer", "init_logging", "configure_s3", "describe", "resolve", "places_of"}
    without |= {"arrivals", "stream"}
    verbs = {*objects.__all__, *bulk.__all__, *buckets.__all__}
    assert {name.removesuffix("_async") for name in TWINS} == verbs - without


def test_each_twin_gives_what_the_verb_gives(place: Place) -> None:
    async def use() -> None:
        k, j = place.root + "k", place.root + "j"
        assert await s3dlio.put_bytes_async(k, b"abc") is None
        assert await s3dlio.put_many_async([(j, b"j")]) is None
        assert await s3dlio.mkdir_async(place.root + "d/") is None
        assert await s3dlio.get_async(k) == await s3dlio.get_object_async(k) == b"abc"
        assert await s3dlio.get_range_async(k, 1, length=1) == b"b"
        assert await s3dlio.get_many_async([k, j]) == [b"abc", b"j"]
        assert await s3dlio.get_many_async([k], max_in_flight=2) == [(k, b"abc")]
        assert await s3dlio.list_async(place.root) == await s3dlio.list_full_uris_async(place.root)
        assert await s3dlio.list_async(place.root, pattern="k") == [k]
        assert await s3dlio.list_keys_async(place.root, pattern="[jk]") == ["j", "k"]
        assert await s3dlio.stat_async(k) == await s3dlio.stat_object_async(k) == s3dlio.stat(k)
        assert await s3dlio.stat_many_async([k, j]) == s3dlio.stat_many([k, j])
        assert await s3dlio.exists_async(k) is True
        assert await s3dlio.delete_async(k) is None
        assert await s3dlio.exists_async(k) is False

    asyncio.run(use())
    asyncio.run(s3dlio.delete_async(place.root + "j"))  # another loop


def test_errors_are_those_of_the_verb(place: Place) -> None:
    with pytest.raises(s3dlio.NotFoundError, match="missing"):
        asyncio.run(s3dlio.get_async(place.root + "missing"))
    with pytest.raises(TypeError):
        asyncio.run(s3dlio.put_bytes_async(place.root + "k", "text"))
    with pytest.raises(ValueError, match="offset"):
        asyncio.run(s3dlio.get_range_async(place.root + "k", -1))


def test_many_at_once(place: Place) -> None:
    async def use() -> None:
        await asyncio.gather(*(s3dlio.put_bytes_async(f"{place.root}k{n}", b"%d" % n) for n in range(200)))
        views = await asyncio.gather(*(s3dlio.get_async(f"{place.root}k{n}") for n in range(200)))
        assert [bytes(view) for view in views] == [b"%d" % n for n in range(200)]

    asyncio.run(use())


@pytest.fixture
def stalled(place: Place, monkeypatch: pytest.MonkeyPatch) -> tuple[str, threading.Event, threading.Event]:
    """An object whose read says when it began and waits until it may go on."""
    place.put("k", b"x")
    began, release = threading.Event(), threading.Event()
    fetch = objects.read.fetch

    def stalling(*args: object) -> object:
        began.set()
        assert release.wait(30)
        return fetch(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(objects.read, "fetch", stalling)
    return place.root + "k", began, release


def test_the_loop_runs_on_while_a_call_waits(stalled: tuple[str, threading.Event, threading.Event]) -> None:
    uri, _, release = stalled

    async def use() -> None:
        task = asyncio.create_task(s3dlio.get_async(uri))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not task.done()
        release.set()
        assert await task == b"x"

    asyncio.run(use())


def test_cancelling_ends_the_waiting_at_once(stalled: tuple[str, threading.Event, threading.Event]) -> None:
    uri, began, release = stalled

    async def use() -> None:
        task = asyncio.create_task(s3dlio.get_async(uri))
        while not began.is_set():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not release.is_set()

    asyncio.run(use())
    release.set()
    assert s3dlio.get(uri) == b"x"


def test_context_variables_reach_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    from s3dlio.runtime import twin

    async def use() -> str:
        variable.set("set")
        return await twin(named)()

    def named() -> str:
        return variable.get()

    assert asyncio.run(use()) == "set"
