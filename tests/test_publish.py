"""Commits on servers that have no conditional writes and say so (501), and what such a server means elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch

import s3dlio
from s3dlio import errors
from s3dlio.torch import dcp

from .fake_s3 import Request
from .faults import Fault, FaultServer, failing

BASE = "s3://bkt/run/"
COMMITS = {"distributed": "run/s3dlio-manifest.json", "dcp": "run/.metadata"}
NOT_IMPLEMENTED = failing(501, "NotImplemented")


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
