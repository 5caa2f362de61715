"""The exception family.

Every error of the package is an `S3dlioError`, hence a `RuntimeError`; each kind is also the builtin that fits it, so
that `except FileNotFoundError` works as for local files::

    RuntimeError
    └── S3dlioError                    anything that failed and is none of the kinds below
        ├── NotFoundError              also FileNotFoundError: no such object, bucket or path
        ├── AccessDeniedError          also PermissionError: the store knows you, or not, and refuses
        ├── ConfigError                also ValueError: an option, URI or variable that cannot be used
        ├── NotEmptyError              also OSError: a directory that is not empty, without recursive=True
        ├── PreconditionFailedError    also FileExistsError: if_match or if_absent did not hold
        ├── OutOfSpaceError            also OSError: disk or quota full
        ├── ThrottledError             the store says "slow down" and went on saying so
        ├── ChangedError               the object was replaced while it was read
        ├── IncompleteReadError        also EOFError: the body ended early and could not be completed
        ├── CorruptDataError           also ValueError: what was read is not what its format or its checksum says
        ├── UnsupportedError           also NotImplementedError: the store does not know what was asked for
        ├── UnsafePickleError          also pickle.UnpicklingError: weights_only=True refuses what a checkpoint holds
        └── MissingPackageError        also ImportError: an optional package is not installed

A message says what failed, the URI, the store's own words and what to do. Each class can be built from one string and
pickled, because PyTorch rebuilds a worker's exception that way.
"""

from __future__ import annotations

import errno
import pickle

__all__ = [
    "AccessDeniedError",
    "ChangedError",
    "ConfigError",
    "CorruptDataError",
    "IncompleteReadError",
    "MissingPackageError",
    "NotEmptyError",
    "NotFoundError",
    "OutOfSpaceError",
    "PreconditionFailedError",
    "S3dlioError",
    "ThrottledError",
    "UnsafePickleError",
    "UnsupportedError",
    "from_os_error",
]


class S3dlioError(RuntimeError):
    """Root of the family."""


class NotFoundError(FileNotFoundError, S3dlioError):
    """There is no such object, bucket or path."""


class AccessDeniedError(PermissionError, S3dlioError):
    """The store refuses the request."""


class ConfigError(ValueError, S3dlioError):
    """An option, URI or environment variable cannot be used as it is."""


class NotEmptyError(OSError, S3dlioError):
    """A directory that is not empty was to be deleted without recursive=True."""


class PreconditionFailedError(FileExistsError, S3dlioError):
    """A conditional write found another state than the one it was made for."""


class OutOfSpaceError(OSError, S3dlioError):
    """The disk or the quota is full."""


class ThrottledError(S3dlioError):
    """The store asked to slow down until the retries were used up."""


class ChangedError(S3dlioError):
    """The object was replaced while it was being read."""


class IncompleteReadError(EOFError, S3dlioError):
    """Fewer bytes came than the store had promised."""


class CorruptDataError(ValueError, S3dlioError):
    """What was read does not fit its format or its checksum."""


class UnsafePickleError(pickle.UnpicklingError, S3dlioError):
    """A checkpoint holds more than tensors and plain containers, and was to be loaded with weights_only=True."""


class UnsupportedError(NotImplementedError, S3dlioError):
    """The store does not know what was asked for, such as a conditional write."""


class MissingPackageError(ImportError, S3dlioError):
    """An optional package is needed and not installed."""


_KINDS: dict[int, tuple[type[S3dlioError], str]] = {
    errno.ENOENT: (NotFoundError, "check the name, or list its parent"),
    errno.ENOTDIR: (NotFoundError, "a part of the path is a file, not a directory"),
    errno.EISDIR: (NotFoundError, "it is a directory, not an object: list it, or name a file in it"),
    errno.ELOOP: (NotFoundError, "its symbolic links go in a circle"),
    errno.EACCES: (AccessDeniedError, "check the permissions of the path and of its parents"),
    errno.EPERM: (AccessDeniedError, "check the permissions of the path and of its parents"),
    errno.EROFS: (AccessDeniedError, "the file system is mounted read-only"),
    errno.EEXIST: (PreconditionFailedError, "something of that name exists already"),
    errno.ENOTEMPTY: (NotEmptyError, "pass recursive=True to delete all that it holds"),
    errno.ENOSPC: (OutOfSpaceError, "free some space; nothing was published under the name"),
    errno.EDQUOT: (OutOfSpaceError, "the quota is used up; nothing was published under the name"),
    errno.ENAMETOOLONG: (ConfigError, "the file system takes no name of that length"),
}


def from_os_error(exc: OSError, *, action: str, uri: str) -> S3dlioError:
    """Translate the operating system's error on `uri` into the kind of the family that fits it."""
    kind, remedy = _KINDS.get(exc.errno or 0, (S3dlioError, "see the cause above"))
    return kind(f"cannot {action} {uri}: {exc.strerror or exc} ({remedy})")
