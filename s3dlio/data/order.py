"""The order of samples as a pure function of (seed, epoch, position), and how ranks and workers share it.

Shuffling is an index permutation: a balanced Feistel network of 12 rounds on the smallest even number of bits that holds
the number of samples, with cycle walking (a value that falls outside is encrypted again until it falls inside). It
needs no memory, is evaluated in blocks of numbers, and runs backwards as well. Source: J. Black and P. Rogaway, "Ciphers
with Arbitrary Finite Domains", CT-RSA 2002.

Positions are global: position p of an epoch is the p-th sample that the whole job sees. So the progress of a job is one
number, whatever the number of ranks and workers that made it or that go on from it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Deal", "Order", "Tail", "seed_of_epoch"]

Indices: TypeAlias = NDArray[np.int64]
Tail: TypeAlias = Literal["exact", "pad", "drop"]

ROUNDS = 12
SMALLEST_HALF_BITS = 3  # narrower halves do not reach all orders equally often
BLOCK = 8192  # positions evaluated at once
_MASK = (1 << 64) - 1


def _mixed(value: int) -> int:
    """One step of a 64-bit mixing function: xor-shifts and odd multipliers, a bijection."""
    value = (value ^ (value >> 32)) * 0xD6E8FEB86659FD93 & _MASK
    value = (value ^ (value >> 29)) * 0xA0761D6478BD642F & _MASK
    return value ^ (value >> 32)


def _mixed_block(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`_mixed` of every value; arithmetic on uint64 wraps."""
    values = (values ^ (values >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    values = (values ^ (values >> np.uint64(29))) * np.uint64(0xA0761D6478BD642F)
    return values ^ (values >> np.uint64(32))


def seed_of_epoch(seed: int, epoch: int) -> int:
    """64 bits that depend on both numbers, for the generators of others."""
    return _mixed(_mixed((seed & _MASK) ^ 0x9E3779B97F4A7C15) ^ _mixed((seed >> 64 & _MASK) + (epoch << 1) + 1 & _MASK))


def _round_keys(seed: int, epoch: int) -> list[int]:
    state = seed_of_epoch(seed, epoch)
    keys = []
    for number in range(1, ROUNDS + 1):
        state = _mixed((state + number * 0x9E3779B97F4A7C15) & _MASK)
        keys.append(state)
    return keys


@dataclass(frozen=True, slots=True)
class Order:
    """Which sample stands at which position of one epoch; the identity without `shuffle`."""

    num_samples: int
    shuffle: bool = False
    seed: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        if self.num_samples < 0 or self.epoch < 0:
            raise ValueError(f"num_samples={self.num_samples} and epoch={self.epoch} must not be negative")

    def samples(self, positions: Any) -> Indices:
        """The samples at `positions`, an array of any integers in [0, num_samples)."""
        return self._permuted(self._checked(positions), _round_keys(self.seed, self.epoch), backwards=False)

    def positions(self, samples: Any) -> Indices:
        """The positions of `samples`: the inverse of `samples()`."""
        return self._permuted(self._checked(samples), _round_keys(self.seed, self.epoch), backwards=True)

    def _checked(self, indices: Any) -> Indices:
        array: Indices = np.asarray(indices, np.int64)
        if array.size and (array.min() < 0 or array.max() >= self.num_samples):
            raise IndexError(f"an index lies outside of [0, {self.num_samples})")
        return array

    def _permuted(self, indices: Indices, keys: list[int], *, backwards: bool) -> Indices:
        if not self.shuffle or self.num_samples < 2:
            return indices
        half_bits = max(SMALLEST_HALF_BITS, ((self.num_samples - 1).bit_length() + 1) // 2)
        values = _feistel(indices.astype(np.uint64).ravel(), half_bits, keys, backwards)
        outside = np.flatnonzero(values >= self.num_samples)
        while outside.size:
            walked = _feistel(values[outside], half_bits, keys, backwards)
            values[outside] = walked
            outside = outside[walked >= self.num_samples]
        return values.astype(np.int64).reshape(indices.shape)


def _feistel(values: NDArray[np.uint64], half_bits: int, keys: list[int], backwards: bool) -> NDArray[np.uint64]:
    """Encrypt (or, backwards, decrypt) every value of twice `half_bits` bits."""
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    if backwards:
        for key in reversed(keys):
            left, right = right ^ (_mixed_block(left ^ np.uint64(key)) & mask), left
    else:
        for key in keys:
            left, right = right, left ^ (_mixed_block(right ^ np.uint64(key)) & mask)
    return left << shift | right


@dataclass(frozen=True, slots=True)
class Deal:
    """How the positions of an epoch, from `start` on, are dealt to ranks and, within a rank, to DataLoader workers.

    Step by step: of every `num_ranks * batch_size` positions each rank takes one run of `batch_size`, so a rank's
    batches are whole, and worker w takes the rank's steps w, w + num_workers, … as a DataLoader hands them out. The last
    positions, fewer than a step, are shared as evenly as possible (`tail="exact"`: each sample once; ranks may differ by
    one sample), filled up by repeating samples so that all ranks get the same number (`"pad"`), or left out (`"drop"`).
    """

    num_samples: int
    start: int = 0
    batch_size: int = 1
    num_ranks: int = 1
    rank: int = 0
    num_workers: int = 1
    worker: int = 0
    tail: Tail = "exact"

    def __post_init__(self) -> None:
        for name, part, whole in (("rank", self.rank, self.num_ranks), ("worker", self.worker, self.num_workers)):
            if not 0 <= part < whole:
                raise ValueError(f"{name}={part} lies outside of [0, {whole})")
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size}: a batch holds at least one sample")
        if not 0 <= self.start <= self.num_samples:
            raise ValueError(f"position {self.start} lies outside of the epoch's {self.num_samples} samples")

    @property
    def step_length(self) -> int:
        """Positions that one step takes from the epoch, over all ranks."""
        return self.num_ranks * self.batch_size

    @property
    def num_full_steps(self) -> int:
        return (self.num_samples - self.start) // self.step_length

    @property
    def num_steps(self) -> int:
        """Steps of this rank, over all its workers; the last one may be shorter."""
        return self.num_full_steps + (self.tail_positions().size > 0)

    @property
    def length(self) -> int:
        """Samples of this rank, over all its workers."""
        return self.num_full_steps * self.batch_size + self.tail_positions().size

    def tail_positions(self) -> Indices:
        """This rank's part of the positions that fill no whole step."""
        first = self.start + self.num_full_steps * self.step_length
        left = self.num_samples - first
        if self.tail == "drop" or left == 0:
            return np.empty(0, np.int64)
        smaller, larger_ranks = divmod(left, self.num_ranks)
        if self.tail == "pad":
            share = smaller + (larger_ranks > 0)
            wanted = np.arange(share * self.rank, share * (self.rank + 1), dtype=np.int64)
            return self._repeated(first, left, wanted)
        begin = smaller * self.rank + min(self.rank, larger_ranks)
        return np.arange(first + begin, first + begin + smaller + (self.rank < larger_ranks), dtype=np.int64)

    def _repeated(self, first: int, left: int, wanted: Indices) -> Indices:
        """Positions beyond the end are filled from the epoch's beginning, again and again if need be."""
        return np.where(wanted < left, first + wanted, (wanted - left) % self.num_samples)

    def blocks(self) -> Iterator[Indices]:
        """The positions of this worker's steps, in order, as arrays of whole steps: about `BLOCK` positions each."""
        step_count = max(1, BLOCK // self.batch_size)
        steps = range(self.worker, self.num_full_steps, self.num_workers)
        for first in range(0, len(steps), step_count):
            within = self.start + self.rank * self.batch_size + np.arange(self.batch_size, dtype=np.int64)
            some = steps[first : first + step_count]
            numbers = np.arange(some.start, some.stop, some.step, dtype=np.int64)
            yield (numbers[:, np.newaxis] * self.step_length + within).ravel()
        if self.num_full_steps % self.num_workers == self.worker and (tail := self.tail_positions()).size:
            yield tail

    def before(self, taken: int) -> Iterator[int]:
        """The positions that this worker had before its next one, when `taken` of this deal are taken: the last one first.

        Those before `start` are what it would have had, had the epoch been dealt like this from there backwards.
        """
        num_full = len(range(self.worker, self.num_full_steps, self.num_workers)) * self.batch_size
        yield from reversed(self.tail_positions()[: max(0, taken - num_full)].tolist())
        for number in itertools.count(1 - min(taken, num_full)):
            step, within = divmod(-number, self.batch_size)
            position = self.start + self.rank * self.batch_size + within
            position += (self.worker + step * self.num_workers) * self.step_length
            if position < 0:
                return
            yield position

    def position_after(self, num_steps: int) -> int:
        """The global position when every rank has taken `num_steps` steps."""
        if num_steps > self.num_full_steps:
            return self.num_samples
        position = self.start + num_steps * self.step_length
        # What "drop" leaves out is not left for a resumed epoch either.
        is_over = num_steps == self.num_full_steps and (self.tail == "drop" or position == self.num_samples)
        return self.num_samples if is_over else position

    def for_worker(self, worker: int, num_workers: int) -> Deal:
        """The same deal as seen by one of the rank's workers."""
        return replace(self, worker=worker, num_workers=num_workers)
