"""From the state of torchdata's StatefulDataLoader to the position of the whole job.

A StatefulDataLoader keeps what each worker took, and can go on with as many workers only. `position_from` adds the shares
up. The layout of its state is that of torchdata 0.11, `stateful_dataloader.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..data.order import Deal
from ..data.state import deal_of, is_share, is_state, require_dict, state_of

__all__ = ["position_from"]


def position_from(stateful_state: dict[str, Any]) -> dict[str, int]:
    """Convert the state of a StatefulDataLoader to that of a dataset, which any number of ranks and workers can load.

    The dataset has to be a stream of s3dlio, or the sampler a ResumableSampler. The result is for the `load_state_dict` of
    such a dataset or sampler, or of `s3dlio.torch.loader`. Also takes the state of a `torchdata.nodes.Loader` over a source
    of `s3dlio.torch.nodes`, provided nothing between them reads ahead.

    Raises ValueError when there is no one position: with several workers the dataset must have been told the loader's
    `batch_size`, and with several ranks the state must be taken between batches. Of a StatefulDataLoader with
    `in_order=False` there is none either: what came too early is in no state, and would be left out.

    >>> state = s3dlio.torch.position_from(loader.state_dict())
    >>> dataset.load_state_dict(state)
    >>> loader = StatefulDataLoader(dataset, batch_size=32, num_workers=8)
    """
    require_dict(stateful_state)
    snapshot = stateful_state.get("_snapshot", stateful_state)
    steps_since = stateful_state.get("_steps_since_snapshot", 0)
    found = list(_states_in(snapshot.get("_worker_snapshots") or {}))
    found = found or list(_states_in(snapshot))
    shares = [state for state in found if is_share(state)]
    if shares:
        state = _added_up(shares, steps_since)
    elif len(found) == 1:
        state = dict(found[0])
    else:
        raise ValueError(
            f"this state holds {len(found)} positions of s3dlio, where one belongs: it has to be that of a "
            "StatefulDataLoader over an s3dlio stream or with a ResumableSampler"
        )
    if stateful_state.get("_iterator_finished"):  # a rank may be at its end before the others
        state["position"] = state["num_samples"]
    return state


def _states_in(value: Any) -> Iterator[dict[str, int]]:
    if is_state(value):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _states_in(inner)


def _added_up(shares: list[dict[str, int]], steps_since: int) -> dict[str, int]:
    """The state after what all workers took. Their steps have to be the first steps of the epoch, without a gap."""
    first, num_workers = shares[0], shares[0]["num_workers"]
    if sorted(share["worker"] for share in shares) != list(range(num_workers)):
        raise ValueError(f"this state has the shares of {len(shares)} workers, and {num_workers} belong to it")
    steps = {share["worker"]: _steps(deal_of(share), share["taken"]) for share in shares}
    num_steps = sum(whole for whole, _ in steps.values())
    next_worker = num_steps % num_workers
    for worker, (whole, rest) in steps.items():
        if whole != len(range(worker, num_steps, num_workers)) or (rest and worker != next_worker):
            raise ValueError(
                "the workers stand at different places, which is no one position: tell the dataset the batch_size of the "
                "loader, so that whole batches are dealt to workers in turn"
            )
    position = _position(deal_of(first), num_steps, steps[next_worker][1], steps_since, first["is_batch_size_told"])
    facts = {name: first[name] for name in ("seed", "epoch", "num_samples")}
    return state_of(shuffle=bool(first["shuffle"]), position=position, **facts)


def _steps(deal: Deal, taken: int) -> tuple[int, int]:
    """(whole steps of a worker, samples of the next one) in its first `taken` samples."""
    num_full = len(range(deal.worker, deal.num_full_steps, deal.num_workers))
    in_tail = taken - num_full * deal.batch_size
    if in_tail <= 0:
        return divmod(taken, deal.batch_size)
    return (num_full, in_tail) if in_tail < deal.tail_positions().size else (num_full + 1, 0)


def _position(deal: Deal, num_steps: int, rest: int, steps_since: int, is_batch_size_told: int) -> int:
    if rest and deal.num_ranks > 1:
        raise ValueError("take the state between batches: within one, several ranks have no common position")
    if steps_since and (rest or not is_batch_size_told):
        raise ValueError(
            f"the state was taken {steps_since} batches after its snapshot, and how many samples these hold is not known: "
            "tell the dataset or sampler the batch_size of the loader, or take snapshots at every step"
        )
    return deal.position_after(num_steps + steps_since) + rest
