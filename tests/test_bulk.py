"""The verbs on many URIs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

import pytest

import s3dlio
from s3dlio import runtime
from s3dlio.storage import open_store
from s3dlio.storage.base import Outcome, Read, Store
from s3dlio.uri import parse

from .conftest import MemoryPlace, Place


@pytest.fixture
def uris(place: Place) -> list[str]:
    for number in range(30):
        place.put(f"k{number:02d}", b"%d" % number)
    return [f"{place.root}k{number:02d}" for number in range(30)]


@pytest.fixture
def exact_uris(exact_place: Place) -> list[str]:
    """The same on the stores whose `read_many` is made of `read`."""
    for number in range(30):
        exact_place.put(f"k{number:02d}", b"%d" % number)
    return [f"{exact_place.root}k{number:02d}" for number in range(30)]


class TestGetMany:
    @pytest.mark.parametrize("workers", [1, 2, 64, 1000])
    def test_views_come_in_the_order_of_the_input(self, uris: list[str], workers: int) -> None:
        views = s3dlio.get_many(uris[::-1], workers=workers)
        assert [bytes(view) for view in views] == [b"%d" % number for number in range(29, -1, -1)]
        assert [view.uri for view in views] == uris[::-1]

    def test_duplicates_are_read_as_often_as_named(self, uris: list[str]) -> None:
        first, _, second = s3dlio.get_many([uris[3], uris[4], uris[3]])
        first[0] = 0
        assert second == b"3"

    def test_pairs_are_given_for_max_in_flight(self, uris: list[str]) -> None:
        pairs = s3dlio.get_many(uris, max_in_flight=4)
        assert [(uri, bytes(view)) for uri, view in pairs] == [(uri, b"%d" % n) for n, uri in enumerate(uris)]

    def test_any_mix_of_schemes(self, uris: list[str]) -> None:
        other = MemoryPlace()
        other.put("m", b"other")
        mixed = [uris[0], other.root + "m", uris[1], other.root + "m"]
        assert [bytes(view) for view in s3dlio.get_many(mixed)] == [b"0", b"other", b"1", b"other"]

    def test_nothing_and_iterators_are_fine(self, uris: list[str]) -> None:
        assert s3dlio.get_many([]) == []
        assert s3dlio.get_many(iter(uris[:2])) == [b"0", b"1"]

    def test_the_first_failure_names_its_uri_and_ends_it(self, uris: list[str], place: Place) -> None:
        for workers in (1, 8):
            with pytest.raises(s3dlio.NotFoundError) as caught:
                s3dlio.get_many([*uris, place.root + "missing", *uris], workers=workers)
            assert place.root + "missing" in str(caught.value)

    def test_no_more_are_in_flight_than_told(self, uris: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        store = type(open_store(parse(uris[0])))
        read_many, begun, windows = store.read_many, [0], []

        def counting(store: Store, reads: Iterable[Read], *, window: int) -> Iterator[Outcome]:
            def counted() -> Iterator[Read]:
                for read in reads:
                    begun[0] += 1
                    yield read

            for number, outcome in enumerate(read_many(store, counted(), window=window)):
                windows.append(begun[0] - number)
                yield outcome

        monkeypatch.setattr(store, "read_many", counting)
        s3dlio.get_many(uris * 5, workers=3)
        assert len(windows) == 5 * len(uris)
        assert 1 <= max(windows) <= 3

    def test_no_more_reads_run_at_once_than_told(self, exact_uris: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        store = type(open_store(parse(exact_uris[0])))
        name = "_read" if hasattr(store, "_read") else "read"  # what both ways of reading a file go through
        read, lock, running, most = getattr(store, name), threading.Lock(), 0, 0

        def counting(*args: object) -> object:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            try:
                return read(*args)
            finally:
                with lock:
                    running -= 1

        monkeypatch.setattr(store, name, counting)
        s3dlio.get_many(exact_uris * 5, workers=3)
        assert 1 <= most <= 3

    def test_more_than_the_pool_of_threads_is_fine(self, uris: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("S3DLIO_WORKER_THREADS", "1")
        monkeypatch.setattr(runtime, "io", runtime.Threads("test", lambda: 1))
        assert len(s3dlio.get_many(uris * 10, workers=64)) == 300


class TestPutMany:
    def test_all_are_written(self, place: Place) -> None:
        s3dlio.put_many([(f"{place.root}k{number}", b"%d" % number) for number in range(100)])
        assert sorted(place.keys()) == sorted(f"k{number}" for number in range(100))
        assert [place.get(f"k{number}") for number in range(100)] == [b"%d" % number for number in range(100)]

    def test_of_two_with_one_name_the_later_counts(self, place: Place) -> None:
        for _ in range(10):
            s3dlio.put_many([(place.root + "k", b"first"), (place.root + "j", b"j"), (place.root + "k", b"second")])
            assert place.get("k") == b"second"

    def test_nothing_iterators_and_lists_of_lists_are_fine(self, place: Place) -> None:
        s3dlio.put_many([])
        s3dlio.put_many(iter([[place.root + "k", b"x"]]))  # type: ignore[arg-type]
        assert place.keys() == ["k"]

    @pytest.mark.parametrize("items", ["ab", {"memory://b/k": b"x"}, [b"x"], [("memory://b/k",)], [1], [(1, 2, 3)]], ids=str)
    def test_what_are_no_pairs_is_a_type_error(self, items: object) -> None:
        with pytest.raises(TypeError, match=r"\(uri, data\) pairs"):
            s3dlio.put_many(items)  # type: ignore[arg-type]

    def test_a_wrong_item_is_found_before_anything_is_written(self, place: Place) -> None:
        for wrong in ((place.root + "k", "text"), (1, b"x"), ("nowhere://b/k", b"x")):
            with pytest.raises((TypeError, s3dlio.ConfigError)):
                s3dlio.put_many([(place.root + "fine", b"x"), wrong])  # type: ignore[list-item]
        assert place.keys() == []

    def test_the_first_failure_names_its_uri(self, local_place: Place) -> None:
        local_place.put("file", b"x")
        with pytest.raises(s3dlio.S3dlioError, match="file/below"):
            s3dlio.put_many([(local_place.root + "a", b"x"), (local_place.root + "file/below", b"x")], max_in_flight=1)
        assert local_place.keys() == ["a", "file"]


class TestStatMany:
    def test_facts_come_in_the_order_of_the_input(self, uris: list[str]) -> None:
        names = [uris[20], uris[3], uris[20]]
        assert s3dlio.stat_many(names) == [s3dlio.stat(uri) for uri in names]
        assert s3dlio.stat_many([]) == []

    def test_the_first_failure_raises(self, uris: list[str]) -> None:
        with pytest.raises(s3dlio.NotFoundError, match="k05x"):
            s3dlio.stat_many([*uris[:5], uris[5] + "x"])


MANY: list[Callable[..., object]] = [s3dlio.get_many, s3dlio.stat_many]


class TestWrongArguments:
    @pytest.mark.parametrize("verb", MANY)
    def test_one_uri_is_no_list(self, verb: Callable[..., object]) -> None:
        with pytest.raises(TypeError, match=r"\['memory://b/k'\]"):
            verb("memory://b/k")

    @pytest.mark.parametrize("verb", [*MANY, s3dlio.put_many])
    @pytest.mark.parametrize("names", [None, 7])
    def test_what_cannot_be_iterated_is_a_type_error(self, verb: Callable[..., object], names: object) -> None:
        with pytest.raises(TypeError, match="iterable"):
            verb(names)

    @pytest.mark.parametrize("verb", [*MANY, s3dlio.put_many])
    @pytest.mark.parametrize("window", [0, -1])
    def test_a_window_is_positive(self, verb: Callable[..., object], window: int) -> None:
        with pytest.raises(ValueError, match="at least one"):
            verb([], window)

    @pytest.mark.parametrize("verb", [*MANY, s3dlio.put_many])
    @pytest.mark.parametrize("window", ["4", 2.0, True, [1]], ids=repr)
    def test_a_window_is_a_whole_number(self, verb: Callable[..., object], window: object) -> None:
        with pytest.raises(TypeError, match="whole number"):
            verb([], window)

    def test_the_users_own_error_in_an_iterator_passes(self) -> None:
        def names() -> Iterator[str]:
            yield "memory://b/k"
            raise KeyError("mine")

        for verb in MANY:
            with pytest.raises(KeyError, match="mine"):
                verb(names())
