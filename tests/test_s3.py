"""`s3://` against a real server that verifies signatures, with boto3 as the second opinion in both directions."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

import s3dlio
from s3dlio.storage import open_store
from s3dlio.storage.cloud import s3
from s3dlio.uri import parse

from .conftest import S3Place, buckets, make_boto3_client
from .contract import CONTENT
from .servers import ACCESS_KEY, READ_ONLY_KEY, READ_ONLY_SECRET, SECRET_KEY, SeaweedFS, free_ports

MIB = 2**20
PART = bytes(i % 249 for i in range(5 * MIB))
SIZES = (0, 1, 4095, 4096, 1_000_003)

READING: dict[str, Callable[[str], object]] = {
    "get": s3dlio.get,
    "get_range": lambda uri: s3dlio.get_range(uri, 1, 2),
    "get_many": lambda uri: s3dlio.get_many([uri]),
    "stat": s3dlio.stat,
    "exists": s3dlio.exists,
    "list": s3dlio.list,
    "open_reader": s3dlio.open_reader,
}
WRITING: dict[str, Callable[[str], object]] = {
    "put_bytes": lambda uri: s3dlio.put_bytes(uri, b"new"),
    "put_many": lambda uri: s3dlio.put_many([(uri, b"new")]),
    "open_writer": lambda uri: write(uri, [b"new"]),
    "open_writer in parts": lambda uri: write(uri, [PART, PART]),
    "delete": s3dlio.delete,
    "mkdir": s3dlio.mkdir,
}


def verbs(table: dict[str, Callable[[str], object]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("verb", table.values(), ids=table.keys())


def write(uri: str, pieces: list[bytes]) -> None:
    with s3dlio.open_writer(uri) as file:
        for piece in pieces:
            file.write(piece)


def in_small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects beyond 1 MiB come in parallel ranges of 256 KiB."""
    monkeypatch.setenv("S3DLIO_RANGE_THRESHOLD_MB", "1")
    monkeypatch.setenv("S3DLIO_CHUNK_SIZE", str(256 * 1024))


