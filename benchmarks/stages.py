"""What has to be there before a work can run: objects, keys, a stored state; and what an engine then must deliver."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.clients.harness import digest
from benchmarks.engines import CLIENTS, ROOT
from benchmarks.servers import Servers
from benchmarks.works import SMALL, Work

BUCKET = "bench"
POPULATE_TIMEOUT = 600.0


class Stage(NamedTuple):
    """The names that are read (or written), the checksum of each result, and what a client is told of the server."""

    uris: list[str]
    crcs: list[int]
    environment: dict[str, str]
    tiny: str = ""  # a small object, with which a client can be made to connect

    def part(self, share: float) -> Stage:
        """The same with fewer objects, where there are several of them."""
        count = max(1, int(len(self.uris) * share))
        return self if count == len(self.uris) or len(self.uris) != len(self.crcs) else self._cut(count)

    def _cut(self, count: int) -> Stage:
        return self._replace(uris=self.uris[:count], crcs=self.crcs[:count])

    def is_delivered(self, report: dict[str, Any]) -> bool:
        """Whether these are the bytes that are stored; a DataLoader's workers may mix up their batches."""
        return report["count"] == len(self.crcs) and report["sorted"] == digest(sorted(self.crcs))


def stage_of(work: Work, servers: Servers) -> Stage:
    environment = {**servers.environment(work.server), **work.environment}
    makers = {"list": _keys, "save": _to_save, "load": _saved}
    uris, crcs = makers.get(work.function, _objects)(work, servers)
    tiny = servers.objects(SMALL, 1).uris("s3:/", 1)[0] if work.cold else ""
    return Stage(uris, crcs, environment, tiny)


def _objects(work: Work, servers: Servers) -> tuple[list[str], list[int]]:
    objects = servers.objects(work.size, work.num_objects)
    if work.function == "loader":
        names = [f"{number:06d}" for number in range(work.num_objects)]
        servers.write_listing(objects.folder.name, names, work.size)
    root = f"{work.scheme}:/" if work.scheme == "s3" else f"{work.scheme}://{servers.folder}/objects"
    return objects.uris(root, work.num_objects), objects.crcs[: work.num_objects]


def _keys(work: Work, servers: Servers) -> tuple[list[str], list[int]]:
    keys = [f"keys/{number:06d}" for number in range(work.num_objects)]
    if work.server == "plain":
        servers.write_listing(BUCKET, keys, 1)
    else:
        _client(servers)
        plan = json.dumps([f"s3://{BUCKET}/{key}" for key in keys])
        environment = {"PYTHONPATH": str(ROOT), **servers.seaweedfs.environment}
        command = [sys.executable, str(CLIENTS / "populate.py")]
        subprocess.run(command, input=plan, text=True, env=environment, check=True, timeout=POPULATE_TIMEOUT)
    return [f"s3://{BUCKET}/keys/"], [zlib.crc32(key.rpartition("/")[2].encode()) for key in keys]


def _to_save(_: Work, servers: Servers) -> tuple[list[str], list[int]]:
    _client(servers)
    return [f"s3://{BUCKET}/saved.pt"], [zlib.crc32(b"")]


def _saved(work: Work, servers: Servers) -> tuple[list[str], list[int]]:
    path = _state_file(work.size, servers)
    crcs = _crcs(_state(work.size))
    if work.server == "files":
        return [f"{work.scheme}://{path}"], crcs
    if work.server == "seaweedfs":
        _client(servers).upload_file(str(path), BUCKET, "state.pt")
        return [f"s3://{BUCKET}/state.pt"], crcs
    return [f"s3://{path.parent.name}/{path.name}"], crcs


def _state_file(size: int, servers: Servers) -> Path:
    import os

    import torch

    path = servers.folder / "objects" / "states" / f"{size}.pt"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(_state(size), path)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    return path


def is_stored(work: Work, servers: Servers) -> bool:
    """Whether the state is what was saved last; it is deleted, so that the next engine cannot be credited with it."""
    import torch
    from botocore.exceptions import ClientError

    client = _client(servers)
    buffer = io.BytesIO()
    try:
        client.download_fileobj(BUCKET, "saved.pt", buffer)
        client.delete_object(Bucket=BUCKET, Key="saved.pt")
        buffer.seek(0)
        return _crcs(torch.load(buffer, weights_only=True)) == _crcs(_state(work.size))
    except (ClientError, RuntimeError, pickle.UnpicklingError):
        return False


def _state(size: int) -> dict[str, Any]:
    from benchmarks.clients.checkpoints import state  # imports torch

    return state(size)


def _crcs(tensors: dict[str, Any]) -> list[int]:
    return [zlib.crc32(tensor.numpy()) for tensor in tensors.values()]


def _client(servers: Servers) -> Any:
    """boto3 as the second opinion on SeaweedFS, whose bucket exists afterwards."""
    import boto3
    from botocore.config import Config

    facts = servers.seaweedfs.environment
    client = boto3.client(
        "s3",
        endpoint_url=facts["AWS_ENDPOINT_URL"],
        aws_access_key_id=facts["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=facts["AWS_SECRET_ACCESS_KEY"],
        region_name=facts["AWS_REGION"],
        config=Config(s3={"addressing_style": "path"}),
    )
    if BUCKET not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket=BUCKET)
    return client
