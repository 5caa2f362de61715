"""Tar shards: what tarfile wrote comes back as members and samples, from any position, and damage is told."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3dlio import TarFile, TarReader, TarSampleReader, create_tar_index
from s3dlio.data import tarheaders
from s3dlio.data.tar import TarEntry, read_tar_index, split_name
from s3dlio.errors import ChangedError, CorruptDataError, IncompleteReadError
from s3dlio.transfer import ahead

from .conftest import MemoryPlace, Place

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
FILES = [("a/1.jpg", b"x" * 700), ("a/1.cls", b"7"), ("a/1.seg.PNG", b""), ("a/2.jpg", b"y" * 512), ("README", b"no sample")]
LONG = "folder/" * 20 + "n" * 120 + ".jpg"


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    """Members lie in a block, cross its border, and span several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ahead, "BLOCK_BYTES", 1500)
        yield


def archive_of(files: list[tuple[str, bytes]], kind: int = tarfile.PAX_FORMAT, **more: Any) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind, errors="surrogateescape") as archive:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for field, value in more.items():
                setattr(info, field, value)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def pairs(members: Any) -> list[tuple[str, bytes]]:
    return [(name, bytes(data)) for name, data in members]


def put(data: bytes) -> str:
    place = MemoryPlace()
    place.put("t.tar", data)
    return place.root + "t.tar"


@pytest.mark.parametrize("kind", FORMATS)
def test_members_of_several_archives_come_in_order(place: Place, kind: str) -> None:
    place.put("1.tar", archive_of(FILES, FORMATS[kind]))
    place.put("2.tar", archive_of(FILES[:2], FORMATS[kind]))
    members = list(TarReader([place.root + "1.tar", place.root + "2.tar"]))
    assert pairs(members) == FILES + FILES[:2]
    assert members[0].data.uri == place.root + "1.tar"


@pytest.mark.parametrize("kind", ["gnu", "pax"])
def test_names_longer_than_a_header_and_of_any_characters(kind: str) -> None:
    files = [(LONG, b"long"), ("ä/\u4e2d.jpg", b"text"), ("bad\udcff.jpg", b"undecodable")]
    assert pairs(TarReader(put(archive_of(files, FORMATS[kind])))) == files


def test_a_name_that_ustar_splits() -> None:
    files = [("p" * 120 + "/" + "n" * 90 + ".jpg", b"x")]
    assert pairs(TarReader(put(archive_of(files, tarfile.USTAR_FORMAT)))) == files


def test_a_size_in_a_pax_record_counts() -> None:
    archive = archive_of([("x", b"1234")], pax_headers={"comment": "a b=c\n", "size": "4"})
    assert pairs(TarReader(put(archive))) == [("x", b"1234")]


def test_only_regular_files_are_members() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind in (("d", tarfile.DIRTYPE), ("l", tarfile.SYMTYPE), ("h", tarfile.LNKTYPE), ("p", tarfile.FIFOTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, LONG
            archive.addfile(info)
        info = tarfile.TarInfo("old")
        info.type, info.size = tarfile.AREGTYPE, 3
        archive.addfile(info, io.BytesIO(b"abc"))
    assert pairs(TarReader(put(buffer.getvalue()))) == [("old", b"abc")]


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=130)
files = st.lists(st.tuples(names.filter(lambda name: name.strip("/") == name), st.binary(max_size=2500)), max_size=6)


@given(files, st.sampled_from(["gnu", "pax"]), st.data())
def test_a_reader_goes_on_from_any_member(files: list[tuple[str, bytes]], kind: str, data: st.DataObject) -> None:
    uri = put(archive_of(files, FORMATS[kind]))
    reader = TarReader([uri, uri])
    count = data.draw(st.integers(0, 2 * len(files)))
    begun = iter(reader)
    assert pairs(next(begun) for _ in range(count)) == (files * 2)[:count]
    resumed = TarReader([uri, uri])
    resumed.load_state_dict(reader.state_dict())
    assert pairs(resumed) == (files * 2)[count:]


def plain(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, str) else bytes(value) for name, value in sample.items()}


