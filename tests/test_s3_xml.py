"""The XML of S3: what is read is what was written, and what is broken is an error."""

from __future__ import annotations

from urllib.parse import quote_plus
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3dlio.storage.base import Page
from s3dlio.storage.cloud import s3_xml
from s3dlio.storage.cloud.s3_xml import complete_upload, error_of, next_token_of, page_of, text_of

SPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
KEYS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=40)


def listing(inside: str, space: str = SPACE) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult{space}>{inside}</ListBucketResult>'.encode()


def read(body: bytes) -> tuple[Page, str | None]:
    """Both halves of what makes an answer a good one."""
    return page_of(body), next_token_of(body)


def entry(key: str, more: str = "") -> str:
    return f"<Contents><Key>{key}</Key><Size>7</Size>{more}</Contents>"


END = "<IsTruncated>false</IsTruncated>"


@given(keys=st.lists(KEYS, max_size=5), prefixes=st.lists(KEYS, max_size=3))
def test_encoded_keys_come_back_as_they_were(keys: list[str], prefixes: list[str]) -> None:
    inside = "".join(entry(quote_plus(key)) for key in keys)
    inside += "".join(f"<CommonPrefixes><Prefix>{quote_plus(key)}</Prefix></CommonPrefixes>" for key in prefixes)
    body = listing(f"<EncodingType>url</EncodingType>{inside}{END}")
    page, token = read(body)
    assert [info.key for info in page.objects] == keys
    assert page.prefixes == prefixes
    assert token is None


@given(
    keys=st.lists(KEYS | st.text("ab/%+& \"'", min_size=1, max_size=9), max_size=4),
    more=st.sampled_from(
        [
            "",
            "<ETag>&quot;abc&quot;</ETag><LastModified>2026-01-02T03:04:05.678Z</LastModified>",
            '<ETag>"abc"</ETag><StorageClass>GLACIER</StorageClass><Owner><ID>someone</ID></Owner>',
            "<ChecksumAlgorithm>CRC32</ChecksumAlgorithm><RestoreStatus><IsRestoreInProgress>false</IsRestoreInProgress></RestoreStatus>",
            "\n  <ETag>&#34;abc&#34;</ETag>\n",
            "<ETag>&#x22;abc&#x22;</ETag>",
            "<ETag>&quot;a&amp;b&quot;</ETag>",
            "<Owner><ID>a&amp;b</ID><DisplayName/></Owner><Type>Normal</Type>",
            "<!-- <Contents> --><ETag>&#x22;abc&#x22;</ETag>",
        ]
    ),
    encoding=st.sampled_from(["", "<EncodingType>url</EncodingType>"]),
)
def test_the_short_way_through_a_listing_agrees_with_the_parser(keys: list[str], more: str, encoding: str) -> None:
    write = quote_plus if encoding else escape
    prefixes = "".join(f"<CommonPrefixes><Prefix>{write(key)}</Prefix></CommonPrefixes>" for key in keys)
    inside = "".join(entry(write(key), more) for key in keys)
    try:
        expected = s3_xml._parsed_page(listing(encoding + inside + prefixes + END))
    except ValueError:  # a key that XML cannot hold
        return
    assert page_of(listing(encoding + inside + prefixes + END)) == expected


def test_the_usual_listing_goes_the_short_way() -> None:
    more = "<ETag>&quot;abc&quot;</ETag><LastModified>2026-01-02T03:04:05.678Z</LastModified><Owner><ID>me</ID></Owner>"
    body = listing("<EncodingType>url</EncodingType>" + entry("a%2Fb", more) * 3 + END)
    assert s3_xml._plain_page(body.decode()) == s3_xml._parsed_page(body)
    assert s3_xml._plain_page(body.decode().replace("<Size>", "<Size >")) is None


def test_an_unknown_element_behind_the_owner_costs_no_search_through_the_whole_listing() -> None:
    more = "<Owner><ID>me</ID><DisplayName>me</DisplayName></Owner>"
    body = listing((entry("k", more + "<Type>Normal</Type>") + entry("k", more)) * 3000 + END)
    assert s3_xml._plain_page(body.decode()) is None  # within minutes, if it searched
    assert len(page_of(body).objects) == 6000


