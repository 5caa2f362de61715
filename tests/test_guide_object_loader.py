"""The data-loaders guide's first half: its examples as they stand there, on every scheme, and its tables row by row."""

from __future__ import annotations

from typing import Any

import pytest

import s3dlio

from .conftest import Place
from .faults import FaultServer
from .test_guide_examples import run


@pytest.fixture
def images(place: Place) -> Place:
    place.put_all([f"train/img_{number:06}.jpg" for number in range(1, 11)], b"image")
    return place


URIS = """
uris = [
    "s3://bucket/train/img_000001.jpg",
    "s3://bucket/train/img_000002.jpg",
    # ... any number of objects ...
]
"""
DATASET = """
ds = s3dlio.PyDataset.from_uris(uris)
print(len(ds))   # == len(uris)
"""
LOADER = """
ds     = s3dlio.PyDataset.from_uris(uris)
loader = s3dlio.PyBytesAsyncDataLoader(ds, {"prefetch": 64})
"""


def test_a_dataset_from_uris(images: Place, capsys: pytest.CaptureFixture[str]) -> None:
    left = run(images, URIS + DATASET)
    assert capsys.readouterr().out == "2\n"
    assert len(left["ds"]) == 2


@pytest.mark.parametrize(
    "construction",
    [
        'loader = s3dlio.PyBytesAsyncDataLoader(ds, {"prefetch": 64})',
        'loader = s3dlio.PyBytesAsyncDataLoader(ds, {"prefetch": 8, "skip_head": False})',
    ],
)
def test_the_loaders_of_the_skip_head_example(images: Place, construction: str) -> None:
    left = run(images, URIS + "ds = s3dlio.PyDataset.from_uris(uris)\n" + construction)
    assert [bytes(view) for view in left["loader"]] == [b"image"] * 2


def test_iterating_gives_views_in_submission_order(images: Place) -> None:
    left = run(
        images,
        URIS
        + LOADER
        + """
arrays = []
for view in loader:          # synchronous; GIL released while waiting
    arr = numpy.frombuffer(view, dtype=numpy.uint8)  # zero-copy
    arrays.append((view.uri, arr, view))
""",
    )
    assert [uri for uri, _, _ in left["arrays"]] == left["uris"]
    for _, array, view in left["arrays"]:
        assert array.tobytes() == b"image"
        assert array.__array_interface__["data"][0] == view.__array_interface__["data"][0], "no copy"
        assert isinstance(view, s3dlio.PyBytesView)


def test_items_carry_their_uris(images: Place, capsys: pytest.CaptureFixture[str]) -> None:
    left = run(
        images,
        URIS
        + LOADER
        + """
for item in loader.items():          # GIL released per item while waiting
    print(item.uri, len(item))       # which object, how many bytes
    raw = bytes(item)                # one copy to Python heap (only if needed)
""",
    )
    assert sorted(capsys.readouterr().out.splitlines()) == [f"{uri} 5" for uri in left["uris"]]
    assert left["raw"] == b"image"
    item = left["item"]
    assert isinstance(item, s3dlio.PyObjectItem)
    assert (item.byte_count, len(item)) == (5, 5)
    assert isinstance(left["loader"].items(), s3dlio.PyObjectDataLoaderSyncIter)


def test_collect_batch(images: Place) -> None:
    processed: dict[str, bytes] = {}
    left = run(
        images,
        """
item_iter = loader.items()
while batch := item_iter.collect_batch(16):   # empty list = end of stream
    for item in batch:                         # plain Python list — no __next__ overhead
        process(item.uri, bytes(item))
""",
        loader=s3dlio.PyBytesAsyncDataLoader(s3dlio.PyDataset(images.root + "train/")),
        process=processed.__setitem__,
    )
    assert processed == dict.fromkeys(s3dlio.list(images.root + "train/"), b"image")
    assert left["batch"] == []
    assert type(left["batch"]) is list


STREAM_EPOCH = '''
import s3dlio

# Called from each PyTorch DataLoader worker subprocess
def stream_epoch(obj_keys, batch_size, num_spf=1, prefetch=64):
    """
    obj_keys  — list of storage keys (relative to bucket/prefix)
    batch_size — training batch size in samples
    num_spf    — samples per file (1 for JPEG/PNG, 4 for NPZ, etc.)
    """
    uris = [f"s3://my-bucket/data/{k}" for k in obj_keys]
    uri_to_key = {u: k for k, u in zip(obj_keys, uris)}

    ds = s3dlio.PyDataset.from_uris(uris)
    loader = s3dlio.PyBytesAsyncDataLoader(ds, {"prefetch": prefetch})
    item_iter = loader.items()

    collect_n = max(1, batch_size // num_spf)   # files per batch
    sample_buf = 0
    dummy_batch = b"\\x00"  # placeholder — real code would yield actual tensors

    while batch := item_iter.collect_batch(collect_n):
        for item in batch:
            key = uri_to_key.get(item.uri, item.uri)
            record_telemetry(key, len(item))     # byte count — no copy
            for _ in range(num_spf):
                sample_buf += 1
                if sample_buf >= batch_size:
                    yield dummy_batch
                    sample_buf -= batch_size
'''


