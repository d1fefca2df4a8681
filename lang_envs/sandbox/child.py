"""The child process: it puts on the innermost layers, runs one program, sends the result and ends."""

from __future__ import annotations

import fcntl
import os
import random
import socket
from typing import Any, NamedTuple, NoReturn

import numpy

from lang_envs.sandbox import isolation, protocol

PARKED = 200
"""Descriptors wait above this number until they are moved to their final one, so that none is overwritten."""
_RESULT = 3
"""Descriptor of the pipe that takes the result, while a program runs."""
_NESTED_LANDLOCK = 4
"""Descriptor of the nested Landlock rule set, until it is in force."""
_FIRST_CLOSED = 5
"""Descriptors from here on are closed before a program runs."""


class InnerLayers(NamedTuple):
    """The layers that each child puts on itself."""

    idle_memory: int | None
    """Address space of the fork server in bytes, which the limit of memory does not count; None without rlimits."""
    nested_landlock: int | None
    """Descriptor of the nested Landlock rule set; None without that layer."""
    system_calls: isolation.Filter | None
    """The seccomp filter; None without that layer."""


def wait_and_run(channel: socket.socket, parent: int, layers: InnerLayers) -> NoReturn:
    """Wait for a request on ``channel``, then run its program; end where the fork server closes the channel instead."""
    isolation.die_with_parent(parent)
    isolation.forbid_inspection()
    message, descriptors = protocol.receive(channel, len(protocol.START))
    if not message:
        os._exit(0)
    task, result = descriptors
    run(channel, task, result, layers)


def run(channel: socket.socket, task: int, result: int, layers: InnerLayers) -> NoReturn:
    """Read the task, put on the innermost layers, run the program and send its result.

    Parameters
    ----------
    channel : socket
        Where the request came from; closed before the program runs.
    task : int
        Descriptor of the task, see :func:`protocol.write_task`.
    result : int
        Descriptor of the pipe that takes the result.
    layers : InnerLayers
    """
    header, inputs = protocol.read_task(task)
    channel.close()
    os.close(task)
    os.dup2(fcntl.fcntl(result, fcntl.F_DUPFD, PARKED), _RESULT)
    if layers.nested_landlock is not None:
        os.dup2(layers.nested_landlock, _NESTED_LANDLOCK)
    isolation.close_descriptors(_FIRST_CLOSED)
    random.seed(header["seed"])
    numpy.random.seed(header["seed"])  # noqa: NPY002 — the generator that scikit-learn uses
    vars(numpy.random.bit_generator)["randbits"] = random.getrandbits  # seeds default_rng() without an argument
    if layers.idle_memory is not None:
        isolation.limit_resources(header["cpu_seconds"], layers.idle_memory + header["memory_bytes"])
    if layers.nested_landlock is not None:
        isolation.enter_nested_landlock(_NESTED_LANDLOCK)
        os.close(_NESTED_LANDLOCK)
    if layers.system_calls is not None:
        layers.system_calls.enter()
    protocol.write(_RESULT, protocol.BEGUN)  # from here on, a failure is the program's
    protocol.write(_RESULT, execute(header["program"], inputs))
    os._exit(0)


def execute(program: str, inputs: dict[str, Any]) -> bytes:
    """Execute a program's text; return its ``output``, or its error, as a packed result."""
    namespace = {"__name__": "__main__", "inputs": inputs}
    try:
        exec(compile(program, "<program>", "exec"), namespace)
        if "output" not in namespace:
            raise NameError("the program ended without an `output`")
        return protocol.pack_output(namespace["output"])
    except BaseException as error:
        return protocol.pack_error(describe(error))


def describe(error: BaseException) -> str:
    """Return the type of an error, its message, and the line of the program that raised it. Never raises."""
    try:
        said = str(error).strip()[-2 * protocol.ERROR_BYTES :]
    except BaseException:
        said = "an error that cannot be shown"
    try:
        line, trace = None, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == "<program>":
                line = trace.tb_lineno
            trace = trace.tb_next
        where = f" (line {line})" if line is not None else ""
        return f"{type(error).__name__}{': ' * bool(said)}{said}{where}"
    except BaseException:
        return said