def test_a_listing_in_another_encoding_is_parsed() -> None:
    text = listing(entry("k\xe9") + END).decode().replace("UTF-8", "ISO-8859-1")
    assert page_of(text.encode("latin-1")).objects[0].key == "k\xe9"


def test_keys_of_a_server_that_does_not_encode_are_taken_literally() -> None:
    for key in ("a+b", "100%", "%41", "a&b<c>"):
        page = page_of(listing(entry(escape(key)) + END))
        assert [info.key for info in page.objects] == [key]


def test_keys_that_are_no_utf_8_survive() -> None:
    page = page_of(listing(f"<EncodingType>url</EncodingType>{entry('bad%FF')}{END}"))
    assert page.objects[0].key.encode("utf-8", "surrogateescape") == b"bad\xff"


def test_facts_of_an_object_are_read_with_or_without_a_name_space() -> None:
    more = (
        "<ETag>&quot;abc&quot;</ETag><LastModified>2026-01-02T03:04:05.678Z</LastModified><StorageClass>GLACIER</StorageClass>"
        "<Owner><ID>someone</ID></Owner>"
    )
    for space in (SPACE, ""):
        info = page_of(listing(entry("k", more) + END, space)).objects[0]
        assert (info.size, info.etag, info.last_modified) == (7, "abc", 1767323045.678)
        assert info.attributes["storage_class"] == "GLACIER"


def test_the_token_of_the_next_page_is_read() -> None:
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;b=</NextContinuationToken>"
    assert next_token_of(listing(more)) == "a&b="


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html><body>Sign in</body></html>",
        listing(entry("k") + END)[:-30],
        listing(entry("k")),
        listing("<IsTruncated>maybe</IsTruncated>"),
        listing("<IsTruncated>true</IsTruncated>"),
        listing("<IsTruncated>true</IsTruncated><NextContinuationToken></NextContinuationToken>"),
        listing("<Contents><Size>1</Size></Contents>" + END),
        listing("<Contents><Key>k</Key></Contents>" + END),
        listing("<Contents><Key>k</Key><Size>x</Size></Contents>" + END),
        listing(entry("k", "<LastModified>yesterday</LastModified>") + END),
        listing(END).replace(b"ListBucketResult", b"Error"),
    ],
)
def test_a_listing_that_is_not_whole_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        read(body)


def test_a_listing_cut_anywhere_is_a_value_error() -> None:
    body = listing(entry("key") * 3 + END)
    for length in range(len(body)):
        with pytest.raises(ValueError):
            read(body[:length])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_listing_or_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        read(body)


def test_entities_do_not_blow_up() -> None:
    entities = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12))
    bomb = f'<!DOCTYPE x [<!ENTITY a0 "{"a" * 100}">{entities}]><ListBucketResult>&a11;</ListBucketResult>'
    with pytest.raises(ValueError):
        read(bomb.encode())


def test_an_error_is_read_from_good_and_from_broken_xml() -> None:
    body = b"<Error><Code>NoSuchKey</Code><Message>It&apos;s &quot;not&quot; &lt;there&gt; &amp; gone</Message><Resource>"
    assert error_of(body.replace(b"&apos;", b"&#39;")) == ("NoSuchKey", 'It\'s "not" <there> & gone')
    assert error_of(b"") == error_of(b"<html>") == error_of(b"\xff\xfe<Code>") == ("", "")
    assert text_of(b"<Code>\xff</Code>", "Code") == "\ufffd"


@given(st.binary(max_size=200))
def test_no_body_of_an_error_is_too_broken(body: bytes) -> None:
    error_of(b"<Error><Code>" + body + b"</Code>")


def test_the_body_that_completes_an_upload_has_its_parts_in_order() -> None:
    root = ElementTree.fromstring(complete_upload([(1, '"a&b"', None), (2, "c", ("CRC32C", "AAAAAA=="))]))
    rows = [{child.tag.partition("}")[2]: child.text for child in part} for part in root]
    assert rows == [
        {"PartNumber": "1", "ETag": '"a&b"'},
        {"PartNumber": "2", "ETag": "c", "ChecksumCRC32C": "AAAAAA=="},
    ]
