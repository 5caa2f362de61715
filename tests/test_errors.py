"""The family of errors: one root, the fitting builtin, one string, picklable; and what importing the package costs."""

from __future__ import annotations

import builtins
import copy
import errno
import os
import pickle
import subprocess
from collections.abc import Callable

import pytest

import s3dlio
from s3dlio import errors
from s3dlio.errors import S3dlioError, from_os_error

FAMILY = [getattr(errors, name) for name in errors.__all__ if name.endswith("Error")]
BUILTINS = {
    "NotFoundError": FileNotFoundError,
    "AccessDeniedError": PermissionError,
    "ConfigError": ValueError,
    "NotEmptyError": OSError,
    "PreconditionFailedError": FileExistsError,
    "OutOfSpaceError": OSError,
    "IncompleteReadError": EOFError,
    "MissingPackageError": ImportError,
    "UnsupportedError": NotImplementedError,
}


@pytest.mark.parametrize("kind", FAMILY)
class TestEachKind:
    def test_it_is_a_runtime_error_and_the_fitting_builtin(self, kind: type[S3dlioError]) -> None:
        assert issubclass(kind, S3dlioError)
        assert issubclass(kind, RuntimeError)
        assert issubclass(kind, BUILTINS.get(kind.__name__, RuntimeError))

    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_it_survives_pickling(self, kind: type[S3dlioError], protocol: int) -> None:
        error = kind("cannot read s3://b/k: why (what to do)")
        for again in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error), copy.deepcopy(error)):
            assert type(again) is kind
            assert str(again) == "cannot read s3://b/k: why (what to do)"

    def test_pytorch_can_rebuild_it_from_its_text(self, kind: type[S3dlioError]) -> None:
        from torch._utils import ExceptionWrapper

        try:
            raise kind("s3://b/k is gone")
        except kind:
            wrapper = pickle.loads(pickle.dumps(ExceptionWrapper(where="in a worker")))
        with pytest.raises(kind, match="s3://b/k is gone"):
            wrapper.reraise()

    def test_it_is_public_and_drawn_in_the_docstring(self, kind: type[S3dlioError]) -> None:
        assert getattr(s3dlio, kind.__name__) is kind
        assert f" {kind.__name__} " in str(errors.__doc__)


def test_the_family_is_complete() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, S3dlioError)}
    assert defined == {kind.__name__ for kind in FAMILY}
    assert not {name for name in defined if hasattr(builtins, name)}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOENT, errors.NotFoundError),
        (errno.ENOTDIR, errors.NotFoundError),
        (errno.EISDIR, errors.NotFoundError),
        (errno.ELOOP, errors.NotFoundError),
        (errno.EACCES, errors.AccessDeniedError),
        (errno.EPERM, errors.AccessDeniedError),
        (errno.EROFS, errors.AccessDeniedError),
        (errno.EEXIST, errors.PreconditionFailedError),
        (errno.ENOTEMPTY, errors.NotEmptyError),
        (errno.ENOSPC, errors.OutOfSpaceError),
        (errno.EDQUOT, errors.OutOfSpaceError),
        (errno.ENAMETOOLONG, errors.ConfigError),
        (errno.EIO, S3dlioError),
    ],
)
def test_an_errno_becomes_the_kind_that_fits(code: int, kind: type[S3dlioError]) -> None:
    error = from_os_error(OSError(code, os.strerror(code)), action="read", uri="file:///x")
    assert type(error) is kind
    assert str(error).startswith(f"cannot read file:///x: {os.strerror(code)} (")


def test_an_error_without_errno_keeps_its_text() -> None:
    assert "odd" in str(from_os_error(OSError("odd"), action="read", uri="file:///x"))


def test_importing_the_package_loads_neither_numpy_nor_a_framework_nor_an_sdk(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_python(
        "import sys, s3dlio\n"
        "dir(s3dlio); s3dlio.__version__; s3dlio.NotFoundError\n"
        "heavy = {'numpy', 'torch', 'jax', 'tensorflow', 'pyarrow', 'boto3', 'botocore', 'azure', 'google', 'asyncio',\n"
        "         'zstandard', 'lz4', 'concurrent.futures', 'urllib.request', 'ssl'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_a_read_loads_numpy_but_no_framework(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run_python(
        "import sys, s3dlio\n"
        "s3dlio.put_bytes('memory://b/k', b'x'); s3dlio.get('memory://b/k')\n"
        "print(sorted({'torch', 'jax', 'tensorflow', 'pyarrow', 'boto3'} & set(sys.modules)))"
    )
    assert done.stdout.strip() == "[]", done.stderr
