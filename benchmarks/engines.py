"""The engines that are measured, each with a client script and an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
CLIENTS = ROOT / "benchmarks" / "clients"
PINS = ROOT / "benchmarks" / "pins.txt"
INSTALL_TIMEOUT = 900.0


class Engine(NamedTuple):
    """Which script drives it, what it reads, whether in the project's own environment, and what part of a work it gets.

    What needs milliseconds per object gets fewer small objects; rates and costs are per object.
    """

    client: str
    reads: str = "s3"  # or files, anything
    is_ours: bool = False
    share: float = 1.0
    takes_authority: bool = True  # a private one, for TLS


ENGINES = {
    "s3dlio": Engine("s3dlio", "anything", is_ours=True),
    "original-0.9.100": Engine("original"),
    "original-0.10.0": Engine("original"),
    "obstore": Engine("obstore"),
    "s3torchconnector": Engine("s3torchconnector", takes_authority=False),
    "s3fs": Engine("s3fs", share=0.2),
    "boto3": Engine("boto3", share=0.2),
    "open().read()": Engine("plain", "files", is_ours=True),
    "open().read(), 8 threads": Engine("plain_threads", "files", is_ours=True),
    "np.fromfile": Engine("plain_numpy", "files", is_ours=True),
    "torch.load(path)": Engine("plain_torch", "files", is_ours=True),
    "torch.load(mmap=True)": Engine("plain_mmap", "files", is_ours=True),
    "limit": Engine("limit", is_ours=True),
}
OURS, LIMIT = "s3dlio", "limit"


class NotInstalledError(Exception):
    """An engine has no wheel that installs here."""


def pins(text: str) -> dict[str, list[str]]:
    """The requirements of each environment."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: words.split() for name, _, words in (line.partition(": ") for line in lines)}


def default_folder() -> Path:
    """Where environments are kept unless told otherwise: what S3DLIO_BENCH_ENVIRONMENTS says, or below `.cache`."""
    return Path(os.environ.get("S3DLIO_BENCH_ENVIRONMENTS", ROOT / ".cache" / "benchmarks"))


class Environments:
    """Virtual environments below `folder`, made when they are first needed and kept for the next run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._pins = pins(PINS.read_text(encoding="utf-8"))

    def python(self, engine: str) -> str:
        """The interpreter in which the engine's client runs. NotInstalledError when pip cannot install the engine."""
        return sys.executable if ENGINES[engine].is_ours else self._made(engine)

    def _made(self, name: str) -> str:
        environment = self._folder / name
        python, mark = environment / "bin" / "python", environment / "installed"
        wanted = " ".join(self._pins[name])
        if mark.is_file() and mark.read_text() == wanted:
            return str(python)
        print(f"installing {wanted} for {name}", file=sys.stderr)
        _run([sys.executable, "-m", "venv", "--clear", str(environment)])
        if name != "torch":
            (packages,) = environment.glob("lib/python*/site-packages")
            shared = Path(self._made("torch")).parent.parent / packages.relative_to(environment)
            (packages / "shared_torch.pth").write_text(f"{shared}\n")
        _run([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *self._pins[name]])
        mark.write_text(wanted)
        return str(python)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise NotInstalledError(f"does not install on Python {sys.version_info[0]}.{sys.version_info[1]}: {lines[-1]}")
