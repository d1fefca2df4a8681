"""What goes between the trainer, the zygote and a child: raw bytes, of which nothing is ever unpickled or evaluated.

A *task* is a sealed file in memory: a JSON header (the program, limits, the arrays' names, dtypes and shapes), then the
arrays' bytes. A *result* comes back through a pipe: a header of fixed size, then float64 bytes or an error's text.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

REQUEST = struct.Struct("=Q")
"""Trainer to zygote, with the descriptors of a task and of a result pipe: number of the request. Nothing else: later
children inherit the zygote's memory, so it must not see anything that a program can influence."""
ENDING = struct.Struct("=Qi4q")
"""Zygote to trainer: number of the request, wait status, and processor time as user seconds, user microseconds, system
seconds, system microseconds."""
NOT_STARTED = 99 << 8
"""The wait status of a child that could not be forked."""

BEGUN = b"b"
"""Child to trainer, when all layers are on and the program begins."""
RESULT = struct.Struct("=4sBBIIQ")
"""Child to trainer, when it has ended: mark, output or error, dimensions, rows, columns, bytes that follow."""
MARK = b"rslt"
OUTPUT, ERROR = range(2)
ERROR_BYTES = 1024
"""An error's text is never longer."""

_TASK = struct.Struct("=QQ")


def write_task(program: str, inputs: Mapping[str, np.ndarray], **settings: Any) -> int:
    """A task as a descriptor, which is the caller's to close.

    Raises
    ------
    ValueError
        If an input is no array of numbers.
    """
    arrays = {name: np.asarray(array, order="C") for name, array in inputs.items()}
    described = {}
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise ValueError(f"the input {name!r} must be an array of numbers, not of dtype {array.dtype}")
        described[name] = (array.dtype.str, array.shape)
    header = json.dumps({"program": program, "inputs": described, **settings}).encode()
    total = sum(array.nbytes for array in arrays.values())
    parts = [_TASK.pack(len(header), total), header, *(array.tobytes() for array in arrays.values())]
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
    """The header and writable copies of the arrays."""
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
    """An array of numbers with one or two dimensions as a result.

    Raises
    ------
    TypeError, ValueError
        If it is something else.
    """
    array = np.asarray(output)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"the output must hold real numbers, not {array.dtype}")
    if array.ndim not in (1, 2):
        raise ValueError(f"the output must have one or two dimensions, not {array.ndim}")
    body = np.ascontiguousarray(array, dtype=np.float64).tobytes()
    columns = array.shape[1] if array.ndim == 2 else 1
    return RESULT.pack(MARK, OUTPUT, array.ndim, len(array), columns, len(body)) + body


def pack_error(text: str) -> bytes:
    body = text.encode(errors="replace")[-ERROR_BYTES:]
    return RESULT.pack(MARK, ERROR, 0, 0, 0, len(body)) + body


class Rejected(ValueError):
    """What a child sent is no result."""


def unpack_header(header: bytes, max_bytes: int) -> int:
    """How many bytes follow a result's header.

    Raises
    ------
    Rejected
        If it is none, or announces more than may come.
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
    """The output, as a float64 array of one or two dimensions, or an error's text.

    Raises
    ------
    Rejected
        If the output holds what is no finite number.
    """
    _, kind, dimensions, rows, columns, _ = RESULT.unpack(header)
    if kind == ERROR:
        return body.decode(errors="replace")
    output = np.frombuffer(body, dtype=np.float64).copy()
    if not np.isfinite(output).all():
        raise Rejected("the output holds numbers that are not finite")
    return output.reshape(rows, columns) if dimensions == 2 else output
