"""Results as Markdown. No I/O."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.bars import BARS, UNITS, Result, Results, Verdict, judge
from benchmarks.engines import OURS
from benchmarks.works import Work


def cell(values: Sequence[float], digits: int = 0) -> str:
    """The median and in brackets the least and the most."""
    if not values:
        return "–"  # noqa: RUF001 - a dash
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:,.{digits}f} ({least:,.{digits}f}–{most:,.{digits}f})"  # noqa: RUF001 - a range


def group_table(works: Sequence[Work], results: Results, notes: Mapping[tuple[str, str], str]) -> list[str]:
    """One row for each work and engine; `notes` says why an engine has no figures."""
    lines: list[str] = []
    for is_large in (False, True):
        rows = [row for work in works if work.is_large == is_large for row in _rows(work, results, notes)]
        units = ("MiB/s", "ms of CPU/GiB") if is_large else ("objects/s", "µs of CPU/object")
        if rows:
            lines += [_line("work", "engine", *units, "peak MiB above idle", "first object, ms", "bars")]
            lines += ["|---|---|---|---|---|---|---|", *rows, ""]
    return lines


def _rows(work: Work, results: Results, notes: Mapping[tuple[str, str], str]) -> list[str]:
    rows = []
    for engine, result in results.get(work.name, {}).items():
        cells = (cell(result.rates), cell(result.costs, 1), cell(result.peaks), cell(result.firsts, 1))
        rows.append(_line(work.title, engine, *cells, _bars_of(work, results) if engine == OURS else ""))
    rows += [_line(work.title, engine, why, "", "", "", "") for (name, engine), why in notes.items() if name == work.name]
    return rows


def _bars_of(work: Work, results: Results) -> str:
    found = (judge(bar, results) for bar in BARS if work.name in bar.works)
    return ", ".join(f"{v.bar.metric} {_amount(v)} {'met' if v.is_met else 'MISSED'}" for v in found if v is not None)


def bar_table(results: Results) -> list[str]:
    """All bars that this run can judge."""
    verdicts = [verdict for bar in BARS if (verdict := judge(bar, results)) is not None]
    if not verdicts:
        return []
    rows = [
        _line(v.bar.works[0], v.bar.required(), _amount(v), v.rival, "met" if v.is_met else "**missed**") for v in verdicts
    ]
    num_met = sum(verdict.is_met for verdict in verdicts)
    title = f"Bars: {num_met} of {len(verdicts)} met."
    return [title, "", _line("work", "required", "measured", "best rival", ""), "|---|---|---|---|---|", *rows, ""]


def _amount(verdict: Verdict) -> str:
    return f"{verdict.measured:.2f} x" if verdict.bar.rival else f"{verdict.measured:,.0f} {UNITS[verdict.bar.metric]}"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def result_of(work: Work, share: int, reports: Sequence[Mapping[str, float]]) -> Result:
    """Rates and costs of some runs that each had `share` objects."""
    amount = share * work.size / (1024 * 1024) if work.is_large else float(share)
    unit = 1e3 * 1024 if work.is_large else 1e6
    return Result(
        [amount / report["wall"] for report in reports],
        [report["cpu"] / amount * unit for report in reports],
        [report["peak_mib"] for report in reports],
        [report["first_ms"] for report in reports if "first_ms" in report],
    )
