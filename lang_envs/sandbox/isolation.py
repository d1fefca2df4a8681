"""The layers that the kernel puts around a program nobody trusts, each a function that takes it or raises ``OSError``.

This file and its neighbours ``protocol``, ``seccomp``, ``selftest``, ``syscalls`` and ``zygote`` are run by an
interpreter of their own, in which nothing of the suite is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import resource
import struct
from pathlib import Path

from lang_envs.sandbox import protocol, seccomp

_libc = ctypes.CDLL(None, use_errno=True)

_NEW_NAMESPACES = 0x00020000 | 0x08000000 | 0x04000000 | 0x20000000 | 0x40000000  # mount, ipc, uts, pid, net
_NEW_USER = 0x10000000
_SYSCALLS = {
    "x86_64": {"pivot_root": 155, "capset": 126, "seccomp": 317},
    "aarch64": {"pivot_root": 41, "capset": 91, "seccomp": 277},
}
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT, _CLOSE_RANGE = 444, 446, 436


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _syscall(number: int | str, *arguments: int | bytes) -> int:
    if isinstance(number, str):
        known = _SYSCALLS.get(platform.machine())
        if known is None:
            raise OSError(f"{number}: not known on {platform.machine()}")
        number = known[number]
    converted = [ctypes.c_long(a) if isinstance(a, int) else ctypes.c_char_p(a) for a in arguments]
    return _check(_libc.syscall(ctypes.c_long(number), *converted), f"system call {number}")


def _prctl(option: int, *arguments: int) -> None:
    _check(_libc.prctl(option, *[ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0)][:4]), f"prctl {option}")


# --------------------------------------------------------------------------------------------------------- namespaces


def enter_namespaces(user: int) -> None:
    """Process ids, mounts, network, IPC and host name of one's own; takes effect for processes forked from now on.

    Where it needs a new user namespace as well, this user is called ``user`` in there.
    """
    if os.geteuid() == 0 and _libc.unshare(_NEW_NAMESPACES) == 0:
        return
    outer_user, outer_group = os.geteuid(), os.getegid()
    _check(_libc.unshare(_NEW_NAMESPACES | _NEW_USER), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {outer_user} 1")
    Path("/proc/self/gid_map").write_text(f"{user} {outer_group} 1")


def _mount(source: str, target: Path, kind: str | None, flags: int) -> None:
    arguments = (source.encode(), bytes(target), kind.encode() if kind else None)
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), None), f"mount {target}")


def enter_private_root() -> None:
    """Leave the file system for an empty one."""
    base = Path("/tmp")
    private, no_changes, detach = (1 << 18) | 16384, 1 | 2 | 4 | 8, 2  # read-only, no set-user-id, devices, programs
    _mount("none", Path("/"), None, private)
    _mount("none", base, "tmpfs", no_changes)
    os.chdir(base)
    _syscall("pivot_root", b".", b".")
    _check(_libc.umount2(b".", detach), "umount2")
    os.chdir("/")


# -------------------------------------------------------------------------------------------------------- credentials


def drop_user(user: int) -> None:
    """Be another user where this one is root, and without any capability."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    _syscall("capset", struct.pack("=Ii", 0x20080522, 0), bytes(24))


def forbid_privileges() -> None:
    """No program started from here gains a privilege; other processes of the same user can't look into this one."""
    _prctl(38, 1)
    forbid_inspection()


def forbid_inspection() -> None:
    """Has to be said anew after each fork and each change of user."""
    _prctl(4, 0)


def be_killed_first() -> None:
    """Where memory runs out, let the kernel end a process of the sandbox and not the trainer."""
    with contextlib.suppress(OSError):  # no /proc, or one that cannot be written to
        Path("/proc/self/oom_score_adj").write_text("1000")


