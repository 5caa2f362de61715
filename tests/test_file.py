"""The reader behaves as io.BytesIO over one version of the object."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import s3dlio
from s3dlio.config import Options
from s3dlio.transfer import file as module
from s3dlio.transfer.file import ObjectReader
from s3dlio.view import empty

from .conftest import LocalPlace, Place
from .test_read import Faulty

SIZE = 3_000
CONTENT = np.random.default_rng(11).bytes(SIZE)
OPTIONS = Options(range_threshold_bytes=500, chunk_bytes=100, range_concurrency=2)
POSITIONS = st.integers(0, SIZE + 200)
STEPS = st.one_of(
    st.tuples(st.just("read"), st.one_of(st.none(), st.integers(-1, SIZE + 100))),
    st.tuples(st.just("readinto"), st.integers(0, SIZE + 100)),
    st.tuples(st.just("seek"), POSITIONS),
    st.tuples(st.just("relative"), POSITIONS),
    st.tuples(st.just("from the end"), POSITIONS),
    st.tuples(st.just("readline"), st.integers(-1, 50)),
)


@pytest.fixture(scope="module", autouse=True)
def small_windows() -> Iterator[None]:
    """Windows much smaller than the object, so that every path is taken."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "READ_AHEAD_BYTES", 256)
        patch.setattr(module, "TAIL_BYTES", 100)
        yield


def take(file: Any, step: tuple[str, Any]) -> object:
    """One step, the same for the reader and for io.BytesIO."""
    kind, argument = step
    if kind == "read":
        return file.read(argument)
    if kind == "readline":
        return file.readline(argument)
    if kind == "readinto":
        buffer = bytearray(b"\xee" * argument)
        return file.readinto(buffer), bytes(buffer)
    if kind == "seek":
        return file.seek(argument)
    if kind == "relative":
        return file.seek(argument - file.tell(), os.SEEK_CUR)
    return file.seek(argument - SIZE, os.SEEK_END)


@given(st.lists(STEPS, max_size=15))
def test_every_sequence_of_steps_gives_what_bytesio_gives(steps: list[tuple[str, Any]]) -> None:
    store = Faulty()
    store.put("k", memoryview(CONTENT))
    reader, oracle = ObjectReader(store, "k", OPTIONS), io.BytesIO(CONTENT)
    for step in steps:
        assert take(reader, step) == take(oracle, step), step
        assert reader.tell() == oracle.tell()


@given(st.lists(STEPS, max_size=10), st.integers(0, 400))
def test_short_objects_too(steps: list[tuple[str, Any]], size: int) -> None:
    store = Faulty()
    store.put("k", memoryview(CONTENT[:size]))
    reader, oracle = ObjectReader(store, "k", OPTIONS), io.BytesIO(CONTENT[:size])
    for step in steps:
        if step[0] == "from the end" and step[1] - SIZE + size < 0:
            continue
        assert take(reader, step) == take(oracle, step), step


def test_reading_front_to_back_crosses_the_wire_about_once() -> None:
    store = Faulty()
    store.put("k", memoryview(CONTENT))
    reader = ObjectReader(store, "k", OPTIONS)
    assert b"".join(iter(lambda: reader.read(70), b"")) == CONTENT
    assert sum(min(length or SIZE, SIZE - start) for start, length, _ in store.reads) == SIZE


def test_a_large_read_goes_straight_into_the_callers_memory(place: Place) -> None:
    place.put("k", CONTENT)
    with s3dlio.open_reader(place.root + "k") as reader:
        reader.seek(10)
        view = empty(SIZE)
        view[:] = 0xEE
        assert reader.readinto(view[:2_000]) == 2_000
    assert view == CONTENT[10:2_010] + b"\xee" * 1_000


