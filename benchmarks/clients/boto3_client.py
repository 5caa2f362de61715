from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from harness import main

CLIENT = boto3.client("s3", config=Config(max_pool_connections=64, s3={"addressing_style": "path"}))


def fetch(uri: str) -> bytes:
    parts = urlsplit(uri)
    body: bytes = CLIENT.get_object(Bucket=parts.netloc, Key=parts.path[1:])["Body"].read()
    return body


def work_get_many(plan: dict[str, Any]) -> list[bytes]:
    with ThreadPoolExecutor(plan["in_flight"]) as threads:
        return list(threads.map(fetch, plan["uris"]))


def work_get(plan: dict[str, Any]) -> list[bytes]:
    return [fetch(uri) for uri in plan["uris"]]


def work_large(plan: dict[str, Any]) -> int:
    return sum(len(fetch(uri)) for uri in plan["uris"])


main(globals())
