"""Messages between the trainer, the fork server and a child: raw bytes, never unpickled or evaluated.

A *task* is a sealed file in memory: a JSON header (the program, limits, the arrays' names, dtypes and shapes), then the
arrays' bytes. A *result* comes back through a pipe: a header of fixed size, then float64 bytes or the text of an error.

================  ======================  ================================================================
message           from, to                content
================  ======================  ================================================================
report            fork server, trainer    JSON: absent layers, failures of the self-test, idle memory
``REQUEST``       trainer, fork server    number of the request; descriptors of the task and of a pipe
``START``         fork server, child      the same descriptors
``BEGUN``         child, trainer          all layers are on, the program begins
``RESULT``        child, trainer          header of the output or of the error, which follows
``ENDING``        fork server, trainer    wait status and processor time of the child
================  ======================  ================================================================

Errors that a program causes reach the agent as part of an observation, so their wording is part of the environment.
"""

from __future__ import annotations

import array
import json
import math
import mmap
import os
import socket
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

_REPORT = struct.Struct("=I")
"""Length in bytes of the JSON that follows."""
REQUEST = struct.Struct("=Q")
"""Number of the request; the trainer counts from 1. It holds nothing else: later children inherit the fork server's
memory, so the fork server must not read anything that a program can influence."""
END_CHILD = 0
"""In place of a request's number: kill the child that runs now."""
START = b"x"
ENDING = struct.Struct("=Qi4q")
"""Number of the request; wait status; processor time as user seconds, user microseconds, system seconds, system
microseconds."""
EXIT_NOT_STARTED = 99
"""Exit code of a child whose program did not begin."""
NOT_STARTED = EXIT_NOT_STARTED << 8
"""The wait status with that exit code."""

BEGUN = b"b"
RESULT = struct.Struct("=4sBBIIQ")
"""Mark; ``OUTPUT`` or ``ERROR``; number of dimensions; rows; columns; number of bytes that follow."""
MARK = b"rslt"
OUTPUT, ERROR = range(2)
ERROR_BYTES = 1024
"""Greatest length of an error's text."""

_TASK = struct.Struct("=QQ")
"""Bytes of the header; bytes of all arrays."""
_NUMERIC_KINDS = "biuf"
"""NumPy's kinds of boolean, signed, unsigned and floating-point dtypes."""
_MAX_DESCRIPTORS, _INT_BYTES = 2, array.array("i").itemsize


# ------------------------------------------------------------------------------------------------ sockets and pipes


def send(channel: socket.socket, message: bytes, descriptors: Sequence[int]) -> None:
    """Send a message and, with it, open descriptors."""
    channel.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])


def receive(channel: socket.socket, size: int) -> tuple[bytes, list[int]]:
    """Return a message of ``size`` bytes and the descriptors that came with it; nothing at the end of the stream."""
    descriptors: list[int] = []
    message = b""
    while len(message) < size:
        room = socket.CMSG_SPACE(_MAX_DESCRIPTORS * _INT_BYTES)
        part, ancillary, _, _ = channel.recvmsg(size - len(message), room)
        if not part:
            return b"", []
        message += part
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors += array.array("i", data[: len(data) - len(data) % _INT_BYTES])
    return message, descriptors


def send_report(channel: socket.socket, report: dict[str, Any]) -> None:
    """Send how the start went."""
    body = json.dumps(report).encode()
    channel.sendall(_REPORT.pack(len(body)) + body)


def read_report(read: Callable[[int], bytes]) -> dict[str, Any]:
    """Return how the start went; ``read(n)`` gives the next n bytes from the fork server."""
    (length,) = _REPORT.unpack(read(_REPORT.size))
    report: dict[str, Any] = json.loads(read(length))
    return report


def write(descriptor: int, message: bytes) -> None:
    """Write all of a message."""
    view = memoryview(message)
    while view:
        view = view[os.write(descriptor, view) :]


# ------------------------------------------------------------------------------------------------- tasks and results