@pytest.mark.parametrize("size", [0, 1, 4096, 10_000, 1_000_003])
def test_slices_of_a_view_are_filled_and_nothing_else(place: Place, size: int) -> None:
    content = np.random.default_rng(size).bytes(1_200_000)
    place.put("k", content)
    view = empty(1_200_000)
    view[:] = 0xEE
    with s3dlio.open_reader(place.root + "k") as reader:
        reader.seek(4096)
        assert reader.readinto(view[:size]) == size
    assert view[:size] == content[4096 : 4096 + size]
    assert view[size:] == b"\xee" * (1_200_000 - size)


def test_other_layouts_can_be_read_into(place: Place) -> None:
    place.put("k", CONTENT[:2_400])
    array = np.zeros((20, 30), np.float32)
    with s3dlio.open_reader(place.root + "k") as reader:
        assert reader.readinto(array) == 2_400
    assert array.tobytes() == CONTENT[:2_400]


@pytest.mark.parametrize("buffer", [b"fixed", np.zeros((4, 4), np.uint8).T, "text", None, 7], ids=type)
def test_what_cannot_be_read_into_is_a_type_error(place: Place, buffer: object) -> None:
    place.put("k", CONTENT)
    with s3dlio.open_reader(place.root + "k") as reader, pytest.raises(TypeError):
        reader.readinto(buffer)


def test_it_says_what_it_is(place: Place) -> None:
    place.put("k", CONTENT)
    reader = s3dlio.open_reader(place.root + "k")
    assert (reader.readable(), reader.seekable(), reader.writable(), len(reader)) == (True, True, False, SIZE)
    assert reader.uri == place.root + "k"
    assert type(reader.read(5)) is bytes
    assert io.BufferedReader(reader).read() == CONTENT[5:]


def test_seeks_that_make_no_sense_are_refused_and_move_nothing(place: Place) -> None:
    place.put("k", CONTENT)
    with s3dlio.open_reader(place.root + "k") as reader:
        reader.seek(7)
        for arguments in ((-1,), (-8, os.SEEK_CUR), (-SIZE - 1, os.SEEK_END), (0, 9)):
            with pytest.raises(ValueError, match="cannot seek"):
                reader.seek(*arguments)
        for offset in (1.5, "3", None):
            with pytest.raises(TypeError):
                reader.seek(offset)  # type: ignore[arg-type]
        assert reader.tell() == 7


def test_after_close_everything_is_refused(place: Place) -> None:
    place.put("k", CONTENT)
    reader = s3dlio.open_reader(place.root + "k")
    reader.close()
    reader.close()
    for use in (reader.read, lambda: reader.readinto(bytearray(1)), lambda: reader.seek(0), reader.readline):
        with pytest.raises(ValueError, match="clos"):
            use()


@pytest.mark.parametrize("length", [10, 1_000])
def test_an_object_replaced_meanwhile_is_an_error_never_a_mixture(place: Place, length: int) -> None:
    place.put("k", CONTENT)
    with s3dlio.open_reader(place.root + "k") as reader:
        assert reader.read(100) == CONTENT[:100]
        s3dlio.put_bytes(place.root + "k", CONTENT[::-1])
        reader.seek(1_500)
        with pytest.raises(s3dlio.ChangedError, match=place.root + "k"):
            reader.readinto(bytearray(length))


def test_a_vanished_object_is_an_error(local_place: LocalPlace) -> None:
    local_place.put("k", CONTENT)
    with s3dlio.open_reader(local_place.root + "k") as reader:
        s3dlio.delete(local_place.root + "k")
        reader.seek(1_500)
        with pytest.raises(s3dlio.NotFoundError, match="k"):
            reader.read(10)


def test_archives_can_be_read(place: Place) -> None:
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for number in range(50):
            archive.writestr(f"f{number}", CONTENT[:number])
    place.put("k.zip", buffer.getvalue())
    with s3dlio.open_reader(place.root + "k.zip") as reader, zipfile.ZipFile(reader) as archive:
        assert [archive.read(f"f{number}") for number in range(50)] == [CONTENT[:number] for number in range(50)]