def test_samples_are_runs_of_members_with_one_key(place: Place) -> None:
    place.put("1.tar", archive_of(FILES))
    url = place.root + "1.tar"
    expected = [
        {"__key__": "a/1", "__url__": url, "jpg": b"x" * 700, "cls": b"7", "seg.png": b""},
        {"__key__": "a/2", "__url__": url, "jpg": b"y" * 512},
    ]
    assert list(map(plain, TarSampleReader(url))) == expected
    reader = TarSampleReader([url, url])
    begun = iter(reader)
    for count in range(5):
        resumed = TarSampleReader([url, url])
        resumed.load_state_dict(reader.state_dict())
        assert list(map(plain, resumed)) == (expected * 2)[count:]
        next(begun, None)


def test_a_position_before_a_sample_is_before_its_long_name() -> None:
    uri = put(archive_of([("1.jpg", b"x"), (LONG, b"y")], tarfile.GNU_FORMAT))
    reader = TarSampleReader(uri)
    next(iter(reader))
    resumed = TarSampleReader(uri)
    resumed.load_state_dict(reader.state_dict())
    assert [sample["__key__"] for sample in resumed] == [LONG.removesuffix(".jpg")]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a.jpg", ("a", "jpg")),
        ("x.y/a.b.JPG", ("x.y/a", "b.jpg")),
        ("a", ("a", "")),
        (".hidden", ("", "")),
        ("x/.a.b", ("x/", "")),
        ("a.", ("a", "")),
    ],
)
def test_a_key_is_the_path_up_to_the_first_dot_of_its_last_part(name: str, parts: tuple[str, str]) -> None:
    assert split_name(name) == parts


def test_an_extension_that_comes_twice_is_an_error() -> None:
    with pytest.raises(CorruptDataError, match=r"1\.JPG comes twice"):
        list(TarSampleReader(put(archive_of([("1.jpg", b"x"), ("1.JPG", b"y")]))))


def test_a_truncated_archive_is_an_error_wherever_it_ends() -> None:
    archive = archive_of([("a", b"x" * 600), ("b", b"")], tarfile.USTAR_FORMAT)[: 4 * 512 + 2 * 512]
    uri = put(archive)
    assert len(list(TarReader(uri))) == 2
    for length in (0, 1, 511, 512, 513, 1000, 1112, 1113, 1536, 1537, 2047, 2048, 2049):
        uri = put(archive[:length])
        with pytest.raises(IncompleteReadError, match=uri):
            list(TarReader(uri))
        with pytest.raises(IncompleteReadError, match=uri):
            create_tar_index(uri)


def test_archives_that_were_concatenated_are_read_to_the_end() -> None:
    archive = archive_of(FILES)
    assert pairs(TarReader(put(archive + archive))) == FILES * 2


@pytest.mark.parametrize("position", [0, 110, 130, 148, 160])
def test_a_damaged_header_names_archive_and_byte(position: int) -> None:
    archive = bytearray(archive_of(FILES))
    archive[1536 + position] ^= 2
    uri = put(bytes(archive))
    with pytest.raises(CorruptDataError, match=f"{uri}.* byte 1536 "):
        list(TarReader(uri))


@pytest.mark.parametrize("damage", [b"x9 path=a\n", b"99 path=a\n", b"10 path.a\n", b"", b"path=a\n"])
def test_a_damaged_pax_record_is_an_error(damage: bytes) -> None:
    archive = bytearray(archive_of([("x", b"1")], pax_headers={"comment": "abcdefgh"}))
    at = archive.index(b"20 comment=abcdefgh\n")
    archive[at : at + 20] = damage.ljust(20, b" ")
    with pytest.raises(CorruptDataError, match="pax header at byte 0 "):
        list(TarReader(put(bytes(archive))))


