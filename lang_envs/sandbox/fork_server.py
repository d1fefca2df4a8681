"""The process that programs are forked from: started with a clean environment, never forked from the trainer.

It imports everything that programs may import (``preload``), puts the kernel's layers around itself (``isolation``),
tests them (``selftest``), and then forks a child (``child``) for each request. One child is forked ahead of its
request. The fork server never reads a task, and no program can write to it.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

if "lang_envs" not in sys.modules:
    # This file is run by its path: make its neighbours importable, and nothing else of the package.
    for _name, _folder in (("lang_envs", Path(__file__).parent.parent), ("lang_envs.sandbox", Path(__file__).parent)):
        _package = types.ModuleType(_name)
        _package.__path__ = [str(_folder)]
        sys.modules[_name] = _package

from lang_envs.sandbox import child, isolation, preload, protocol, selftest

_SELF_TEST_SECONDS = 20
"""Limit of processor time and of time on the clock for each program of the self-test."""
_SELF_TEST_MEMORY = 1 << 30
"""Limit of memory for each program of the self-test, in bytes."""

Value = TypeVar("Value")


class ForkServer:
    """Answers requests that come through a socket, one at a time, until the socket is closed.

    Parameters
    ----------
    control : socket
        The connection to the trainer.
    config : dict
        ``packages`` (distributions to import), ``without`` (layers to leave out), ``user`` (the user to become).
    """

    def __init__(self, control: socket.socket, config: dict[str, Any]) -> None:
        self.control = control
        self.absent: dict[str, str] = dict.fromkeys(config["without"], "switched off")
        self.packages: list[str] = config["packages"]
        self.user: int = config["user"]
        self.filter: isolation.Filter | None = None
        self.nested_landlock: int | None = None
        self.idle_memory = 0
        self.standby: tuple[int, socket.socket] | None = None
        self.no_group = ""

    @property
    def layers(self) -> child.InnerLayers:
        """What each child puts on itself."""
        idle_memory = None if "rlimits" in self.absent else self.idle_memory
        return child.InnerLayers(idle_memory, self.nested_landlock, self.filter)

    def join_group(self, processes: str | None) -> None:
        """Join a cgroup, with all children, by writing to its file ``cgroup.procs``."""
        if processes is not None:
            try:
                Path(processes).write_text("0")
            except OSError as error:
                self.no_group = str(error)

    def report(self, failures: list[str]) -> None:
        """Tell the trainer that the start is over: the absent layers and the failures of the self-test."""
        report = {"absent": self.absent, "failures": failures, "memory": self.idle_memory, "no_group": self.no_group}
        protocol.send_report(self.control, report)

    def enter(self, layer: str, step: Callable[..., Value], *arguments: Any) -> Value | None:
        """Put on one layer; where that fails, keep the reason in ``absent`` and return None."""
        if layer in self.absent:
            return None
        try:
            return step(*arguments)
        except OSError as error:
            self.absent[layer] = str(error)
            return None

    def prepare(self) -> None:
        """Import everything, then put on the layers from the outermost to the innermost; their order matters."""
        preload.import_packages(self.packages)
        preload.import_everything(self.packages)
        preload.prepare_to_fork()
        preload.read_mapped_libraries()
        self.idle_memory = preload.virtual_memory()
        if "namespaces" not in self.absent:
            self.enter("private-root", isolation.enter_private_root)
        else:
            self.absent.setdefault("private-root", "needs namespaces")
        self.enter("uid", isolation.drop_user, self.user)
        if "namespaces" not in self.absent:
            isolation.die_with_parent(os.getppid())  # again: a change of user resets it
        isolation.forbid_privileges()
        self.enter("landlock", isolation.enter_landlock)
        nested = self.enter("nested-landlock", isolation.create_nested_landlock)
        if nested is not None:
            self.nested_landlock = fcntl.fcntl(nested, fcntl.F_DUPFD_CLOEXEC, child.PARKED)
        self.filter = self.enter("seccomp", isolation.Filter)

    # ------------------------------------------------------------------------------------------------------- serving

    def serve(self) -> None:
        """Answer requests until the trainer closes its end or has ended."""
        self.stand_by()
        while request := self._receive():
            number, descriptors = request
            process = self.dispatch(descriptors) if len(descriptors) == 2 else None
            self.stand_by()
            if process is None:
                self.control.sendall(protocol.ENDING.pack(number, protocol.NOT_STARTED, 0, 0, 0, 0))
                continue
            ending = self.watch(number, process)
            self.control.sendall(ending)
            ending[:] = bytes(len(ending))  # a later child could read how long this one took

    def _receive(self) -> tuple[int, list[int]] | None:
        number = protocol.END_CHILD
        while number == protocol.END_CHILD:  # meant for a child that has ended already
            message, descriptors = protocol.receive(self.control, protocol.REQUEST.size)
            if not message:
                return None
            (number,) = protocol.REQUEST.unpack(message)
        return number, descriptors

    def stand_by(self) -> None:
        """Fork the child of the next request, unless there is one; where fork fails, there is none afterwards."""
        if self.standby is not None:
            return
        here, there = socket.socketpair()
        parent = os.getpid()
        try:
            process = os.fork()
        except OSError:
            here.close()
            there.close()
            return
        if process == 0:
            try:
                here.close()
                self.control.close()
                child.wait_and_run(there, parent, self.layers)
            finally:
                os._exit(protocol.EXIT_NOT_STARTED)  # what fails before the program begins is no failure of the program
        there.close()
        self.standby = process, here

    def dispatch(self, descriptors: list[int]) -> int | None:
        """Hand a request to the child that stands by.

        Returns
        -------
        int or None
            The child's process id; None where there is no child.
        """
        try:
            if self.standby is None:
                self.stand_by()
            if self.standby is None:
                return None
            process, channel = self.standby
            self.standby = None
            with channel:
                try:
                    protocol.send(channel, protocol.START, descriptors)
                except OSError:  # it has died while it stood by
                    os.kill(process, signal.SIGKILL)
                    os.waitpid(process, 0)
                    return None
            return process
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def watch(self, number: int, process: int, seconds: float | None = None) -> bytearray:
        """Wait for the end of a child; kill it when the trainer asks for it, or after ``seconds``.

        Returns
        -------
        bytearray
            The message to the trainer, a ``protocol.ENDING``. The kernel writes into it what is known of the child, and
            no Python object ever holds it, because children that are forked later inherit this process's memory.
        """
        watched = os.pidfd_open(process)
        try:
            poll = select.poll()
            poll.register(watched, select.POLLIN)
            poll.register(self.control, select.POLLIN)
            while True:
                ready = [descriptor for descriptor, _ in poll.poll(None if seconds is None else 1000 * seconds)]
                if watched in ready:
                    break
                if ready and not protocol.receive(self.control, protocol.REQUEST.size)[0]:
                    os._exit(0)  # the trainer has ended, and the child ends with this process
                os.kill(process, signal.SIGKILL)
                poll.unregister(self.control)
                seconds = None
        finally:
            os.close(watched)
        return isolation.end_of(process, number)

    def play(self, program: str) -> selftest.Outcome:
        """Run one program without inputs, as the self-test asks for it."""
        read, write = os.pipe()
        limits = {"cpu_seconds": _SELF_TEST_SECONDS, "memory_bytes": _SELF_TEST_MEMORY}
        task = protocol.write_task(program, {}, seed=0, **limits)
        self.stand_by()
        process = self.dispatch([task, write])
        if process is None:
            return selftest.Outcome(None, "no process could be started")
        _, status, *_ = protocol.ENDING.unpack(self.watch(0, process, _SELF_TEST_SECONDS))
        code = os.waitstatus_to_exitcode(status)
        with os.fdopen(read, "rb") as pipe:
            sent = pipe.read()[len(protocol.BEGUN) :]
        if code < 0 or len(sent) < protocol.RESULT.size:
            return selftest.Outcome(None, f"signal {-code}" if code < 0 else f"exit {code}")
        header, body = sent[: protocol.RESULT.size], sent[protocol.RESULT.size :]
        return selftest.Outcome(protocol.RESULT.unpack(header)[1], body.decode(errors="replace"))


def main() -> None:
    """Start: ``fork_server.py DESCRIPTOR CONFIG``, the socket's descriptor and the configuration as JSON."""
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    config = json.loads(sys.argv[2])
    server = ForkServer(control, config)
    isolation.be_killed_first()
    try:
        server.join_group(config["joins"])
        if config["process"]:
            _serve_once(server)
        server.enter("namespaces", _try_namespaces, server.user)
        server.enter("namespaces", isolation.enter_namespaces, server.user)
        if "namespaces" not in server.absent and (inner := os.fork()):
            # Only processes forked from here are in the new process namespace: this one has nothing more to do.
            control.close()
            os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) & 0xFF)
        if "namespaces" not in server.absent:
            isolation.die_with_parent(os.getppid())
        server.prepare()
        server.report([] if config["without"] else selftest.run(server.play, server.packages))
    except BaseException as error:
        protocol.send_report(control, {"error": f"{type(error).__name__}: {error}"})
        os._exit(1)
    os.dup2(1, 2)  # discard stderr from now on: stdout is /dev/null
    server.serve()


def _try_namespaces(user: int) -> None:
    """Enter the namespaces in a process that ends at once.

    Some systems let a process enter and then take away every right to act in there; there is no way back.
    """
    process = os.fork()
    if process == 0:
        try:
            isolation.enter_namespaces(user)
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    if code := os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]):
        raise OSError(code, os.strerror(abs(code)))


def _serve_once(server: ForkServer) -> NoReturn:
    """Run one program in this very process, with limits and no other layer (``mode="process"``)."""
    for layer in ("namespaces", "private-root", "uid", "landlock", "nested-landlock", "seccomp"):
        server.absent[layer] = "switched off"
    preload.import_packages(server.packages)
    preload.prepare_to_fork()
    server.idle_memory = preload.virtual_memory()
    server.report([])
    message, descriptors = protocol.receive(server.control, protocol.REQUEST.size)
    if message:
        task, result = descriptors
        child.run(server.control, task, result, server.layers)
    os._exit(0)


if __name__ == "__main__":
    main()
