"""The layers of the sandbox, and the sets of them (*tiers*) that are enough to run an untrusted program."""

from __future__ import annotations

import sys
from collections.abc import Mapping

LAYERS = {
    "namespaces": "process ids, mounts, network, IPC and host name of its own",
    "private-root": "an empty file system",
    "uid": "a user other than root, without capabilities",
    "landlock": "no file can be opened or changed; no TCP",
    "rlimits": "limits of processor time, memory and descriptors; no file can be written",
    "nested-landlock": "the parent process can be neither signalled nor inspected",
    "seccomp": "only system calls that computing needs; none that takes a path",
}
"""The kernel's layers around a program, from the outermost to the innermost, and what each one does."""

_WAYS_OUT = (
    "Use Linux 5.13 or newer with seccomp and Landlock, or a container with them (on macOS, Docker Desktop). If "
    "nothing on the machine needs protection and rewards need not be trusted, use sandbox='process'."
)
UNISOLATED = "process"
"""The tier of ``Sandbox(mode="process")``: a process and limits for each program, no protection against attacks."""


class SandboxError(RuntimeError):
    """The sandbox failed, not the program: it could not be isolated, started or watched to its end.

    Parameters
    ----------
    message : str
    absent : mapping of str to str, optional
        The missing layers and the reason for each, where they are the cause.
    """

    def __init__(self, message: str, absent: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.absent = absent


def tier_of(absent: Mapping[str, str], without: tuple[str, ...] = ()) -> str:
    """Return the name of the tier in force.

    ==================  ======================================================================================
    tier                meaning
    ==================  ======================================================================================
    ``full``            all layers
    ``no-namespaces``   as in most containers: a program is among the machine's processes, but cannot affect them
    ``no-landlock``     an older kernel: the private root alone hides the files
    ``without …``       layers left out on purpose, for tests
    ==================  ======================================================================================

    Parameters
    ----------
    absent : mapping of str to str
        The missing layers and the reason for each.
    without : tuple of str
        Layers left out on purpose.

    Raises
    ------
    SandboxError
        If the remaining layers would not isolate a program.
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
    """Raise :class:`SandboxError` on systems other than Linux."""
    if sys.platform != "linux":
        reason = f"not on {sys.platform}"
        raise SandboxError(f"programs cannot be isolated on {sys.platform}. {_WAYS_OUT}", dict.fromkeys(LAYERS, reason))
