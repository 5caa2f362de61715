"""`Opening`: an exchange that has begun the short way, without a coroutine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .http import Request, Response, broken_off

if TYPE_CHECKING:
    from .connection import Connection

__all__ = ["Opening"]


@dataclass(slots=True)
class Opening:
    """A request that goes out in one piece, and its answer, as long as nothing unusual comes.

    `unsent` is the request's head, until it is on its way. `place` is that in the pace; `started` and `paused` are what its
    mode said when it began. `filled` counts the bytes of the answer's body, or of its beginning while there is no
    `response`. `error` is what ended it.
    """

    connection: Connection | None
    request: Request
    place: list[int]
    started: float = 0.0
    paused: float = 0.0
    unsent: bytes = b""
    response: Response | None = None
    filled: int = 0
    error: Exception | None = None

    @property
    def is_whole(self) -> bool:
        return self.response is not None and self.filled == self.response.body.nbytes

    def give_up(self, error: OSError) -> None:
        """It has waited for long enough. What has landed of a body stays."""
        self.error = error if self.response is None else broken_off(self.filled, self.response.body.nbytes, error)
