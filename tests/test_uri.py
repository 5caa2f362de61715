"""URIs are split, never parsed: the key is what stands behind the container's slash."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3dlio.errors import ConfigError
from s3dlio.uri import Location, as_uri, basename, parse, sort_key

KEYS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(KEYS)
def test_a_key_is_opaque_on_every_scheme(key: str) -> None:
    for root, container in (("s3://b/", "b"), ("gs://b/", "b"), ("memory://b/", "b"), ("az://acc/con/", "acc/con")):
        location = parse(root + key)
        assert (location.container, location.key, location.root) == (container, key, root)
        assert location.uri == root + key


@given(KEYS.filter(bool))
def test_the_rest_of_a_local_uri_is_the_path(path: str) -> None:
    for scheme in ("file", "direct"):
        assert parse(f"{scheme}://{path}") == Location(scheme, "", path)
        assert parse(f"{scheme}://{path}").uri == f"{scheme}://{path}"


@pytest.mark.parametrize(
    ("uri", "location"),
    [
        ("S3://Bucket/Key", Location("s3", "Bucket", "Key")),
        ("gcs://b/k", Location("gs", "b", "k")),
        ("s3://b", Location("s3", "b", "")),
        ("s3://b/", Location("s3", "b", "")),
        ("s3://b//k", Location("s3", "b", "/k")),
        ("az://a/c", Location("az", "a/c", "")),
        ("s3://b/x://y", Location("s3", "b", "x://y")),
        ("file:///x", Location("file", "", "/x")),
        ("file://x/y", Location("file", "", "x/y")),
        ("file:///bad\udcff", Location("file", "", "/bad\udcff")),
    ],
)
def test_examples(uri: str, location: Location) -> None:
    assert parse(uri) == location


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("az://account", "account/container"),
        ("az://account//k", "account/container"),
        ("az:///c/k", "account/container"),
        ("s3://", "bucket"),
        ("s3:///k", "bucket"),
        ("file://", "path"),
        ("ftp://h/x", "s3"),
        ("s3:/b/k", "scheme"),
        ("b/k", "scheme"),
        ("s3://b/\0", "NUL"),
        ("memory://b/\ud800", "surrogate"),
        ("file:///\udc00x", "surrogate"),
    ],
)
def test_what_cannot_be_used_says_why(uri: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        parse(uri)
    assert repr(uri) in str(caught.value)


@pytest.mark.parametrize("uri", [None, 1, b"s3://b/k", ["s3://b/k"]])
def test_what_is_no_string_is_a_type_error(uri: object) -> None:
    with pytest.raises(TypeError, match=type(uri).__name__):
        parse(uri)  # type: ignore[arg-type]


def test_a_plain_path_is_a_local_uri() -> None:
    assert as_uri(Path("a/b")) == as_uri("file://a/b") == "file://a/b"
    assert as_uri("s3://b/k") == "s3://b/k"


@pytest.mark.parametrize(
    ("key", "name"), [("a/b", "b"), ("a/b/", "b/"), ("b", "b"), ("", ""), ("a//", "a//"), ("x/a//", "a//"), ("/", "/")]
)
def test_basename_is_the_last_segment_with_its_slash(key: str, name: str) -> None:
    assert basename(key) == name


@given(st.lists(KEYS))
def test_keys_are_ordered_by_their_utf8_bytes(keys: list[str]) -> None:
    assert [key.encode() for key in sorted(keys, key=sort_key)] == sorted(key.encode() for key in keys)