def write_task(program: str, inputs: Mapping[str, np.ndarray], **settings: Any) -> int:
    """Write a task; return its descriptor, which the caller closes.

    Parameters
    ----------
    program : str
    inputs : mapping of str to array
        Arrays of numbers, of any shape.
    **settings
        ``seed``, ``cpu_seconds`` and ``memory_bytes``, whole numbers.

    Raises
    ------
    ValueError
        If an input is not an array of numbers.
    """
    values = {name: np.asarray(value, order="C") for name, value in inputs.items()}
    described = {}
    for name, value in values.items():
        if value.dtype.kind not in _NUMERIC_KINDS:
            raise ValueError(f"the input {name!r} must be an array of numbers, not of dtype {value.dtype}")
        described[name] = (value.dtype.str, value.shape)
    header = json.dumps({"program": program, "inputs": described, **settings}).encode()
    total = sum(value.nbytes for value in values.values())
    parts = [_TASK.pack(len(header), total), header, *(value.tobytes() for value in values.values())]
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            file.write(b"".join(parts))
            file.flush()
            return os.dup(file.fileno())
    import fcntl

    descriptor = os.memfd_create("task", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.writelines(parts)
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_task(descriptor: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a task's header and writable copies of its arrays."""
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as view:
        length, _ = _TASK.unpack_from(view)
        at = _TASK.size + length
        header = json.loads(view[_TASK.size : at])
        arrays = {}
        for name, (dtype, shape) in header.pop("inputs").items():
            count = math.prod(shape)
            arrays[name] = np.frombuffer(view[at : at + count * np.dtype(dtype).itemsize], dtype).reshape(shape).copy()
            at += arrays[name].nbytes
    return header, arrays


def pack_output(output: Any) -> bytes:
    """Return an array of real numbers with one or two dimensions as a packed result.

    Raises
    ------
    TypeError
        If the output does not hold real numbers.
    ValueError
        If it has another number of dimensions.
    """
    values = np.asarray(output)
    if values.dtype.kind not in _NUMERIC_KINDS:
        raise TypeError(f"the output must hold real numbers, not {values.dtype}")
    if values.ndim not in (1, 2):
        raise ValueError(f"the output must have one or two dimensions, not {values.ndim}")
    body = np.ascontiguousarray(values, dtype=np.float64).tobytes()
    columns = values.shape[1] if values.ndim == 2 else 1
    return RESULT.pack(MARK, OUTPUT, values.ndim, len(values), columns, len(body)) + body


def pack_error(text: str) -> bytes:
    """Return the end of an error's text, at most ``ERROR_BYTES``, as a packed result."""
    body = text.encode(errors="replace")[-ERROR_BYTES:]
    return RESULT.pack(MARK, ERROR, 0, 0, 0, len(body)) + body


class Rejected(ValueError):
    """A child sent something that is not a valid result."""


def unpack_header(header: bytes, max_bytes: int) -> int:
    """Return the number of bytes that follow a result's header.

    Raises
    ------
    Rejected
        If the header is invalid, or announces more than ``max_bytes``.
    """
    mark, kind, dimensions, rows, columns, size = RESULT.unpack(header)
    if mark != MARK or kind not in (OUTPUT, ERROR):
        raise Rejected("what the program sent is no result")
    if kind == ERROR and size > ERROR_BYTES:
        raise Rejected(f"an error's text of {size} bytes is too long")
    shaped = dimensions == 2 or (dimensions == 1 and columns == 1)
    if kind == OUTPUT and not (shaped and size == 8 * rows * columns):
        raise Rejected("the size of the output is not that of its shape")
    if kind == OUTPUT and size > max_bytes:
        raise Rejected(f"an output of {size} bytes is larger than the {max_bytes} allowed")
    return int(size)


def unpack_result(header: bytes, body: bytes) -> np.ndarray | str:
    """Return the output, a float64 array of one or two dimensions, or the text of an error.

    Raises
    ------
    Rejected
        If the output holds a value that is not finite.
    """
    _, kind, dimensions, rows, columns, _ = RESULT.unpack(header)
    if kind == ERROR:
        return body.decode(errors="replace")
    output = np.frombuffer(body, dtype=np.float64).copy()
    if not np.isfinite(output).all():
        raise Rejected("the output holds numbers that are not finite")
    return output.reshape(rows, columns) if dimensions == 2 else output
