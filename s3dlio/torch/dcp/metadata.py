"""`.metadata`: the pickle that commits a distributed checkpoint, as torch reads it, with a checksum behind it.

It is unpickled by a reader that makes nothing but the classes of torch.distributed.checkpoint and plain data, while torch
itself would run whatever a foreign file names.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata

from ...checkpoint.blocks import ALGORITHM, crc32c
from ...errors import CorruptDataError, UnsafePickleError

__all__ = ["dump", "load"]

# Behind the pickle's end, where no reader looks.
_TRAILER = f"s3dlio-{ALGORITHM}:".encode()
_DIGITS = 8

_NAMES = {
    "torch.distributed.checkpoint.metadata": {
        *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta"),
        *("TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "collections": {"OrderedDict"},
    "builtins": {"set", "frozenset", "bytearray", "complex"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"},
    "_codecs": {"encode"},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "pathlib._local":  # what Python 3.13 calls it, and no other version knows
            module = "pathlib"
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or name in _NAMES.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def dump(metadata: Metadata) -> bytes:
    """The bytes of `.metadata`."""
    data = pickle.dumps(metadata)
    return data + _TRAILER + f"{crc32c(data):0{_DIGITS}x}".encode()


def load(data: bytes, uri: str, *, weights_only: bool = True) -> Metadata:
    """Read the bytes of `.metadata`, also what torch wrote.

    Raises CorruptDataError, and UnsafePickleError when `weights_only` is True and they name other classes than those of a
    checkpoint.
    """
    body = data[: -len(_TRAILER) - _DIGITS]
    if data[len(body) : -_DIGITS] == _TRAILER:
        if data[-_DIGITS:] != f"{crc32c(body):0{_DIGITS}x}".encode():
            raise _damaged(uri, "its checksum differs")
    elif _TRAILER[:7] in data[-len(_TRAILER) - _DIGITS - 1 :]:
        raise _damaged(uri, "its end is missing")
    file = io.BytesIO(data)
    try:
        metadata = _Unpickler(file).load() if weights_only else pickle.load(file)  # noqa: S301 - the caller's wish
    except pickle.UnpicklingError as exc:
        if "it names" not in str(exc):
            raise _damaged(uri, str(exc)) from exc
        raise UnsafePickleError(
            f"{uri} is not only a checkpoint: {exc}. Whoever unpickles that runs its code; if you trust the file, pass "
            "weights_only=False to the StorageReader"
        ) from exc
    except Exception as exc:  # a damaged pickle raises nearly anything
        raise _damaged(uri, str(exc) or type(exc).__name__) from exc
    if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
        raise _damaged(uri, "it holds no Metadata")
    return metadata


def _damaged(uri: str, reason: str) -> CorruptDataError:
    return CorruptDataError(f"{uri} is damaged ({reason}): restore it, or load an older checkpoint")
