"""The floors of docs/architecture.md: what may import what, who does what, and how large a piece may grow.

Each rule is a function from a module's source to the sentences that break it; `BAD` feeds every rule a source that does.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "s3dlio"

# The first segment below s3dlio -> its floor.
FLOORS = {
    **dict.fromkeys(("errors", "config", "loading", "crc32c", "uri", "view", "runtime", "progress"), 0),
    "storage": 1,
    "transfer": 2,
    **dict.fromkeys(("objects", "buckets", "bulk", "aio", "listing", "writers"), 3),
    **dict.fromkeys(("data", "checkpoint"), 4),
    **dict.fromkeys(("torch", "jax", "tf", "compat", "dlio", "cli"), 5),
}
TOP = 5
SIDEWAYS = {("compat", "torch"), ("dlio", "torch")}  # the only arrows between rooms of the top floor
FRAMEWORKS = {"torch", "jax", "tensorflow"}
OPTIONAL = {"boto3", "botocore", "azure", "google", "pyarrow", "zstandard", "lz4", "crc32c"}
BACKENDS = {"local", "memory", "multi", "oplog", "cloud"}
MAX_LINES_OF_MODULE = 400
MAX_LINES_OF_FUNCTION = 40


class Module(NamedTuple):
    """A source file. `parts` are the names of its place below s3dlio: ("storage", "local"), () for the package itself."""

    parts: tuple[str, ...]
    is_package: bool
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        return self.parts[0] if self.parts else ""

    @property
    def floor(self) -> int:
        return FLOORS[self.room]


class Import(NamedTuple):
    """`parts`: the absolute dotted name, ("s3dlio", "storage", "base", "Store") or ("os", "environ")."""

    parts: tuple[str, ...]
    at_top: bool  # runs when the module is imported
    line: int


def module_of(text: str, *parts: str, is_package: bool = False) -> Module:
    return Module(parts, is_package, text, ast.parse(text))


def load(path: Path) -> Module:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    return module_of(path.read_text(encoding="utf-8"), *(parts[:-1] if is_package else parts), is_package=is_package)


def imports(module: Module) -> Iterator[Import]:
    """Every import, wherever it stands, one by imported name; those for the type checker only count as well."""
    yield from _imports_below(module, module.tree, at_top=True)


def _imports_below(module: Module, parent: ast.AST, *, at_top: bool) -> Iterator[Import]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.Import):
            yield from (Import(tuple(alias.name.split(".")), at_top, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(module, node)
            yield from (Import((*base, alias.name), at_top, node.lineno) for alias in node.names)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _is_for_type_checker(node)
            yield from _imports_below(module, node, at_top=at_top and not inside)


def _base(module: Module, node: ast.ImportFrom) -> tuple[str, ...]:
    named = tuple(node.module.split(".")) if node.module else ()
    if not node.level:
        return named
    package = ("s3dlio", *module.parts) if module.is_package else ("s3dlio", *module.parts)[:-1]
    return package[: len(package) - node.level + 1] + named


def _is_for_type_checker(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def calls_of(module: Module, *names: str) -> Iterator[str]:
    """Where a name, or a dotted name, of `names` is used."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name | ast.Attribute) and (used := ast.unparse(node)) in names:
            yield f"line {node.lineno}: {used}"


def imports_of(module: Module, *names: str) -> Iterator[str]:
    for found in imports(module):
        if any(".".join(found.parts[:length]) in names for length in range(1, len(found.parts) + 1)):
            yield f"line {found.line}: imports {'.'.join(found.parts)}"


# The rules.


def arrows_go_down(module: Module) -> Iterator[str]:
    if not module.parts:
        return  # the door names every public name, and loads it when it is used
    for found in imports(module):
        if found.parts[0] != "s3dlio" or len(found.parts) < 2:
            continue
        room = found.parts[1]
        if room not in FLOORS:
            yield f"line {found.line}: {room} is on no floor"
        elif FLOORS[room] > module.floor:
            yield f"line {found.line}: imports {room}, which is a floor above"
        elif FLOORS[room] == module.floor == TOP and room != module.room and (module.room, room) not in SIDEWAYS:
            yield f"line {found.line}: imports {room}, another room of the top floor"


def every_module_has_a_floor(module: Module) -> Iterator[str]:
    if module.parts and module.room not in FLOORS:
        yield f"{module.room} is on no floor: put it into FLOORS and into docs/architecture.md"


def frameworks_stay_on_top(module: Module) -> Iterator[str]:
    if not module.parts or module.floor < TOP:
        yield from imports_of(module, *FRAMEWORKS)


