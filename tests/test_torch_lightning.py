"""A Lightning Trainer saves to URIs and goes on from them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import s3dlio
from s3dlio.storage.local import LocalStore
from s3dlio.torch import dcp
from tests.conftest import S3Place

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from s3dlio.torch.lightning import S3dlioCheckpointIO

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning warns of much, and of what it imports


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self.layer(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def trainer(steps: int, *callbacks: Any, compress: bool = False) -> lightning.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=steps,
        callbacks=list(callbacks),
        enable_checkpointing=bool(callbacks),
        plugins=[S3dlioCheckpointIO(compress=compress)],
        **quiet,
    )


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("scheme", ["path", "file", "s3"])
def test_a_fit_is_saved_and_goes_on(scheme: str, compress: bool, s3_place: S3Place, tmp_path: Path) -> None:
    root = {"path": f"{tmp_path}/", "file": f"file://{tmp_path}/", "s3": s3_place.root}[scheme]
    data = torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4)
    first, model = trainer(2, compress=compress), Model()
    first.fit(model, data)
    first.save_checkpoint(root + "step=2.ckpt")
    second, other = trainer(3, compress=compress), Model()
    second.fit(other, data, ckpt_path=root + "step=2.ckpt")
    assert second.global_step == 3
    again = S3dlioCheckpointIO().load_checkpoint(root + "step=2.ckpt")
    assert all(torch.equal(again["state_dict"][name], value) for name, value in model.state_dict().items())
    S3dlioCheckpointIO().remove_checkpoint(root + "step=2.ckpt")
    assert not s3dlio.exists(root + "step=2.ckpt" if "://" in root else f"file://{root}step=2.ckpt")


def test_a_sharded_checkpoint_is_removed_commit_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what a removal leaves that is stopped in its middle is no checkpoint."""
    dcp.save({"weight": torch.ones(3)}, tmp_path / "step")
    (tmp_path / "step" / "more").write_bytes(b"x")

    def stop(store: object, key: str) -> None:
        assert not (tmp_path / "step" / ".metadata").exists()
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "delete_tree", stop)
        with pytest.raises(ZeroDivisionError):
            S3dlioCheckpointIO().remove_checkpoint(tmp_path / "step")
    S3dlioCheckpointIO().remove_checkpoint(tmp_path / "step")
    assert list(tmp_path.iterdir()) == []


def test_the_callback_keeps_the_best_and_removes_the_others(tmp_path: Path) -> None:
    callback = ModelCheckpoint(dirpath=tmp_path / "best", every_n_train_steps=1, save_top_k=1, monitor="step", mode="max")
    trainer(3, callback).fit(Model(), torch.utils.data.DataLoader(torch.randn(12, 4), batch_size=4))
    assert len(list((tmp_path / "best").iterdir())) == 1


def test_storage_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="environment"):
        S3dlioCheckpointIO().save_checkpoint({}, tmp_path / "a", storage_options={"key": "value"})
