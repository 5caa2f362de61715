"""`loader`: a DataLoader that knows where it is and can go on elsewhere."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from ..data.epochs import Epochs
from ..data.state import checked_state, state_of
from ..data.turns import Lasting
from .resumable import DealtStream
from .sampler import ResumableSampler

__all__ = ["Loader", "loader"]


def loader(
    dataset: Dataset[Any],
    batch_size: int | None = 1,
    *,
    shuffle: bool = False,
    seed: int = 0,
    drop_last: bool = False,
    pad: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    **options: Any,
) -> Loader:
    """Batches of a DataLoader over `dataset`, whose `state_dict()` resumes exactly, with any number of ranks and workers.

    `dataset` is any map-style dataset, or an ObjectStoreIterableDataset, which brings its own shuffle, seed and ranks and
    must have been told this `batch_size`; None hands out samples as they are, such as the batches of a ParquetDataset. A
    stream goes on where it stands now: at the epoch that it was told, or at its restored position. The other options are
    those of torch.utils.data.DataLoader (num_workers, multiprocessing_context, collate_fn, persistent_workers, …), but for
    `in_order=False`, which has no position to resume from: it is a ValueError. Every complete iteration ends an epoch, and
    the next one has another order.

    >>> batches = s3dlio.torch.loader(dataset, batch_size=32, shuffle=True, num_workers=4)
    >>> batches.load_state_dict(state["loader"])
    >>> for epoch in range(batches.epoch, num_epochs):
    ...     for batch in batches:
    ...         ...  # state["loader"] = batches.state_dict() is exact here
    """
    if "sampler" in options or "batch_sampler" in options:
        raise ValueError("loader() makes the sampler, whose place it knows: leave sampler and batch_sampler out")
    if not options.get("in_order", True):
        raise ValueError("in_order=False: batches that overtake each other leave no position to resume from; leave it out")
    if isinstance(dataset, IterableDataset):
        if not isinstance(dataset, DealtStream):
            raise TypeError(
                f"loader() takes map-style datasets and streams such as ObjectStoreIterableDataset, not {type(dataset)}"
            )
        if (shuffle, seed, drop_last, pad, rank, world_size) != (False, 0, False, False, None, None):
            raise ValueError("an ObjectStoreIterableDataset brings its own shuffle, seed, drop_last, pad and ranks")
        if dataset.batch_size != batch_size:
            hint = "" if dataset.batch_size else " (where a sample is a batch already, as a row group is: batch_size=None)"
            raise ValueError(f"the dataset was told batch_size={dataset.batch_size}, the loader {batch_size}{hint}")
        own = copy.copy(dataset)  # several loaders of one dataset are in different epochs
        return Loader(own, DataLoader(own, batch_size, **options))
    sampler = ResumableSampler(
        dataset,  # type: ignore[arg-type]
        batch_size=1 if batch_size is None else batch_size,
        shuffle=shuffle,
        seed=seed,
        drop_last=drop_last,
        pad=pad,
        rank=rank,
        world_size=world_size,
    )
    return Loader(sampler, DataLoader(dataset, batch_size, sampler=sampler, **options))


class Loader:
    """An iterable of batches that counts what it delivered. Made by `loader`.

    An iteration that has met an error raises it again at every `next()`; `state_dict()` is still the place before it.
    """

    def __init__(self, source: ResumableSampler | DealtStream, batches: DataLoader[Any]) -> None:
        self._source = source
        self._batches = batches
        # A stream may have been restored, or told its epoch.
        self._epochs = Epochs(source.epoch, source.start) if isinstance(source, DealtStream) else Epochs()

    @property
    def epoch(self) -> int:
        """The running epoch, or the next one between epochs."""
        return self._epochs.epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`; nothing happens when it is the current one."""
        self._epochs.set_epoch(epoch)

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch."""
        return self._source.deal().num_steps

    def __iter__(self) -> Iterator[Any]:
        # After an error nobody knows how many batches a DataLoader dropped, so its iterator does not go on.
        return Lasting(self._run())

    def _run(self) -> Generator[Any]:
        run = self._epochs.begin()
        deal = self._source.deal(run.start)
        self._source.start_at(run.epoch, run.start)
        for num_steps, batch in enumerate(self._batches, 1):
            run.reached(deal.position_after(num_steps))
            yield batch
        run.ended()

    def stats(self) -> dict[str, Any]:
        """`num_skipped`, and `skipped`, dicts of `uri`, `error` and `repeated`: the bad samples that the dataset's
        `on_error` let pass, in all workers and epochs, those of batches that are still on their way too.
        """
        dataset = self._batches.dataset
        skipped = [entry._asdict() for entry in getattr(dataset, "skipped", ())]
        return {"num_skipped": getattr(dataset, "num_skipped", 0), "skipped": skipped}

    def state_dict(self) -> dict[str, int]:
        """(version, seed, epoch, global position, number of samples) after the last batch that was delivered.

        Take it at the same step on all ranks: then every rank's state is the same, and any one of them restores all.
        """
        return state_of(
            seed=self._source.seed,
            shuffle=self._source.shuffle,
            epoch=self._epochs.epoch,
            position=self._epochs.position,
            num_samples=self._source.deal().num_samples,
        )

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration go on where `state` was taken. Raises ValueError when it belongs to other data."""
        epoch, position = checked_state(state, shuffle=self._source.shuffle, num_samples=self._source.deal().num_samples)
        self._source.deal(position)  # a position beyond the end is an error here
        self._source.seed = state["seed"]
        self._epochs.go_to(epoch, position)
