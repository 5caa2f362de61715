"""`BytesView` behaves as bytes, and a block is never handed out again while anything refers to it."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import s3dlio
from s3dlio import view as module
from s3dlio.view import ALIGNMENT, PAGE, POOLED, BytesView, as_buffer, copy_of, empty

SIZE = 10 * PAGE + 8
Run = Callable[..., subprocess.CompletedProcess[str]]


def address(view: Any) -> int:
    start: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return start


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[module._Pool]:
    """An empty pool of its own."""
    fresh = module._Pool()
    monkeypatch.setattr(module, "_pool", fresh)
    yield fresh
    fresh.forget()


def torch_from_numpy(view: BytesView) -> object:
    import torch

    return torch.from_numpy(view)


def torch_frombuffer(view: BytesView) -> object:
    import torch

    return torch.frombuffer(view, dtype=torch.float32)


def slice_of_a_tensor(view: BytesView) -> object:
    import torch

    return torch.frombuffer(view, dtype=torch.uint8)[100:200].view(2, 50)[1]


def storage_of_a_tensor(view: BytesView) -> object:
    import torch

    return torch.from_numpy(view).untyped_storage()


def arrow_buffer(view: BytesView) -> object:
    import pyarrow

    return pyarrow.py_buffer(view)


def slice_of_an_arrow_array(view: BytesView) -> object:
    import pyarrow

    return pyarrow.Array.from_buffers(pyarrow.uint8(), 16, [None, pyarrow.py_buffer(view)]).slice(3, 5)


ALIASES: dict[str, Callable[[BytesView], object]] = {
    "the view": lambda view: view,
    "a slice": lambda view: view[5:50],
    "a slice of slices": lambda view: view[5:5000][10:100][::1][3:4],
    "an empty slice": lambda view: view[7:7],
    "a strided slice": lambda view: view[::3],
    "a reversed slice": lambda view: view[::-1],
    "np.asarray": np.asarray,
    "np.frombuffer": lambda view: np.frombuffer(view, np.float32),
    "a slice of np.frombuffer": lambda view: np.frombuffer(view, np.float64)[3:9][1:2],
    "np.frombuffer of np.frombuffer": lambda view: np.frombuffer(np.frombuffer(view[8:], np.uint16)[2:], np.uint8),
    "view of another type": lambda view: view.view(np.int16),
    "reshape": lambda view: view[:100].reshape(10, 10).T,
    "a field of a record": lambda view: view.view(np.dtype([("a", "<u4"), ("b", "<u4")]))["b"],
    "memoryview": memoryview,
    "a slice of a memoryview": lambda view: memoryview(view)[3:9].toreadonly()[1:2],
    "a cast memoryview": lambda view: memoryview(view).cast("f"),
    "view.memoryview()": lambda view: view.memoryview(),
    "pickle.PickleBuffer": pickle.PickleBuffer,
    "an iterator": lambda view: iter(memoryview(view)),
    "a closure": lambda view: lambda: view,
    "a cycle": lambda view: (lambda holder: holder.append((holder, view)) or holder)([]),  # type: ignore[func-returns-value]
    "torch.from_numpy": torch_from_numpy,
    "torch.frombuffer": torch_frombuffer,
    "a slice of a tensor": slice_of_a_tensor,
    "the storage of a tensor": storage_of_a_tensor,
    "pyarrow.py_buffer": arrow_buffer,
    "a slice of an arrow array": slice_of_an_arrow_array,
}


class TestBlocksAreNotSharedWhileInUse:
    @pytest.mark.parametrize("alias_of", ALIASES.values(), ids=ALIASES.keys())
    def test_a_block_is_reused_only_when_no_alias_lives(
        self, pool: module._Pool, alias_of: Callable[[BytesView], object]
    ) -> None:
        first = address(view := empty(SIZE))
        alias = alias_of(view)
        del view
        gc.collect()
        others = [empty(SIZE) for _ in range(5)]
        assert first not in map(address, others)
        del alias
        gc.collect()
        assert address(empty(SIZE)) == first
        assert len({first, *map(address, others)}) == 6

    def test_jax_keeps_the_block_it_aliases(self, run_python: Run) -> None:
        done = run_python(
            "import gc, warnings; warnings.simplefilter('ignore')\n"
            "import jax, numpy as np\n"
            "from s3dlio.view import empty\n"
            "place = lambda view: view.__array_interface__['data'][0]\n"
            f"view = empty({SIZE}); first = place(view); view[:] = 7\n"
            "array = jax.device_put(np.frombuffer(view, np.float32))\n"
            "array.block_until_ready()\n"
            "aliased = array.unsafe_buffer_pointer() == first\n"
            "del view; gc.collect()\n"
            f"others = [empty({SIZE}) for _ in range(5)]\n"
            "for other in others: other[:] = 9\n"
            "assert not aliased or first not in map(place, others)\n"
            "assert np.asarray(array).tobytes() == b'\\7' * (array.size * 4)\n"
            "print('aliased' if aliased else 'copied')\n",
            JAX_PLATFORMS="cpu",
        )
        assert done.stdout.strip() == "aliased", done.stdout + done.stderr

    def test_contents_stay_under_threads(self, pool: module._Pool) -> None:
        wrong = []

        def work(mark: int) -> None:
            kept = []
            for number in range(300):
                view = empty(SIZE)
                view[:] = mark
                kept = [*kept[-3:], view[number : number + 4000]]
                if not all(np.all(np.asarray(part) == mark) for part in kept):
                    wrong.append(mark)

        threads = [threading.Thread(target=work, args=(mark,)) for mark in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    def test_threads_that_outgrow_the_pool_do_not_fail(self, pool: module._Pool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("S3DLIO_BUFFER_POOL_MB", "1")
        failures: list[BaseException] = []

        def work() -> None:
            try:
                for number in range(400):
                    empty(SIZE + number % 3 * 8 * PAGE)
                    kept = [empty(SIZE * 4) for _ in range(3)]
                    del kept
            except BaseException as exc:
                failures.append(exc)

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
        assert failures == []
        assert sum(map(len, pool._classes.values())) == len(pool._order)

    def test_a_forked_child_does_not_reuse_what_the_parent_shows(self, run_python: Run) -> None:
        done = run_python(
            "import os\n"
            "from s3dlio.view import empty\n"
            f"first = empty({SIZE}); first[:] = 1; place = first.__array_interface__['data'][0]\n"
            "pid = os.fork()\n"
            "if pid == 0:\n"
            f"    second = empty({SIZE}); second[:] = 2\n"
            "    os._exit(0 if first == b'\\1' * first.size else 1)\n"
            "assert os.waitpid(pid, 0)[1] == 0 and first == b'\\1' * first.size"
        )
        assert done.returncode == 0, done.stderr


class TestThePoolIsBounded:
    def test_it_remembers_no_more_than_its_limit(self, pool: module._Pool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("S3DLIO_BUFFER_POOL_MB", "2")
        for size in (SIZE, 300_000, 700_000, SIZE, 1 << 20):
            kept = [empty(size) for _ in range(20)]
            assert pool._num_bytes <= 2 << 20
            assert pool._num_bytes == sum(block.size for block in pool._order)
            del kept

    def test_what_exceeds_the_limit_is_not_remembered(self, pool: module._Pool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("S3DLIO_BUFFER_POOL_MB", "1")
        empty(2 << 20)
        assert pool._num_bytes == 0
        monkeypatch.setenv("S3DLIO_BUFFER_POOL_MB", "0")
        empty(SIZE)
        assert pool._num_bytes == 0

    def test_objects_of_similar_size_share_a_block(self, pool: module._Pool) -> None:
        addresses = {address(empty(1_000_000 + number * 1000)) for number in range(10)}
        assert len(addresses) == 1

    def test_a_block_wastes_at_most_an_eighth_and_a_page(self) -> None:
        for size in [PAGE, PAGE + 1, 100_000, 1 << 20, (1 << 20) + 1, 148 << 20, (1 << 33) + 1]:
            assert size <= module.size_class(size) <= size + size // 8 + PAGE
            assert module.size_class(size) % PAGE == 0

    def test_memory_does_not_grow_with_the_number_of_reads(self, pool: module._Pool) -> None:
        for _ in range(100):
            empty(1 << 20)
        assert len(pool._order) == 1


class TestPlace:
    @pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000, POOLED - 1])
    def test_small_views_are_aligned_to_64_bytes(self, size: int) -> None:
        views = [empty(size) for _ in range(20)]
        assert {view.__array_interface__["data"][0] % ALIGNMENT for view in views} == {0}
        assert {len(view) for view in views} == {size}

    @pytest.mark.parametrize("size", [POOLED, POOLED + 1, 1 << 20])
    def test_large_views_are_aligned_to_a_page(self, size: int) -> None:
        assert empty(size).__array_interface__["data"][0] % PAGE == 0

    def test_get_gives_aligned_writable_memory_of_its_own(self, place: Any) -> None:
        for size in (0, 1, 100, PAGE, 100_001):
            place.put("k", bytes(size))
            first, second = s3dlio.get(place.root + "k"), s3dlio.get(place.root + "k")
            assert first.__array_interface__["data"][0] % ALIGNMENT == 0
            if size:
                first[0] = 99
                assert (first[0], second[0], place.get("k")[0]) == (99, 0, 0)


class TestLikeBytes:
    @pytest.fixture
    def view(self) -> BytesView:
        return copy_of(b"Hello, World!", "memory://b/k")

    def test_length_bytes_and_count(self, view: BytesView) -> None:
        assert (len(view), view.byte_count) == (13, 13)
        assert bytes(view) == view.to_bytes() == b"Hello, World!"
        assert bytes(view.memoryview()) == b"Hello, World!"
        assert view.memoryview().format == "B"

    def test_equality_is_that_of_bytes(self, view: BytesView) -> None:
        same = (b"Hello, World!", bytearray(b"Hello, World!"), memoryview(b"Hello, World!"), copy_of(view), view[:])
        for other in same:
            assert (view == other) is True
            assert (other == view) is True
            assert (view != other) is False
            assert (other != view) is False
        for other in (b"Hello", b"Hello, World?", b"", copy_of(b""), "Hello, World!", None, 13, [72], object()):
            assert (view == other) is False
            assert (other == view) is False
            assert (view != other) is True
            assert (other != view) is True

    def test_empty_views_are_equal(self) -> None:
        assert empty(0) == b""
        assert empty(0) == empty(0)
        assert empty(0) in [b""]

    def test_truth_is_length(self) -> None:
        assert bool(copy_of(b"\0")) is True
        assert bool(copy_of(bytes(100))) is True
        assert bool(empty(0)) is False

    def test_it_is_unhashable(self, view: BytesView) -> None:
        with pytest.raises(TypeError, match="unhashable"):
            hash(view)

    def test_an_index_is_an_int_and_a_slice_a_view(self, view: BytesView) -> None:
        assert (view[0], view[-1], type(view[np.int64(0)])) == (72, 33, int)
        assert (type(view[1:3]), view[1:3], view[1:3].uri) == (BytesView, b"el", "memory://b/k")
        assert bytes(view[::-1]) == b"!dlroW ,olleH"
        with pytest.raises(IndexError):
            view[13]
        assert builtin_list(view) == builtin_list(b"Hello, World!")

    def test_membership_is_that_of_bytes(self, view: BytesView) -> None:
        assert 72 in view
        assert b"World" in view
        assert b"world" not in view
        assert 1 not in view

    def test_a_slice_shares_memory(self, view: BytesView) -> None:
        view[7:12][:] = np.frombuffer(b"Earth", np.uint8)
        assert view == b"Hello, Earth!"

    def test_its_text_is_short_and_names_the_origin(self, view: BytesView) -> None:
        assert repr(view) == str(view) == f"{view}" == "BytesView(13 bytes, uri='memory://b/k')"
        assert repr(empty(0)) == "BytesView(0 bytes)"
        assert f"{view:>50}" == f"{view!r:>50}"

    def test_it_is_a_buffer_for_files_and_joins(self, view: BytesView) -> None:
        assert io.BytesIO(view).read() == b"Hello, World!"
        assert b"".join([view, view[:5]]) == b"Hello, World!Hello"
        file = io.BytesIO(bytes(13))
        assert file.readinto(view) == 13
        assert view == bytes(13)

    def test_one_class_under_the_guides_names(self) -> None:
        assert s3dlio.BytesView is s3dlio.PyBytesView is s3dlio.PyObjectItem is BytesView


builtin_list = list


class TestCopies:
    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    @pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 100])
    def test_pickling_keeps_bytes_and_uri(self, protocol: int, data: bytes) -> None:
        view = copy_of(data, "s3://b/k")
        for original in (view, view[1:-1]):
            again = pickle.loads(pickle.dumps(original, protocol))
            assert (type(again), again, again.uri) == (BytesView, original, "s3://b/k")
            assert again.flags.writeable
            assert again.__array_interface__["data"][0] % ALIGNMENT == 0

    def test_pickling_out_of_band_copies_nothing(self) -> None:
        view = copy_of(bytes(100_000), "s3://b/k")
        buffers: list[pickle.PickleBuffer] = []
        text = pickle.dumps(view, 5, buffer_callback=buffers.append)
        assert len(text) < 200
        assert address(buffers[0]) == address(view)
        assert pickle.loads(text, buffers=buffers) == view

    @pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda view: copy_of(view, view.uri)])
    def test_a_copy_has_its_own_memory(self, duplicate: Callable[[BytesView], BytesView]) -> None:
        view = copy_of(b"abc", "s3://b/k")
        twin = duplicate(view)
        view[0] = 0
        assert (type(twin), twin, twin.uri) == (BytesView, b"abc", "s3://b/k")


class TestPlainArrays:
    """What is no longer the object's bytes is an ordinary array."""

    VIEW = copy_of(b"abcdefgh", "s3://b/k")

    @pytest.mark.parametrize(
        "result",
        [
            VIEW + 1,
            1 + VIEW,
            VIEW + VIEW,
            -VIEW,
            VIEW & 1,
            VIEW < 100,
            np.add(VIEW, VIEW),
            np.sqrt(VIEW),
            np.add.accumulate(VIEW),
            VIEW.cumsum(),
            VIEW.view(np.uint16),
            VIEW.view(np.uint8),
            VIEW.astype(np.float32),
            VIEW.reshape(2, 4),
            VIEW[None],
            VIEW[[0, 2]],
            VIEW[np.asarray(VIEW) > 99],
            VIEW[::2],
            np.concatenate([VIEW, VIEW]),
            np.stack([VIEW, VIEW]),
            np.concatenate([np.asarray(VIEW), VIEW]),
            np.frombuffer(VIEW, np.uint8),
            np.asarray(VIEW),
            np.array(VIEW),
            np.where(np.asarray(VIEW) > 99, VIEW, 0),
        ],
    )
    def test_the_result_has_no_class_of_ours(self, result: object) -> None:
        assert type(result) is np.ndarray

    def test_reductions_are_numbers(self) -> None:
        assert self.VIEW.sum() == sum(b"abcdefgh")
        assert (int(self.VIEW.max()), int(self.VIEW.argmax())) == (ord("h"), 7)
        assert np.dtype(type(self.VIEW.sum())) == np.uint64

    def test_out_arguments_are_filled(self) -> None:
        view = copy_of(b"\1\2\3")
        np.add(view, 1, out=view)
        assert view == b"\2\3\4"


