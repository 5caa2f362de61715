"""safetensors files: the library reads ours and the reverse, single tensors cost their own bytes, damage is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors
import safetensors.torch as library
import torch

import s3dlio
from s3dlio.errors import ConfigError, S3dlioError
from s3dlio.torch.safetensors import load_file, safe_open, save_file
from tests.conftest import Place
from tests.test_torch_dcp import Count, assert_same

MIB = 2**20


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "weight": torch.randn(700, 800),
        "turned": torch.randn(30, 1500).t().contiguous(),
        "bfloat16": torch.randn(33).to(torch.bfloat16),
        "float8": torch.randn(7).to(torch.float8_e4m3fn),
        "bool": torch.tensor([True, False, True]),
        "uint64": torch.arange(5).to(torch.uint64),
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "größe": torch.arange(9),
    }


def test_the_library_reads_ours_and_we_read_theirs(place: Place, tmp_path: Path) -> None:
    saved = tensors()
    save_file(saved, place.root + "a b+.safetensors", metadata={"step": "7"})
    (tmp_path / "copy").write_bytes(place.get("a b+.safetensors") or b"")
    assert_same(library.load_file(tmp_path / "copy"), saved)
    with safetensors.safe_open(tmp_path / "copy", "pt") as theirs:
        assert theirs.metadata() == {"step": "7"}
    assert_same(load_file(place.root + "a b+.safetensors"), saved)
    library.save_file(saved, tmp_path / "theirs", metadata={"format": "pt"})
    place.put("theirs", (tmp_path / "theirs").read_bytes())
    with safe_open(place.root + "theirs", framework="pt", device="cpu") as file:
        assert file.keys() == sorted(saved)
        assert file.metadata() == {"format": "pt"}
        assert_same({name: file.get_tensor(name) for name in file}, saved)


def test_one_tensor_costs_its_own_bytes_and_the_header(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({f"layer{number}": torch.full((MIB // 8,), number) for number in range(30)}, place.root + "model")
    count = Count(monkeypatch)
    with safe_open(place.root + "model") as file:
        assert torch.equal(file.get_tensor("layer7"), torch.full((MIB // 8,), 7))
    assert MIB <= count.num_bytes <= MIB + 64 * 1024
    with pytest.raises(KeyError, match="layer99"), safe_open(place.root + "model") as file:
        file.get_tensor("layer99")


def test_a_slice_reads_the_rows_that_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(1000, 7, 300)
    save_file({"weight": weight}, f"file://{tmp_path}/model")
    with safe_open(f"file://{tmp_path}/model") as file:
        part = file.get_slice("weight")
        assert (part.get_shape(), part.get_dtype()) == ([1000, 7, 300], "F32")
        count = Count(monkeypatch)
        for index in (slice(10, 13), 5, (slice(2, 4), 3), (7, slice(None), slice(1, 9)), (slice(3, 5), slice(2, 6)), -1):
            assert torch.equal(part[index], weight[index]), index
        assert count.num_bytes < 12 * 7 * 300 * 4
        assert part[20:20].shape == (0, 7, 300)
        with pytest.raises(ValueError, match="step 2"):
            part[::2]


def test_tensors_in_any_order_of_memory_are_written(tmp_path: Path) -> None:
    saved = {
        "turned": torch.randn(3000, 500).t(),
        "column": torch.randn(3, 5)[:, 1],
        "conjugate": torch.randn(3, dtype=torch.cfloat).conj(),
    }
    save_file(saved, f"file://{tmp_path}/model")
    assert_same(library.load_file(tmp_path / "model"), {name: tensor.contiguous() for name, tensor in saved.items()})


def test_an_empty_file_and_a_header_of_many_names(tmp_path: Path) -> None:
    for saved in ({}, {f"{'layer' * 20}{number}": torch.tensor(number) for number in range(2000)}):
        save_file(saved, f"file://{tmp_path}/model")
        assert load_file(f"file://{tmp_path}/model") == library.load_file(tmp_path / "model") == saved


def test_what_the_format_does_not_hold_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    for bad, error in (
        (torch.zeros(3, dtype=torch.complex128), ConfigError),
        (torch.zeros(3).to_sparse(), TypeError),
        (3, TypeError),
    ):
        with pytest.raises(error):
            save_file({"good": torch.zeros(3), "bad": bad}, f"file://{tmp_path}/model")  # type: ignore[dict-item]
    assert list(tmp_path.iterdir()) == []


def test_damage_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    save_file(tensors(), f"file://{tmp_path}/model")
    good = (tmp_path / "model").read_bytes()
    header = good[8 : 8 + int.from_bytes(good[:8], "little")]
    content = json.loads(header)
    content["weight"]["data_offsets"][1] += 4

    def with_header(text: bytes) -> bytes:
        return len(text).to_bytes(8, "little") + text + good[8 + len(header) :]

    for bad in (
        b"",
        good[:5],
        good[:100],
        good[:-1],
        good + b"x",
        with_header(json.dumps(content).encode()),
        with_header(header[:-30]),
        with_header(header.rstrip()[:-1] + b',"weight":1}'),
        b"\xff" * 9,
    ):
        (tmp_path / "bad").write_bytes(bad)
        with pytest.raises(S3dlioError, match="bad is damaged or no safetensors file"):
            load_file(f"file://{tmp_path}/bad")


def test_a_file_that_is_replaced_is_not_mixed(place: Place) -> None:
    save_file({"a": torch.zeros(5)}, place.root + "model")
    with safe_open(place.root + "model") as file:
        save_file({"a": torch.ones(5), "b": torch.ones(5)}, place.root + "model")
        with pytest.raises(S3dlioError, match="replaced"):
            file.get_tensor("a")


def test_a_save_that_fails_leaves_the_old_file(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"a": torch.zeros(5)}, place.root + "model")

    def fail(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("s3dlio.torch.safetensors.write_tensor", fail)
    with pytest.raises(ZeroDivisionError):
        save_file({"a": torch.ones(5)}, place.root + "model")
    assert load_file(place.root + "model")["a"].tolist() == [0.0] * 5
    assert s3dlio.list(place.root) == [place.root + "model"]
