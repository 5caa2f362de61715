"""Uploads to `s3://` that go wrong: nothing half written is ever visible, and nothing is left on the server."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable

import pytest

import s3dlio
from s3dlio import errors

from .conftest import eventually
from .fake_s3 import Reply, Request, error
from .faults import Fault, FaultServer, answering, failing

pytestmark = pytest.mark.usefixtures("short_pauses")

MIB = 1024 * 1024


# O18, O22, O23: uploads


def complete_says(error_inside: Reply, times: int) -> Callable[[Request], Fault | None]:
    left = iter(range(times))
    return lambda request: answering(error_inside) if request.verb == "COMPLETE" and next(left, None) is not None else None


ERROR_INSIDE = Reply(200, {}, error(500, "InternalError").body)


def test_an_error_inside_a_good_answer_to_complete_is_tried_again(faults: FaultServer) -> None:
    data = random.Random(1).randbytes(12 * MIB)
    faults.decide = complete_says(ERROR_INSIDE, 1)
    with s3dlio.open_writer("s3://bkt/k") as file:
        file.write(data)
    assert faults.s3.get("k") == data
    assert len(faults.asked("COMPLETE")) == 2
    assert faults.s3.uploads == {}


@pytest.mark.parametrize(
    "reply", [ERROR_INSIDE, error(500, "InternalError"), error(403, "AccessDenied"), Reply(200, {}, b"")]
)
def test_an_upload_that_cannot_be_completed_is_an_error_and_leaves_nothing(faults: FaultServer, reply: Reply) -> None:
    faults.s3.put("k", b"old")
    faults.decide = complete_says(reply, 1000)
    with pytest.raises(errors.S3dlioError, match="s3://bkt/k"), s3dlio.open_writer("s3://bkt/k") as file:
        file.write(bytes(12 * MIB))
    assert faults.s3.get("k") == b"old"
    assert faults.s3.uploads == {}


@pytest.mark.parametrize("verb", ["CREATE", "PART", "COMPLETE"])
@pytest.mark.parametrize("fault", [failing(500, "InternalError"), failing(503, "SlowDown"), Fault(unanswered=True)])
def test_a_step_of_an_upload_that_fails_once_is_done_again(faults: FaultServer, verb: str, fault: Fault) -> None:
    data = random.Random(1).randbytes(20 * MIB)
    left = iter(range(1))
    faults.decide = lambda request: fault if request.verb == verb and next(left, None) is not None else None
    with s3dlio.open_writer("s3://bkt/k") as file:
        file.write(data)
    assert faults.s3.get("k") == data


def test_a_completed_upload_whose_answer_and_object_are_lost_is_no_success(faults: FaultServer) -> None:
    """An older object of the same size is not taken for the new one."""
    faults.s3.put("k", bytes(20 * MIB))

    def decide(request: Request) -> Fault | None:
        if request.verb == "COMPLETE" and faults.s3.uploads:
            faults.s3.uploads.clear()
            return Fault(unanswered=True)
        return None

    faults.decide = decide
    with pytest.raises(errors.NotFoundError, match=r"s3://bkt/k.*NoSuchUpload"), s3dlio.open_writer("s3://bkt/k") as file:
        file.write(b"\x01" * (20 * MIB))


class OwnError(Exception):
    pass


def _write_and_fail(faults: FaultServer) -> None:
    with s3dlio.open_writer("s3://bkt/k") as file:
        file.write(bytes(20 * MIB))
        assert len(faults.s3.uploads) == 1
        raise OwnError


@pytest.mark.parametrize("abort_fails", [False, True], ids=["", "abort fails"])
def test_an_exception_of_the_user_publishes_nothing_and_stays_what_it_is(
    faults: FaultServer, impatient: None, caplog: pytest.LogCaptureFixture, abort_fails: bool
) -> None:
    if abort_fails:
        faults.decide = lambda request: failing(403, "AccessDenied") if request.verb == "ABORT" else None
    with pytest.raises(OwnError) as caught:
        _write_and_fail(faults)
    assert caught.value.__context__ is None
    assert not s3dlio.exists("s3://bkt/k")
    assert len(faults.s3.uploads) == abort_fails
    assert ("the parts of an upload stay" in caplog.text) is abort_fails


def test_a_writer_that_is_forgotten_publishes_nothing(faults: FaultServer) -> None:
    faults.s3.put("k", b"old")
    file = s3dlio.open_writer("s3://bkt/k")
    file.write(bytes(20 * MIB))
    del file
    gc.collect()
    assert eventually(lambda: faults.s3.uploads == {})
    assert faults.s3.get("k") == b"old"


def test_a_part_that_fails_for_ever_aborts_the_upload(faults: FaultServer, impatient: None) -> None:
    faults.decide = lambda request: failing(403, "AccessDenied") if request.query.get("partNumber") == "2" else None
    with pytest.raises(errors.AccessDeniedError, match="s3://bkt/k"), s3dlio.open_writer("s3://bkt/k") as file:
        file.write(bytes(40 * MIB))
    assert faults.s3.uploads == {}
    assert faults.s3.get("k") is None


def test_a_forked_child_does_not_abort_the_upload_of_its_parent(faults: FaultServer) -> None:
    data = random.Random(1).randbytes(20 * MIB)
    with s3dlio.open_writer("s3://bkt/k") as file:
        file.write(data)
        child = os.fork()
        if child == 0:
            file.abort()
            os._exit(0)
        os.waitpid(child, 0)
    assert faults.s3.get("k") == data


def test_an_upload_without_an_id_is_not_begun(faults: FaultServer) -> None:
    faults.decide = lambda request: answering(Reply(200, {}, b"<Hello/>")) if request.verb == "CREATE" else None
    with pytest.raises(errors.S3dlioError, match="s3://bkt/k"), s3dlio.open_writer("s3://bkt/k") as file:
        file.write(bytes(20 * MIB))
    assert len(faults.requests) == 1


def test_empty_output_is_an_empty_object(faults: FaultServer) -> None:
    for write in (lambda uri: s3dlio.open_writer(uri).close(), lambda uri: s3dlio.put_bytes(uri, b"")):
        faults.s3.put("k", b"old")
        write("s3://bkt/k")
        assert faults.s3.get("k") == b""
        assert s3dlio.stat("s3://bkt/k")["size"] == 0
    assert faults.s3.uploads == {}
    assert faults.asked("CREATE") == []