def optional_packages_are_imported_where_used(module: Module) -> Iterator[str]:
    for found in imports(module):
        if found.at_top and found.parts[0] in OPTIONAL:
            yield f"line {found.line}: imports {found.parts[0]} at module top"


def only_config_reads_the_environment(module: Module) -> Iterator[str]:
    if module.parts != ("config",):
        yield from calls_of(module, "os.environ", "os.environb", "os.getenv", "os.getenvb")
        yield from imports_of(module, "os.environ", "os.environb", "os.getenv", "os.getenvb")


def only_runtime_makes_threads(module: Module) -> Iterator[str]:
    if module.parts != ("runtime",):
        makers = ("threading.Thread", "threading.Timer", "asyncio.to_thread")
        yield from calls_of(module, *makers)
        yield from imports_of(module, *makers, "_thread")
        for found in imports(module):
            if found.parts[:2] == ("concurrent", "futures") and found.parts[2:] not in (("Future",), ("wait",)):
                yield f"line {found.line}: imports {'.'.join(found.parts)}"


def only_connecting_opens_sockets(module: Module) -> Iterator[str]:
    """What talks over the sockets that `connecting` opened, or looks up names, needs their module, and opens none."""
    drivers = {("storage", "cloud", name) for name in ("connection", "names", "poll", "wire")}
    if module.parts in drivers:
        yield from imports_of(module, "socket.create_connection", "http.client", "urllib.request")
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "socket",
                "socket.socket",
                "socket.create_connection",
            ):
                yield f"line {node.lineno}: opens a socket"
    elif module.parts == ("config",):  # asks the standard library what the environment says of proxies
        yield from imports_of(module, "socket", "ssl", "selectors", "http.client", "urllib.request.urlopen")
    elif module.parts != ("storage", "cloud", "connecting"):
        yield from imports_of(module, "socket", "ssl", "selectors", "http.client", "urllib.request")


def only_cli_prints(module: Module) -> Iterator[str]:
    if module.parts not in (("cli",), ("progress",)):  # the latter when it is asked to
        yield from calls_of(module, "print", "sys.stdout", "sys.stderr")


def only_the_storage_door_names_backends(module: Module) -> Iterator[str]:
    if module.parts == ("storage",):
        return
    own = module.parts[1] if module.room == "storage" else None
    for found in imports(module):
        if found.parts[:2] == ("s3dlio", "storage") and found.parts[2:3] and found.parts[2] in BACKENDS - {own}:
            yield f"line {found.line}: imports the backend {found.parts[2]}"


def modules_stay_small(module: Module) -> Iterator[str]:
    num_lines = len(module.text.splitlines())
    if num_lines > MAX_LINES_OF_MODULE:
        yield f"{num_lines} lines"


