"""The state of an iteration: where the epoch stands, in a few plain numbers."""

from __future__ import annotations

__all__ = ["checked_state", "state_of"]

VERSION = 1


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


def checked_state(state: dict[str, int], *, shuffle: bool, num_samples: int) -> tuple[int, int]:
    """(epoch, position) of a state dict. Raises ValueError when its order is not the one that would go on."""
    if not isinstance(state, dict):
        raise TypeError(f"a state is the dict that state_dict() gave, not {type(state).__name__}")
    if state.get("version") != VERSION:
        raise ValueError(f"this state has version {state.get('version')}, this s3dlio reads version {VERSION}")
    for name in ("seed", "shuffle", "epoch", "position", "num_samples"):
        value = state.get(name)
        if not isinstance(value, int) or value < 0:
            raise ValueError(f"this state has {name}={value!r}, where a number from 0 on belongs")
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
