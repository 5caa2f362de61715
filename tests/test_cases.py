"""The table of field cases is complete, and what it names exists."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from .cases import CASES, LATER, Case

ROOT = Path(__file__).parent.parent


@cache
def names_in(module: str) -> frozenset[str]:
    """The tests of a file as pytest names them: `test_x` and `TestX::test_y`, inherited ones of StoreContract too."""
    found = set()
    for node in ast.parse((ROOT / module).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found.update(f"{node.name}::{item.name}" for item in node.body if isinstance(item, ast.FunctionDef))
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)} & {"StoreContract", "ExactKeysContract"}
            if bases:
                inherited = (name.partition("::") for name in names_in("tests/contract.py"))
                found.update(f"{node.name}::{test}" for owner, _, test in inherited if owner in bases)
    return frozenset(found)


@pytest.mark.parametrize("case", [case for case in CASES if case.test != LATER], ids=lambda case: f"{case.id} {case.call}")
def test_the_named_test_exists(case: Case) -> None:
    module, _, name = case.test.partition("::")
    assert name.rpartition("::")[2].startswith("test_")
    assert name in names_in(module)


def test_every_case_has_a_row_and_no_row_comes_twice() -> None:
    assert sorted({case.id for case in CASES}) == [f"O{number:02d}" for number in range(1, 48)]
    assert len({(case.id, case.call) for case in CASES}) == len(CASES)
    assert [case.id for case in CASES] == sorted(case.id for case in CASES)
