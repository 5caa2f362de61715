"""README and docs are true: their Python blocks run, and the table of options is that of config.py."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from s3dlio import config

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
OPTIONS = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[str]:
    """The Python blocks of a page, each moved to its own line numbers."""
    text = page.read_text(encoding="utf-8")
    return ["\n" * text.count("\n", 0, found.start(1)) + found[1] for found in _BLOCK.finditer(text)]


@pytest.mark.filterwarnings("ignore:the file system of direct")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_the_blocks_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    """And once more, over what they left behind: whoever reads a page tries its examples twice."""
    for _ in range(2):
        namespace: dict[str, object] = {"__name__": "__docs__"}
        for block in blocks(page):
            exec(compile(block.replace("/tmp/", f"{tmp_path}/"), str(page), "exec"), namespace)


def test_the_pages_with_examples_are_found() -> None:
    wanted = {"README.md", "checkpoints.md", "objects.md", "parquet.md", "torch.md"}
    assert {page.name for page in PAGES if blocks(page)} >= wanted


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def variables_read() -> set[str]:
    """Every variable that config.py reads or knows of."""
    asked = {
        argument.value
        for node in ast.walk(ast.parse(inspect.getsource(config)))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "os.environ.get"
        for argument in node.args
        if isinstance(argument, ast.Constant)
    }
    return asked | config._VARIABLES.keys() | config._S3_VARIABLES.keys() | config._KNOWN_ELSEWHERE | {config._LOCAL_RANKS}


def test_the_table_of_options_has_every_variable_and_no_other() -> None:
    rows = [line.split("|")[1] for line in OPTIONS.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == variables_read()


@pytest.mark.parametrize(("name", "default"), re.findall(r"^\| `(S3DLIO_\w+)` \| `(\w+)` \|", OPTIONS, re.MULTILINE))
def test_the_default_in_the_table_is_the_default(name: str, default: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unset = config.s3_options()
    monkeypatch.setenv(name, default)
    assert config.snapshot() == config.Options()
    assert config.s3_options() == unset
