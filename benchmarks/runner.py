"""Run a work: engines take turns, each in a fresh process of its own environment, and must deliver what is stored."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.bars import Result
from benchmarks.engines import CLIENTS, ENGINES, LIMIT, ROOT, Environments, NotInstalledError
from benchmarks.servers import Servers
from benchmarks.stages import Stage, is_stored, stage_of
from benchmarks.tables import result_of
from benchmarks.works import Work

CLIENT_TIMEOUT = 600.0
# What would send a client elsewhere, or have it trust others.
UNWANTED = ("AWS_", "S3DLIO_", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "SSL_CERT_",
            "REQUESTS_CA_", "CURL_CA_", "PYTHON")  # fmt: skip


class FailedError(Exception):
    """An engine did not do its work, or did not deliver what is stored."""


def environment_for(engine: str, told: dict[str, str]) -> dict[str, str]:
    """A client's environment; those that run in the project's own interpreter see the s3dlio of this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(UNWANTED)}
    ours = {"PYTHONPATH": str(ROOT)} if ENGINES[engine].is_ours else {}
    return {**kept, **told, **ours}


def run_client(engine: str, work: Work, stage: Stage, environments: Environments, servers: Servers) -> dict[str, Any]:
    """What the harness measured. FailedError, with the last line of what the client said."""
    fields = ("function", "size", "in_flight", "cold", "drop", "first", "workers", "context", "own_mib", "imports")
    plan = {"uris": stage.uris, "tiny": stage.tiny, **{name: getattr(work, name) for name in fields}}
    command = [environments.python(engine), str(CLIENTS / f"{ENGINES[engine].client}_client.py")]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(plan),
            env=environment_for(engine, stage.environment),
            cwd=servers.folder,
            capture_output=True,
            text=True,
            timeout=CLIENT_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FailedError(f"not done within {CLIENT_TIMEOUT:.0f} s") from None
    if done.returncode:
        raise FailedError((done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1][:200])
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def measure(engine: str, work: Work, stage: Stage, environments: Environments, servers: Servers) -> dict[str, Any]:
    """The report of an engine that did what was asked; {"lacks": …} from one that cannot."""
    report = run_client(engine, work, stage, environments, servers)
    if "lacks" in report or (engine == LIMIT and work.function != "list"):
        return report
    if not stage.is_delivered(report) or (work.function == "save" and not is_stored(work, servers)):
        raise FailedError("delivered something else than what is stored")
    return report


def run_work(
    work: Work, engines: Sequence[str], repeats: int, environments: Environments, servers: Servers
) -> tuple[dict[str, Result], dict[tuple[str, str], str]]:
    """The results by engine, and why some have none."""
    engines = [engine for engine in engines if ENGINES[engine].reads in ("anything", work.kind)]
    if work.server == "seaweedfs":
        engines = [engine for engine in engines if engine != LIMIT]  # it signs nothing
    whole = stage_of(work, servers)
    stages = {engine: whole if work.is_large else whole.part(ENGINES[engine].share) for engine in engines}
    reports: dict[str, list[dict[str, Any]]] = {engine: [] for engine in engines}
    notes: dict[tuple[str, str], str] = {}
    for engine in [engine for engine in engines if work.server == "tls" and not ENGINES[engine].takes_authority]:
        notes[work.name, engine] = "takes no private certificate authority"
        del reports[engine]
    for engine in [engine for _ in range(repeats) for engine in engines]:
        if engine not in reports:
            continue
        try:
            report = measure(engine, work, stages[engine], environments, servers)
        except (FailedError, NotInstalledError) as error:
            notes[work.name, engine] = str(error)
            del reports[engine]
            print(f"{work.name}, {engine}: {error}", file=sys.stderr, flush=True)
            continue
        if "lacks" in report:
            del reports[engine]
        else:
            reports[engine].append(report)
            figures = {name: round(value, 3) for name, value in report.items() if name in ("wall", "cpu", "peak_mib")}
            print(f"{work.name}, {engine}: {figures}", file=sys.stderr, flush=True)
    return {name: result_of(work, _amount(work, stages[name]), some) for name, some in reports.items()}, notes


def _amount(work: Work, stage: Stage) -> int:
    """How many objects of the work's size an engine was given."""
    return len(stage.crcs) if work.function == "list" else len(stage.uris)
