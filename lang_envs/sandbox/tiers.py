"""Which layers there are, and which sets of them are enough to run a program nobody trusts."""

from __future__ import annotations

import sys
from collections.abc import Mapping

LAYERS = {
    "namespaces": "its own process ids, mounts, network, IPC and host name",
    "private-root": "an empty file system",
    "uid": "another user than root, no capabilities",
    "landlock": "no file opened or changed; no TCP",
    "rlimits": "processor time, memory, descriptors, no files written",
    "nested-landlock": "no signal to, and no look into, the process it was forked from",
    "seccomp": "system calls for computing, and no others: none that takes a path",
}
"""The kernel's layers around a program, from the outermost to the innermost, and what each one gives."""

_WAYS_OUT = (
    "Use Linux 5.13 or newer with seccomp and Landlock, or a container with them (on macOS, Docker Desktop); or, where "
    "nothing on the machine is worth protecting and no reward has to be trusted, sandbox='process'."
)
UNISOLATED = "process"
"""The tier of ``Sandbox(mode="process")``: a process of its own and limits, which keep no attack out."""


class SandboxError(RuntimeError):
    """The machinery failed, not the program: it could not be isolated, started, or watched to its end.

    ``absent`` holds the layers that could not be had, and why, where that is the reason.
    """

    def __init__(self, message: str, absent: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.absent = absent


def tier_of(absent: Mapping[str, str], without: tuple[str, ...] = ()) -> str:
    """The name of the tier in force, from the layers that could not be had and why.

    ``full``; ``no-namespaces``, as in most containers: a program is among the machine's processes, though it can do
    nothing to them; ``no-landlock``: the private root stands alone. Layers ``without`` which a test wants to run are
    named.

    Raises
    ------
    SandboxError
        If what is left would not keep a program in.
    """
    if without:
        return "without " + ", ".join(without)
    missing = [layer for layer in ("seccomp", "rlimits", "uid") if layer in absent]
    if "landlock" in absent and "private-root" in absent:
        missing += ["landlock", "private-root"]
    if missing:
        reasons = "; ".join(f"{layer}: {absent[layer]}" for layer in missing)
        raise SandboxError(
            f"programs cannot be isolated on this machine ({reasons}). `python -m lang_envs doctor` shows every layer. "
            + _WAYS_OUT,
            absent,
        )
    if "namespaces" in absent or "private-root" in absent:
        return "no-namespaces"
    return "no-landlock" if "landlock" in absent else "full"


def check_platform() -> None:
    """Raise :class:`SandboxError` where no program can be isolated at all."""
    if sys.platform != "linux":
        reason = f"not on {sys.platform}"
        raise SandboxError(f"programs cannot be isolated on {sys.platform}. {_WAYS_OUT}", dict.fromkeys(LAYERS, reason))
