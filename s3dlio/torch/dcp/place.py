"""Where a distributed checkpoint is: what writer and reader make of a `checkpoint_id`."""

from __future__ import annotations

import os

from ... import objects
from ...checkpoint.catalog import directory
from ...errors import ConfigError
from ...uri import as_uri
from .plan import METADATA

__all__ = ["Place"]


def _checked(checkpoint_id: str | os.PathLike[str]) -> str:
    uri = directory(as_uri(checkpoint_id))
    objects.resolve(uri + METADATA)
    return uri


class Place:
    """The directory of a checkpoint, as the protocols of `torch.distributed.checkpoint.storage` ask for it."""

    _uri: str  # ends in a slash

    def _move_to(self, checkpoint_id: str | os.PathLike[str]) -> None:
        """Work in another directory from now on. Raises ConfigError, or TypeError when it is none."""
        self._uri = _checked(checkpoint_id)

    @property
    def checkpoint_id(self) -> str:
        """The directory's URI."""
        return self._uri

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Is it a URI of a scheme that is known here, or a path?"""
        try:
            _checked(checkpoint_id)
        except (ConfigError, TypeError):
            return False
        return True
