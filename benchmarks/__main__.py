"""Run the measurements and print Markdown tables: python -m benchmarks [--only GROUP …] [--quick].

Engines take turns, repeat by repeat, so that a busy machine disturbs all of them; a cell is the median and in brackets the
least and the most. CPU is that of the client and its children. What comes is compared with what is stored, outside of the
measured time. nginx on loopback serves the objects and shares the machine with the client, so rates only rank; CPU per
object is steadier. Environments of the engines are made when they are first needed, and kept.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bars import Result
from benchmarks.engines import ENGINES, OURS, Environments, default_folder
from benchmarks.runner import run_work
from benchmarks.servers import Servers
from benchmarks.specials import SPECIALS
from benchmarks.tables import bar_table, group_table
from benchmarks.works import GROUPS, Work

NAMES = [*GROUPS, *SPECIALS]
WORKS = {work.name: work for works in GROUPS.values() for work in works}


def options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="GROUP", default=NAMES, choices=[*NAMES, *WORKS],
                        help=f"groups, or single works of them: {', '.join(NAMES)}; {', '.join(WORKS)}")  # fmt: skip
    parser.add_argument("--engines", nargs="+", metavar="ENGINE", choices=ENGINES, default=list(ENGINES),
                        help=", ".join(map(repr, ENGINES)))  # fmt: skip
    parser.add_argument("--repeats", type=int, help="how often each engine runs each work (default 3, quick 1)")
    parser.add_argument("--quick", action="store_true", help="little data: whether it works, not how fast")
    parser.add_argument(
        "--environments", type=Path, default=default_folder(), help="the folder of the engines' environments"
    )
    chosen = parser.parse_args(arguments)
    chosen.repeats = chosen.repeats or (1 if chosen.quick else 3)
    return chosen


def groups_of(chosen: argparse.Namespace) -> dict[str, list[Work]]:
    """The works of each group that was named, or of which works were named; quick ones if so chosen."""
    found: dict[str, list[Work]] = {}
    for group, works in GROUPS.items():
        picked = [work.quick() if chosen.quick else work for work in works if {group, work.name} & set(chosen.only)]
        if picked:
            found[group] = picked
    return found


def main() -> int:
    chosen = options(sys.argv[1:])
    environments = Environments(chosen.environments)
    results: dict[str, dict[str, Result]] = {}
    notes: dict[tuple[str, str], str] = {}
    machine = f"{os.cpu_count()} cores ({platform.machine()}, Python {platform.python_version()})"
    print(f"`{' '.join(['scripts/bench', *sys.argv[1:]])}`, {datetime.date.today()}, {machine}\n")
    with Servers() as servers:
        for works in groups_of(chosen).values():
            for work in works:
                results[work.name], failed = run_work(work, chosen.engines, chosen.repeats, environments, servers)
                notes |= failed
            print("\n".join(group_table(works, results, notes)), flush=True)
        for name in (name for name in SPECIALS if name in chosen.only):
            lines, more = SPECIALS[name](servers, environments, chosen.quick)
            results |= {work: dict(some) for work, some in more.items()}
            print("\n".join(lines), flush=True)
    print("\n".join(bar_table(results)))
    return int(any(engine == OURS for _, engine in notes))


if __name__ == "__main__":
    sys.exit(main())
