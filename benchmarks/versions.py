"""Versions of the machine, the commit and the packages."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

VERSIONS_FILE = "versions.txt"
COMMAND = "command: "
"""Start of the line with the command."""
_PACKAGES = (
    "lang-envs",
    "torch",
    "transformers",
    "peft",
    "gymnasium",
    "numpy",
    "tokenizers",
    "scikit-learn",
    "bitsandbytes",
)


def versions() -> list[str]:
    """Return lines with the machine, the commit if there is one, and the versions of important packages."""
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    found = [f"python {platform.python_version()} on {machine}"]
    describe = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    if shutil.which("git") and (said := subprocess.run(describe, capture_output=True, text=True)).returncode == 0:
        found.append(f"commit {said.stdout.strip()}")
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} is not installed")
    return found