class TestAsBuffer:
    @pytest.mark.parametrize("data", ["text", 1, None, [1], (b"x",), {}, 1.5])
    def test_what_is_no_buffer_is_a_type_error_that_says_what_to_do(self, data: object) -> None:
        with pytest.raises(TypeError, match=f"not {type(data).__name__};"):
            as_buffer(data)

    def test_no_copy_of_contiguous_memory(self) -> None:
        array = np.arange(12, dtype=np.float32).reshape(3, 4)
        buffer = as_buffer(array)
        assert (buffer.format, buffer.nbytes, address(buffer)) == ("B", 48, array.__array_interface__["data"][0])

    def test_other_layouts_give_their_bytes_in_c_order(self) -> None:
        array = np.arange(12, dtype=np.int16).reshape(3, 4)
        assert bytes(as_buffer(array.T)) == array.T.tobytes()
        assert bytes(as_buffer(array[:, ::2])) == array[:, ::2].tobytes()
        assert bytes(as_buffer(np.zeros((0, 3)))) == b""
        assert bytes(as_buffer(np.float64(1.5))) == np.float64(1.5).tobytes()


def test_more_than_2_gib_is_written_and_read_whole(tmp_path: Any) -> None:
    """A mapped sparse file stands for a buffer of 2**31 + 10 bytes, whose holes cost no memory and no disk."""
    import mmap

    size = 2**31 + 10
    source = tmp_path / "source"
    with open(source, "wb") as file:
        file.truncate(size)
        file.seek(size - 5)
        file.write(b"12345")
    written: list[tuple[int, int]] = []
    pwrite = os.pwrite
    with open(source, "rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapped:

        def skipping(fd: int, data: memoryview, offset: int) -> int:
            """As pwrite does on Linux: 0x7ffff000 bytes at most, here all but the last page left as a hole."""
            count = min(len(data), 0x7FFFF000)
            written.append((offset, count))
            os.ftruncate(fd, offset + count)
            pwrite(fd, data[max(0, count - 4096) : count], offset + max(0, count - 4096))
            return count

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "pwrite", skipping)
            s3dlio.put_bytes(f"file://{tmp_path}/k", mapped)
    assert written == [(0, 0x7FFFF000), (0x7FFFF000, size - 0x7FFFF000)]
    assert s3dlio.stat(f"file://{tmp_path}/k")["size"] == size
    assert s3dlio.get_range(f"file://{tmp_path}/k", size - 6) == b"\x0012345"
