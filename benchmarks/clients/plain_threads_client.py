"""Plain Python reading files: open().read() by threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from harness import Run, main
from plain_client import read


def work_get_many(plan: dict[str, Any]) -> Run:
    threads = ThreadPoolExecutor(8)
    return lambda: list(threads.map(read, plan["uris"]))


if __name__ == "__main__":
    main(globals())
