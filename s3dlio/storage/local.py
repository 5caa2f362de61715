"""`file://` and `direct://`: objects are files, keys are paths, prefixes are directories.

A file appears complete or not at all: it is written as `.NAME.s3dlio-PID-RANDOM.tmp` in its own directory, which no
listing shows, and renamed. The etag is made of modification time, size and inode.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat as modes
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from ..errors import (
    ChangedError,
    ConfigError,
    IncompleteReadError,
    NotFoundError,
    from_os_error,
)
from ..runtime import LATER, Later
from ..uri import sort_key
from .base import Limits, ObjectInfo, Outcome, Page, Read, ReadResult, clamp, read_each, refuse_version
from .fileio import BUFFERED, DIRECT, FileIO
from .local_upload import LocalUpload, info_of

__all__ = ["LocalStore", "open_container", "options"]

PAGE_LENGTH = 1000
MOST_UNSEEN = 64
_TEMPORARY = re.compile(r"\..*\.s3dlio-\d+-[0-9a-f]{8}\.tmp", re.DOTALL)
_NOWHERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}

T = TypeVar("T")
Check: TypeAlias = Callable[[int, int, int], None]


def options() -> None:
    """There is nothing to set."""


def open_container(scheme: str, _container: str, _options: None) -> LocalStore:
    """The whole file system is one container."""
    return LocalStore(scheme, DIRECT if scheme == "direct" else BUFFERED)


class _Level(NamedTuple):
    """A directory that is being walked through."""

    directory: str
    identity: tuple[int, int]
    entries: Iterator[tuple[str, os.stat_result]]


class LocalStore:
    """The files of this machine. Relative paths are resolved when they are used."""

    limits = Limits()

    def __init__(self, scheme: str, io: FileIO) -> None:
        self.root = f"{scheme}://"
        self._io = io

    def _try(self, action: str, key: str, operation: Callable[[], T]) -> T:
        try:
            return operation()
        except OSError as exc:
            if isinstance(exc, RuntimeError):  # one of ours, already translated
                raise
            raise from_os_error(exc, action=action, uri=self.root + key) from exc

    def stat(self, key: str, version: str | None = None) -> ObjectInfo:
        refuse_version(self.root, version)
        return self._try("stat", key, lambda: self._info(key, os.stat(key)))

    def _info(self, key: str, status: os.stat_result) -> ObjectInfo:
        if modes.S_ISREG(status.st_mode):
            return info_of(key, status)
        kind = "a directory" if modes.S_ISDIR(status.st_mode) else "a special file"
        raise NotFoundError(f"{self.root}{key} is {kind}, not an object: name a regular file, or list it")

    def read(self, read: Read) -> ReadResult:
        refuse_version(self.root, read.version)
        return self._try("read", read.key, lambda: self._read(read))

    def _read(self, read: Read, check: Check | None = None) -> ReadResult:
        """`check` may refuse a descriptor, first byte and number of bytes, by raising."""
        opened: list[int] = []
        try:
            self._io.open_to_read(read.key, opened)
            fd = opened[0]
            before = os.fstat(fd)
            info = self._info(read.key, before)
            if read.match is not None and read.match != info.etag:
                raise ChangedError(f"{self.root}{read.key} was replaced while it was read: read it again")
            if info.size == 0 and os.pread(fd, 1, 0):  # as in /proc: the size is not told, or it has just grown
                raise ChangedError(f"{self.root}{read.key} says that it is empty, and is not: read it again")
            length = clamp(read.start, read.length, info.size)
            if check is not None:
                check(fd, read.start, length)
            into = read.into(info, length)
            count = self._io.read(fd, into, read.start)
            after = os.fstat(fd)
        finally:
            for fd in opened:
                os.close(fd)
        if (after.st_mtime_ns, after.st_size) != (before.st_mtime_ns, before.st_size):
            raise ChangedError(f"{self.root}{read.key} was written to while it was read: read it again")
        if count != into.nbytes:
            raise IncompleteReadError(f"{self.root}{read.key} gave {count} of {into.nbytes} bytes: check its disk")
        return ReadResult(info, into)

    def read_many(self, reads: Iterable[Read], *, window: int) -> Iterator[Outcome]:
        return read_each(self, reads, window=window, begin=_Begin(self._begin, self._io))

    def _begin(self, read: Read, check: Check) -> ReadResult | Later | None:
        """The result unless `check` says that it is not at hand. What goes wrong here does so again later, and is told."""
        try:
            refuse_version(self.root, read.version)
            return self._read(read, check)
        except BlockingIOError:
            return LATER
        except Exception:
            return None

    def list(self, prefix: str, *, recursive: bool) -> Iterator[Page]:
        directory, slash, start = prefix.rpartition("/")
        objects: list[ObjectInfo] = []
        prefixes: list[str] = []
        for entry in self._walk(directory + slash, start, recursive):
            if isinstance(entry, ObjectInfo):
                objects.append(entry)
            else:
                prefixes.append(entry)
            if len(objects) + len(prefixes) == PAGE_LENGTH:
                yield Page(objects, prefixes)
                objects, prefixes = [], []
        yield Page(objects, prefixes)

    def _walk(self, directory: str, start: str, recursive: bool) -> Iterator[ObjectInfo | str]:
        """Files as objects, sub-directories (unless `recursive`) as prefixes, in the order of their bytes."""
        levels: MutableSequence[_Level] = []
        self._descend(levels, directory, start)
        while levels:
            level = levels[-1]
            name, status = next(level.entries, (None, None))
            if name is None or status is None:
                levels.pop()
            elif not name.endswith("/"):
                yield info_of(level.directory + name, status)
            elif recursive:
                self._descend(levels, level.directory + name, "")
            else:
                yield level.directory + name

    def _descend(self, levels: MutableSequence[_Level], directory: str, start: str) -> None:
        """Go into a directory, unless it is gone or is one of those above it, reached again by a link."""
        here = self._identity(directory)
        if here is not None and all(here != level.identity for level in levels):
            levels.append(_Level(directory, here, iter(self._scan(directory, start))))

    def _identity(self, directory: str) -> tuple[int, int] | None:
        """Device and inode, to notice links that go in a circle; None when there is no such directory."""
        try:
            status = os.stat(directory or ".")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            raise from_os_error(exc, action="list", uri=self.root + directory) from exc
        return (status.st_dev, status.st_ino) if modes.S_ISDIR(status.st_mode) else None

    def _scan(self, directory: str, start: str) -> Sequence[tuple[str, os.stat_result]]:
        """The files and directories (with a slash) whose names begin with `start`; what vanished meanwhile is left out."""
        found = []
        try:
            with os.scandir(directory or ".") as entries:
                for entry in entries:
                    if not entry.name.startswith(start) or _TEMPORARY.fullmatch(entry.name):
                        continue
                    status = _status_of(entry)
                    if status is not None and modes.S_ISDIR(status.st_mode):
                        found.append((entry.name + "/", status))
                    elif status is not None and modes.S_ISREG(status.st_mode):
                        found.append((entry.name, status))
        except FileNotFoundError:
            return []
        except OSError as exc:
            raise from_os_error(exc, action="list", uri=self.root + directory) from exc
        return sorted(found, key=lambda entry: sort_key(entry[0]))

    def put(
        self, key: str, data: memoryview, *, if_match: str | None = None, if_absent: bool = False, durable: bool = False
    ) -> ObjectInfo:
        if key.endswith("/"):
            return self._put_marker(key, data, if_absent)
        upload = self.begin_upload(key)
        try:
            upload.part(1, 0, [data])
            return upload.publish(if_match=if_match, if_absent=if_absent, durable=durable)
        except BaseException:
            upload.abort()
            raise

    def _put_marker(self, key: str, data: memoryview, if_absent: bool) -> ObjectInfo:
        if data.nbytes:
            raise ConfigError(f"cannot write {self.root}{key}: a name that ends in '/' is a directory and holds no bytes")
        self._try("write", key, lambda: os.makedirs(key, exist_ok=not if_absent))
        return ObjectInfo(key, 0)

    def delete(self, key: str) -> None:
        self._try("delete", key, lambda: _remove(key))

    def begin_upload(self, key: str) -> LocalUpload:
        return self._try("write", key, lambda: LocalUpload(self.root, key, self._io))

    def mkdir(self, key: str) -> None:
        self._try("make the directory", key, lambda: os.makedirs(key, exist_ok=True))

    def drop_uploads(self, prefix: str, before: float) -> int:
        """Temporary files, in the directory of `prefix` and below, that nobody has written to since."""
        return self._try("sweep", prefix, lambda: _drop_temporaries(prefix, before))

    def delete_tree(self, key: str) -> None:
        if os.path.realpath(key) == "/":
            raise ConfigError(f"refused to delete {self.root}{key}: it is the root of the file system")
        self._try("delete", key, lambda: _remove_tree(key))


class _Begin:
    """Begins reads in the caller's thread. Where little is at hand it looks less and less often whether something is.

    A small file on a disk is read without a thread: the kernel brings several at once when it is asked to.
    """

    def __init__(self, begin: Callable[[Read, Check], ReadResult | Later | None], io: FileIO) -> None:
        self._begin = begin
        self._io = io
        self._is_asked_for = False
        self._num_unseen = 0  # reads until it looks again
        self._num_passed = 0  # reads between its last two looks

    def __call__(self, read: Read) -> ReadResult | Later | None:
        if self._num_unseen:
            self._num_unseen -= 1
            return self._begin(read, self._io.ask_for) if self._is_asked_for else None
        result = self._begin(read, self._io.require_at_hand)
        self._is_asked_for = result is LATER
        is_at_hand = result is not None and result is not LATER
        self._num_passed = self._num_unseen = 0 if is_at_hand else min(2 * self._num_passed + 1, MOST_UNSEEN)
        return result


def _status_of(entry: os.DirEntry[str]) -> os.stat_result | None:
    """None for what vanished meanwhile, and for a link that leads nowhere."""
    try:
        return entry.stat()
    except OSError as exc:
        if exc.errno in _NOWHERE:
            return None
        raise


def _remove(path: str) -> None:
    """Unlink a file or link, or remove an empty directory; what is not there is fine."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as exc:  # the errno of unlink on a directory differs between systems
        if os.path.isdir(path):
            os.rmdir(path)
        elif not isinstance(exc, NotADirectoryError):
            raise


def _remove_tree(path: str) -> None:
    """Remove a file, a link, or a directory with all that it holds; links in it are removed, not followed.

    What vanishes meanwhile is fine, and so is any depth.
    """
    if not os.path.isdir(path) or os.path.islink(path.rstrip("/")):
        _remove(path.rstrip("/") or path)
        return
    pending, directories = [path], []
    while pending:
        directories.append(pending.pop())
        with contextlib.suppress(FileNotFoundError), os.scandir(directories[-1]) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    _remove(entry.path)
    for directory in reversed(directories):  # each one stands behind those that hold it
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(directory)


def _drop_temporaries(prefix: str, before: float) -> int:
    paths = [
        os.path.join(directory, name)
        for directory, _, names in os.walk(os.path.dirname(prefix) or ".")
        for name in names
        if _TEMPORARY.fullmatch(name) and os.path.join(directory, name[1:]).startswith(prefix)
    ]
    num_dropped = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # its writer is alive, and has just published it
            if os.stat(path).st_mtime < before:
                os.unlink(path)
                num_dropped += 1
    return num_dropped
