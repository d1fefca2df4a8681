"""The process that programs are forked from: executed with a clean environment, never forked from the trainer.

It imports whatever programs may import, puts the kernel's layers around itself, proves them, and then forks a child for
each request: one stands by when the request comes. It never reads a task and is never written to by a program.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import random
import select
import signal
import socket
import struct
import sys
import types
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

if "lang_envs" not in sys.modules:
    # The neighbours of this file, and nothing of the package that they are part of.
    for _name, _folder in (("lang_envs", Path(__file__).parent.parent), ("lang_envs.sandbox", Path(__file__).parent)):
        _package = types.ModuleType(_name)
        _package.__path__ = [str(_folder)]
        sys.modules[_name] = _package

import numpy

from lang_envs.sandbox import isolation, protocol, selftest

_RESULT, _NESTED, _FIRST_FREE = 3, 4, 5
_PARKED = 200
"""Descriptors wait above this until they are moved to their numbers, so that none is overwritten."""
_WARM = """
import numpy
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
x = numpy.arange(60.0).reshape(20, 3) % 7
make_pipeline(StandardScaler(), LogisticRegression()).fit(x, numpy.arange(20) % 2).predict_proba(x)
"""
_NOT_FOR_PROGRAMS = frozenset(
    """
    __main__ _pyinstaller _precompute antigravity conftest distutils ensurepip f2py idlelib lib2to3 setup test testing
    tests this tkinter turtle turtledemo venv
    """.split()  # noqa: SIM905 — as a list it would be a page
)
"""Modules that build, show, test or joke."""


class Zygote:
    """Answers requests that come through ``control``, one at a time, until it is closed."""

    def __init__(self, control: socket.socket, config: dict[str, Any]) -> None:
        self.control = control
        self.absent: dict[str, str] = dict.fromkeys(config["without"], "switched off")
        self.packages: list[str] = config["packages"]
        self.user: int = config["user"]
        self.filter: isolation.Filter | None = None
        self.nested = -1
        self.memory_in_use = 0
        self.standby: tuple[int, socket.socket] | None = None
        self.no_group = ""

    def join_group(self, processes: str | None) -> None:
        """Be limited by a cgroup, with all that this process forks."""
        if processes is not None:
            try:
                Path(processes).write_text("0")
            except OSError as error:
                self.no_group = str(error)

    def state(self) -> dict[str, Any]:
        """What the trainer needs to know of a process that has started."""
        return {"memory": self.memory_in_use, "no_group": self.no_group}

    def take(self, layer: str, step: Any, *arguments: Any) -> Any:
        """Put on one layer, or remember why it cannot be had."""
        if layer in self.absent:
            return None
        try:
            return step(*arguments)
        except OSError as error:
            self.absent[layer] = str(error)
            return None

    def prepare(self) -> None:
        """Imports, then the layers, from the outermost to the innermost, in this order and no other."""
        self._import()
        import_the_rest(self.packages)
        _be_ready_to_fork()
        read_what_is_mapped()
        self.memory_in_use = _virtual_memory()
        if "namespaces" not in self.absent:
            self.take("private-root", isolation.enter_private_root)
        else:
            self.absent.setdefault("private-root", "needs namespaces")
        self.take("uid", isolation.drop_user, self.user)
        if "namespaces" not in self.absent:
            isolation.die_with_parent(os.getppid())  # which a change of user makes forget
        isolation.forbid_privileges()
        self.take("landlock", isolation.enter_landlock)
        nested = self.take("nested-landlock", isolation.create_nested_landlock)
        self.nested = -1 if nested is None else fcntl.fcntl(nested, fcntl.F_DUPFD_CLOEXEC, _PARKED)
        self.filter = self.take("seccomp", isolation.Filter)

    def _import(self) -> None:
        sys.meta_path.insert(0, OnlyPackages(self.packages))
        for package in self.packages:
            for name in _modules_of(package):
                importlib.import_module(name)
        if "sklearn" in sys.modules:
            exec(_WARM, {})
            _adapt_threadpoolctl()

    # ------------------------------------------------------------------------------------------------------- serving

    def serve(self) -> None:
        """Until the trainer closes its end, or is gone."""
        self.stand_by()
        while request := self._receive():
            number, descriptors = request
            child = self.dispatch(descriptors) if len(descriptors) == 2 else None
            self.stand_by()
            if child is None:
                self.control.sendall(protocol.ENDING.pack(number, protocol.NOT_STARTED, 0, 0, 0, 0))
                continue
            ending = self.watch(number, child)
            self.control.sendall(ending)
            ending[:] = bytes(len(ending))  # or a later child could read how long this one took

    def _receive(self) -> tuple[int, list[int]] | None:
        number = 0
        while not number:  # 0 ends a child, which has ended already
            message, descriptors = receive(self.control, protocol.REQUEST.size)
            if not message:
                return None
            (number,) = protocol.REQUEST.unpack(message)
        return number, descriptors

    def stand_by(self) -> None:
        """Fork the next child ahead of its request, unless one stands by; never fails, but may leave none."""
        if self.standby is not None:
            return
        here, there = socket.socketpair()
        parent = os.getpid()
        try:
            child = os.fork()
        except OSError:
            here.close()
            there.close()
            return
        if child == 0:
            here.close()
            self._be_child(there, parent)
        there.close()
        self.standby = child, here

    def dispatch(self, descriptors: list[int]) -> int | None:
        """Hand a request to the child that stands by; None where there is none."""
        try:
            if self.standby is None:
                self.stand_by()
            if self.standby is None:
                return None
            child, channel = self.standby
            self.standby = None
            with channel:
                try:
                    channel.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])
                except OSError:  # it has died while it stood by
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    return None
            return child
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def watch(self, number: int, child: int, seconds: float | None = None) -> bytearray:
        """Wait for the end of a child, and bring it about when the trainer asks for it or the time is over.

        The kernel writes what is known of the child into the message to the trainer, and no Python object ever holds
        it: children that are forked later inherit this process's memory.
        """
        watched = os.pidfd_open(child)
        try:
            poll = select.poll()
            poll.register(watched, select.POLLIN)
            poll.register(self.control, select.POLLIN)
            while True:
                ready = [descriptor for descriptor, _ in poll.poll(None if seconds is None else 1000 * seconds)]
                if watched in ready:
                    break
                if ready and not receive(self.control, protocol.REQUEST.size)[0]:
                    os._exit(0)  # the trainer is gone, and the child goes with this process
                os.kill(child, signal.SIGKILL)
                poll.unregister(self.control)
                seconds = None
        finally:
            os.close(watched)
        return isolation.end_of(child, number)

    # ---------------------------------------------------------------------------------------------------- in the child

    def _be_child(self, channel: socket.socket, parent: int) -> NoReturn:
        """From the fork to the end of the program; what fails before the program begins is no failure of it."""
        try:
            self.control.close()
            isolation.die_with_parent(parent)
            isolation.forbid_inspection()
            message, descriptors = receive(channel, 1)
            if not message:
                os._exit(0)
            run(self, channel, *descriptors)
        finally:
            os._exit(99)


def receive(channel: socket.socket, size: int) -> tuple[bytes, list[int]]:
    """A message of that size with the descriptors that come with it; nothing at the end."""
    descriptors: list[int] = []
    message = b""
    while len(message) < size:
        part, ancillary, _, _ = channel.recvmsg(size - len(message), socket.CMSG_SPACE(8))
        if not part:
            return b"", []
        message += part
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors += array.array("i", data[: len(data) - len(data) % 4])
    return message, descriptors


def run(zygote: Zygote, channel: socket.socket, task: int, result: int) -> NoReturn:
    """Read the task, put on the innermost layers, run the program, send what came of it."""
    header, inputs = protocol.read_task(task)
    channel.close()
    os.close(task)
    os.dup2(fcntl.fcntl(result, fcntl.F_DUPFD, _PARKED), _RESULT)
    if zygote.nested >= 0:
        os.dup2(zygote.nested, _NESTED)
    isolation.close_descriptors(_FIRST_FREE)
    random.seed(header["seed"])
    numpy.random.seed(header["seed"])  # noqa: NPY002 — the generator that scikit-learn takes
    vars(numpy.random.bit_generator)["randbits"] = random.getrandbits  # of default_rng() without a seed
    if "rlimits" not in zygote.absent:
        isolation.limit_resources(header["cpu_seconds"], zygote.memory_in_use + header["memory_bytes"])
    if zygote.nested >= 0:
        isolation.enter_nested_landlock(_NESTED)
        os.close(_NESTED)
    if zygote.filter is not None:
        zygote.filter.enter()
    send(_RESULT, protocol.BEGUN)  # what goes wrong from here on is the program's doing
    send(_RESULT, execute(header["program"], inputs))
    os._exit(0)


def execute(program: str, inputs: dict[str, Any]) -> bytes:
    """Run a program's text; what stands in ``output`` at its end, or what went wrong, as a result."""
    namespace = {"__name__": "__main__", "inputs": inputs}
    try:
        exec(compile(program, "<program>", "exec"), namespace)
        if "output" not in namespace:
            raise NameError("the program ended without an `output`")
        return protocol.pack_output(namespace["output"])
    except BaseException as error:
        return protocol.pack_error(describe(error))


