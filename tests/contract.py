"""What every Store promises, as one class of tests: `storage/base.py` in executable form.

A subclass is run on every `place` (conftest). Nothing here supposes that a store has directories, lists in one page,
or lives in this process: where the protocol leaves a choice, the test allows each lawful answer.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pytest

from s3dlio import uri as uris
from s3dlio.errors import ChangedError, ConfigError, NotFoundError, PreconditionFailedError, S3dlioError
from s3dlio.storage import open_store
from s3dlio.storage.base import HasDirectories, ObjectInfo, Outcome, Read, ReadResult, Store
from s3dlio.uri import sort_key

from .conftest import Place

# Ordinary keys for every store: nothing in them is syntax.
AWKWARD_KEYS = (
    *("year=2024/DC#1_CAM3.tif", "year=2024/DC", "p/q;v=1", ":@", "a b", " lead", "trail ", "a+b", "a%2Fb", "100%", "%"),
    *("q?x=1&y=2", "q", "quote'\"", "~", "*", "[x]", "{a,b}", "$HOME", "-dash", ".hidden", "new\nline"),
    *("tab\t", "é", "e\u0301", "日本/語", "😀", "\u2028", "a.", "...", "CON", "x" * 200),
)
CONTENT = bytes(i % 251 for i in range(10_000))
RANGES = (
    *((0, None), (0, 10_000), (0, 1), (0, 4096), (1, 4095), (4095, 2), (4096, 4096), (4097, 1), (8192, None)),
    *((9_999, 1), (9_999, None), (9_000, 5_000), (0, 1 << 40), (5_000, 0), (0, 0)),
    *((10_000, 1), (10_000, None), (10_001, 5), (10_000, 0), (1 << 40, 10), (1 << 40, None)),
)
MANY = 2_503


def get(store: Store, key: str, start: int = 0, length: int | None = None, match: str | None = None) -> ReadResult:
    """One read into fresh memory."""
    return store.read(Read(key, start, length, lambda _, count: memoryview(bytearray(count)), match))


def content_of(store: Store, key: str) -> bytes:
    return bytes(get(store, key).data)


def put(store: Store, key: str, data: bytes) -> ObjectInfo:
    return store.put(key, memoryview(data))


def listed(store: Store, prefix: str, *, recursive: bool) -> tuple[list[str], list[str]]:
    """The keys and the sub-prefixes of all pages, each kind checked to come once and in order."""
    pages = list(store.list(prefix, recursive=recursive))
    keys = [info.key for page in pages for info in page.objects]
    prefixes = [name for page in pages for name in page.prefixes]
    for names in (keys, prefixes):
        assert len(set(names)) == len(names)
        if not store.root.startswith("s3:"):  # SeaweedFS goes along its directories, and the public verbs sort
            assert names == sorted(names, key=sort_key)
    return sorted(keys, key=sort_key), sorted(prefixes, key=sort_key)


def check_opaque(store: Store, base: str, place: Place, key: str) -> None:
    """What goes in under `key` comes out under `key`, by either way in and out."""
    put(store, base + key, b"through the store")
    assert place.get(key) == b"through the store"
    place.put(key, b"around it")
    assert content_of(store, base + key) == b"around it"
    assert store.stat(base + key).size == 9
    assert listed(store, base, recursive=True)[0] == [base + key]
    store.delete(base + key)
    assert place.keys() == []


class _OnPlaces:
    @pytest.fixture
    def store(self, place: Place) -> Store:
        return open_store(uris.parse(place.root))

    @pytest.fixture
    def base(self, place: Place) -> str:
        """The key of the place: what the store's keys begin with."""
        return uris.parse(place.root).key


