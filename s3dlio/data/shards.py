"""`ShardReader`: items out of one or several container files, in order, with a position to go on from."""

from __future__ import annotations

import itertools
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Generic, TypeAlias, TypeVar

from .. import config, objects
from ..errors import ChangedError, S3dlioError
from ..transfer.ahead import Forward
from .bad_samples import OnError, Skipped, Skips
from .state import require_dict
from .turns import Lasting

__all__ = ["FILES_AHEAD", "Report", "ShardReader"]

VERSION = 2
UNKNOWN = -1  # number of files
FILES_AHEAD = 8  # of small files; of large ones, the next

T = TypeVar("T")
Report: TypeAlias = Callable[[Skipped], None]


class ShardReader(Generic[T]):
    """What TFRecord and tar readers share. `items_of` is theirs: the items of a file, each with where the next begins.

    Iterating goes on from the position of `load_state_dict`, else from the first file; the next iteration begins anew. A
    position is a byte offset, so that resuming costs nothing, however far it is. Several iterations may run at once: the
    state is that of the one that was begun last. Of an iterator of URIs, which may have no end, each is taken when its file
    is about to be opened.

    With `on_error="skip"`, or where a function of (URI of the file, error) says True, a bad item is passed over, and where
    nobody knows where the next one begins, the rest of the file. `num_skipped` and `skipped` tell of them, and `report`, a
    function of Skipped, learns of each.
    """

    def __init__(self, uris: str | Iterable[str], on_error: OnError = "raise", report: Report | None = None) -> None:
        self._names = _Names([uris] if isinstance(uris, str) else uris)
        self._skips = Skips(on_error, report)
        self._position = (0, 0, 0)  # file, offset in it, items before
        self._is_restored = False
        self._num_begun = 0  # iterations

    @property
    def uris(self) -> Sequence[str]:
        """The files; of an iterator, those that were taken from it until now."""
        return self._names.known

    @property
    def num_skipped(self) -> int:
        """Items, and rests of files, that were skipped until now."""
        return self._skips.tally.num_skipped

    @property
    def skipped(self) -> list[Skipped]:
        """The first ones of them: URI of the file, error, and "" for what was repeated in its place."""
        return self._skips.tally.skipped()

    def items_of(self, file: Forward) -> Iterator[tuple[T | Exception, int]]:
        """The items from the file's position on, or what is wrong with one, each with the byte at which the next one begins.

        Raises what makes it impossible to go on.
        """
        raise NotImplementedError

    def __iter__(self) -> Iterator[T]:
        if not self._is_restored:
            self._position = (0, 0, 0)
        self._is_restored = False
        self._num_begun += 1
        return Lasting(self._items(self._num_begun, *self._position), survives_forks=True)

    def _items(self, iteration: int, number: int, start: int, count: int) -> Generator[T]:
        for index, file in self._files(number, start):
            items = self._items_in(file)
            try:
                for item, offset in items:
                    count += 1
                    if isinstance(item, Exception):
                        self._skips.skip(file.uri, item)
                    if iteration == self._num_begun:
                        self._position = (index + 1, 0, count) if offset is None else (index, offset, count)
                    if not isinstance(item, Exception):
                        yield item
            finally:
                items.close()
                file.close()

    def _items_in(self, file: Forward) -> Generator[tuple[T | Exception, int | None]]:
        """`items_of`, and what makes it impossible to go on in the file: the error, and no place for the next item."""
        try:
            if file.position > file.size:
                raise ChangedError(f"{file.uri} ends at byte {file.size}, before the position {file.position} of the state")
            yield from self.items_of(file)
        except Exception as exc:
            yield exc, None

    def _files(self, number: int, start: int) -> Iterator[tuple[int, Forward]]:
        """The files from `number` on, with the first block of the next ones on its way."""
        options = config.snapshot()
        rest = self._names.numbered(number)
        opened: deque[tuple[int, Forward]] = deque()

        failures: list[Exception] = []  # of names that nobody has asked for yet

        def open_up_to(count: int) -> None:
            try:
                for index, uri in itertools.islice(rest, max(0, count - len(opened)) if not failures else 0):
                    store, key = objects.resolve(uri)
                    opened.append((index, Forward(store, key, options, start=start if index == number else 0)))
            except Exception as exc:
                failures.append(exc)

        try:
            open_up_to(1)
            while opened:
                open_up_to(1 + (FILES_AHEAD if _is_small(opened[0][1]) else 1))
                yield opened.popleft()
                open_up_to(1)
            if failures:
                raise failures[0]
        finally:
            for _, file in opened:
                file.close()

    def state_dict(self) -> dict[str, int]:
        """The position after the last item that was taken, in a few plain numbers."""
        file, offset, num_items = self._position
        return {
            "version": VERSION,
            "num_files": self._names.count,
            "names": self._names.crc(file + (offset > 0)),
            "file": file,
            "offset": offset,
            "num_items": num_items,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration go on from there. Raises ValueError when the state is not one of these files."""
        require_dict(state)
        if state.get("version") != VERSION:
            raise ValueError(f"this state has version {state.get('version')}, this s3dlio reads version {VERSION}")
        for name in ("file", "offset", "num_items"):
            if not isinstance(state.get(name), int) or state[name] < 0:
                raise ValueError(f"this state has {name}={state.get(name)!r}, where a number from 0 on belongs")
        count = self._names.count
        if state.get("num_files") != count:
            raise ValueError(f"the state was taken on {_files(state.get('num_files'))}, and there are {_files(count)} now")
        if state.get("names") != self._names.crc(state["file"] + (state["offset"] > 0)):
            raise ValueError("the state was taken on files of other names, or in another order, than there are now")
        self._position = (state["file"], state["offset"], state["num_items"])
        self._is_restored = True
        self._num_begun += 1  # what runs still does not move the position any more


class _Names:
    """The URIs of files: a collection as it is; those of an iterator are taken when needed, and kept for the next epoch."""

    def __init__(self, uris: Iterable[str]) -> None:
        self._rest = uris if isinstance(uris, Iterator) else None
        self._taken: list[str] = []
        self._failure: BaseException | None = None
        self.known: Sequence[str] = self._taken
        if self._rest is None:  # what may be a million names is not copied, unless it may change
            self.known = uris if isinstance(uris, Sequence) and not isinstance(uris, list) else list(uris)
        self._crc = (0, 0)

    @property
    def count(self) -> int:
        """How many there are; UNKNOWN of an iterator."""
        return UNKNOWN if self._rest is not None else len(self.known)

    def numbered(self, start: int) -> Iterator[tuple[int, str]]:
        """Those from number `start` on, with their numbers."""
        for number in itertools.count(start):
            if not self._reaches(number):
                return
            yield number, self.known[number]

    def _reaches(self, number: int) -> bool:
        """Whether there is one of this number. Takes those before it."""
        if self._rest is not None and number >= len(self._taken):
            if self._failure is not None:  # the iterator would say that it has come to its end
                raise self._failure
            try:
                self._taken.extend(itertools.islice(self._rest, number + 1 - len(self._taken)))
            except BaseException as exc:
                self._failure = exc
                raise
        return number < len(self.known)

    def crc(self, count: int) -> int:
        """What tells lists of files apart: a CRC-32 of last names, which stay when the files are moved.

        They are all names, or the first `count` of an iterator. Raises ValueError when it has not so many.
        """
        if self._rest is None:
            count = len(self.known)
        elif count and not self._reaches(count - 1):
            raise ValueError(f"the state was taken at file {count}, and there are {_files(len(self.known))} now")
        done, crc = self._crc if self._crc[0] <= count else (0, 0)
        names: Iterable[str] = self._taken[done:count] if self._rest is not None else self.known if done < count else ()
        for uri in names:
            crc = zlib.crc32(uri.rpartition("/")[2].encode("utf-8", "surrogateescape") + b"\n", crc)
        self._crc = count, crc
        return crc


def _files(count: object) -> str:
    return "an iterator of files" if count == UNKNOWN else f"{count} files"


def _is_small(file: Forward) -> bool:
    try:
        return file.is_one_block
    except S3dlioError:  # whoever reads it meets the error at its turn
        return False
