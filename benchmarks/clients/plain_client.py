"""Plain Python reading files: open().read(), one after the other."""

from __future__ import annotations

from typing import Any

from harness import Run, main


def read(uri: str) -> bytes:
    with open(uri.partition("://")[2], "rb") as file:
        return file.read()


def work_get(plan: dict[str, Any]) -> Run:
    return lambda: map(read, plan["uris"])


def work_get_many(plan: dict[str, Any]) -> Run:
    return lambda: list(map(read, plan["uris"]))


if __name__ == "__main__":
    main(globals())
