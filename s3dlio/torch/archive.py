"""`torch.save` and `torch.load` on our files, with the store's errors, and advice, instead of torch's."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from typing import Any

import torch

from ..checkpoint.checked import is_archive, is_small_record, verify_archive
from ..errors import CorruptDataError, S3dlioError, UnsafePickleError
from ..transfer.write import ObjectWriter

__all__ = ["load_from", "save_into"]


def save_into(file: ObjectWriter, data: Any) -> None:
    """`torch.save` into a writer. What the store raises is raised, and not what torch makes of it."""
    sink = _Sink(file)
    try:
        torch.save(data, sink)  # type: ignore[arg-type]  # it needs write and flush
    except Exception:
        if sink.failure is not None:
            raise sink.failure from None
        raise


class _Sink:
    """What torch writes into: it goes on writing after an error, and then raises another one."""

    def __init__(self, file: ObjectWriter) -> None:
        self._file = file
        self.failure: BaseException | None = None

    def write(self, data: object) -> int:
        if self.failure is not None:
            raise self.failure
        try:
            return self._file.write(data)
        except BaseException as exc:
            self.failure = exc
            raise

    def flush(self) -> None:
        self._file.flush()


_REFUSED = re.compile(r"GLOBAL (\S+)")
# What torch says of damage in RuntimeErrors.
_DAMAGE = ("PytorchStreamReader", "unexpected EOF", "hasRecord", "subdirectory", "zip archive")


def load_from(file: Any, uri: str, arguments: Mapping[str, Any]) -> Any:
    """`torch.load` with these keyword arguments. Raises UnsafePickleError, CorruptDataError, and errors of the store."""
    try:
        return torch.load(file, **arguments)
    except S3dlioError:
        raise
    except Exception as exc:
        _require_sound(file, uri)  # wrong bytes are the better reason, and nobody should be advised to trust them
        told = _told(exc, uri, arguments["weights_only"])
        if told is None:
            raise
        raise told from exc


def _require_sound(file: Any, uri: str) -> None:
    """Raise CorruptDataError where an archive's directory, or the CRC of its pickle, tells that the bytes are wrong."""
    file.seek(0)
    if is_archive(file.read(4)):
        verify_archive(file, uri, is_small_record)


def _told(exc: Exception, uri: str, weights_only: bool) -> S3dlioError | None:
    """The error of the family for one of torch's, None for what is no matter of the file."""
    if isinstance(exc, pickle.UnpicklingError):
        refused = _REFUSED.search(str(exc))
        return _damaged(uri, exc) if refused is None else _refusal(uri, refused[1])
    if isinstance(exc, RuntimeError):  # also of a device without memory
        return _damaged(uri, exc) if any(word in str(exc) for word in _DAMAGE) else None
    return _damaged(uri, exc) if weights_only else None  # else it may come from whatever the checkpoint runs


def _refusal(uri: str, name: str) -> UnsafePickleError:
    is_numpy = name.split(".")[0] == "numpy"
    numpy = "Arrays and scalars of numpy are saved as torch.from_numpy(array) and float(x). " if is_numpy else ""
    return UnsafePickleError(
        f"refused to load {uri}: it holds {name}, and weights_only=True builds only tensors and plain containers. {numpy}"
        "If you trust whoever wrote it, allow the class by torch.serialization.add_safe_globals, or pass "
        "weights_only=False, which can run any code that is in the file"
    )


def _damaged(uri: str, exc: Exception) -> CorruptDataError:
    return CorruptDataError(f"cannot load {uri}: it is damaged, or torch.save has not written it ({exc!r:.200})")
