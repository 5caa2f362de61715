"""The guide's examples of buckets and of where s3:// is."""

from __future__ import annotations

import os
import uuid

import pytest

import s3dlio

from .conftest import S3Place
from .servers import SeaweedFS


def test_configure_s3(s3_place: S3Place, s3_environment: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_CA_BUNDLE"):
        monkeypatch.setenv(name, "")  # and what the example sets is taken back
    my_bucket = s3_place.root.rstrip("/")
    s3_place.put("file.bin", b"content")

    s3dlio.configure_s3(
        endpoint_url=s3_environment.tls_url,
        region="us-east-1",
        ca_bundle=str(s3_environment.ca_bundle),
    )
    assert os.environ["AWS_ENDPOINT_URL"] == s3_environment.tls_url
    assert os.environ["AWS_DEFAULT_REGION"] == "us-east-1"
    assert os.environ["AWS_CA_BUNDLE"] == str(s3_environment.ca_bundle)

    keys = s3dlio.list(f"{my_bucket}/", recursive=False)
    data = s3dlio.get(f"{my_bucket}/file.bin")
    s3dlio.put_bytes(f"{my_bucket}/out.bin", data)
    info = s3dlio.stat(f"{my_bucket}/file.bin")
    s3dlio.delete(f"{my_bucket}/file.bin")
    assert (keys, info["size"], s3_place.keys(), s3_place.get("out.bin")) == (
        [f"{my_bucket}/file.bin"],
        7,
        ["out.bin"],
        b"content",
    )


def test_bucket_management(s3_environment: SeaweedFS) -> None:
    name = f"my-bucket-{uuid.uuid4().hex}"
    s3dlio.create_bucket(name)
    s3dlio.delete_bucket(name)