def test_the_full_example(place: Place) -> None:
    keys = [f"part/{number:03}.npz" for number in range(21)]
    place.put_all(["data/" + key for key in keys], b"x" * 100)
    seen: dict[str, int] = {}
    left = run(place, STREAM_EPOCH, record_telemetry=seen.__setitem__)
    assert list(left["stream_epoch"](keys, 6, num_spf=4, prefetch=3)) == [b"\x00"] * (21 * 4 // 6)
    assert seen == dict.fromkeys(keys, 100), "every key is known by the URI that the user gave"


@pytest.mark.parametrize("uris", [[], ()])
def test_an_empty_list_is_a_runtime_error(uris: Any) -> None:
    with pytest.raises(RuntimeError, match="empty"):
        s3dlio.PyDataset.from_uris(uris)
    with pytest.raises(ValueError, match="empty"):
        s3dlio.PyDataset.from_uris(uris)


def test_mixed_schemes_are_refused_by_name() -> None:
    with pytest.raises(RuntimeError, match=r"begins with s3:// and has 'file:///x'"):
        s3dlio.PyDataset.from_uris(["s3://b/x", "file:///x"])


def test_no_listing_occurs_and_prefix_lists_once(faults: FaultServer) -> None:
    faults.s3.put("p/a", b"1")
    assert [bytes(view) for view in s3dlio.PyDataset.from_uris(["s3://bkt/p/a"])] == [b"1"]
    assert not faults.asked("LIST")
    dataset = s3dlio.PyDataset("s3://bkt/p/")
    assert len(faults.asked("LIST")) == 1
    assert [bytes(view) for view in s3dlio.PyBytesAsyncDataLoader(dataset)] == [b"1"]
    assert len(faults.asked("LIST")) == 1


@pytest.mark.parametrize(("opts", "num_heads"), [({}, 0), ({"skip_head": True}, 0), ({"skip_head": False}, 5)])
def test_skip_head(faults: FaultServer, opts: dict[str, Any], num_heads: int) -> None:
    faults.s3.put("k", b"data")
    dataset = s3dlio.PyDataset.from_uris(["s3://bkt/k"] * 5)
    for epoch in (1, 2):
        assert [bytes(view) for view in s3dlio.PyBytesAsyncDataLoader(dataset, opts).items()] == [b"data"] * 5
        assert len(faults.asked("HEAD")) == num_heads * epoch
        assert len(faults.asked("GET")) == 5 * epoch


def test_no_loader_sets_a_latch_for_others(faults: FaultServer) -> None:
    faults.s3.put("k", b"data")
    dataset = s3dlio.PyDataset.from_uris(["s3://bkt/k"])
    list(s3dlio.PyBytesAsyncDataLoader(dataset, {"skip_head": True}))
    list(s3dlio.PyBytesAsyncDataLoader(dataset, {"skip_head": False}))
    assert len(faults.asked("HEAD")) == 1


@pytest.mark.parametrize(("told", "num_heads"), [("1", 0), ("0", 1)])
def test_the_environment_says_it_where_the_options_do_not(
    faults: FaultServer, monkeypatch: pytest.MonkeyPatch, told: str, num_heads: int
) -> None:
    faults.s3.put("k", b"data")
    monkeypatch.setenv("S3DLIO_SKIP_HEAD", told)
    list(s3dlio.PyBytesAsyncDataLoader(s3dlio.PyDataset.from_uris(["s3://bkt/k"])))
    assert len(faults.asked("HEAD")) == num_heads


@pytest.mark.parametrize("skip_head", [True, False])
def test_large_objects_come_in_ranges_from_the_first_epoch_on(
    faults: FaultServer, monkeypatch: pytest.MonkeyPatch, skip_head: bool
) -> None:
    monkeypatch.setenv("S3DLIO_RANGE_THRESHOLD_MB", "1")
    monkeypatch.setenv("S3DLIO_CHUNK_SIZE", str(2**20))
    content = bytes(range(256)) * 12_000  # 3 MiB, not quite
    faults.s3.put("k", content)
    loader = s3dlio.PyBytesAsyncDataLoader(s3dlio.PyDataset.from_uris(["s3://bkt/k"]), {"skip_head": skip_head})
    for view in loader:
        assert view == content
    assert len(faults.asked("GET")) == 3