class TestTheyWriteWeRead:
    @pytest.mark.parametrize("size", SIZES)
    def test_an_object(self, s3_place: S3Place, size: int) -> None:
        data = (CONTENT * 101)[:size]
        s3_place.put("k", data)
        uri = s3_place.root + "k"
        assert s3dlio.get(uri) == data
        assert s3dlio.get_many([uri, uri]) == [data, data]
        assert s3dlio.get_range(uri, 1, 4096) == data[1:4097]
        with s3dlio.open_reader(uri) as file:
            assert file.read() == data

    @pytest.mark.parametrize("ranged", [False, True])
    @pytest.mark.parametrize("checksum", [{}, {"ChecksumAlgorithm": "CRC32"}, {"ChecksumAlgorithm": "SHA256"}])
    def test_an_object_of_parts_whose_checksum_is_one_of_checksums(
        self, s3_place: S3Place, monkeypatch: pytest.MonkeyPatch, checksum: dict[str, str], ranged: bool
    ) -> None:
        if ranged:
            in_small_ranges(monkeypatch)
        client, name = s3_place.client, {"Bucket": s3_place.bucket, "Key": s3_place.prefix + "k"}
        upload = client.create_multipart_upload(**name, **checksum)["UploadId"]
        parts = []
        for number, body in ((1, PART), (2, PART[::-1]), (3, b"tail")):
            answer = client.upload_part(**name, UploadId=upload, PartNumber=number, Body=body, **checksum)
            sums = {
                field: value for field, value in answer.items() if field.startswith("Checksum") and field != "ChecksumType"
            }
            parts.append({"PartNumber": number, "ETag": answer["ETag"], **sums})
        done = client.complete_multipart_upload(**name, UploadId=upload, MultipartUpload={"Parts": parts})
        uri = s3_place.root + "k"
        assert s3dlio.get(uri) == PART + PART[::-1] + b"tail"
        assert s3dlio.get_many([uri]) == [PART + PART[::-1] + b"tail"]
        assert s3dlio.stat(uri)["etag"] == done["ETag"].strip('"')
        assert s3dlio.get_range(uri, len(PART) - 1, 2) == PART[-1:] + PART[-1:]

    @pytest.mark.parametrize("algorithm", ["CRC32", "SHA256", "CRC32C"])
    @pytest.mark.parametrize("mode", ["when_supported", "when_required"])
    def test_an_object_with_a_checksum(
        self, s3_place: S3Place, monkeypatch: pytest.MonkeyPatch, algorithm: str, mode: str
    ) -> None:
        monkeypatch.setenv("AWS_RESPONSE_CHECKSUM_VALIDATION", mode)
        field, value = {
            "CRC32": ("ChecksumCRC32", zlib.crc32(CONTENT).to_bytes(4, "big")),
            "SHA256": ("ChecksumSHA256", hashlib.sha256(CONTENT).digest()),
            "CRC32C": ("ChecksumCRC32C", crc32c(CONTENT).to_bytes(4, "big")),
        }[algorithm]
        s3_place.client.put_object(
            Bucket=s3_place.bucket,
            Key=s3_place.prefix + "k",
            Body=CONTENT,
            ChecksumAlgorithm=algorithm,
            **{field: base64.b64encode(value).decode()},
        )
        assert s3dlio.get(s3_place.root + "k") == CONTENT
        assert s3dlio.get_range(s3_place.root + "k", 0, 100) == CONTENT[:100]

    def test_stat_tells_all_that_boto3_told(self, s3_place: S3Place) -> None:
        answer = s3_place.client.put_object(
            Bucket=s3_place.bucket,
            Key=s3_place.prefix + "k",
            Body=b"abc",
            ContentType="image/png",
            ContentLanguage="de",
            ContentEncoding="gzip",
            CacheControl="no-cache",
            ContentDisposition="attachment",
            Metadata={"split": "train", "index": "7"},
        )
        facts = s3dlio.stat(s3_place.root + "k")
        head = s3_place.client.head_object(Bucket=s3_place.bucket, Key=s3_place.prefix + "k")
        assert len(facts) == 16
        assert (facts["size"], facts["etag"]) == (3, answer["ETag"].strip('"'))
        assert facts["last_modified"][:19] == head["LastModified"].strftime("%Y-%m-%dT%H:%M:%S")
        assert (facts["content_type"], facts["content_language"]) == ("image/png", "de")
        assert (facts["content_encoding"], facts["cache_control"]) == ("gzip", "no-cache")
        assert facts["content_disposition"] == "attachment"
        assert facts["metadata"] == {"split": "train", "index": "7"}

    def test_an_encoded_object_comes_as_it_is_stored(self, s3_place: S3Place) -> None:
        """Content-Encoding is the reader's own business: as many bytes as `stat` says."""
        import gzip

        stored = gzip.compress(CONTENT, mtime=0)
        name = {"Bucket": s3_place.bucket, "Key": s3_place.prefix + "k"}
        s3_place.client.put_object(**name, Body=stored, ContentEncoding="gzip")
        uri = s3_place.root + "k"
        assert s3dlio.get(uri) == stored
        assert s3dlio.stat(uri)["size"] == len(stored)
        assert s3dlio.get_range(uri, 10, 20) == stored[10:30]


