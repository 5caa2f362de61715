"""The verbs on many URIs: any mix of schemes, bounded windows, results in the order of the input."""

from __future__ import annotations

import itertools
import operator
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from typing import Any, TypeVar, overload

from . import config, objects, runtime
from .storage.base import ObjectInfo, Store
from .transfer import read, write
from .uri import parse
from .view import BytesView, as_buffer

__all__ = ["arrivals", "get_many", "put_many", "stat_many", "stream"]

DEFAULT_WORKERS = 64

T = TypeVar("T")


@overload
def get_many(uris: Iterable[str], workers: int = ..., *, max_in_flight: None = None) -> list[BytesView]: ...
@overload
def get_many(uris: Iterable[str], *, max_in_flight: int) -> list[tuple[str, BytesView]]: ...
def get_many(
    uris: Iterable[str], workers: int = DEFAULT_WORKERS, *, max_in_flight: int | None = None
) -> list[BytesView] | list[tuple[str, BytesView]]:
    """Read whole objects, at most `workers` of them at once.

    Returns the views in the order of `uris`; a URI that is named twice is read twice. URIs of several buckets are read
    bucket by bucket. Called with `max_in_flight=` instead of `workers`, it returns (uri, view) pairs. The first failure
    raises, naming its URI, and nothing new is begun after it.
    """
    window = _window("workers", workers) if max_in_flight is None else _window("max_in_flight", max_in_flight)
    names = _names(uris)
    views = read.fetch_many(list(objects.places_of(names)), window=window, options=config.snapshot())
    return views if max_in_flight is None else list(zip(names, views, strict=True))


def stream(uris: Iterable[str], *, window: int) -> Iterator[BytesView]:
    """The whole objects in the order of `uris`, read ahead: at most `window` of them in flight, or here and not yet taken.

    A failed one raises at its turn, naming its URI. `uris` is advanced only as far as the window allows.
    """
    return (_require(outcome) for _, outcome in arrivals(uris, window=window))


def arrivals(
    uris: Iterable[str],
    *,
    window: int,
    in_order: bool = True,
    options: config.Options | None = None,
    clock: Callable[[], float] = time.perf_counter,
    left: Collection[object] = (),
) -> Generator[tuple[read.Arrival, BytesView | Exception]]:
    """`stream`, which goes on after a failed object: what is known of the arrival, and the view or the error.

    Without `in_order` they come as they end; URIs of several buckets still come bucket by bucket, each run of them for
    itself. `left` and `clock` are those of `transfer.read.arrivals`.
    """
    options = options or config.snapshot()
    for store, places in itertools.groupby(objects.places_of(uris), operator.itemgetter(0)):
        keys = (key for _, key in places)
        yield from read.arrivals(store, keys, window=window, options=options, in_order=in_order, clock=clock, left=left)


def put_many(items: Iterable[tuple[str, object]], max_in_flight: int = DEFAULT_WORKERS) -> None:
    """Write whole objects from (uri, data) pairs, at most `max_in_flight` at once.

    Of two pairs with the same URI the later one counts. The first failure raises, naming its URI, and nothing new is
    begun after it; what was written before stays.
    """
    window = _window("max_in_flight", max_in_flight)
    contents = {parse(uri).uri: as_buffer(data) for uri, data in map(_pair, items)}
    jobs = [(*place, data) for place, data in zip(objects.places_of(contents), contents.values(), strict=True)]
    small = [job for job in jobs if write.is_one_request(job[0], job[2])]
    large = [job for job in jobs if not write.is_one_request(job[0], job[2])]
    for _, result in runtime.each(lambda job: write.put(*job), small, window=window):
        _require(result)
    for job in large:  # one by one, since their parts go in parallel: a pool of threads must not wait on itself
        write.put(*job)


def stat_many(uris: Iterable[str], max_in_flight: int = DEFAULT_WORKERS) -> list[dict[str, Any]]:
    """The facts about many objects, as `stat` gives them, in the order of `uris`; the first failure raises."""
    window = _window("max_in_flight", max_in_flight)
    places = list(objects.places_of(_names(uris)))
    facts: list[dict[str, Any]] = [{}] * len(places)
    for (index, _), result in runtime.each(_stat, enumerate(places), window=window):
        facts[index] = objects.describe(_require(result))
    return facts


def _stat(numbered: tuple[int, tuple[Store, str]]) -> ObjectInfo:
    store, key = numbered[1]
    return store.stat(key)


def _names(uris: Iterable[str]) -> list[str]:
    if isinstance(uris, str):
        raise TypeError(f"expected a list of URIs, not the single URI {uris!r}: write [{uris!r}]")
    return list(uris)


def _pair(item: tuple[str, object]) -> tuple[str, object]:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise TypeError(f"expected (uri, data) pairs, not {item!r:.100}")
    return item[0], item[1]


def _window(name: str, value: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is a whole number, not {type(value).__name__}")
    value = operator.index(value)
    if value < 1:
        raise ValueError(f"{name}={value}: at least one request must be in flight")
    return value


def _require(result: T | BaseException) -> T:
    if isinstance(result, BaseException):
        raise result
    return result