def with_checksum(header: bytes, start: int, field: bytes) -> bytes:
    changed = header[:start] + field + header[start + len(field) :]
    return changed[:148] + b"%06o\0 " % (sum(changed[:148]) + sum(changed[156:512]) + 8 * 32) + changed[156:]


def test_huge_sizes_allocate_nothing() -> None:
    archive = archive_of([("x", b"1")], tarfile.GNU_FORMAT)
    huge = with_checksum(archive, 124, b"\x80" + (1 << 60).to_bytes(11, "big"))
    with pytest.raises(IncompleteReadError, match="byte 0 "):
        list(TarReader(put(huge)))
    with pytest.raises(CorruptDataError, match="byte 0 "):
        list(TarReader(put(with_checksum(huge, 156, b"L"))))


def test_a_sparse_file_is_refused_not_misread() -> None:
    sparse = with_checksum(archive_of([("x", b"1")], tarfile.GNU_FORMAT), 156, b"S")
    for archive in (sparse, archive_of([("x", b"1")], pax_headers={"GNU.sparse.major": "1"})):
        with pytest.raises(CorruptDataError, match="sparse"):
            list(TarReader(put(archive)))


@given(st.binary(min_size=512, max_size=512).map(lambda block: with_checksum(block, 257, b"ustar\0")[:512]), st.data())
def test_the_short_way_through_a_header_agrees_with_tarfile(block: bytes, data: st.DataObject) -> None:
    header = archive_of([(data.draw(names), bytes(9))], tarfile.GNU_FORMAT)[-10240:][:512]
    assert tarheaders._plain_file(archive_of([("x", bytes(9))])[:512]) == (tarfile.REGTYPE, "x", 9)
    for candidate in (block, with_checksum(header, 124, data.draw(st.from_regex(rb"[ 0-7]{8}[ 0-7\0]{4}", fullmatch=True)))):
        short = tarheaders._plain_file(candidate)
        if short is not None:
            info = tarfile.TarInfo.frombuf(candidate, "utf-8", "surrogateescape")
            assert (short.type, short.name.rstrip("/"), short.size) == (info.type, info.name.rstrip("/"), info.size)


def test_an_index_and_members_by_name_and_number(place: Place) -> None:
    files = [*FILES, (LONG, b"long"), ('a b\n"c"', b"odd")]
    archive = archive_of(files)
    place.put("t.tar", archive)
    uri = place.root + "t.tar"
    assert create_tar_index(uri) == len(files)
    assert create_tar_index(uri, MemoryPlace().root + "idx") == len(files)
    entries = read_tar_index(uri + ".idx")
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        assert entries == [TarEntry(info.offset_data, info.size, info.name) for info in opened]
    for index in (uri + ".idx", entries, None):
        file = TarFile(uri, index)
        assert len(file) == len(files)
        assert list(map(bytes, file.get_many([LONG, 3, "a/1.cls", -1]))) == [b"long", b"y" * 512, b"7", b"odd"]
        assert bytes(file["a/1.jpg"]) == b"x" * 700


def test_an_archive_that_is_replaced_is_not_read_by_the_index_of_the_old_one(place: Place) -> None:
    place.put("t.tar", archive_of(FILES))
    file = TarFile(place.root + "t.tar")
    assert bytes(file["a/1.cls"]) == b"7"
    place.put("t.tar", archive_of([("b", b"z" * 512), *FILES]))
    with pytest.raises(ChangedError, match=r"t\.tar"):
        file.get_many(["a/1.cls"])
    assert bytes(TarFile(place.root + "t.tar")["a/1.cls"]) == b"7"


def test_wrong_names_and_wrong_indices_are_errors() -> None:
    uri = put(archive_of(FILES))
    with pytest.raises(KeyError, match="nobody"):
        TarFile(uri)["nobody"]
    with pytest.raises(IncompleteReadError, match=r"x\.jpg"):
        TarFile(uri, [TarEntry(10_000, 5_000, "x.jpg")])[0]
    with pytest.raises(CorruptDataError, match="no index"):
        TarFile(uri, uri)
