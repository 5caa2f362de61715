"""The state of an iteration, in a few plain numbers: where the epoch stands, and how far one process has come in it.

A *state* is global: (version, seed, shuffle, epoch, position, number of samples), the same on every rank, good for any
number of ranks and workers. A *share* is what one DataLoader worker, or a sampler that a DataLoader asks ahead, knows:
the state in which its iteration began, and the number of samples that it has handed out since, under which dealing.
"""

from __future__ import annotations

from typing import Any, get_args

from .order import Deal, Tail

__all__ = ["checked_share", "checked_state", "deal_of", "is_share", "is_state", "require_dict", "share_of", "state_of"]

VERSION = 1

_NUMBERS = ("seed", "shuffle", "epoch", "position", "num_samples")
_SHARE_NUMBERS = ("taken", "batch_size", "is_batch_size_told", "num_ranks", "rank", "tail", "worker", "num_workers")
_TAILS: tuple[Tail, ...] = get_args(Tail)


def state_of(*, seed: int, shuffle: bool, epoch: int, position: int, num_samples: int) -> dict[str, int]:
    """A state dict. `position` is global: how many samples of the epoch the whole job has taken."""
    return {
        "version": VERSION,
        "seed": seed,
        "shuffle": int(shuffle),
        "epoch": epoch,
        "position": position,
        "num_samples": num_samples,
    }


def share_of(deal: Deal, taken: int, *, seed: int, shuffle: bool, epoch: int, is_batch_size_told: bool) -> dict[str, int]:
    """The share of one process: `taken` samples of `deal`, which begins at the position of the state in it."""
    state = state_of(seed=seed, shuffle=shuffle, epoch=epoch, position=deal.start, num_samples=deal.num_samples)
    return state | {
        "taken": taken,
        "batch_size": deal.batch_size,
        "is_batch_size_told": int(is_batch_size_told),
        "num_ranks": deal.num_ranks,
        "rank": deal.rank,
        "tail": _TAILS.index(deal.tail),
        "worker": deal.worker,
        "num_workers": deal.num_workers,
    }


def is_state(value: Any) -> bool:
    """Whether a value looks like a state or a share."""
    return isinstance(value, dict) and {"version", *_NUMBERS} <= value.keys()


def is_share(value: Any) -> bool:
    """Whether a value looks like the share of one process."""
    return is_state(value) and "taken" in value


def deal_of(share: dict[str, int]) -> Deal:
    """The dealing under which a share was taken."""
    return Deal(
        share["num_samples"],
        share["position"],
        share["batch_size"],
        share["num_ranks"],
        share["rank"],
        num_workers=share["num_workers"],
        worker=share["worker"],
        tail=_TAILS[share["tail"]],
    )


def checked_state(state: dict[str, int], *, shuffle: bool, num_samples: int) -> tuple[int, int]:
    """(epoch, position) of a state dict. Raises ValueError when its order is not the one that would go on."""
    if is_share(state):
        raise ValueError("this is what one DataLoader worker or sampler took: s3dlio.torch.position_from() makes it a state")
    _check_numbers(state, _NUMBERS)
    if state["num_samples"] != num_samples:
        raise ValueError(
            f"the state was taken on {state['num_samples']} samples and there are {num_samples} now: the order of one is "
            "not that of the other; restore the objects, or start a new epoch with set_epoch()"
        )
    if bool(state["shuffle"]) != shuffle:
        raise ValueError(
            f"the state was taken with shuffle={bool(state['shuffle'])}, and here it is {shuffle}: the orders differ"
        )
    return state["epoch"], state["position"]


def checked_share(share: dict[str, int], here: dict[str, int]) -> tuple[int, int, int]:
    """(epoch, position of its beginning, samples taken since). ValueError when the dealing is not that of `here`."""
    _check_numbers(share, (*_NUMBERS, *_SHARE_NUMBERS))
    epoch, position = checked_state(
        {name: share[name] for name in ("version", *_NUMBERS)},
        shuffle=bool(here["shuffle"]),
        num_samples=here["num_samples"],
    )
    for name in ("batch_size", "num_ranks", "tail", "num_workers", "worker"):
        if share[name] != here[name]:
            raise ValueError(
                f"the state was taken with {name}={share[name]}, and here it is {here[name]}: convert it by "
                "s3dlio.torch.position_from(), whose result any number of ranks and workers can load"
            )
    return epoch, position, share["taken"]


def require_dict(state: Any) -> None:
    """Raise TypeError for what is no dict."""
    if not isinstance(state, dict):
        raise TypeError(f"a state is the dict that state_dict() gave, not {type(state).__name__}")


def _check_numbers(state: dict[str, int], names: tuple[str, ...]) -> None:
    require_dict(state)
    if state.get("version") != VERSION:
        raise ValueError(f"this state has version {state.get('version')}, this s3dlio reads version {VERSION}")
    for name in names:
        value = state.get(name)
        if not isinstance(value, int) or value < 0:
            raise ValueError(f"this state has {name}={value!r}, where a number from 0 on belongs")