class StoreContract(_OnPlaces):
    # reading

    @pytest.mark.parametrize(("start", "length"), RANGES)
    def test_a_range_is_the_slice_of_the_object(
        self, store: Store, base: str, place: Place, start: int, length: int | None
    ) -> None:
        place.put("object", CONTENT)
        info, data = get(store, base + "object", start, length)
        assert bytes(data) == (CONTENT[start:] if length is None else CONTENT[start : start + length])
        assert (info.key, info.size) == (base + "object", len(CONTENT))

    @pytest.mark.parametrize(("start", "length"), [(0, None), (0, 0), (0, 10), (1, None), (5, 5)])
    def test_every_range_of_an_empty_object_is_empty(
        self, store: Store, base: str, place: Place, start: int, length: int | None
    ) -> None:
        place.put("empty", b"")
        info, data = get(store, base + "empty", start, length)
        assert (info.size, data.nbytes) == (0, 0)

    def test_the_destination_is_asked_once_and_filled_in_place(self, store: Store, base: str, place: Place) -> None:
        place.put("object", CONTENT)
        asked: list[tuple[int, int]] = []
        memory = bytearray(len(CONTENT))

        def into(info: ObjectInfo, count: int) -> memoryview:
            asked.append((info.size, count))
            return memoryview(memory)[7 : 7 + count]

        result = store.read(Read(base + "object", 100, 50, into))
        assert asked == [(len(CONTENT), 50)]
        assert memory[:57] == bytes(7) + CONTENT[100:150]
        assert not any(memory[57:])
        assert bytes(result.data) == CONTENT[100:150]

    def test_match_reads_this_version_and_no_other(self, store: Store, base: str, place: Place) -> None:
        place.put("object", b"first")
        info, _ = get(store, base + "object")
        assert bytes(get(store, base + "object", match=info.etag).data) == b"first"
        put(store, base + "object", b"second version")
        with pytest.raises(ChangedError, match="object"):
            get(store, base + "object", match=info.etag)

    def test_a_missing_object_is_not_found_and_named(self, store: Store, base: str) -> None:
        with pytest.raises(NotFoundError, match="nothing-here"):
            get(store, base + "nothing-here")
        with pytest.raises(NotFoundError, match="nothing-here"):
            store.stat(base + "nothing-here")

    def test_read_many_gives_every_outcome_once(self, store: Store, base: str, place: Place) -> None:
        for number in range(20):
            place.put(f"k{number}", b"%d" % number)
        names = [f"{base}k{number}" for number in (*range(20), 3, 99)]
        reads = [
            Read(name, 0, None, lambda _, count: memoryview(bytearray(count)), None, tag) for tag, name in enumerate(names)
        ]
        outcomes = dict[int, ReadResult | BaseException]()
        for read, result in store.read_many(reads, window=4):
            assert read.tag not in outcomes
            outcomes[read.tag] = result
        assert isinstance(outcomes.pop(21), NotFoundError)
        found = {tag: bytes(result.data) for tag, result in outcomes.items() if isinstance(result, ReadResult)}
        assert found == {**{number: b"%d" % number for number in range(20)}, 20: b"3"}

    @pytest.mark.parametrize("window", [1, 3])
    def test_read_many_begins_no_more_than_the_window(self, store: Store, base: str, place: Place, window: int) -> None:
        place.put("object", b"x")
        begun = 0

        def reads() -> Iterator[Read]:
            nonlocal begun
            for tag in range(12):
                begun += 1
                yield Read(base + "object", 0, None, lambda _, count: memoryview(bytearray(count)), None, tag)

        for consumed, _ in enumerate(store.read_many(reads(), window=window)):
            assert begun - consumed <= window
        assert begun == 12

    def test_read_many_can_be_left_early(self, store: Store, base: str, place: Place) -> None:
        place.put("object", b"x")
        reads = (Read(base + "object", 0, None, lambda _, n: memoryview(bytearray(n)), None, tag) for tag in range(1000))
        outcomes: Iterator[Outcome] = store.read_many(reads, window=4)
        next(outcomes)
        outcomes.close()  # type: ignore[attr-defined]
        assert content_of(store, base + "object") == b"x"
        assert next(reads).tag <= 5

    # facts

    def test_stat_tells_what_read_and_list_tell(self, store: Store, base: str, place: Place) -> None:
        place.put("object", CONTENT)
        stat, read = store.stat(base + "object"), get(store, base + "object").info
        ((page_info,),) = [page.objects for page in store.list(base, recursive=True) if page.objects]
        for info in (read, page_info):
            assert (info.key, info.size, info.etag) == (stat.key, len(CONTENT), stat.etag)
        assert stat.etag
        assert '"' not in stat.etag
        assert stat.last_modified is not None
        assert stat.last_modified > 1_600_000_000

    def test_a_rewrite_of_the_same_size_has_another_etag(self, store: Store, base: str) -> None:
        etags = [put(store, base + "object", b"%03d" % number).etag for number in range(50)]
        assert all(before != after for before, after in itertools.pairwise(etags))

    # keys

    @pytest.mark.parametrize("key", AWKWARD_KEYS)
    def test_a_key_is_opaque(self, store: Store, base: str, place: Place, key: str) -> None:
        check_opaque(store, base, place, key)

    def test_awkward_keys_stand_side_by_side(self, store: Store, base: str, place: Place) -> None:
        for key in AWKWARD_KEYS:
            put(store, base + key, key.encode())
        assert listed(store, base, recursive=True)[0] == sorted((base + key for key in AWKWARD_KEYS), key=sort_key)
        assert {key: place.get(key) for key in AWKWARD_KEYS} == {key: key.encode() for key in AWKWARD_KEYS}

    # writing

    def test_put_replaces_as_a_whole(self, store: Store, base: str, place: Place) -> None:
        put(store, base + "object", b"a long first version")
        info = put(store, base + "object", b"short")
        assert place.get("object") == b"short"
        assert (info.size, info.etag) == (5, store.stat(base + "object").etag)

    def test_put_takes_empty_unaligned_and_durable(self, store: Store, base: str, place: Place) -> None:
        for size in (0, 1, 4095, 4096, 4097, 10_000):
            store.put(f"{base}o{size}", memoryview(bytearray(CONTENT))[:size], durable=True)
            assert place.get(f"o{size}") == CONTENT[:size]

    def test_if_absent_writes_only_where_nothing_is(self, store: Store, base: str, place: Place) -> None:
        store.put(base + "object", memoryview(b"first"), if_absent=True)
        with pytest.raises(PreconditionFailedError, match="object"):
            store.put(base + "object", memoryview(b"second"), if_absent=True)
        assert (place.get("object"), place.keys()) == (b"first", ["object"])

    def test_of_many_writers_with_if_absent_exactly_one_wins(self, store: Store, base: str, place: Place) -> None:
        won, barrier = [], threading.Barrier(8)

        def write(number: int) -> None:
            barrier.wait()
            try:
                store.put(base + "object", memoryview(b"%d" % number), if_absent=True)
            except PreconditionFailedError:
                return
            won.append(number)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert (place.get("object"), place.keys()) == (b"%d" % won[0], ["object"])

    def test_if_match_replaces_this_version_and_no_other(self, store: Store, base: str, place: Place) -> None:
        first = put(store, base + "object", b"first")
        second = store.put(base + "object", memoryview(b"second"), if_match=first.etag)
        with pytest.raises(PreconditionFailedError, match="object"):
            store.put(base + "object", memoryview(b"third"), if_match=first.etag)
        assert (place.get("object"), place.keys()) == (b"second", ["object"])
        store.delete(base + "object")
        with pytest.raises((PreconditionFailedError, NotFoundError), match="object"):
            store.put(base + "object", memoryview(b"fourth"), if_match=second.etag)
        assert place.keys() == []

    # uploads

    def parts(self, store: Store, count: int) -> list[bytes]:
        """Parts as small as the store takes them, and a shorter last one."""
        size = max(store.limits.min_part, 5_000)
        return [bytes([65 + number]) * (size if number < count - 1 else 77) for number in range(count)]

    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
    def test_parts_are_joined_by_number_in_whatever_order_they_came(
        self, store: Store, base: str, place: Place, order: tuple[int, ...]
    ) -> None:
        parts = self.parts(store, 3)
        upload = store.begin_upload(base + "object")
        for index in order:
            offset = sum(map(len, parts[:index]))
            half = len(parts[index]) // 2
            buffers = [memoryview(parts[index])[:half], memoryview(parts[index])[half:]]
            upload.part(index + 1, offset, buffers)
            assert place.get("object") is None
        assert listed(store, base, recursive=True) == ([], [])
        info = upload.complete()
        assert (place.get("object"), place.keys()) == (b"".join(parts), ["object"])
        assert (info.size, info.etag) == (sum(map(len, parts)), store.stat(base + "object").etag)

    def test_a_part_is_read_before_part_returns(self, store: Store, base: str, place: Place) -> None:
        buffer = bytearray(b"x" * 6_000)
        upload = store.begin_upload(base + "object")
        upload.part(1, 0, [memoryview(buffer)])
        buffer[:] = b"y" * 6_000
        upload.complete()
        assert place.get("object") == b"x" * 6_000

    def test_complete_replaces_the_old_object_and_abort_leaves_it(self, store: Store, base: str, place: Place) -> None:
        place.put("object", b"old")
        upload = store.begin_upload(base + "object")
        upload.part(1, 0, [memoryview(b"new")])
        assert place.get("object") == b"old"
        upload.abort()
        upload.abort()
        assert (place.get("object"), place.keys()) == (b"old", ["object"])
        upload = store.begin_upload(base + "object")
        upload.part(1, 0, [memoryview(b"new")])
        upload.complete()
        upload.abort()
        assert (place.get("object"), place.keys()) == (b"new", ["object"])

    def test_an_aborted_upload_cannot_be_completed(self, store: Store, base: str, place: Place) -> None:
        upload = store.begin_upload(base + "object")
        upload.part(1, 0, [memoryview(b"half")])
        upload.abort()
        with pytest.raises(S3dlioError, match="object"):
            upload.complete()
        assert place.keys() == []

    def test_complete_keeps_to_its_conditions(self, store: Store, base: str, place: Place) -> None:
        old = put(store, base + "object", b"old")
        for conditions in ({"if_absent": True}, {"if_match": "another"}):
            upload = store.begin_upload(base + "object")
            upload.part(1, 0, [memoryview(b"new")])
            with pytest.raises(PreconditionFailedError, match="object"):
                upload.complete(**conditions)
            upload.abort()
            assert (place.get("object"), place.keys()) == (b"old", ["object"])
        upload = store.begin_upload(base + "object")
        upload.part(1, 0, [memoryview(b"new")])
        upload.complete(if_match=old.etag)
        assert place.get("object") == b"new"

    # deleting

    def test_delete_removes_exactly_this_object(self, store: Store, base: str, place: Place) -> None:
        for key in ("a", "a2", "a.b", "b/a", "A"):
            place.put(key, b"x")
        store.delete(base + "a")
        store.delete(base + "a")
        store.delete(base + "never/was/here")
        assert sorted(place.keys()) == ["A", "a.b", "a2", "b/a"]

    # listing

    def test_a_listing_is_one_level_or_all(self, store: Store, base: str, place: Place) -> None:
        for key in ("a", "b/1", "b/c/2", "b/c/3", "b.txt", "b0", "é/1", "z"):
            place.put(key, b"x")
        assert listed(store, base, recursive=False) == (
            [base + key for key in ("a", "b.txt", "b0", "z")],
            [base + key for key in ("b/", "é/")],
        )
        assert listed(store, base, recursive=True) == (
            [base + key for key in ("a", "b.txt", "b/1", "b/c/2", "b/c/3", "b0", "z", "é/1")],
            [],
        )
        assert listed(store, base + "b/", recursive=False) == ([base + "b/1"], [base + "b/c/"])

    def test_a_prefix_may_end_within_a_name(self, store: Store, base: str, place: Place) -> None:
        for key in ("train-0", "train-1", "train/x", "test-0"):
            place.put(key, b"x")
        assert listed(store, base + "tra", recursive=False) == (
            [base + "train-0", base + "train-1"],
            [base + "train/"],
        )
        assert listed(store, base + "train-", recursive=True) == ([base + "train-0", base + "train-1"], [])

    def test_keys_are_ordered_by_their_utf8_bytes(self, store: Store, base: str, place: Place) -> None:
        keys = ["B", "a/1", "a!", "a-", "a.x", "a0", "aa", "z", "\uffee", "\U0001f600", "é", "\U0001d4b3"]
        for key in keys:
            place.put(key, b"x")
        found = listed(store, base, recursive=True)[0]
        assert found == sorted((base + key for key in keys), key=lambda key: key.encode())

    def test_nothing_under_a_prefix_is_an_empty_listing(self, store: Store, base: str, place: Place) -> None:
        place.put("data2/1", b"x")
        for prefix in ("data/", "data2/1/", "nothing"):
            assert listed(store, base + prefix, recursive=True) == ([], [])
            assert listed(store, base + prefix, recursive=False) == ([], [])

    @pytest.mark.parametrize("recursive", [True, False])
    def test_a_long_listing_is_complete(self, store: Store, base: str, place: Place, recursive: bool) -> None:
        names = [f"p/{number:05d}" for number in range(MANY)]
        place.put_all(names, b"")
        assert listed(store, base + "p/", recursive=recursive) == ([base + name for name in names], [])

    def test_many_sub_prefixes_are_listed_once_each(self, store: Store, base: str, place: Place) -> None:
        place.put_all([f"p/{number:04d}/x" for number in range(1_200)], b"")
        assert listed(store, base + "p/", recursive=False) == ([], [f"{base}p/{number:04d}/" for number in range(1_200)])


