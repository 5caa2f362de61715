"""The XML that S3 speaks: listings, errors, and the body that completes an upload."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree
from xml.sax.saxutils import escape, unescape

from ..base import ObjectInfo, Page

__all__ = ["complete_upload", "error_of", "next_token_of", "page_of", "text_of"]


def page_of(body: bytes) -> Page:
    """Read the answer of ListObjectsV2. Raises ValueError when it is no complete one."""
    try:
        root = ElementTree.fromstring(body)  # noqa: S314 - expat bounds the expansion of entities itself
    except ElementTree.ParseError as exc:
        raise ValueError(f"the listing is broken off or no XML: {exc}") from exc
    space = root.tag[: root.tag.rfind("}") + 1]
    if root.tag != f"{space}ListBucketResult":
        raise ValueError(f"the listing is a {root.tag[len(space) :]}, not a ListBucketResult")
    is_encoded = root.findtext(f"{space}EncodingType") == "url"
    fields = _Fields(*(space + name for name in ("Key", "Size", "ETag", "LastModified", "StorageClass")))
    objects = [_object_of(entry, fields, is_encoded) for entry in root.iterfind(f"{space}Contents")]
    prefixes = [
        _decoded(entry.findtext(f"{space}Prefix") or "", is_encoded) for entry in root.iterfind(f"{space}CommonPrefixes")
    ]
    return Page(objects, prefixes)


def next_token_of(body: bytes) -> str | None:
    """The token of the page that follows a listing's answer; None when there is none. Found without parsing the rest.

    Raises ValueError when the answer breaks off, is no listing, or does not say whether it is complete.
    """
    if not body.rstrip().endswith(b"ListBucketResult>"):
        raise ValueError("the listing is broken off, or something else than a ListBucketResult")
    is_truncated = text_of(body, "IsTruncated")
    if is_truncated not in ("true", "false"):
        raise ValueError("the listing does not say whether it is complete (IsTruncated)")
    if is_truncated == "false":
        return None
    token = text_of(body, "NextContinuationToken")
    if not token:
        raise ValueError("the listing says that there is more and not where (NextContinuationToken)")
    return token


class _Fields(NamedTuple):
    """The names of an entry's elements, in the name space of the listing."""

    key: str
    size: str
    etag: str
    last_modified: str
    storage_class: str


def _object_of(entry: ElementTree.Element, fields: _Fields, is_encoded: bool) -> ObjectInfo:
    values = {child.tag: child.text for child in entry}
    key, size = values.get(fields.key), values.get(fields.size)
    if key is None or size is None:
        raise ValueError("the listing has an object without its Key or Size")
    if is_encoded and ("%" in key or "+" in key):
        key = _decoded(key, is_encoded)
    etag = (values.get(fields.etag) or "").strip('"') or None
    attributes = _attributes_of(values.get(fields.storage_class) or None)
    return ObjectInfo(key, int(size), etag, _seconds_of(values.get(fields.last_modified)), attributes)


@lru_cache(maxsize=64)
def _attributes_of(storage_class: str | None) -> Mapping[str, Any]:
    return MappingProxyType({"storage_class": storage_class})


def _decoded(text: str, is_encoded: bool) -> str:
    """A key as S3 encodes it with encoding-type=url, where a plus stands for a space."""
    if not is_encoded or ("%" not in text and "+" not in text):
        return text
    return unquote_to_bytes(text.replace("+", " ")).decode("utf-8", "surrogateescape")


def _seconds_of(text: str | None) -> float | None:
    if not text:
        return None
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def error_of(body: bytes) -> tuple[str, str]:
    """(code, message) of an error's body; empty strings where it has none."""
    return text_of(body, "Code"), text_of(body, "Message")


def text_of(body: bytes, name: str) -> str:
    """The text of the first element `name`, found without parsing, since error bodies are often no good XML."""
    found = re.search(rf"<{name}>([^<]*)</{name}>".encode(), body)
    return unescape(found.group(1).decode("utf-8", "replace"), {"&quot;": '"', "&#34;": '"', "&#39;": "'"}) if found else ""


def complete_upload(parts: Iterable[tuple[int, str, str | None]]) -> bytes:
    """The body of CompleteMultipartUpload for (number, etag, CRC-32 in base64 or None), in the order of numbers."""
    entries = []
    for number, etag, checksum in parts:
        extra = f"<ChecksumCRC32>{checksum}</ChecksumCRC32>" if checksum else ""
        entries.append(f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(etag)}</ETag>{extra}</Part>")
    space = "http://s3.amazonaws.com/doc/2006-03-01/"
    return f'<CompleteMultipartUpload xmlns="{space}">{"".join(entries)}</CompleteMultipartUpload>'.encode()
