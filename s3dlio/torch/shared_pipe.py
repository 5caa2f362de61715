"""What the pipes of `datapipes.py` share: their part of the items by PyTorch's protocol, shuffling, and a place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self, TypeVar

from torch.utils.data import IterDataPipe, MapDataPipe, functional_datapipe
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
from torch.utils.data.graph import traverse_dps
from torch.utils.data.graph_settings import get_all_graph_pipes

from ..data.order import Deal, Indices, Order
from ..data.state import require_dict

__all__ = ["CountedPipe", "SharedPipe", "SourcePipe", "functional"]

T = TypeVar("T")

VERSION = 1
_DEFAULT = SHARDING_PRIORITIES.DEFAULT


def functional(name: str) -> Callable[[type[T]], type[T]]:
    """`functional_datapipe`, which refuses a name that is there: this module may be imported again."""

    def register(kind: type[T]) -> type[T]:
        names = (IterDataPipe if issubclass(kind, IterDataPipe) else MapDataPipe).functions
        names.pop(name, None)
        registered: type[T] = functional_datapipe(name)(kind)
        return registered

    return register


class _Sharing:
    """This instance among all that share the items, from what was told for each group of instances."""

    def __init__(self) -> None:
        self._groups: dict[int, tuple[int, int]] = {}

    def tell(self, num_instances: int, instance: int, group: Any) -> None:
        if not 0 <= instance < num_instances:
            raise ValueError(f"instance {instance} lies outside of [0, {num_instances})")
        number = group.value
        if self._groups and (number == _DEFAULT.value) != (_DEFAULT.value in self._groups):
            raise RuntimeError("the default sharding group and others exclude each other")
        self._groups[number] = num_instances, instance

    def mine(self) -> tuple[int, int]:
        """(number of instances, this instance): workers divide what their rank has."""
        total, mine = 1, 0
        for _, (num_instances, instance) in sorted(self._groups.items()):
            mine += total * instance
            total *= num_instances
        return total, mine


class SharedPipe(IterDataPipe[Any]):
    """A pipe that takes its part of the items, unless a pipe before it does so already: PyTorch refuses to share twice.

    All iterable pipes of this module are of this kind.
    """

    source_datapipe: IterDataPipe[Any] | None = None
    _sharing: _Sharing | None = None

    @property
    def apply_sharding(self) -> Callable[..., None]:
        """Tell this pipe, by PyTorch's protocol, which part is its own. Not there when a pipe before it shares already."""
        if not self._may_share():
            raise AttributeError("apply_sharding")
        return self._apply_sharding

    def _apply_sharding(self, num_of_instances: int, instance_id: int, sharding_group: Any = _DEFAULT) -> None:
        self._sharing = self._sharing or _Sharing()
        self._sharing.tell(num_of_instances, instance_id, sharding_group)

    def state_dict(self) -> dict[str, int]:
        """Where the running iteration is."""
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration go on there; of an empty state, from the beginning."""
        raise NotImplementedError

    def _may_share(self) -> bool:
        before = [] if self.source_datapipe is None else get_all_graph_pipes(traverse_dps(self.source_datapipe))
        return not any(hasattr(pipe, "apply_sharding") for pipe in before)

    def _share(self) -> tuple[int, int]:
        """(number of instances, this instance)."""
        return (1, 0) if self._sharing is None or not self._may_share() else self._sharing.mine()


class CountedPipe(SharedPipe):
    """A pipe whose place is the number of items that it gave."""

    _taken = 0
    _resume_at: int | None = None

    def _first(self) -> int:
        """How many items this iteration leaves out, without reading them."""
        first, self._resume_at = self._resume_at or 0, None
        self._taken = first
        return first

    def state_dict(self) -> dict[str, int]:
        """Where the running iteration is."""
        return {"version": VERSION, "taken": self._taken if self._resume_at is None else self._resume_at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration go on there; of an empty state, from the beginning. ValueError for what is no state."""
        require_dict(state)
        taken = state.get("taken")
        if state and (state.get("version") != VERSION or not isinstance(taken, int) or taken < 0):
            raise ValueError(f"{state} is no state of {type(self).__name__}")
        self._resume_at = taken


class SourcePipe(CountedPipe):
    """A pipe that knows its items by number: it shuffles them, and takes its part of them."""

    _shuffle = False
    _seed = 0

    def set_shuffle(self, shuffle: bool = True) -> Self:
        """Shuffle, or do not. A DataLoader calls this."""
        self._shuffle = shuffle
        return self

    def set_seed(self, seed: int) -> Self:
        """Name the seed of the next iteration. A DataLoader calls this before each epoch, with one seed for all workers."""
        self._seed = seed
        return self

    def shuffle(self, **_: int) -> Self:
        """Shuffle everything here: a pipe with a buffer, such as PyTorch puts behind others, is not needed."""
        return self.set_shuffle(True)

    def sharding_filter(self, *_: Any, **__: Any) -> Self:
        """The pipe itself: it takes its part anyway, and PyTorch refuses another pipe that does so."""
        return self

    def _numbers(self, count: int) -> Iterator[int]:
        """Which of `count` items are this instance's, in order."""
        return (number for block in self._blocks(count) for number in block.tolist())

    def _blocks(self, count: int) -> Iterator[Indices]:
        """The same in blocks."""
        num_instances, instance = self._share()
        order = Order(count, self._shuffle, self._seed)
        deal = Deal(count, num_ranks=num_instances, rank=instance)
        return (order.samples(block) for block in deal.blocks())
