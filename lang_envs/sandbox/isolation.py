"""The kernel's layers around an untrusted program: each is a function that enters the layer or raises ``OSError``.

This module and ``child``, ``fork_server``, ``preload``, ``protocol``, ``seccomp``, ``selftest`` and ``syscalls`` run in
an interpreter of their own, which imports nothing else of the package. Constants are named as in the kernel's headers.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import resource
import signal
import struct
from pathlib import Path

from lang_envs.sandbox import protocol, seccomp

_libc = ctypes.CDLL(None, use_errno=True)

_CLOSE_RANGE, _LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF = 436, 444, 446
"""Numbers of system calls, the same on every machine."""
_SYSCALLS = {
    "x86_64": {"pivot_root": 155, "capset": 126, "seccomp": 317},
    "aarch64": {"pivot_root": 41, "capset": 91, "seccomp": 277},
}
"""Numbers of older system calls, which differ between machines."""


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _syscall(number: int | str, *arguments: int | bytes) -> int:
    if isinstance(number, str):
        known = _SYSCALLS.get(platform.machine())
        if known is None:
            raise OSError(f"the number of the system call {number} is not known on {platform.machine()}")
        number = known[number]
    converted = [ctypes.c_long(a) if isinstance(a, int) else ctypes.c_char_p(a) for a in arguments]
    return _check(_libc.syscall(ctypes.c_long(number), *converted), f"system call {number}")


def _prctl(option: int, *arguments: int) -> None:
    _check(_libc.prctl(option, *[ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0)][:4]), f"prctl {option}")


# --------------------------------------------------------------------------------------------------------- namespaces

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_NEW_NAMESPACES = _CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWPID | _CLONE_NEWNET
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 1, 2, 4, 8, 1 << 14, 1 << 18
_MNT_DETACH = 2


def enter_namespaces(user: int) -> None:
    """Enter new namespaces of processes, mounts, network, IPC and host name, for processes forked from now on.

    Where this needs a new user namespace as well, the present user has the id ``user`` inside it.
    """
    if os.geteuid() == 0 and _libc.unshare(_NEW_NAMESPACES) == 0:
        return
    outer_user, outer_group = os.geteuid(), os.getegid()
    _check(_libc.unshare(_NEW_NAMESPACES | _CLONE_NEWUSER), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {outer_user} 1")
    Path("/proc/self/gid_map").write_text(f"{user} {outer_group} 1")


def _mount(source: str, target: Path, kind: str | None, flags: int) -> None:
    arguments = (source.encode(), bytes(target), kind.encode() if kind else None)
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), None), f"mount {target}")


def enter_private_root() -> None:
    """Replace the file system by an empty one that cannot be written to."""
    base = Path("/tmp")
    _mount("none", Path("/"), None, _MS_PRIVATE | _MS_REC)
    _mount("none", base, "tmpfs", _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    os.chdir(base)
    _syscall("pivot_root", b".", b".")
    _check(_libc.umount2(b".", _MNT_DETACH), "umount2")
    os.chdir("/")


# -------------------------------------------------------------------------------------------------------- credentials

_CAPABILITY_HEADER = struct.Struct("=Ii")
"""``struct __user_cap_header_struct``: version, process id."""
_CAPABILITY_VERSION_3, _THIS_PROCESS = 0x20080522, 0
_NO_CAPABILITIES = bytes(24)
"""Two ``struct __user_cap_data_struct``: no effective, permitted or inheritable capability."""
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_OOM_SCORE_MOST = "1000"
"""The kernel kills this process before all others."""
_ENDING_NUMBER = struct.Struct("=Q")
"""The first field of ``protocol.ENDING``; wait4(2) fills in the others."""
_WAIT_STATUS_BYTES, _RUSAGE_BYTES = 4, 144
"""Sizes of an int and of ``struct rusage``, whose first four fields end a ``protocol.ENDING``."""


def drop_user(user: int) -> None:
    """Become another user if this one is root, and give up every capability."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    _syscall("capset", _CAPABILITY_HEADER.pack(_CAPABILITY_VERSION_3, _THIS_PROCESS), _NO_CAPABILITIES)


def forbid_privileges() -> None:
    """Let no program that is executed from here gain a privilege, and :func:`forbid_inspection`."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    forbid_inspection()


def forbid_inspection() -> None:
    """Let other processes of the same user not inspect this one; needed again after each fork and change of user."""
    _prctl(_PR_SET_DUMPABLE, 0)


def be_killed_first() -> None:
    """Make the kernel kill a process of the sandbox, and not the trainer, when memory runs out."""
    with contextlib.suppress(OSError):  # no /proc, or one that cannot be written to
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE_MOST)


def end_of(child: int, number: int) -> bytearray:
    """Wait for the end of a child; return the message about it, a ``protocol.ENDING`` that the kernel filled in."""
    ending = bytearray(_ENDING_NUMBER.size + _WAIT_STATUS_BYTES + _RUSAGE_BYTES)
    _ENDING_NUMBER.pack_into(ending, 0, number)
    start = ctypes.addressof(ctypes.c_char.from_buffer(ending))
    status = start + _ENDING_NUMBER.size
    while _libc.wait4(child, ctypes.c_void_p(status), 0, ctypes.c_void_p(status + _WAIT_STATUS_BYTES)) < 0:
        if ctypes.get_errno() != errno.EINTR:
            raise OSError(ctypes.get_errno(), "wait4")
    message = ending[: protocol.ENDING.size]
    # In place, before anything is freed: a later child could read how much this one used.
    ctypes.memset(start, 0, len(ending))
    return message


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the one that forked it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(protocol.EXIT_NOT_STARTED)


# ----------------------------------------------------------------------------------------------------------- Landlock

_LANDLOCK_CREATE_RULESET_VERSION = 1 << 0
_LANDLOCK_RULESET = struct.Struct("=QQQ")
"""``struct landlock_ruleset_attr``: the file rights, network rights and scopes that are denied."""
_FILE_FIELDS_BYTES, _NETWORK_FIELDS_BYTES = 8, 16
"""Its size up to the first and up to the second field."""
_NETWORK_VERSION, _SCOPE_VERSION = 4, 6
"""Versions of the interface that added the second and the third field."""
_FILE_RIGHTS = (13, 14, 15, 15, 16)
"""Number of file rights in versions 1 to 5; the rights are the lowest bits."""
_LANDLOCK_ACCESS_FS_MAKE_CHAR = 1 << 6
_LANDLOCK_ACCESS_NET_BIND_TCP, _LANDLOCK_ACCESS_NET_CONNECT_TCP = 1 << 0, 1 << 1
_LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET, _LANDLOCK_SCOPE_SIGNAL = 1 << 0, 1 << 1
_NETWORK_RIGHTS = _LANDLOCK_ACCESS_NET_BIND_TCP | _LANDLOCK_ACCESS_NET_CONNECT_TCP
_SCOPES = _LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | _LANDLOCK_SCOPE_SIGNAL


def landlock_version() -> int:
    """Return the version of the kernel's Landlock interface; 0 where there is none."""
    flags = ctypes.c_long(_LANDLOCK_CREATE_RULESET_VERSION)
    return max(0, int(_libc.syscall(ctypes.c_long(_LANDLOCK_CREATE_RULESET), None, ctypes.c_long(0), flags)))