def end_of(child: int, number: int) -> bytearray:
    """Wait for a child; the message about it, a ``protocol.ENDING``, which the kernel fills in."""
    ending = bytearray(8 + 4 + 144)  # with the whole of `struct rusage`
    struct.pack_into("=Q", ending, 0, number)
    start = ctypes.addressof(ctypes.c_char.from_buffer(ending))
    while _libc.wait4(child, ctypes.c_void_p(start + 8), 0, ctypes.c_void_p(start + 12)) < 0:
        if ctypes.get_errno() != errno.EINTR:
            raise OSError(ctypes.get_errno(), "wait4")
    message = ending[: protocol.ENDING.size]
    # In place, before anything is freed: a later child could read what this one used.
    ctypes.memset(start, 0, len(ending))
    return message


def die_with_parent(parent: int) -> None:
    """End when the process that forked this one does."""
    _prctl(1, 9)
    if os.getppid() != parent:
        os._exit(99)


# ----------------------------------------------------------------------------------------------------------- Landlock


def landlock_version() -> int:
    """Version of the kernel's Landlock interface; 0 where there is none."""
    return max(0, int(_libc.syscall(ctypes.c_long(_LANDLOCK_CREATE), None, ctypes.c_long(0), ctypes.c_long(1))))


def _create_ruleset(files: int, network: int, scopes: int) -> int:
    version = landlock_version()
    if not version:
        raise OSError("this kernel has no Landlock")
    fields = (files, network if version >= 4 else 0, scopes if version >= 6 else 0)
    attributes = struct.pack("=QQQ", *fields)[: 8 if version < 4 else 16 if version < 6 else 24]
    return _syscall(_LANDLOCK_CREATE, attributes, len(attributes), 0)


def enter_landlock() -> None:
    """No file can be opened or changed; no TCP, no signal or socket out of here."""
    version = landlock_version()
    rights = (1 << (13, 14, 15, 15, 16)[min(version, 5) - 1]) - 1 if version else 0
    ruleset = _create_ruleset(rights, 3, 3)
    _syscall(_LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)


def create_nested_landlock() -> int:
    """The descriptor of a domain inside which a child can neither signal nor inspect the process it came from."""
    return _create_ruleset(0, 0, 3) if landlock_version() >= 6 else _create_ruleset(1 << 6, 0, 0)


def enter_nested_landlock(ruleset: int) -> None:
    _syscall(_LANDLOCK_RESTRICT, ruleset, 0)


# ------------------------------------------------------------------------------------------------------ in each child


def close_descriptors(first: int) -> None:
    """Close every descriptor from ``first`` on."""
    if _libc.syscall(ctypes.c_long(_CLOSE_RANGE), ctypes.c_uint(first), ctypes.c_uint(0xFFFFFFFF), ctypes.c_uint(0)):
        os.closerange(first, 4096)


def limit_resources(cpu_seconds: int, memory: int) -> None:
    """Hard limits: processor time, address space in bytes, few descriptors, no files written, no core files."""
    limits = {
        "RLIMIT_CORE": (0, 0),
        "RLIMIT_CPU": (cpu_seconds, cpu_seconds + 1),
        "RLIMIT_AS": (memory, memory),
        "RLIMIT_NOFILE": (64, 64),
        "RLIMIT_NPROC": (0, 0),
        "RLIMIT_FSIZE": (0, 0),
        "RLIMIT_MSGQUEUE": (0, 0),
        "RLIMIT_MEMLOCK": (0, 0),
        "RLIMIT_STACK": (8 << 20, 8 << 20),
    }
    for name, pair in limits.items():
        if hasattr(resource, name):
            kind = getattr(resource, name)
            most = resource.getrlimit(kind)[1]
            resource.setrlimit(
                kind, pair if most == resource.RLIM_INFINITY else (min(pair[0], most), min(pair[1], most))
            )


class Filter:
    """The filter of system calls, assembled once and put on in each child.

    Raises
    ------
    OSError
        If there is no table of system calls for this kind of machine.
    """

    def __init__(self) -> None:
        code = seccomp.program(platform.machine())
        if code is None:
            raise OSError(f"no table of system calls for {platform.machine()}")
        self._code = ctypes.create_string_buffer(code, len(code))
        self._program = struct.pack("@HP", len(code) // 8, ctypes.addressof(self._code))

    def enter(self) -> None:
        _syscall("seccomp", 1, 0, self._program)
