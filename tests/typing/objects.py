"""Checked by mypy --strict, never run: the verbs as a typed program calls them."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np

import s3dlio


def read_and_write(uris: list[str]) -> None:
    s3dlio.put_bytes(uris[0], b"data")
    s3dlio.put_bytes(uris[0], np.zeros(4, np.float32))
    s3dlio.put_many([(uri, b"data") for uri in uris])
    assert_type(s3dlio.get(uris[0]), s3dlio.BytesView)
    assert_type(s3dlio.get_range(uris[0], offset=0, length=5), s3dlio.BytesView)
    assert_type(s3dlio.list("file:///data", recursive=True, pattern="*.npz"), list[str])
    assert_type(s3dlio.stat(uris[0]), dict[str, Any])
    assert_type(s3dlio.exists(uris[0]), bool)


def read_many(uris: list[str]) -> None:
    assert_type(s3dlio.get_many(uris), list[s3dlio.BytesView])
    assert_type(s3dlio.get_many(uris, workers=64), list[s3dlio.BytesView])
    assert_type(s3dlio.get_many(uris, max_in_flight=64), list[tuple[str, s3dlio.BytesView]])
    s3dlio.get_many(uris, 64, max_in_flight=64)  # type: ignore[call-overload]
    assert_type(s3dlio.stat_many(uris), list[dict[str, Any]])


def use_a_view(view: s3dlio.BytesView) -> None:
    assert_type(view.uri, str)
    assert_type(view.byte_count, int)
    assert_type(len(view), int)
    assert_type(bytes(view), bytes)
    memoryview(view)
    np.frombuffer(view, np.uint8)
    item: s3dlio.PyObjectItem = view
    s3dlio.put_bytes(item.uri, item)


async def without_blocking(uri: str) -> None:
    assert_type(await s3dlio.get_async(uri), s3dlio.BytesView)
    assert_type(await s3dlio.exists_async(uri), bool)
    assert_type(await s3dlio.list_async(uri, recursive=True), list[str])


def catch(uri: str) -> None:
    try:
        s3dlio.get(uri)
    except s3dlio.NotFoundError as exc:
        missing: FileNotFoundError = exc
        root: s3dlio.S3dlioError = exc
        raise missing from root
