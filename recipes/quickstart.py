"""The main job from end to end: images as objects, a DataLoader, checkpoints, a kill, and a resumed training.

    scripts/quickstart                                   # on file://, in .cache/quickstart
    S3DLIO_URI=direct:///data/try scripts/quickstart     # anywhere else; each run has a folder of its own there

A parent process writes scikit-learn's 1,797 handwritten digits as objects and starts the training as a process of its
own. It kills that one (SIGKILL, workers included) in the middle of an epoch and starts it once more: the second one goes
on from the last checkpoint. Exits with an error when it did not, or when the network has not learned to read digits.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader
from tqdm import tqdm

import s3dlio

DEFAULT_URI = f"file://{Path(__file__).resolve().parent.parent / '.cache' / 'quickstart'}"
SMALLEST_ACCURACY = 0.9


# The data: one object per digit, 65 float32 numbers. The first is the label, the others are the 8 x 8 pixels.


def write_digits(uri: str) -> None:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    records = np.column_stack([labels, images / 16]).astype(np.float32)
    train, test = train_test_split(records, test_size=0.2, random_state=0, stratify=labels)
    objects = [(f"{uri}train/{i:05}", record) for i, record in enumerate(train)]
    objects += [(f"{uri}test/{i:05}", record) for i, record in enumerate(test)]
    with tqdm(total=len(objects), desc="writing objects", leave=False, disable=None) as bar:
        for first in range(0, len(objects), 256):
            s3dlio.put_many(objects[first : first + 256])
            bar.update(len(objects[first : first + 256]))
    print(f"wrote {len(objects)} objects, {records.nbytes} bytes")


def to_sample(view: s3dlio.BytesView) -> tuple[torch.Tensor, int]:
    numbers = torch.frombuffer(view, dtype=torch.float32)  # no copy
    return numbers[1:], int(numbers[0])


def batches(uri: str, batch_size: int, *, shuffle: bool) -> DataLoader:
    dataset = s3dlio.ObjectStoreMapDataset(uri, transform=to_sample)
    return DataLoader(dataset, batch_size=batch_size, num_workers=2, shuffle=shuffle)


# The training, a process of its own. It reports by lines of JSON.


def train(uri: str, num_epochs: int, batch_size: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(restore(uri, model, optimizer) + 1, num_epochs + 1):
        torch.manual_seed(epoch)  # gives the epoch its order
        num_samples = num_bytes = 0
        begin = time.perf_counter()
        loader = batches(f"{uri}train/", batch_size, shuffle=True)
        for images, labels in tqdm(loader, f"epoch {epoch}", leave=False, disable=None):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            num_samples += len(images)
            num_bytes += images.nbytes + 4 * len(labels)
        seconds = time.perf_counter() - begin
        with s3dlio.open_writer(f"{uri}checkpoints/epoch-{epoch:05}.pt") as file:
            torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        speed = f"{num_samples / seconds:.0f} samples/s, {num_bytes / seconds / 1e6:.2f} MB/s"
        report(f"epoch {epoch}: loss {loss.item():.3f}, {speed}, checkpoint saved", epoch=epoch)
    share = accuracy(uri, model, batch_size)
    report(f"accuracy {share:.3f} on digits that the training never saw", accuracy=share)


def restore(uri: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the last checkpoint, if there is one; returns the number of epochs that are done."""
    checkpoints = s3dlio.list(f"{uri}checkpoints/")
    if not checkpoints:
        return 0
    with s3dlio.open_reader(checkpoints[-1]) as file:
        state = torch.load(file, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    report(f"resumed from {checkpoints[-1].removeprefix(uri)}", resumed=state["epoch"])
    return state["epoch"]


@torch.no_grad()
def accuracy(uri: str, model: torch.nn.Module, batch_size: int) -> float:
    loader = tqdm(batches(f"{uri}test/", batch_size, shuffle=False), "testing", leave=False, disable=None)
    return torch.cat([model(images).argmax(1) == labels for images, labels in loader]).float().mean().item()


def report(text: str, **facts: float) -> None:
    print(json.dumps({"text": text, **facts}), flush=True)


# The parent.


def run_training(uri: str, num_epochs: int, batch_size: int, kill_after: int = 0) -> dict[str, float]:
    """Run the training, and kill it when it has reported epoch `kill_after`; returns what it reported last of each kind."""
    command = [sys.executable, __file__, "--train", uri, f"--epochs={num_epochs}", f"--batch-size={batch_size}"]
    facts = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            for line in process.stdout:
                facts |= json.loads(line)
                print(facts["text"], flush=True)
                if facts.get("epoch") == kill_after:
                    kill(process)
                    print(f"killed (SIGKILL) in epoch {kill_after + 1} of {num_epochs}", flush=True)
                    break
            process.wait()
        finally:
            kill(process)
    if process.returncode != (-signal.SIGKILL if kill_after else 0):
        sys.exit(f"the training ended otherwise than it should: exit code {process.returncode}")
    return facts


def kill(process: subprocess.Popen) -> None:
    """SIGKILL the process with its DataLoader workers, as when a machine goes down."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended; macOS says EPERM then
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8, help="epochs in all, 2 at least (default: 8)")
    parser.add_argument("--batch-size", type=int, default=32, help="samples per batch (default: 32)")
    parser.add_argument("--keep", action="store_true", help="leave the run's objects where they are")
    parser.add_argument("--train", metavar="URI", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train, options.epochs, options.batch_size)
        return
    if options.epochs < 2:
        parser.error("--epochs: a training that is killed in the middle has 2 epochs at least")
    base = os.environ.get("S3DLIO_URI") or DEFAULT_URI
    if base.startswith("memory:"):
        parser.error("S3DLIO_URI: memory:// lives in one process, and this training has two of them")
    uri = f"{base.rstrip('/')}/run-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}/"
    print(f"everything goes to {uri}")
    try:
        write_digits(uri)
        middle = options.epochs // 2
        run_training(uri, options.epochs, options.batch_size, kill_after=middle)
        facts = run_training(uri, options.epochs, options.batch_size)
    finally:
        if not options.keep:
            s3dlio.delete(uri, recursive=True)
    if facts.get("resumed", 0) < middle:
        sys.exit(f"the training was killed after epoch {middle} and did not resume there")
    if facts["accuracy"] < SMALLEST_ACCURACY:
        sys.exit(f"the accuracy is less than {SMALLEST_ACCURACY}")


if __name__ == "__main__":
    main()