def describe(error: BaseException) -> str:
    """The kind of an error, what it says, and the line of the program it came from; never fails."""
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


def send(descriptor: int, message: bytes) -> None:
    view = memoryview(message)
    while view:
        view = view[os.write(descriptor, view) :]


# ---------------------------------------------------------------------------------------------- what can be imported


def import_the_rest(packages: list[str]) -> None:
    """Import whatever a program may import, for it can open no file: the standard library, and all of the packages."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sorted(names_of(packages) | sys.stdlib_module_names):
            if name.isidentifier() and not name.startswith("_"):
                _import_all(name)


def _import_all(name: str) -> None:
    if name.rpartition(".")[2] in _NOT_FOR_PROGRAMS:
        return
    try:
        module = importlib.import_module(name)
    except BaseException:  # for another system, or in need of what is not installed: a program cannot import it either
        return
    for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
        _import_all(f"{name}.{found.name}")


def read_what_is_mapped() -> None:
    """Every page of the libraries in memory, so that none is there because a program has read it."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return
    for file in {Path("/" + line.partition("/")[2]) for line in lines if "/" in line}:
        try:
            with file.open("rb") as library:
                while library.read(1 << 20):
                    pass
        except OSError:  # what was mapped is no longer there
            continue


def _be_ready_to_fork() -> None:
    # glibc's qsort asks once how much memory there is, which a program cannot: let it ask now
    comparison = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    ctypes.CDLL(None).qsort(ctypes.create_string_buffer(8192), 1024, 8, comparison(_equal))
    gc.collect()
    gc.freeze()
    threads = Path("/proc/self/task")
    if threads.is_dir() and (count := len(list(threads.iterdir()))) != 1:
        raise RuntimeError(f"{count} threads run before any program does: fork would not be safe")


