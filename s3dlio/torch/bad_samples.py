"""Bad samples in datasets: what the workers of a DataLoader skip is known to the main process as well."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch

from ..data.bad_samples import Filler, OnError, Skipped, checked_on_error
from .ranks import current_worker

__all__ = ["Board", "Named", "Skipping", "transform_of"]

ROWS = 64  # one per worker, so that each has one writer as a rule; the last one is that of the main process
ROW_BYTES = 16 * 1024
MAX_ERROR = 300
_COUNT, _LENGTH = range(2)


class Board:
    """Who was skipped and why, in memory that main process and workers share: all are counted, the first ones named."""

    def __init__(self) -> None:
        self._numbers = torch.zeros(ROWS, 2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._texts = torch.zeros(ROWS, ROW_BYTES, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]

    def add(self, skipped: Skipped) -> None:
        """Write it down, in the row of this process."""
        worker = current_worker()
        row = ROWS - 1 if worker is None else worker[0] % (ROWS - 1)
        text = json.dumps(skipped._replace(error=skipped.error[:MAX_ERROR])).encode() + b"\n"
        begin = int(self._numbers[row, _LENGTH])
        if begin + len(text) <= ROW_BYTES:
            self._texts[row, begin : begin + len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
            self._numbers[row, _LENGTH] = begin + len(text)  # after the text, since others read up to here
        self._numbers[row, _COUNT] += 1

    @property
    def num_skipped(self) -> int:
        """How many samples were skipped until now, in all workers and epochs."""
        return int(self._numbers[:, _COUNT].sum())

    def skipped(self) -> list[Skipped]:
        """What is known of them, worker by worker."""
        rows = ((row, int(self._numbers[row, _LENGTH])) for row in range(ROWS))
        texts = (bytes(self._texts[row, :length].numpy()) for row, length in rows)
        found = (_parsed(line) for text in texts for line in text.splitlines())
        return [skipped for skipped in found if skipped is not None]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(
            {name: tensor if tensor.is_shared() else tensor.share_memory_() for name, tensor in state.items()}
        )


def _parsed(line: bytes) -> Skipped | None:
    """None where two workers of one number, of two DataLoaders at once, have written over each other."""
    try:
        return Skipped(*json.loads(line))
    except (TypeError, ValueError):
        return None


class Skipping:
    """A dataset that tells of the samples which its `on_error` let pass."""

    _board: Board | None = None

    @property
    def num_skipped(self) -> int:
        """Samples that were skipped until now, by all workers in all epochs."""
        return 0 if self._board is None else self._board.num_skipped

    @property
    def skipped(self) -> list[Skipped]:
        """Those samples, with their errors and what was repeated instead: the first ones of each worker."""
        return [] if self._board is None else self._board.skipped()

    def _skip(self, on_error: OnError) -> None:
        """Check the choice, and keep it."""
        self._on_error = checked_on_error(on_error)
        self._board = None if on_error == "raise" else Board()

    def _tell_of(self, skipped: Iterable[Skipped]) -> None:
        """Write down what was skipped elsewhere."""
        if self._board is not None:
            for one in skipped:
                self._board.add(one)

    def _filled(
        self,
        arrivals: Iterable[tuple[Named, Any]],
        transformed: Callable[[Any], Any] | None = None,
        batch_size: int | None = None,
        taken: int = 0,
        before: Callable[[], Iterable[tuple[Named, Any]]] | None = None,
    ) -> Iterator[Any]:
        """A sample for each arrival: where one is bad, a good one of its batch (None: of all of them) is repeated.

        `taken` samples came before the first arrival, so that it may stand within a batch; `before` reads those of them that
        are of its batch, the last one first.
        """

        def attempted(arrivals: Iterable[tuple[Named, Any]]) -> Iterator[tuple[Named, Any]]:
            for arrival, outcome in arrivals:
                yield arrival, outcome if transformed is None else _attempted(outcome, transformed)
                del outcome

        def earlier() -> Iterator[tuple[str, Any]]:
            return ((arrival.uri, sample) for arrival, sample in attempted(before() if before else ()))

        filler = Filler(self._on_error, self._board.add if self._board else None, earlier)
        for number, (arrival, sample) in enumerate(attempted(arrivals), taken + 1):
            yield from filler.add(arrival.uri, sample, getattr(arrival, "part", ""))
            del sample
            if batch_size is not None and number % batch_size == 0:
                filler.end_batch()
        filler.end_batch()


class Named(Protocol):
    """What is known of a sample. One that is a part of an object has a `part` besides."""

    uri: str


def _attempted(outcome: Any, transformed: Callable[[Any], Any]) -> Any:
    if isinstance(outcome, Exception):
        return outcome
    try:
        return transformed(outcome)
    except Exception as exc:
        return exc


def transform_of(sample: Any, transform: Callable[[Any], Any], name: str) -> Any:
    """`transform(sample)`. An exception of the user's own function says what it was about, and is no end of the epoch."""
    try:
        return transform(sample)
    except StopIteration as exc:
        raise RuntimeError(f"the transform raised StopIteration for {name}") from exc
    except Exception as exc:
        exc.add_note(f"while transforming {name}")
        raise
