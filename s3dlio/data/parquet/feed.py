"""What is asked for next: the reads of row groups, as many as may be on their way."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

from ...errors import S3dlioError
from ...storage.base import Read
from .cut import Cut, Piece

__all__ = ["Feed", "Requests", "begun"]


class Feed(Iterator[Piece]):
    """Pieces, as long as fewer than `window` cuts are begun and not yet handed out; then it pauses, and goes on later.

    Once another thread has put anything into `left`, it ends the whole: by GeneratorExit, as a generator that is closed.
    """

    def __init__(
        self, cuts: Iterator[Cut | S3dlioError], window: int, chunk_bytes: int | None, left: Collection[object]
    ) -> None:
        self.left = left
        self._cuts = cuts
        self._window = window
        self._chunk_bytes = chunk_bytes
        self._pieces: Iterator[Piece] = iter(())
        self.order: list[Cut | S3dlioError] = []  # begun, or not to be begun, and not handed out
        self.is_over = False  # there are no further ones

    def __next__(self) -> Piece:
        if self.left:
            raise GeneratorExit("left early")
        piece = next(self._pieces, None)
        if piece is not None:
            return piece
        while len(self.order) < self._window:
            cut = begun(self._cuts)
            if cut is None:
                self.is_over = True
                break
            self.order.append(cut)
            if isinstance(cut, Cut):
                self._pieces = cut.pieces(self._chunk_bytes)
                return next(self._pieces)
        raise StopIteration


def begun(cuts: Iterator[Cut | S3dlioError]) -> Cut | S3dlioError | None:
    """The next cut, or why there is none; None at the end."""
    try:
        return next(cuts, None)
    except S3dlioError as exc:
        return exc


class Requests(Iterator[Read]):
    """The reads of a feed, at most `window` at once; `pieces` are those on their way, by the tags of their reads."""

    def __init__(self, feed: Feed, window: int) -> None:
        self._feed = feed
        self._window = window
        self._tags = itertools.count()
        self.pieces: dict[int, Piece] = {}

    def __next__(self) -> Read:
        if len(self.pieces) >= self._window and not self._feed.left:
            raise StopIteration
        piece, tag = next(self._feed), next(self._tags)
        self.pieces[tag] = piece
        return piece.request(tag)
