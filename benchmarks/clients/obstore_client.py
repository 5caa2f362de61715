from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import obstore
from harness import main
from obstore.store import S3Store

STORES: dict[str, S3Store] = {}


def place(uri: str) -> tuple[S3Store, str]:
    parts = urlsplit(uri)
    if parts.netloc not in STORES:
        endpoint = os.environ["AWS_ENDPOINT_URL"]
        STORES[parts.netloc] = S3Store(
            parts.netloc, endpoint=endpoint, region="us-east-1", client_options={"allow_http": True}
        )
    return STORES[parts.netloc], parts.path[1:]


def fetch(uri: str) -> Any:
    store, key = place(uri)
    return obstore.get(store, key).bytes()


def work_get_many(plan: dict[str, Any]) -> list[Any]:
    with ThreadPoolExecutor(plan["in_flight"]) as threads:
        return list(threads.map(fetch, plan["uris"]))


def work_get(plan: dict[str, Any]) -> list[Any]:
    return [fetch(uri) for uri in plan["uris"]]


def work_large(plan: dict[str, Any]) -> int:
    return sum(len(fetch(uri)) for uri in plan["uris"])


main(globals())