def crc32c(data: bytes) -> int:
    """The Castagnoli CRC, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class TestWeWriteTheyRead:
    @pytest.mark.parametrize("mode", ["when_supported", "when_required"])
    @pytest.mark.parametrize("size", SIZES)
    def test_an_object(self, s3_place: S3Place, monkeypatch: pytest.MonkeyPatch, size: int, mode: str) -> None:
        monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", mode)
        data = (CONTENT * 101)[:size]
        s3dlio.put_bytes(s3_place.root + "k", data)
        s3dlio.put_many([(s3_place.root + "j", data)])
        write(s3_place.root + "w", [data])
        assert [s3_place.get(key) for key in ("k", "j", "w")] == [data] * 3
        head = s3_place.client.head_object(Bucket=s3_place.bucket, Key=s3_place.prefix + "k", ChecksumMode="ENABLED")
        assert head["ETag"].strip('"') == hashlib.md5(data).hexdigest() == s3dlio.stat(s3_place.root + "k")["etag"]
        checksum = base64.b64encode(crc32c(data).to_bytes(4, "big")).decode()
        assert head.get("ChecksumCRC32C") == (checksum if mode == "when_supported" else None)

    @pytest.mark.parametrize("mode", ["when_supported", "when_required"])
    def test_an_object_of_parts(self, s3_place: S3Place, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
        monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", mode)
        pieces = [PART, b"x" * 12_345, PART[::-1], b"", PART]
        write(s3_place.root + "k", pieces)
        assert s3_place.get("k") == b"".join(pieces)
        assert s3_place.uploads() == []
        head = s3_place.client.head_object(Bucket=s3_place.bucket, Key=s3_place.prefix + "k")
        assert head["ETag"].strip('"') == s3dlio.stat(s3_place.root + "k")["etag"]
        assert head["ETag"].endswith('-2"')

    def test_a_signed_payload(self, s3_place: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("S3DLIO_UNSIGNED_PAYLOAD", "0")
        s3dlio.put_bytes(s3_place.root + "k", CONTENT)
        write(s3_place.root + "w", [PART, PART])
        assert (s3_place.get("k"), s3_place.get("w")) == (CONTENT, PART + PART)

    def test_conditions_are_those_of_boto3(self, s3_place: S3Place) -> None:
        """The etag that one of the two tells is a condition that the other one can set."""
        store, key = open_store(parse(s3_place.root)), s3_place.prefix + "k"
        name = {"Bucket": s3_place.bucket, "Key": key}
        ours = store.put(key, memoryview(b"1"), if_absent=True).etag
        theirs = s3_place.client.put_object(**name, Body=b"2", IfMatch=f'"{ours}"')["ETag"].strip('"')
        with pytest.raises(s3dlio.PreconditionFailedError, match="k"):
            store.put(key, memoryview(b"3"), if_match=ours)
        store.put(key, memoryview(b"4"), if_match=theirs)
        with pytest.raises(s3_place.client.exceptions.ClientError, match="PreconditionFailed"):
            s3_place.client.put_object(**name, Body=b"5", IfMatch=f'"{theirs}"')
        assert s3_place.get("k") == b"4"


class TestBuckets:
    @pytest.mark.parametrize("form", ["{}", "s3://{}", "s3://{}/"])
    def test_a_bucket_is_made_used_and_removed(self, new_bucket: str, boto3_client: Any, form: str) -> None:
        assert s3dlio.create_bucket(form.format(new_bucket)) is None  # type: ignore[func-returns-value]
        assert new_bucket in buckets(boto3_client)
        assert s3dlio.list(f"s3://{new_bucket}") == s3dlio.list(f"s3://{new_bucket}/") == []
        s3dlio.put_bytes(f"s3://{new_bucket}/k", b"x")
        assert s3dlio.list(f"s3://{new_bucket}") == [f"s3://{new_bucket}/k"]
        s3dlio.delete(f"s3://{new_bucket}/k")
        assert s3dlio.delete_bucket(form.format(new_bucket)) is None  # type: ignore[func-returns-value]
        assert new_bucket not in buckets(boto3_client)

    def test_ones_own_existing_bucket_is_fine(self, new_bucket: str) -> None:
        s3dlio.create_bucket(new_bucket)
        s3dlio.put_bytes(f"s3://{new_bucket}/k", b"kept")
        s3dlio.create_bucket(new_bucket)
        assert s3dlio.get(f"s3://{new_bucket}/k") == b"kept"

    def test_a_bucket_that_is_not_empty_stays(self, new_bucket: str) -> None:
        s3dlio.create_bucket(new_bucket)
        s3dlio.put_bytes(f"s3://{new_bucket}/k", b"kept")
        with pytest.raises(s3dlio.NotEmptyError, match=new_bucket):
            s3dlio.delete_bucket(new_bucket)
        assert s3dlio.get(f"s3://{new_bucket}/k") == b"kept"

    def test_a_bucket_that_is_not_empty_is_not_left_to_the_server(
        self, new_bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """SeaweedFS, unless told otherwise as here, deletes a bucket with all that it holds."""
        s3dlio.create_bucket(new_bucket)
        s3dlio.put_bytes(f"s3://{new_bucket}/a/b/k", b"kept")
        with monkeypatch.context() as patch:
            patch.setattr(s3.S3Store, "perform", lambda *args, **kwargs: pytest.fail("the server was asked to delete it"))
            with pytest.raises(s3dlio.NotEmptyError, match=new_bucket):
                s3dlio.delete_bucket(new_bucket)

    def test_the_servers_refusal_of_a_bucket_that_was_filled_meanwhile_is_told(
        self, new_bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        s3dlio.create_bucket(new_bucket)
        s3dlio.put_bytes(f"s3://{new_bucket}/k", b"kept")
        with monkeypatch.context() as patch:
            patch.setattr(s3.S3Store, "list", lambda *args, **kwargs: iter(()))
            with pytest.raises(s3dlio.NotEmptyError, match="BucketNotEmpty"):
                s3dlio.delete_bucket(new_bucket)
        assert s3dlio.get(f"s3://{new_bucket}/k") == b"kept"

    def test_removing_a_missing_bucket_says_so(self, new_bucket: str) -> None:
        with pytest.raises(s3dlio.NotFoundError, match=new_bucket):
            s3dlio.delete_bucket(new_bucket)

    @pytest.mark.parametrize("name", ["Upper", "a", "under_score", "dots..here", "-dash", "x" * 64, "sp ace", "é"])
    def test_a_bad_name_is_an_error_that_names_it(self, new_bucket: str, boto3_client: Any, name: str) -> None:
        before = buckets(boto3_client)
        with pytest.raises(s3dlio.S3dlioError) as caught:
            s3dlio.create_bucket(name)
        assert name in str(caught.value)
        assert buckets(boto3_client) == before

    @pytest.mark.parametrize("verb", [s3dlio.create_bucket, s3dlio.delete_bucket])
    def test_what_is_no_bucket_is_an_error(self, verb: Callable[[Any], None]) -> None:
        for name in ("", "s3://", "s3:///key", "s3://bucket/key", "file:///folder", "bucket/key"):
            with pytest.raises(s3dlio.ConfigError):
                verb(name)
        with pytest.raises(TypeError):
            verb(None)

    MISSING: ClassVar = {
        **{name: verb for name, verb in READING.items() if verb is not s3dlio.exists},
        "list recursive": lambda uri: s3dlio.list(uri, recursive=True),
        "delete": s3dlio.delete,
        "delete recursive": lambda uri: s3dlio.delete(uri, recursive=True),
        "ObjectStoreMapDataset": lambda uri: s3dlio.ObjectStoreMapDataset(uri),
        "ObjectStoreIterableDataset": lambda uri: s3dlio.ObjectStoreIterableDataset(uri),
    }

    @verbs(MISSING)
    def test_a_missing_bucket_is_an_error_and_not_an_empty_one(self, new_bucket: str, verb: Callable[[str], object]) -> None:
        """SeaweedFS makes a bucket when something is put into it, so that writing cannot be shown here."""
        for uri in (f"s3://{new_bucket}/k", f"s3://{new_bucket}/k/"):
            with pytest.raises(s3dlio.NotFoundError) as caught:
                verb(uri)
            assert uri in str(caught.value)
        assert not s3dlio.exists(f"s3://{new_bucket}/k")


class TestConfiguring:
    def test_every_later_operation_uses_the_new_endpoint(self, s3_place: S3Place, s3_environment: SeaweedFS) -> None:
        """Two addresses of one server, plain and TLS, and one where nobody listens; each is proven by what goes wrong."""
        uri = s3_place.root + "k"
        s3dlio.put_bytes(uri, b"plain")
        s3dlio.configure_s3(endpoint_url=s3_environment.tls_url)
        with pytest.raises(s3dlio.S3dlioError, match="certificate") as caught:
            s3dlio.get(uri)
        assert s3_environment.tls_url in str(caught.value)
        s3dlio.configure_s3(ca_bundle=str(s3_environment.ca_bundle))
        assert s3dlio.get(uri) == b"plain"
        s3dlio.put_bytes(uri, b"over TLS")
        os.environ["S3DLIO_CONNECT_TIMEOUT_SECS"] = "0.2"
        nowhere = f"http://127.0.0.1:{free_ports(1)[0]}"
        s3dlio.configure_s3(endpoint_url=nowhere)
        with pytest.raises(s3dlio.S3dlioError, match=nowhere):
            s3dlio.get(uri)
        s3dlio.configure_s3(endpoint_url=s3_environment.url)
        assert s3dlio.get(uri) == b"over TLS"

    @pytest.fixture(autouse=True)
    def restored(self, s3_environment: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> None:
        """What configure_s3 sets is taken back."""
        for name in ("AWS_DEFAULT_REGION", "AWS_CA_BUNDLE", "AWS_ENDPOINT_URL_S3", "S3DLIO_CONNECT_TIMEOUT_SECS"):
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)

    def test_it_sets_what_is_told_and_leaves_the_rest(self, s3_environment: SeaweedFS) -> None:
        before = dict(os.environ)
        s3dlio.configure_s3()
        assert dict(os.environ) == before
        s3dlio.configure_s3(region="eu-west-1")
        assert dict(os.environ) == {**before, "AWS_DEFAULT_REGION": "eu-west-1", "AWS_REGION": "eu-west-1"}
        s3dlio.configure_s3("http://127.0.0.1:1", "us-east-1", str(s3_environment.ca_bundle))
        assert os.environ["AWS_ENDPOINT_URL"] == "http://127.0.0.1:1"
        assert os.environ["AWS_CA_BUNDLE"] == str(s3_environment.ca_bundle)

    def test_the_variable_that_would_win_is_set_too(self, s3_place: S3Place, s3_environment: SeaweedFS) -> None:
        os.environ["AWS_ENDPOINT_URL_S3"] = "http://127.0.0.1:1"
        s3dlio.configure_s3(endpoint_url=s3_environment.url)
        s3dlio.put_bytes(s3_place.root + "k", b"x")
        assert s3_place.get("k") == b"x"

    @pytest.mark.parametrize(
        ("wrong", "error"),
        [
            ({"endpoint_url": "127.0.0.1:9000"}, "127.0.0.1:9000"),
            ({"endpoint_url": "ftp://host"}, "ftp://host"),
            ({"endpoint_url": "http://"}, "http://"),
            ({"ca_bundle": "/no/such/ca.pem"}, "/no/such/ca.pem"),
        ],
    )
    def test_what_cannot_work_is_refused_at_once_and_changes_nothing(self, wrong: dict[str, str], error: str) -> None:
        before = dict(os.environ)
        with pytest.raises(s3dlio.ConfigError, match=error):
            s3dlio.configure_s3(**{"region": "eu-west-1", **wrong})
        assert dict(os.environ) == before

    def test_any_region_name_is_signed_as_the_server_wants_it(self, s3_place: S3Place) -> None:
        s3_place.put("k", b"x")
        s3dlio.configure_s3(region="eu-central-1")
        assert s3dlio.get(s3_place.root + "k") == b"x"


class TestRights:
    """A refusal is an error at once, with the URI and the server's own code, and never with a secret."""

    def check_refused(self, verb: Callable[[str], object], uri: str) -> None:
        with pytest.raises(s3dlio.AccessDeniedError) as caught:
            verb(uri)
        text = str(caught.value)
        assert uri in text
        assert "403" in text
        assert not re.search(r"([3-9]|\d\d) attempts", text)  # two: a HEAD does not tell why, and a GET is asked
        for secret in (SECRET_KEY, READ_ONLY_SECRET, "not-the-secret"):
            assert secret not in text

    @pytest.fixture
    def reader(self, s3_place: S3Place, monkeypatch: pytest.MonkeyPatch) -> S3Place:
        """A place with the objects k and empty, and a key that may read and list only."""
        s3_place.put("k", b"old")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", READ_ONLY_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", READ_ONLY_SECRET)
        return s3_place

    def test_a_read_only_key_reads_and_lists(self, reader: S3Place) -> None:
        uri = reader.root + "k"
        assert s3dlio.get(uri) == s3dlio.get_many([uri])[0] == b"old"
        assert s3dlio.exists(uri)
        assert not s3dlio.exists(reader.root + "j")
        assert s3dlio.list(reader.root) == [uri]

    @verbs(WRITING)
    def test_a_read_only_key_writes_nothing(self, reader: S3Place, verb: Callable[[str], object]) -> None:
        self.check_refused(verb, reader.root + "k")
        assert (reader.keys(), reader.get("k"), reader.uploads()) == (["k"], b"old", [])

    @verbs({**READING, **WRITING})
    @pytest.mark.parametrize(
        "environment",
        [
            {"AWS_SECRET_ACCESS_KEY": "not-the-secret"},
            {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "not-the-secret"},
            {"AWS_SKIP_SIGNATURE": "1"},
        ],
        ids=["wrong secret", "unknown key", "anonymous"],
    )
    def test_whom_the_server_does_not_know_is_refused(
        self,
        s3_place: S3Place,
        monkeypatch: pytest.MonkeyPatch,
        verb: Callable[[str], object],
        environment: dict[str, str],
    ) -> None:
        s3_place.put("k", b"old")
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        self.check_refused(verb, s3_place.root + "k")
        assert (s3_place.keys(), s3_place.get("k")) == (["k"], b"old")

    def test_half_a_key_is_an_error_that_names_the_other_half(
        self, s3_place: S3Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        with pytest.raises(s3dlio.ConfigError, match="AWS_SECRET_ACCESS_KEY"):
            s3dlio.get(s3_place.root + "k")

    def test_keys_of_a_profile_are_found_by_botocore(
        self, s3_place: S3Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        s3_place.put("k", b"x")
        keys = f"aws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
        (tmp_path / "credentials").write_text(f"[default]\naws_access_key_id = nobody\n\n[training]\n{keys}")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        monkeypatch.setenv("AWS_PROFILE", "training")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        assert s3dlio.get(s3_place.root + "k") == b"x"
        assert s3dlio.get_many([s3_place.root + "k"] * 20) == [b"x"] * 20

    def test_keys_in_the_environment_need_no_sdk(self, s3_place: S3Place, run_python: Callable[..., Any]) -> None:
        code = (
            "import sys, s3dlio\n"
            "s3dlio.put_bytes(sys.argv[1], b'x'); s3dlio.get_many(sys.argv[1:]); s3dlio.list(sys.argv[1])\n"
            "print([name for name in ('boto3', 'botocore', 'urllib3', 'torch') if name in sys.modules])\n"
        )
        done = run_python(code, s3_place.root + "k")
        assert (done.stdout, done.stderr) == ("[]\n", "")


class TestTls:
    @pytest.fixture
    def tls_place(self, s3_place: S3Place, s3_environment: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> S3Place:
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3_environment.tls_url)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(s3_environment.ca_bundle))
        return s3_place

    @pytest.mark.parametrize("size", SIZES)
    def test_an_object(self, tls_place: S3Place, size: int) -> None:
        data, uri = (CONTENT * 101)[:size], tls_place.root + "k"
        s3dlio.put_bytes(uri, data)
        assert tls_place.get("k") == data
        assert s3dlio.get(uri) == data
        assert s3dlio.get_range(uri, 1, 4096) == data[1:4097]
        assert s3dlio.stat(uri)["size"] == size

    def test_many_objects_at_once(self, tls_place: S3Place) -> None:
        objects = {f"{tls_place.root}{number:03d}": (b"%d " % number) * (number * 37) for number in range(200)}
        s3dlio.put_many(objects.items())
        assert s3dlio.list(tls_place.root) == list(objects)
        assert s3dlio.get_many(objects) == list(objects.values())
        s3dlio.delete(tls_place.root, recursive=True)
        assert tls_place.keys() == []

    def test_parts_and_parallel_ranges(self, tls_place: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
        in_small_ranges(monkeypatch)
        uri, data = tls_place.root + "k", PART + PART[::-1] + PART
        write(uri, [data])
        assert tls_place.get("k") == data
        assert s3dlio.get(uri) == data
        assert s3dlio.get_many([uri] * 3) == [data] * 3
        assert s3dlio.get_range(uri, 1_000_001, 9 * MIB) == data[1_000_001 : 1_000_001 + 9 * MIB]
        with s3dlio.open_reader(uri) as file:
            assert file.read() == data

    def test_boto3_agrees(self, tls_place: S3Place, s3_environment: SeaweedFS) -> None:
        client = make_boto3_client(s3_environment.tls_url, verify=str(s3_environment.ca_bundle))
        name = {"Bucket": tls_place.bucket, "Key": tls_place.prefix + "k"}
        client.put_object(**name, Body=CONTENT)
        assert s3dlio.get(tls_place.root + "k") == CONTENT
        s3dlio.put_bytes(tls_place.root + "k", PART)
        assert client.get_object(**name)["Body"].read() == PART
        client.close()

    @pytest.mark.parametrize("bundle", [None, "another"])
    @verbs({**READING, **WRITING})
    def test_an_untrusted_server_gets_no_request(
        self,
        tls_place: S3Place,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        bundle: str | None,
        verb: Callable[[str], object],
        s3_environment: SeaweedFS,
    ) -> None:
        tls_place.put("k", b"old")
        if bundle is None:
            monkeypatch.delenv("AWS_CA_BUNDLE")
        else:
            from .servers import make_authority

            make_authority(tmp_path)
            monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.crt"))
        with pytest.raises(s3dlio.S3dlioError, match="certificate") as caught:
            verb(tls_place.root + "k")
        assert s3_environment.tls_url in str(caught.value)
        assert "AWS_CA_BUNDLE" in str(caught.value)
        assert (tls_place.keys(), tls_place.get("k")) == (["k"], b"old")

    def test_a_name_that_the_certificate_does_not_have_is_refused(
        self, tls_place: S3Place, monkeypatch: pytest.MonkeyPatch, s3_environment: SeaweedFS
    ) -> None:
        port = s3_environment.tls_url.rpartition(":")[2]
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.2:{port}")
        monkeypatch.setenv("S3DLIO_CONNECT_TIMEOUT_SECS", "0.2")
        with pytest.raises(s3dlio.S3dlioError, match=r"127\.0\.0\.2"):
            s3dlio.get(tls_place.root + "k")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://localhost:{port}")
        tls_place.put("k", b"x")
        assert s3dlio.get(tls_place.root + "k") == b"x"

    @pytest.mark.parametrize("content", [None, "", "no certificate"])
    def test_a_bundle_that_cannot_be_read_is_named(
        self, tls_place: S3Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
    ) -> None:
        path = tmp_path / "ca.pem"
        if content is not None:
            path.write_text(content)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(path))
        with pytest.raises(s3dlio.ConfigError, match=r"ca\.pem"):
            s3dlio.get(tls_place.root + "k")

    def test_a_folder_of_authorities_is_a_bundle(
        self, tls_place: S3Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, s3_environment: SeaweedFS
    ) -> None:
        """OpenSSL finds the authority by the hash of its name."""
        import subprocess

        (tmp_path / "ca.crt").write_bytes(s3_environment.ca_bundle.read_bytes())
        command = ["openssl", "x509", "-hash", "-noout", "-in", str(tmp_path / "ca.crt")]
        hashed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        (tmp_path / "ca.crt").rename(tmp_path / f"{hashed}.0")
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path))
        tls_place.put("k", b"x")
        assert s3dlio.get(tls_place.root + "k") == b"x"


