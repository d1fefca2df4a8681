"""The filter of system calls, assembled for the kernel's classic BPF machine: a binary search over their numbers."""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence

from lang_envs.sandbox import syscalls

INSTRUCTION = struct.Struct("=HBBI")
"""``struct sock_filter``: operation, instructions to skip if true and if false, operand."""
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
"""BPF_LD | BPF_W | BPF_ABS, BPF_ALU | BPF_AND | BPF_K, BPF_RET | BPF_K."""
_JUMP, _JUMP_EQ, _JUMP_GE = 0x05, 0x15, 0x35
"""BPF_JMP with BPF_JA, BPF_JEQ and BPF_JGE."""
_LONGEST_JUMP = 255
"""A conditional jump skips at most so many instructions."""
_SECCOMP_RET_KILL_PROCESS, _SECCOMP_RET_ERRNO, _SECCOMP_RET_ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Offsets in ``struct seccomp_data``."""
_ARGUMENT_BYTES, _WORD_BYTES = 8, 4
_AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_X86_64 and AUDIT_ARCH_AARCH64."""
_X32_SYSCALL_BIT = 0x40000000
"""Numbers from here on belong to the x32 interface, which would bypass the table."""

Instruction = tuple[int, int, int, int]


def program(machine: str) -> bytes | None:
    """Return the filter for that kind of machine, an array of ``struct sock_filter``; None where there is no table."""
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
        *_return(_SECCOMP_RET_KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_GE, 0, 1, _X32_SYSCALL_BIT),
        *_return(_SECCOMP_RET_KILL_PROCESS),
        *_search(boundaries),
    ]
    return b"".join(INSTRUCTION.pack(*instruction) for instruction in code)


def _search(boundaries: Sequence[tuple[int, list[Instruction]]]) -> list[Instruction]:
    if len(boundaries) == 1:
        return boundaries[0][1]
    middle = len(boundaries) // 2
    below, above = _search(boundaries[:middle]), _search(boundaries[middle:])
    if len(below) <= _LONGEST_JUMP:
        return [(_JUMP_GE, len(below), 0, boundaries[middle][0]), *below, *above]
    return [(_JUMP_GE, 0, 1, boundaries[middle][0]), (_JUMP, 0, 0, len(below)), *below, *above]


def _answer(name: str) -> list[Instruction]:
    if name in syscalls.ALLOWED:
        return _return(_SECCOMP_RET_ALLOW)
    if name in syscalls.KILLED:
        return _return(_SECCOMP_RET_KILL_PROCESS)
    if name in syscalls.ANSWERED:
        return _refuse(syscalls.ANSWERED[name])
    tests = [test for check in syscalls.BY_ARGUMENT[name] for test in _tests(check)]
    return [*tests, *_return(_SECCOMP_RET_ALLOW)]


def _tests(check: syscalls.Check) -> list[Instruction]:
    """Refuse unless the check holds; both kinds of machine store the lower half of an argument first."""
    word = _ARGUMENTS + _ARGUMENT_BYTES * check.argument
    masked = [(_AND, 0, 0, check.mask)] if check.mask != syscalls.ALL_BITS else []
    compared = [(_JUMP_EQ, len(check.values) - place, 0, value) for place, value in enumerate(check.values)]
    upper = [(_LOAD, 0, 0, word + _WORD_BYTES), (_JUMP_EQ, 1, 0, 0), *_refuse(errno.EPERM)] if check.whole else []
    return [(_LOAD, 0, 0, word), *masked, *compared, *_refuse(errno.EPERM), *upper]


def _return(action: int) -> list[Instruction]:
    return [(_RETURN, 0, 0, action)]


def _refuse(number: int) -> list[Instruction]:
    return _return(_SECCOMP_RET_ERRNO | number)
