"""`ShardReader`: items out of one or several container files, in order, with a position to go on from."""

from __future__ import annotations

import itertools
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import cached_property
from typing import Generic, TypeAlias, TypeVar

from .. import config, objects
from ..errors import ChangedError, S3dlioError
from ..transfer.ahead import Forward
from .bad_samples import OnError, Skipped, Skips
from .turns import Lasting

__all__ = ["FILES_AHEAD", "Report", "ShardReader"]

VERSION = 1
FILES_AHEAD = 8  # of small files; of large ones, the next

T = TypeVar("T")
Report: TypeAlias = Callable[[Skipped], None]


class ShardReader(Generic[T]):
    """What TFRecord and tar readers share. `items_of` is theirs: the items of a file, each with where the next begins.

    Iterating goes on from the position of `load_state_dict`, else from the first file; the next iteration begins anew. A
    position is a byte offset, so that resuming costs nothing, however far it is. Several iterations may run at once: the
    state is that of the one that was begun last.

    With `on_error="skip"`, or where a function of (URI of the file, error) says True, a bad item is passed over, and where
    nobody knows where the next one begins, the rest of the file. `num_skipped` and `skipped` tell of them, and `report`, a
    function of Skipped, learns of each.
    """

    def __init__(self, uris: str | Iterable[str], on_error: OnError = "raise", report: Report | None = None) -> None:
        self.uris = [uris] if isinstance(uris, str) else list(uris)
        self._skips = Skips(on_error, report)
        self._position = (0, 0, 0)  # file, offset in it, items before
        self._is_restored = False
        self._num_begun = 0  # iterations

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
                    is_bad = isinstance(item, Exception)
                    if is_bad:
                        self._skips.skip(file.uri, item)  # type: ignore[arg-type]
                    if iteration == self._num_begun:
                        self._position = (index + 1, 0, count) if offset is None else (index, offset, count)
                    if not is_bad:
                        yield item  # type: ignore[misc]
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
        rest = iter(range(number, len(self.uris)))
        opened: deque[tuple[int, Forward]] = deque()

        def open_up_to(count: int) -> None:
            for index in itertools.islice(rest, max(0, count - len(opened))):
                store, key = objects.resolve(self.uris[index])
                opened.append((index, Forward(store, key, options, start=start if index == number else 0)))

        try:
            open_up_to(1)
            while opened:
                open_up_to(1 + (FILES_AHEAD if _is_small(opened[0][1]) else 1))
                yield opened.popleft()
                open_up_to(1)
        finally:
            for _, file in opened:
                file.close()

    @cached_property
    def _names(self) -> int:
        """What tells lists of files apart: a CRC-32 of their last names, which stay when the files are moved."""
        names = "\n".join(uri.rpartition("/")[2] for uri in self.uris)
        return zlib.crc32(names.encode("utf-8", "surrogateescape"))

    def state_dict(self) -> dict[str, int]:
        """The position after the last item that was taken, in a few plain numbers."""
        file, offset, num_items = self._position
        return {
            "version": VERSION,
            "num_files": len(self.uris),
            "names": self._names,
            "file": file,
            "offset": offset,
            "num_items": num_items,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration go on from there. Raises ValueError when the state is not one of these files."""
        if state.get("version") != VERSION:
            raise ValueError(f"this state has version {state.get('version')}, this s3dlio reads version {VERSION}")
        if state.get("num_files") != len(self.uris):
            raise ValueError(f"the state was taken on {state.get('num_files')} files, and there are {len(self.uris)} now")
        if state.get("names") != self._names:
            raise ValueError("the state was taken on files of other names, or in another order, than there are now")
        for name in ("file", "offset", "num_items"):
            if not isinstance(state.get(name), int) or state[name] < 0:
                raise ValueError(f"this state has {name}={state.get(name)!r}, where a number from 0 on belongs")
        self._position = (state["file"], state["offset"], state["num_items"])
        self._is_restored = True
        self._num_begun += 1  # what runs still does not move the position any more


def _is_small(file: Forward) -> bool:
    try:
        return file.is_one_block
    except S3dlioError:  # whoever reads it meets the error at its turn
        return False
