"""What was asked for: each bar as a row of a table, and whether a run meets it. No I/O."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from benchmarks.engines import LIMIT, OURS


class Result(NamedTuple):
    """One engine's repeats of one work: objects or MiB per second, µs per object or ms per GiB, MiB, ms."""

    rates: Sequence[float]
    costs: Sequence[float]
    peaks: Sequence[float]
    firsts: Sequence[float] = ()


Results = Mapping[str, Mapping[str, Result]]  # work, engine
PEERS = "every peer"


class Bar(NamedTuple):
    """`metric` is to be at least (rate) or at most (all others) `factor` times that of `rival`, if any, else `factor`.

    Of several works each engine has its best one counted.
    """

    works: tuple[str, ...]
    metric: str  # rate, CPU, memory or time
    factor: float
    rival: str = ""

    def required(self) -> str:
        sign = "≥" if self.metric == "rate" else "≤"
        return f"{self.metric} {sign} {self.factor:g} {f'x {self.rival}' if self.rival else UNITS[self.metric]}"


def _ahead(*works: str, factors: tuple[float, float, float] = (1, 1, 1)) -> list[Bar]:
    return [Bar((work,), metric, f, PEERS) for work in works for metric, f in zip(METRICS, factors, strict=True)]


METRICS = ("rate", "CPU", "memory")
UNITS = {"memory": "MiB", "time": "ms"}
_LOCAL = [f"{scheme}-{what}-{state}" for scheme in ("file", "direct") for what in ("loop", "many", "large", "load")
          for state in ("warm", "cold")]  # fmt: skip

BARS = [
    *(Bar((work,), "rate", 2, "obstore") for work in ("small-16", "small-64")),
    *(Bar((work,), "CPU", 0.4, "obstore") for work in ("small-16", "small-64")),
    Bar(("medium",), "rate", 1.5, "obstore"),
    Bar(("medium",), "CPU", 0.5, "obstore"),
    Bar(("single-loop",), "CPU", 1, PEERS),
    Bar(("single-threads",), "CPU", 1, PEERS),
    Bar(("large", "large-ranges"), "rate", 0.75, LIMIT),
    *_ahead("large", "large-ranges"),
    Bar(("loader-0", "loader-map-0"), "rate", 2, PEERS),
    Bar(("loader-fork", "loader-map-fork"), "rate", 1.4, PEERS),
    Bar(("loader-spawn", "loader-map-spawn"), "rate", 1.4, PEERS),
    Bar(("save",), "CPU", 0.5, "s3torchconnector"),
    Bar(("save",), "rate", 1, PEERS),
    Bar(("save",), "memory", 200),
    Bar(("load",), "rate", 1.4, PEERS),
    Bar(("load",), "CPU", 0.6, PEERS),
    Bar(("load",), "memory", 100),
    Bar(("list",), "rate", 0.8, "obstore"),
    Bar(("list",), "rate", 4, "boto3"),
    *(Bar((work,), "CPU", 1, PEERS) for work in ("tls-small", "tls-medium", "tls-large", "tls-large-ranges")),
    *(Bar((work,), metric, 1, PEERS) for work in _LOCAL for metric in ("rate", "CPU")),
    Bar(("import",), "time", 30),
]


class Verdict(NamedTuple):
    """A bar in a run: the measured ratio, or amount where the bar is one."""

    bar: Bar
    measured: float
    rival: str
    is_met: bool


def judge(bar: Bar, results: Results) -> Verdict | None:
    """None where the run does not have what the bar compares."""
    best: Callable[[Iterable[float]], float] = max if bar.metric == "rate" else min
    ours = [_middle(results[work][OURS], bar.metric) for work in bar.works if OURS in results.get(work, {})]
    if not ours:
        return None
    measured, rival = best(ours), ""
    if bar.rival:
        others = _rivals(bar, results, best)
        if not others:
            return None
        rival = next(name for name, value in others.items() if value == best(others.values()))
        measured /= max(others[rival], 1e-9)
    shown = round(measured, 2)
    return Verdict(bar, measured, rival, shown >= bar.factor if bar.metric == "rate" else shown <= bar.factor)


def _rivals(bar: Bar, results: Results, best: Callable[[Iterable[float]], float]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for engines in (results.get(work, {}) for work in bar.works):
        wanted = [name for name in engines if name not in (OURS, LIMIT)] if bar.rival == PEERS else [bar.rival]
        for name in (name for name in wanted if name in engines):
            found.setdefault(name, []).append(_middle(engines[name], bar.metric))
    return {name: best(some) for name, some in found.items()}


def _middle(result: Result, metric: str) -> float:
    columns = {"rate": result.rates, "CPU": result.costs, "memory": result.peaks, "time": result.firsts}
    return statistics.median(columns[metric])
