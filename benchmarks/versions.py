"""What something was made with."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

VERSIONS_FILE = "versions.txt"
COMMAND = "command: "
"""How the line begins that says what was typed."""
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
    """Lines that name the machine, the commit where there is one, and the packages that matter."""
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