class TestReading:
    def test_every_word_of_a_large_object_is_in_its_place(self, s3_place: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each 4-byte word is its index; eight threads read by parallel ranges at once."""
        from concurrent.futures import ThreadPoolExecutor

        import numpy as np

        in_small_ranges(monkeypatch)
        words = np.arange(2 * MIB, dtype=np.uint32)
        s3_place.put("k", words.tobytes())
        with ThreadPoolExecutor(8) as threads:
            for view in threads.map(s3dlio.get, [s3_place.root + "k"] * 16):
                assert np.array_equal(np.frombuffer(view, np.uint32), words)

    def test_ranges_around_every_border_of_a_chunk(self, s3_place: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
        in_small_ranges(monkeypatch)
        data, uri, chunk = (PART * 2)[: 4 * MIB + 1], s3_place.root + "k", 256 * 1024
        s3_place.put("k", data)
        for border in range(0, len(data), chunk):
            for start, length in ((border, 2), (max(0, border - 1), 2), (max(0, border - 1), 2 * chunk + 1)):
                assert s3dlio.get_range(uri, start, length) == data[start : start + length]
        assert s3dlio.get(uri) == data

    def test_an_object_that_is_replaced_again_and_again_is_never_mixed(
        self, s3_place: S3Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import threading

        in_small_ranges(monkeypatch)
        versions = [bytes([number]) * (3 * MIB) for number in (1, 2)]
        s3_place.put("k", versions[0])
        stopped = threading.Event()

        def replace() -> None:
            number = 0
            while not stopped.is_set():
                number += 1
                s3_place.put("k", versions[number % 2])

        writer = threading.Thread(target=replace)
        writer.start()
        outcomes = []
        try:
            for _ in range(20):
                with contextlib.suppress(s3dlio.ChangedError):
                    outcomes.append(bytes(s3dlio.get(s3_place.root + "k")))
        finally:
            stopped.set()
            writer.join()
        assert all(outcome in versions for outcome in outcomes)
        assert s3dlio.get(s3_place.root + "k") in versions


def test_an_endpoint_that_nobody_answers_at_is_named(s3_place: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = f"http://127.0.0.1:{free_ports(1)[0]}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", nowhere)
    monkeypatch.setenv("S3DLIO_CONNECT_TIMEOUT_SECS", "0.2")
    for verb in (*READING.values(), *WRITING.values()):
        with pytest.raises(s3dlio.S3dlioError, match=nowhere) as caught:
            verb(s3_place.root + "k")
        assert s3_place.root + "k" in str(caught.value)
        assert not isinstance(caught.value, s3dlio.NotFoundError)
