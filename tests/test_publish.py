"""Commits on servers that have no conditional writes, whether they say so or not, and what such a server means elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch

import s3dlio
from s3dlio import errors
from s3dlio.torch import dcp

from .fake_s3 import Reply, Request
from .faults import Fault, FaultServer, answering, failing

BASE = "s3://bkt/run/"
COMMITS = {"distributed": "run/s3dlio-manifest.json", "dcp": "run/.metadata"}
NOT_IMPLEMENTED = failing(501, "NotImplemented")
WHILE_SAVING = {"distributed": "LIST", "dcp": "PUT"}  # requests between the first look at the commit and the put
REFUSALS = {  # of a condition that a server does not know
    "501": NOT_IMPLEMENTED,
    "501 without a code": answering(Reply(501)),
    "400 NotImplemented": failing(400, "NotImplemented"),
    "403 NotImplemented": failing(403, "NotImplemented"),
    "400 InvalidArgument": failing(400, "InvalidArgument"),
    "403 InvalidArgument": failing(403, "InvalidArgument"),
    "400 InvalidRequest": failing(400, "InvalidRequest"),
    "400 that names it": failing(400, "BadHeader", "<Header>If-None-Match or If-Match</Header>"),
    "405": answering(Reply(405)),
}
UNCLEAR = {  # refusals that a write without the condition would meet too, for all that is known
    "400": answering(Reply(400)),
    "400 InvalidDigest": failing(400, "InvalidDigest"),
    "403": answering(Reply(403)),
    "403 AccessDenied": failing(403, "AccessDenied", "<Header>If-None-Match</Header>"),
    "403 SignatureDoesNotMatch": failing(403, "SignatureDoesNotMatch", "<StringToSign>if-none-match:*</StringToSign>"),
    "404 NoSuchBucket": failing(404, "NoSuchBucket"),
}


def save_shards(value: int) -> None:
    s3dlio.save_distributed_shard(f"{BASE}shard.bin", {"value": value}, 0, 1, save_id=f"save-{value}")
    s3dlio.finalize_distributed_checkpoint(BASE, 1, save_id=f"save-{value}")


def load_shards() -> int:
    return int(s3dlio.load_distributed_shard(BASE, 0)["value"])


def save_dcp(value: int) -> None:
    dcp.save({"value": torch.tensor([value])}, BASE)


def load_dcp() -> int:
    state = {"value": torch.tensor([0])}
    dcp.load(state, BASE)
    return int(state["value"])


KINDS: dict[str, tuple[Callable[[int], None], Callable[[], int]]] = {
    "distributed": (save_shards, load_shards),
    "dcp": (save_dcp, load_dcp),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def is_conditional(request: Request) -> bool:
    return request.verb == "PUT" and bool({"if-none-match", "if-match"} & request.headers.keys())


def no_conditions(request: Request) -> Fault | None:
    return NOT_IMPLEMENTED if is_conditional(request) else None


@every_kind
@pytest.mark.parametrize("refusal", REFUSALS)
def test_every_refusal_of_a_condition_means_that_the_server_has_none(kind: str, refusal: str, faults: FaultServer) -> None:
    faults.decide = lambda request: REFUSALS[refusal] if is_conditional(request) else None
    save, load = KINDS[kind]
    for value in (1, 2):
        save(value)
        assert load() == value


@every_kind
@pytest.mark.parametrize("refusal", UNCLEAR)
def test_no_other_refusal_leaves_the_condition_out(kind: str, refusal: str, faults: FaultServer) -> None:
    faults.decide = lambda request: UNCLEAR[refusal] if is_conditional(request) else None
    with pytest.raises(errors.S3dlioError, match=f"{COMMITS[kind]}: {refusal[:3]}"):
        KINDS[kind][0](1)
    assert s3dlio.latest_checkpoint(BASE) is None


@every_kind
def test_a_server_that_finds_no_version_to_match_gets_a_plain_put(kind: str, faults: FaultServer) -> None:
    """Ceph 16 answers an If-Match with the right etag by 412."""
    mismatch = failing(412, "PreconditionFailed")
    faults.decide = lambda request: mismatch if request.verb == "PUT" and "if-match" in request.headers else None
    save, load = KINDS[kind]
    for value in (1, 2):
        save(value)
        assert load() == value


@every_kind
@pytest.mark.parametrize("is_first", [True, False])
def test_a_server_that_passes_over_conditions_keeps_what_another_save_has_committed(
    kind: str, is_first: bool, faults: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults.s3, "_precondition", lambda request: None)
    save, _ = KINDS[kind]
    if not is_first:
        save(1)

    def somebody_is_quicker(request: Request) -> None:
        if request.verb == WHILE_SAVING[kind] and request.key != COMMITS[kind]:
            faults.s3.put(COMMITS[kind], b"of another save")

    faults.decide = somebody_is_quicker
    with pytest.raises(errors.PreconditionFailedError, match=COMMITS[kind]):
        save(2)
    assert faults.s3.get(COMMITS[kind]) == b"of another save"


@every_kind
def test_a_commit_that_was_deleted_meanwhile_is_not_replaced(kind: str, faults: FaultServer) -> None:
    save, _ = KINDS[kind]
    save(1)

    def somebody_deletes(request: Request) -> Fault | None:
        if is_conditional(request):
            del faults.s3.buckets["bkt"][COMMITS[kind]]
            return failing(404, "NoSuchKey")  # as Amazon answers then
        return None

    faults.decide = somebody_deletes
    with pytest.raises(errors.PreconditionFailedError, match=COMMITS[kind]):
        save(2)
    assert faults.s3.get(COMMITS[kind]) is None


@every_kind
def test_a_checkpoint_is_committed_and_replaced_by_plain_puts(
    kind: str, faults: FaultServer, caplog: pytest.LogCaptureFixture
) -> None:
    faults.decide = no_conditions
    save, load = KINDS[kind]
    with caplog.at_level(logging.WARNING, "s3dlio"):
        for value in (1, 2):
            save(value)
            assert load() == value
    assert len(list(filter(is_conditional, faults.requests))) == 2
    (first, _) = (record.getMessage() for record in caplog.records if record.name == "s3dlio")
    assert f"s3://bkt/{COMMITS[kind]}" in first
    assert "501 NotImplemented" in first
    assert [found.kind for found in s3dlio.list_checkpoints(BASE)] == [kind]


@every_kind
@pytest.mark.parametrize("is_first", [True, False])
def test_what_another_save_has_committed_meanwhile_stays(kind: str, is_first: bool, faults: FaultServer) -> None:
    save, _ = KINDS[kind]
    if not is_first:
        save(1)

    def somebody_was_quicker(request: Request) -> Fault | None:
        if is_conditional(request):
            faults.s3.put(COMMITS[kind], b"of another save")
        return no_conditions(request)

    faults.decide = somebody_was_quicker
    with pytest.raises(errors.PreconditionFailedError, match=COMMITS[kind]):
        save(2)
    assert faults.s3.get(COMMITS[kind]) == b"of another save"


@every_kind
def test_a_server_that_refuses_the_plain_put_as_well_is_told_of(kind: str, faults: FaultServer) -> None:
    faults.decide = lambda request: NOT_IMPLEMENTED if request.key == COMMITS[kind] and request.verb == "PUT" else None
    with pytest.raises(errors.UnsupportedError, match=rf"s3://bkt/{COMMITS[kind]}: 501 .*use a server that knows"):
        KINDS[kind][0](1)
    assert s3dlio.latest_checkpoint(BASE) is None


def test_a_condition_of_the_caller_is_never_left_out(faults: FaultServer) -> None:
    faults.decide = no_conditions
    for condition in ({"if_absent": True}, {"if_match": "etag"}):
        with pytest.raises(errors.UnsupportedError, match=r"s3://bkt/lock: 501 NotImplemented.*\(if_absent, if_match\)"):
            s3dlio.put_bytes("s3://bkt/lock", b"me", **condition)  # type: ignore[arg-type]
    assert len(faults.requests) == 2
    assert faults.s3.get("lock") is None