def _create_ruleset(files: int, network: int, scopes: int) -> int:
    version = landlock_version()
    if not version:
        raise OSError("this kernel has no Landlock")
    has_network, has_scopes = version >= _NETWORK_VERSION, version >= _SCOPE_VERSION
    attributes = _LANDLOCK_RULESET.pack(files, network if has_network else 0, scopes if has_scopes else 0)
    if not has_scopes:
        attributes = attributes[: _NETWORK_FIELDS_BYTES if has_network else _FILE_FIELDS_BYTES]
    return _syscall(_LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)


def enter_landlock() -> None:
    """Forbid opening and changing files, TCP, and signals and sockets to processes outside."""
    version = landlock_version()
    rights = (1 << _FILE_RIGHTS[min(version, len(_FILE_RIGHTS)) - 1]) - 1 if version else 0
    ruleset = _create_ruleset(rights, _NETWORK_RIGHTS, _SCOPES)
    _syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def create_nested_landlock() -> int:
    """Return the descriptor of a rule set under which a child can neither signal nor inspect its parent.

    The domain itself forbids inspection; a rule set must deny at least one right, so older kernels deny making devices.
    """
    if landlock_version() >= _SCOPE_VERSION:
        return _create_ruleset(0, 0, _SCOPES)
    return _create_ruleset(_LANDLOCK_ACCESS_FS_MAKE_CHAR, 0, 0)


def enter_nested_landlock(ruleset: int) -> None:
    """Enter the domain of :func:`create_nested_landlock`."""
    _syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0)


# ------------------------------------------------------------------------------------------------------ in each child

_LAST_DESCRIPTOR = 0xFFFFFFFF
_CLOSED_ONE_BY_ONE = 4096
"""Descriptors that are closed on a kernel without close_range(2)."""
_OPEN_FILES, _STACK_BYTES = 64, 8 << 20
_SECCOMP_SET_MODE_FILTER = 1
_SOCK_FPROG = struct.Struct("@HP")
"""``struct sock_fprog``: number of instructions, address of the first."""


def close_descriptors(first: int) -> None:
    """Close every descriptor from ``first`` on."""
    bounds = ctypes.c_uint(first), ctypes.c_uint(_LAST_DESCRIPTOR)
    if _libc.syscall(ctypes.c_long(_CLOSE_RANGE), *bounds, ctypes.c_uint(0)):
        os.closerange(first, _CLOSED_ONE_BY_ONE)


def limit_resources(cpu_seconds: int, memory: int) -> None:
    """Set hard limits: processor time in s, address space in bytes, few descriptors, no file written, no core file."""
    limits = {
        "RLIMIT_CORE": (0, 0),
        "RLIMIT_CPU": (cpu_seconds, cpu_seconds + 1),
        "RLIMIT_AS": (memory, memory),
        "RLIMIT_NOFILE": (_OPEN_FILES, _OPEN_FILES),
        "RLIMIT_NPROC": (0, 0),
        "RLIMIT_FSIZE": (0, 0),
        "RLIMIT_MSGQUEUE": (0, 0),
        "RLIMIT_MEMLOCK": (0, 0),
        "RLIMIT_STACK": (_STACK_BYTES, _STACK_BYTES),
    }
    for name, pair in limits.items():
        if hasattr(resource, name):
            kind = getattr(resource, name)
            most = resource.getrlimit(kind)[1]
            resource.setrlimit(
                kind, pair if most == resource.RLIM_INFINITY else (min(pair[0], most), min(pair[1], most))
            )


class Filter:
    """The filter of system calls, assembled once and entered by each child.

    Raises
    ------
    OSError
        If there is no table of system calls for this kind of machine.
    """

    def __init__(self) -> None:
        code = seccomp.program(platform.machine())
        if code is None:
            raise OSError(f"there is no table of system calls for {platform.machine()}")
        self._code = ctypes.create_string_buffer(code, len(code))
        self._program = _SOCK_FPROG.pack(len(code) // seccomp.INSTRUCTION.size, ctypes.addressof(self._code))

    def enter(self) -> None:
        """From now on, let the kernel check every system call of this process."""
        _syscall("seccomp", _SECCOMP_SET_MODE_FILTER, 0, self._program)
