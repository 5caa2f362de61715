from __future__ import annotations

from typing import Any

from harness import main

import s3dlio


def work_get_many(plan: dict[str, Any]) -> list[Any]:
    return s3dlio.get_many(plan["uris"], workers=plan["in_flight"])


def work_get(plan: dict[str, Any]) -> list[Any]:
    return [s3dlio.get(uri) for uri in plan["uris"]]


def work_large(plan: dict[str, Any]) -> int:
    return sum(len(s3dlio.get(uri)) for uri in plan["uris"])


main(globals())
