"""Writing a local file: under a temporary name in its own directory, and renamed when it is whole."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat as modes
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from ..errors import ConfigError, PreconditionFailedError, S3dlioError, from_os_error
from .base import ObjectInfo
from .fileio import FileIO, create, sync_directories

__all__ = ["LocalUpload", "info_of"]

NAME_MAX = 255

T = TypeVar("T")


def info_of(key: str, status: os.stat_result) -> ObjectInfo:
    """The facts about a file; its etag is made of modification time, size and inode."""
    etag = f"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}"
    return ObjectInfo(key, status.st_size, etag, status.st_mtime_ns / 1e9)


class LocalUpload:
    """A temporary file beside its final name."""

    def __init__(self, root: str, key: str, io: FileIO) -> None:
        # A link stays a link: the file that it names is replaced.
        # The working directory may be another one when it is published.
        path = key if os.path.isabs(key) else os.path.join(os.getcwd(), key)
        self._path = os.path.realpath(path) if os.path.islink(path) else path
        self._root, self._key, self._io = root, key, io
        self._pid = os.getpid()
        directory, name = os.path.split(self._path)
        self._require_replaceable(name)
        suffix = f".s3dlio-{self._pid}-{secrets.token_hex(4)}.tmp"
        self._temporary = os.path.join(directory, _shortened(f".{name}", NAME_MAX - len(suffix)) + suffix)
        self._fd, self._known = create(self._temporary, directory)
        try:
            io.prepare_to_write(self._fd, self._path)
        except BaseException:
            self.abort()
            raise

    def _require_replaceable(self, name: str) -> None:
        """A file or nothing may stand under the name: no directory, no device, no link in a circle."""
        try:
            mode = os.stat(self._path).st_mode
        except FileNotFoundError:
            mode = modes.S_IFREG
        if not name or modes.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not modes.S_ISREG(mode):
            raise ConfigError(f"cannot write {self._root}{self._key}: a special file stands there, not an object")

    def part(self, number: int, offset: int, data: Sequence[memoryview]) -> None:
        self._require_open()
        self._try(lambda: self._io.write(self._fd, data, offset))

    def complete(self, *, if_match: str | None = None, if_absent: bool = False) -> ObjectInfo:
        return self.publish(if_match=if_match, if_absent=if_absent, durable=True)

    def publish(self, *, if_match: str | None, if_absent: bool, durable: bool) -> ObjectInfo:
        """Give the file its name. Of several writers with `if_absent` one wins; `if_match` is checked just before."""
        return self._try(partial(self._publish, if_match, if_absent, durable))

    def _publish(self, if_match: str | None, if_absent: bool, durable: bool) -> ObjectInfo:
        self._require_open()
        if durable:
            os.fsync(self._fd)
        if if_match is not None:
            self._require(if_match)
        if if_absent:
            os.link(self._temporary, self._path)
            os.unlink(self._temporary)
        else:
            os.rename(self._temporary, self._path)
        status = os.fstat(self._fd)
        self._close()
        if durable:
            sync_directories(os.path.dirname(self._path), self._known)
        return info_of(self._key, status)

    def _require(self, etag: str) -> None:
        try:
            current = info_of(self._key, os.stat(self._path)).etag
        except FileNotFoundError:
            current = None
        if current != etag:
            raise PreconditionFailedError(
                f"{self._root}{self._key} is not the version {etag} any more (now {current}): read it again, then write"
            )

    def _require_open(self) -> None:
        if self._fd < 0:
            raise S3dlioError(f"the upload of {self._root}{self._key} has ended already: begin another")

    def abort(self) -> None:
        if self._fd < 0 or os.getpid() != self._pid:
            return
        self._close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._temporary)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)

    def _try(self, operation: Callable[[], T]) -> T:
        try:
            return operation()
        except OSError as exc:
            if isinstance(exc, RuntimeError):
                raise
            raise from_os_error(exc, action="write", uri=self._root + self._key) from exc


def _shortened(name: str, max_bytes: int) -> str:
    return os.fsdecode(os.fsencode(name)[:max_bytes])
