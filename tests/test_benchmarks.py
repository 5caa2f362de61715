"""The benchmarks' arithmetic: what is chosen, how a bar is judged, what a table says. Nothing is measured here."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks.__main__ import NAMES, groups_of, options
from benchmarks.bars import BARS, LIMIT, OURS, PEERS, Bar, Result, judge
from benchmarks.clients.harness import digest
from benchmarks.engines import CLIENTS, ENGINES, PINS, pins
from benchmarks.servers import listing_page
from benchmarks.stages import Stage
from benchmarks.tables import bar_table, cell, group_table, result_of
from benchmarks.works import GROUPS, MIB, Work

WORKS = {work.name: work for works in GROUPS.values() for work in works}


def result(rate: float, cost: float = 1.0, peak: float = 1.0) -> Result:
    return Result([rate], [cost], [peak])


def test_a_group_and_a_single_work_can_be_chosen() -> None:
    found = groups_of(options(["--only", "small", "tls-large"]))
    assert {group: [work.name for work in works] for group, works in found.items()} == {
        "small": ["small-16", "small-64"],
        "tls": ["tls-large"],
    }


def test_everything_is_chosen_unless_told_and_three_times_unless_quick() -> None:
    assert options([]).only == NAMES
    assert (options([]).repeats, options(["--quick"]).repeats, options(["--quick", "--repeats", "2"]).repeats) == (3, 1, 2)


def test_an_unknown_group_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options(["--only", "nothing"])
    assert "nothing" in capsys.readouterr().err


def test_quick_works_are_smaller_and_say_so() -> None:
    for work in WORKS.values():
        quick = work.quick()
        assert quick.num_objects * quick.size < work.num_objects * work.size
        assert quick.num_objects > 0
        assert quick.is_large == work.is_large
        assert quick.title.endswith("(quick)")


def test_every_bar_is_about_a_work_and_every_engine_has_a_client() -> None:
    assert {work for bar in BARS for work in bar.works} <= {*WORKS, "import"}
    assert {bar.rival for bar in BARS} <= {*ENGINES, PEERS, ""}
    assert all((CLIENTS / f"{engine.client}_client.py").is_file() for engine in ENGINES.values())


def test_what_runs_elsewhere_is_pinned() -> None:
    pinned = pins(PINS.read_text(encoding="utf-8"))
    assert set(pinned) == {name for name, engine in ENGINES.items() if not engine.is_ours} | {"torch"}
    assert all("==" in requirement for some in pinned.values() for requirement in some)


def test_a_rate_is_compared_with_the_fastest_peer_and_not_with_the_limit() -> None:
    results = {"a": {OURS: result(30), "slow": result(5), "fast": result(20), LIMIT: result(99)}}
    verdict = judge(Bar(("a",), "rate", 2, PEERS), results)
    assert verdict is not None
    assert (verdict.measured, verdict.rival, verdict.is_met) == (1.5, "fast", False)


def test_cpu_is_compared_with_the_cheapest_peer() -> None:
    results = {"a": {OURS: result(1, cost=4), "dear": result(1, cost=50), "cheap": result(1, cost=10)}}
    verdict = judge(Bar(("a",), "CPU", 0.4, PEERS), results)
    assert verdict is not None
    assert (verdict.measured, verdict.rival, verdict.is_met) == (0.4, "cheap", True)


def test_of_several_works_the_best_counts_on_both_sides() -> None:
    results = {"a": {OURS: result(10), LIMIT: result(10)}, "b": {OURS: result(30), LIMIT: result(40)}}
    verdict = judge(Bar(("a", "b"), "rate", 0.75, LIMIT), results)
    assert verdict is not None
    assert verdict.is_met
    assert verdict.measured == pytest.approx(0.75)


def test_a_bar_without_a_rival_is_an_amount_and_one_without_figures_has_no_verdict() -> None:
    results = {"a": {OURS: result(1, peak=201)}}
    verdict = judge(Bar(("a",), "memory", 200), results)
    assert verdict is not None
    assert not verdict.is_met
    assert judge(Bar(("a",), "rate", 1, "obstore"), results) is None
    assert judge(Bar(("b",), "memory", 200), results) is None


def test_tables_show_medians_notes_and_bars() -> None:
    work = WORKS["medium"]
    reports = [{"wall": wall, "cpu": 0.4, "peak_mib": 7.0, "first_ms": 3.0} for wall in (1.0, 2.0, 4.0)]
    results = {"medium": {OURS: result_of(work, 4000, reports), "obstore": result(1000, 200, 9)}}
    text = "\n".join(group_table([work], results, {("medium", "boto3"): "does not install"}))
    assert "2,000 (1,000–4,000) | 100.0 (100.0–100.0) | 7 (7–7) | 3.0 (3.0–3.0) | rate 2.00 x met, CPU 0.50 x met" in text  # noqa: RUF001
    assert "| boto3 | does not install |" in text
    assert "Bars: 2 of 2 met." in "\n".join(bar_table(results))
    assert cell([]) == "–"  # noqa: RUF001


def test_large_works_are_counted_in_mebibytes() -> None:
    work = Work("x", "x", "get", 2, 512 * MIB)
    assert result_of(work, 2, [{"wall": 2.0, "cpu": 0.5, "peak_mib": 1.0}]) == Result([512.0], [500.0], [1.0], [])


def test_other_bytes_than_the_stored_ones_are_noticed() -> None:
    stage = Stage(["a", "b"], [1, 2], {})
    assert stage.is_delivered({"count": 2, "sorted": digest([1, 2])})
    assert not stage.is_delivered({"count": 2, "sorted": digest([1, 3])})
    assert not stage.is_delivered({"count": 1, "sorted": digest([1, 2])})
    assert stage.part(0.5) == Stage(["a"], [1], {})


def test_a_prepared_page_is_a_listing_with_its_token() -> None:
    space = "{http://s3.amazonaws.com/doc/2006-03-01/}"
    page = ET.fromstring(listing_page("bench", ["k/1", "k/2"], 5, 1000))
    assert [entry.findtext(f"{space}Key") for entry in page.iter(f"{space}Contents")] == ["k/1", "k/2"]
    assert page.findtext(f"{space}NextContinuationToken") == "1000"
    assert ET.fromstring(listing_page("bench", [], 5, None)).findtext(f"{space}IsTruncated") == "false"


def test_the_harness_measures_and_verifies_what_a_client_gives(tmp_path: Path) -> None:
    client = tmp_path / "client.py"
    client.write_text(
        f"import sys; sys.path.insert(0, {str(CLIENTS)!r}); import harness\n"
        "def work_get(plan): return lambda: [b'ab', b'c']\n"
        "harness.main(globals())\n"
    )
    plan = '{"function": "get", "uris": ["s3://b/k"], "first": 1, "cold": false, "drop": false, "own_mib": 0, "imports": []}'
    done = subprocess.run([sys.executable, client], input=plan, capture_output=True, text=True, check=True, timeout=60)
    assert '"count": 2' in done.stdout
    assert all(f'"{name}"' in done.stdout for name in ("wall", "cpu", "peak_mib", "first_ms", "ordered", "sorted"))