class ExactKeysContract(_OnPlaces):
    """For the places whose servers leave every key as it is."""

    @pytest.fixture
    def place(self, exact_place: Place) -> Place:
        return exact_place

    def test_a_backslash_is_a_character(self, store: Store, base: str, place: Place) -> None:
        check_opaque(store, base, place, "back\\slash")

    @pytest.mark.parametrize(("key", "alias"), [("a//b", "a/b"), ("x/../b", "b"), ("./b", "b"), ("x/./b", "x/b")])
    def test_slashes_and_dots_are_key_or_path_but_never_mixed_up(
        self, store: Store, base: str, key: str, alias: str
    ) -> None:
        if isinstance(store, HasDirectories):  # the file system's meaning: two names of one file
            store.mkdir(base + "x")
            put(store, base + key, b"1")
            assert content_of(store, base + alias) == b"1"
            return
        put(store, base + key, b"odd")
        put(store, base + alias, b"plain")
        assert (content_of(store, base + key), content_of(store, base + alias)) == (b"odd", b"plain")
        assert listed(store, base, recursive=True)[0] == sorted([base + key, base + alias], key=sort_key)
        store.delete(base + key)
        assert content_of(store, base + alias) == b"plain"

    def test_a_name_with_a_trailing_slash_holds_bytes_or_refuses_them(self, store: Store, base: str, place: Place) -> None:
        if isinstance(store, HasDirectories):
            with pytest.raises(ConfigError, match="dir/"):
                put(store, base + "dir/", b"not empty")
            assert place.keys() == []
            return
        put(store, base + "dir/", b"not empty")
        assert content_of(store, base + "dir/") == b"not empty"
        with pytest.raises(NotFoundError):
            get(store, base + "dir")

    def test_a_leading_slash_belongs_to_the_key(self, store: Store, base: str) -> None:
        put(store, base + "/lead", b"slash")
        if isinstance(store, HasDirectories):  # the file system's meaning: empty segments count for nothing
            assert content_of(store, base + "lead") == b"slash"
            return
        put(store, base + "lead", b"none")
        assert (content_of(store, base + "/lead"), content_of(store, base + "lead")) == (b"slash", b"none")
