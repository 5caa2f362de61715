"""The XML that S3 speaks: listings, errors, and the body that completes an upload."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree

from ..base import ObjectInfo, Page

__all__ = ["PendingUpload", "complete_upload", "error_of", "next_token_of", "page_of", "text_of", "uploads_of"]


def page_of(body: bytes) -> Page:
    """Read the answer of ListObjectsV2. Raises ValueError when it is no complete one."""
    try:
        page = _plain_page(body.decode())
    except UnicodeDecodeError:  # another encoding, of which its XML declaration tells
        page = None
    return _parsed_page(body) if page is None else page


# An entry as all servers write it: elements without attributes, space or character references between and in them. What
# has matched is never tried otherwise (*+): else an owner might reach into any later entry, when an unknown element follows.
_ENTRY = re.compile(
    r"<Contents>(?:<Key>([^<&]+)</Key>|<Size>([0-9]+)</Size>|<ETag>((?:[^<&]+|&quot;|&#34;)*+)</ETag>"
    r"|<LastModified>([^<&]*)</LastModified>|<StorageClass>([^<&]*)</StorageClass>"
    r"|<Owner>(?:<(?:ID|DisplayName)>[^<]*</(?:ID|DisplayName)>|<(?:ID|DisplayName)/>)*+</Owner>"
    r"|<ChecksumAlgorithm>[^<]*</ChecksumAlgorithm>|<ChecksumType>[^<]*</ChecksumType>)*+</Contents>"
)
_PREFIX = re.compile(r"<CommonPrefixes><Prefix>([^<&]+)</Prefix></CommonPrefixes>")


def _plain_page(text: str) -> Page | None:
    """A listing that looks as listings do, three times as fast as by a parser; None for any other."""
    entries, prefixes = _ENTRY.findall(text), _PREFIX.findall(text)
    if len(entries) != text.count("<Contents") or len(prefixes) != text.count("<CommonPrefixes"):
        return None
    if "<!" in text or "\r" in text:  # comments, and line ends that a parser changes
        return None
    is_encoded = "<EncodingType>url</EncodingType>" in text
    objects = []
    for key, size, etag, modified, storage_class in entries:
        if not key or not size:
            return None
        name = _decoded(key, is_encoded) if "%" in key or "+" in key else key
        bare = etag.replace("&quot;", "").replace("&#34;", "").strip('"') or None
        objects.append(ObjectInfo(name, int(size), bare, _seconds_of(modified), _attributes_of(storage_class or None)))
    return Page(objects, [_decoded(prefix, is_encoded) for prefix in prefixes])


def _root_of(body: bytes, name: str) -> tuple[ElementTree.Element, str]:
    """The root of a listing, and its name space. Raises ValueError when it is broken off or is no `name`."""
    try:
        root = ElementTree.fromstring(body)  # noqa: S314 - expat bounds the expansion of entities itself
    except ElementTree.ParseError as exc:
        raise ValueError(f"the listing is broken off or no XML: {exc}") from exc
    space = root.tag[: root.tag.rfind("}") + 1]
    if root.tag != f"{space}{name}":
        raise ValueError(f"the listing is a {root.tag[len(space) :]}, not a {name}")
    return root, space


def _parsed_page(body: bytes) -> Page:
    root, space = _root_of(body, "ListBucketResult")
    is_encoded = root.findtext(f"{space}EncodingType") == "url"
    objects = [_object_of(entry, space, is_encoded) for entry in root.iterfind(f"{space}Contents")]
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


def _object_of(entry: ElementTree.Element, space: str, is_encoded: bool) -> ObjectInfo:
    values = {child.tag[len(space) :]: child.text or "" for child in entry}
    try:
        return ObjectInfo(
            _decoded(values["Key"], is_encoded),
            int(values["Size"]),
            values.get("ETag", "").strip('"') or None,
            _seconds_of(values.get("LastModified")),
            _attributes_of(values.get("StorageClass") or None),
        )
    except KeyError as exc:
        raise ValueError(f"the listing has an object without {exc}") from exc


@lru_cache(maxsize=64)
def _attributes_of(storage_class: str | None) -> Mapping[str, Any]:
    return MappingProxyType({"storage_class": storage_class})


class PendingUpload(NamedTuple):
    """An upload that was begun at `begun` (seconds since 1970) and not ended."""

    key: str
    upload_id: str
    begun: float | None


def uploads_of(body: bytes) -> tuple[list[PendingUpload], tuple[str, str] | None]:
    """Read the answer of ListMultipartUploads: a page, and the markers (key, upload id) of the next one, if there is one.

    Raises ValueError when it is no complete one.
    """
    root, space = _root_of(body, "ListMultipartUploadsResult")
    is_encoded = root.findtext(f"{space}EncodingType") == "url"
    uploads = []
    for entry in root.iterfind(f"{space}Upload"):
        key, upload_id = entry.findtext(f"{space}Key"), entry.findtext(f"{space}UploadId")
        if key and upload_id:
            begun = _seconds_of(entry.findtext(f"{space}Initiated"))
            uploads.append(PendingUpload(_decoded(key, is_encoded), upload_id, begun))
    if root.findtext(f"{space}IsTruncated") != "true":
        return uploads, None
    key = root.findtext(f"{space}NextKeyMarker")
    if not key:
        raise ValueError("the list of uploads says that there is more and not where (NextKeyMarker)")
    return uploads, (_decoded(key, is_encoded), root.findtext(f"{space}NextUploadIdMarker") or "")


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
    return html.unescape(found.group(1).decode("utf-8", "replace")) if found else ""


def complete_upload(parts: Iterable[tuple[int, str, tuple[str, str] | None]]) -> bytes:
    """The body of CompleteMultipartUpload for (number, etag, (algorithm, CRC in base64) or None), ordered by number."""
    entries = []
    for number, etag, checksum in parts:
        extra = "<Checksum{0}>{1}</Checksum{0}>".format(*checksum) if checksum else ""
        entries.append(f"<Part><PartNumber>{number}</PartNumber><ETag>{html.escape(etag, quote=False)}</ETag>{extra}</Part>")
    space = "http://s3.amazonaws.com/doc/2006-03-01/"
    return f'<CompleteMultipartUpload xmlns="{space}">{"".join(entries)}</CompleteMultipartUpload>'.encode()
