"""The filter of system calls, assembled for the kernel's classic BPF machine: a binary search over their numbers."""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence

from lang_envs.sandbox import syscalls

_LOAD, _JUMP, _JUMP_EQ, _JUMP_GE, _RETURN = 0x20, 0x05, 0x15, 0x35, 0x06
_KILL, _ALLOW = 0x80000000, 0x7FFF0000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000
_FCNTL = (0, 1, 2, 3, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC: no locks, leases or signals

Instruction = tuple[int, int, int, int]


def program(machine: str) -> bytes | None:
    """The filter for that kind of machine, an array of ``struct sock_filter``; None where there is no table."""
    numbers = syscalls.numbers(machine)
    if not numbers:
        return None
    answers = {numbers[name]: _answer(name) for name in numbers}
    # Every number from a boundary up to the next has one answer.
    boundaries = [(0, _refuse(errno.EPERM))]
    for number in sorted(answers):
        for start, answer in ((number, answers[number]), (number + 1, answers.get(number + 1, _refuse(errno.EPERM)))):
            if boundaries[-1][0] == start:
                boundaries[-1] = (start, answer)
            elif boundaries[-1][1] != answer:
                boundaries.append((start, answer))
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQ, 1, 0, _AUDIT_ARCHITECTURE[machine]),
        *_return(_KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_GE, 0, 1, _X32),
        *_return(_KILL),
        *_search(boundaries),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _search(boundaries: Sequence[tuple[int, list[Instruction]]]) -> list[Instruction]:
    if len(boundaries) == 1:
        return boundaries[0][1]
    middle = len(boundaries) // 2
    below, above = _search(boundaries[:middle]), _search(boundaries[middle:])
    if len(below) < 256:
        return [(_JUMP_GE, len(below), 0, boundaries[middle][0]), *below, *above]
    return [(_JUMP_GE, 0, 1, boundaries[middle][0]), (_JUMP, 0, 0, len(below)), *below, *above]


def _answer(name: str) -> list[Instruction]:
    if name in syscalls.ALLOWED:
        return _return(_ALLOW)
    if name in syscalls.KILLED:
        return _return(_KILL)
    if name in syscalls.ANSWERED:
        return _refuse(syscalls.ANSWERED[name])
    if name == "fcntl":
        tests = [(_JUMP_EQ, len(_FCNTL) - i, 0, command) for i, command in enumerate(_FCNTL)]
        return [(_LOAD, 0, 0, _ARGUMENTS + 8), *tests, *_refuse(errno.EPERM), *_return(_ALLOW)]
    assert name == "prlimit64"  # of oneself, and only to look: process 0, no new limit
    words = (_ARGUMENTS, _ARGUMENTS + 4, _ARGUMENTS + 16, _ARGUMENTS + 20)
    tests = [
        instruction
        for i, word in enumerate(words)
        for instruction in ((_LOAD, 0, 0, word), (_JUMP_EQ, 0, 2 * (len(words) - i) - 1, 0))
    ]
    return [*tests, *_return(_ALLOW), *_refuse(errno.EPERM)]


def _return(action: int) -> list[Instruction]:
    return [(_RETURN, 0, 0, action)]


def _refuse(number: int) -> list[Instruction]:
    return _return(0x00050000 | number)
