"""direct:// warns where a file system refuses O_DIRECT, and only there."""

from __future__ import annotations

import warnings

import pytest

import s3dlio
from tests.conftest import LocalPlace


def test_a_directory_read_as_an_object_is_not_found_and_no_sign_of_a_file_system_without_o_direct(
    local_place: LocalPlace,
) -> None:
    local_place.put("folder/key", b"data")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(s3dlio.NotFoundError, match="is a directory"):
            s3dlio.get(local_place.root + "folder")
