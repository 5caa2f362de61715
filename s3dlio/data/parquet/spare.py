"""`Spare`: memory that row groups were decoded from, for the next ones."""

from __future__ import annotations

from contextlib import suppress

from ... import config
from ...config import MIB
from ...view import BytesView, empty, fresh

__all__ = ["Spare", "spare"]

SPARE_BYTES = 24 * MIB  # kept of the memory of row groups that were decoded


class Spare:
    """Memory of row groups that were decoded, for the next ones.

    It keeps SPARE_BYTES besides what the pool of buffers does, and no more than that may (`S3DLIO_BUFFER_POOL_MB`).
    """

    def __init__(self) -> None:
        self._views: list[BytesView] = []  # several threads come to it: each step is one call

    @property
    def num_bytes(self) -> int:
        """What is kept."""
        return sum(view.nbytes for view in self._views.copy())

    def take(self, num_bytes: int, uri: str) -> BytesView:
        """Memory for a row group that is to be decoded; what was given last, where that is large enough, else fresh one."""
        try:
            view = self._views.pop()
        except IndexError:
            view = empty(0)
        if view.nbytes < num_bytes:
            view = fresh(num_bytes + num_bytes // 8)  # those to come may be a little larger; untouched memory costs nothing
        view.uri = uri
        return view

    def give(self, view: BytesView) -> None:
        """Keep the memory of a row group, to which nobody refers any more."""
        limit = min(SPARE_BYTES, config.pool_bytes())
        if view.nbytes > limit:
            return
        self._views.append(view)
        with suppress(IndexError):  # another thread has taken the rest
            while self.num_bytes > limit:
                self._views.pop(0)


spare = Spare()
