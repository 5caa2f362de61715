"""A DataLoader over any engine that fetches many objects at once: what its users write around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader, Dataset

BATCH = 32


class Objects(Dataset[Any]):
    """Whole batches are fetched at once, by a function that pickles."""

    def __init__(self, uris: Sequence[str], fetch: Callable[[Sequence[str]], list[Any]]) -> None:
        self.uris, self.fetch = uris, fetch

    def __len__(self) -> int:
        return len(self.uris)

    def __getitem__(self, index: int) -> Any:
        return self.fetch([self.uris[index]])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return self.fetch([self.uris[index] for index in indices])


def as_it_is(batch: list[Any]) -> list[Any]:
    return batch


def options(plan: dict[str, Any]) -> dict[str, Any]:
    """The workers that the plan asks for; they stay for the second epoch, which is the one that is timed."""
    if not plan["workers"]:
        return {}
    return {
        "num_workers": plan["workers"],
        "multiprocessing_context": plan["context"],
        "persistent_workers": True,
    }


def objects_of(batches: Any) -> Callable[[], Iterator[Any]]:
    """One epoch, object by object."""

    def run() -> Iterator[Any]:
        for batch in batches:
            yield from batch

    return run


def work(plan: dict[str, Any], fetch: Callable[[Sequence[str]], list[Any]]) -> Callable[[], Iterator[Any]]:
    return objects_of(DataLoader(Objects(plan["uris"], fetch), BATCH, collate_fn=as_it_is, **options(plan)))