def functions_stay_small(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            num_lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            if num_lines > MAX_LINES_OF_FUNCTION:
                yield f"line {node.lineno}: {node.name} has {num_lines} lines"


def nothing_is_left_to_do(module: Module) -> Iterator[str]:
    words = ("TO" + "DO", "FIX" + "ME")
    for number, line in enumerate(module.text.splitlines(), 1):
        yield from (f"line {number}: {word}" for word in words if word in line)


Rule = Callable[[Module], Iterator[str]]

RULES: list[Rule] = [
    arrows_go_down,
    every_module_has_a_floor,
    frameworks_stay_on_top,
    optional_packages_are_imported_where_used,
    only_config_reads_the_environment,
    only_runtime_makes_threads,
    only_connecting_opens_sockets,
    only_cli_prints,
    only_the_storage_door_names_backends,
    modules_stay_small,
    functions_stay_small,
    nothing_is_left_to_do,
]

BAD: list[tuple[Rule, Module]] = [
    (arrows_go_down, module_of("from ..objects import get", "transfer", "read")),
    (arrows_go_down, module_of("from .. import bulk", "storage", "base")),
    (arrows_go_down, module_of("def f():\n    import s3dlio.torch.loader", "data", "stream")),
    (arrows_go_down, module_of("from . import storage", "config")),
    (arrows_go_down, module_of("from ..torch import loader", "jax", is_package=True)),
    (arrows_go_down, module_of("from ...compat import x", "torch", "deep", "deeper")),
    (arrows_go_down, module_of("from .. import helpers", "torch", "loader")),
    (every_module_has_a_floor, module_of("", "utils")),
    (frameworks_stay_on_top, module_of("def f():\n    import torch", "data", "keys")),
    (frameworks_stay_on_top, module_of("from jax import numpy", "objects")),
    (frameworks_stay_on_top, module_of("import tensorflow as tf", is_package=True)),
    (optional_packages_are_imported_where_used, module_of("import boto3", "storage", "cloud", "credentials")),
    (optional_packages_are_imported_where_used, module_of("try:\n    import lz4.frame\nexcept ImportError:\n    pass", "x")),
    (optional_packages_are_imported_where_used, module_of("class A:\n    from google import auth", "x")),
    (only_config_reads_the_environment, module_of("import os\nx = os.environ['A']", "runtime")),
    (only_config_reads_the_environment, module_of("from os import getenv", "torch", "ranks")),
    (only_runtime_makes_threads, module_of("import threading\nthreading.Thread(target=f)", "bulk")),
    (only_runtime_makes_threads, module_of("from threading import Thread", "bulk")),
    (only_runtime_makes_threads, module_of("from concurrent.futures import ThreadPoolExecutor", "bulk")),
    (only_runtime_makes_threads, module_of("import concurrent.futures", "bulk")),
    (only_connecting_opens_sockets, module_of("import socket", "storage", "cloud", "s3")),
    (only_connecting_opens_sockets, module_of("from urllib.request import urlopen", "objects")),
    (only_connecting_opens_sockets, module_of("from urllib.request import urlopen", "config")),
    (only_connecting_opens_sockets, module_of("import socket\nsocket.socket()", "storage", "cloud", "poll")),
    (only_cli_prints, module_of("print('x')", "objects")),
    (only_cli_prints, module_of("import sys\nsys.stdout.write('x')", "objects")),
    (only_the_storage_door_names_backends, module_of("from .storage.local import LocalStore", "objects")),
    (only_the_storage_door_names_backends, module_of("from .memory import MemoryStore", "storage", "local")),
    (only_the_storage_door_names_backends, module_of("from . import local", "storage", "memory")),
    (only_the_storage_door_names_backends, module_of("from ..storage import cloud", "transfer", "read")),
    (modules_stay_small, module_of("x = 1\n" * (MAX_LINES_OF_MODULE + 1), "x")),
    (functions_stay_small, module_of("def f():\n" + "    x = 1\n" * (MAX_LINES_OF_FUNCTION + 1), "x")),
    (functions_stay_small, module_of("class A:\n  async def f():\n" + "    x = 1\n" * (MAX_LINES_OF_FUNCTION + 1), "x")),
    (nothing_is_left_to_do, module_of("x = 1  # TO" + "DO later", "x")),
]

GOOD: list[tuple[Rule, Module]] = [
    (arrows_go_down, module_of("from ..torch import loader", "compat", "s3torchconnector")),
    (arrows_go_down, module_of("from .sampler import ResumableSampler\nfrom ..bulk import get_many", "torch", "loader")),
    (arrows_go_down, module_of("from . import objects", "bulk")),
    (optional_packages_are_imported_where_used, module_of("def f():\n    import boto3", "storage", "cloud", "credentials")),
    (only_the_storage_door_names_backends, module_of("from .http import Head", "storage", "cloud", "s3")),
    (functions_stay_small, module_of('def f():\n    """' + "x\n" * 60 + '"""\n    return 1', "x")),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule: Rule) -> None:
    paths = sorted(PACKAGE.rglob("*.py"))
    assert len(paths) > 20
    broken = {str(path.relative_to(ROOT)): found for path in paths if (found := list(rule(load(path))))}
    assert broken == {}


@pytest.mark.parametrize(("rule", "module"), BAD)
def test_a_source_that_breaks_the_rule_is_noticed(rule: Rule, module: Module) -> None:
    assert list(rule(module))


@pytest.mark.parametrize(("rule", "module"), GOOD)
def test_a_source_that_keeps_the_rule_is_left_alone(rule: Rule, module: Module) -> None:
    assert list(rule(module)) == []


def test_every_rule_is_shown_to_be_able_to_fail() -> None:
    assert {rule for rule, _ in BAD} == set(RULES)


def test_every_file_of_the_package_is_in_the_picture_and_is_not_called_planned() -> None:
    picture = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (rooms,) = re.findall(r"^```\ns3dlio/\n(.*?)^```$", picture, re.MULTILINE | re.DOTALL)
    planned = {name for line in rooms.splitlines() if " planned" in line for name in re.findall(r"(\w+)(?:\.py|/)", line)}
    drawn = set(re.findall(r"^ +(\w+)(?:\.py|/)", rooms, re.MULTILINE))
    there = {path.stem for path in PACKAGE.rglob("*.py")} - {"__init__"}
    there |= {path.parent.name for path in PACKAGE.rglob("__init__.py")} - {"s3dlio"}
    assert there <= drawn
    assert not there & planned
