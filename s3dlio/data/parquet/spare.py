"""`Spare`: memory that row groups were decoded from, for the next ones."""

from __future__ import annotations

from ...view import BytesView, empty, fresh

__all__ = ["Spare", "spare"]

SPARE_BYTES = 24 * 1024 * 1024  # kept of the memory of row groups that were decoded


class Spare:
    """Memory of row groups that were decoded, for the next ones: SPARE_BYTES of it at most."""

    def __init__(self) -> None:
        self._views: list[BytesView] = []  # several threads come to it: each step is one call

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
        if sum(other.nbytes for other in self._views.copy()) + view.nbytes <= SPARE_BYTES:
            self._views.append(view)


spare = Spare()