def _equal(first: int, second: int) -> int:
    return 0


class OnlyPackages:
    """Finds nothing, and lets nobody else look for what is neither in the standard library nor in the packages.

    This keeps nobody out. It makes libraries that try for others find the same ones on every machine, none of which
    starts a thread, and gives a program that tries the error that it would expect.
    """

    def __init__(self, packages: list[str]) -> None:
        self.names = names_of(packages) | sys.stdlib_module_names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if path is None and name not in self.names and not name.startswith("_sysconfigdata_"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def names_of(packages: list[str]) -> set[str]:
    """What can be imported of distributions and of all that they require."""
    found: set[str] = set()
    waiting, seen = list(packages), set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if name in packages:
                raise
            continue
        for requirement in distribution.requires or ():
            wanted, _, condition = requirement.partition(";")
            if "extra" not in condition:
                waiting.append("".join(c if c.isalnum() or c in "-_." else " " for c in wanted).split()[0])
        found |= {file.parts[0].partition(".")[0] for file in distribution.files or ()}
    return found


def _modules_of(package: str) -> list[str]:
    """What ``import`` calls a distribution, and for scikit-learn what programs use of it."""
    if package == "scikit-learn":  # what is experimental is there whether a program asks for it or not
        parts = "calibration compose discriminant_analysis ensemble feature_selection gaussian_process impute"
        parts += " linear_model metrics model_selection naive_bayes neighbors neural_network pipeline preprocessing"
        parts += " svm tree decomposition experimental.enable_halving_search_cv experimental.enable_iterative_imputer"
        return ["sklearn", *(f"sklearn.{part}" for part in parts.split())]
    names = {file.parts[0] for file in metadata.distribution(package).files or () if file.name == "__init__.py"}
    return [name for name in sorted(names) if name.isidentifier()]


def _adapt_threadpoolctl() -> None:
    """Let it live without /proc/self/maps and keep one thread.

    The dynamic linker knows which libraries there are as well. A BLAS that is asked for two threads waits for ever for
    the one that no program can start.
    """
    import threadpoolctl  # type: ignore[import-untyped]
    from sklearn.utils.parallel import _get_threadpool_controller

    kind = type(_get_threadpool_controller())
    kind._find_libraries_with_linux = kind._find_libraries_with_dl_iterate_phdr
    for library in threadpoolctl.LibController.__subclasses__():
        library.set_num_threads = lambda self, num_threads: None


def _virtual_memory() -> int:
    """Bytes of address space in use."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


# ------------------------------------------------------------------------------------------------------------- main


def say(control: socket.socket, message: dict[str, Any]) -> None:
    """The one message that is no fixed struct: how the start went, as JSON behind its length."""
    body = json.dumps(message).encode()
    control.sendall(struct.pack("=I", len(body)) + body)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    config = json.loads(sys.argv[2])
    zygote = Zygote(control, config)
    isolation.be_killed_first()
    try:
        zygote.join_group(config["joins"])
        if config["process"]:
            _serve_once(zygote)
        zygote.take("namespaces", _try_namespaces, zygote.user)
        zygote.take("namespaces", isolation.enter_namespaces, zygote.user)
        if "namespaces" not in zygote.absent and (inner := os.fork()):
            # Only what is forked from here is in the new process namespace, and this process has nothing more to do.
            control.close()
            os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) & 0xFF)
        if "namespaces" not in zygote.absent:
            isolation.die_with_parent(os.getppid())
        zygote.prepare()
        failures = [] if config["without"] else selftest.run(zygote)
        say(control, {"absent": zygote.absent, "failures": failures, **zygote.state()})
    except BaseException as error:
        say(control, {"error": f"{type(error).__name__}: {error}"})
        os._exit(1)
    os.dup2(1, 2)  # from now on nobody hears complaints
    zygote.serve()


def _try_namespaces(user: int) -> None:
    """Enter them in a process that is thrown away: some systems let one in and then take every right to do anything."""
    child = os.fork()
    if child == 0:
        try:
            isolation.enter_namespaces(user)
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise OSError(code, os.strerror(abs(code)))


def _serve_once(zygote: Zygote) -> NoReturn:
    """Without any layer but limits: this process itself becomes the program."""
    for layer in ("namespaces", "private-root", "uid", "landlock", "nested-landlock", "seccomp"):
        zygote.absent[layer] = "switched off"
    zygote._import()
    _be_ready_to_fork()
    zygote.memory_in_use = _virtual_memory()
    say(zygote.control, {"absent": zygote.absent, "failures": [], **zygote.state()})
    message, descriptors = receive(zygote.control, protocol.REQUEST.size)
    if message:
        run(zygote, zygote.control, *descriptors)
    os._exit(0)


if __name__ == "__main__":
    main()
