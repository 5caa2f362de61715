"""`torch.save` and `torch.load` on our files, with the store's errors, and advice, instead of torch's."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from typing import Any

import torch

from ..errors import DamagedError, S3dlioError, UnsafePickleError
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


def load_from(file: Any, uri: str, arguments: Mapping[str, Any]) -> Any:
    """`torch.load` with these keyword arguments. Raises UnsafePickleError, DamagedError, and errors of the store."""
    try:
        return torch.load(file, **arguments)
    except S3dlioError:
        raise
    except pickle.UnpicklingError as exc:
        refused = _REFUSED.search(str(exc))
        if refused is None:
            raise _damaged(uri, exc) from exc
        raise UnsafePickleError(
            f"refused to load {uri}: it holds {refused[1]}, and weights_only=True builds only tensors and plain containers. "
            "If you trust whoever wrote it, allow the class by torch.serialization.add_safe_globals, or pass "
            "weights_only=False, which can run any code that is in the file"
        ) from exc
    except RuntimeError as exc:  # also of a device without memory
        if "PytorchStreamReader" in str(exc) or "unexpected EOF" in str(exc):
            raise _damaged(uri, exc) from exc
        raise
    except Exception as exc:
        if arguments["weights_only"]:  # else it may come from whatever the checkpoint runs
            raise _damaged(uri, exc) from exc
        raise


def _damaged(uri: str, exc: Exception) -> DamagedError:
    return DamagedError(f"cannot load {uri}: it is damaged, or torch.save has not written it ({exc!r:.200})")
