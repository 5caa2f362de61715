"""An environment of its own for each engine that is measured against."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CACHE = Path(__file__).parent.parent / ".cache" / "benchmarks"


def python_with(requirement: str) -> str:
    """The Python that has this requirement installed; its environment is made when it is first needed."""
    python = CACHE / requirement / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", requirement], check=True)
    return str(python)
