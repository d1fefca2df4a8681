"""Imports for the fork server: everything that a program may import, since a program can open no file.

Imports also happen before the first fork, so that every program starts with the same modules in the same state.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import pkgutil
import sys
import warnings
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

_FIRST_FIT = """
import numpy
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
x = numpy.arange(60.0).reshape(20, 3) % 7
make_pipeline(StandardScaler(), LogisticRegression()).fit(x, numpy.arange(20) % 2).predict_proba(x)
"""
"""Makes scikit-learn do what it does only once in a process, before the first program."""
_EXCLUDED = frozenset(
    """
    __main__ _pyinstaller _precompute antigravity conftest distutils ensurepip f2py idlelib lib2to3 setup test testing
    tests this tkinter turtle turtledemo venv
    """.split()  # noqa: SIM905 — as a list it would be a page
)
"""Modules that are not imported: build scripts, tests, graphical interfaces, and modules that print on import."""
_SCIKIT_LEARN = """
    calibration compose discriminant_analysis ensemble feature_selection gaussian_process impute linear_model metrics
    model_selection naive_bayes neighbors neural_network pipeline preprocessing svm tree decomposition
    experimental.enable_halving_search_cv experimental.enable_iterative_imputer
    """.split()  # noqa: SIM905 — as a list it would be a page
"""Modules that programs use. The experimental ones are enabled for every program, whether it imports them or not."""
_PAGES_READ = 1 << 20
"""Bytes of a library that are read at once."""
_QSORT_ELEMENTS, _QSORT_SIZE = 1024, 8
"""Enough bytes for glibc's qsort to ask how much memory the machine has."""


def import_packages(packages: Sequence[str]) -> None:
    """Import the packages themselves, and from now on only what belongs to them or to the standard library."""
    sys.meta_path.insert(0, OnlyPackages(packages))
    for package in packages:
        for name in _modules_of(package):
            importlib.import_module(name)
    if "sklearn" in sys.modules:
        exec(_FIRST_FIT, {})
        _adapt_threadpoolctl()


def import_everything(packages: Sequence[str]) -> None:
    """Import every module of the standard library and of the packages."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sorted(importable_names(packages) | sys.stdlib_module_names):
            if name.isidentifier() and not name.startswith("_"):
                _import_with_submodules(name)


def _import_with_submodules(name: str) -> None:
    if name.rpartition(".")[2] in _EXCLUDED:
        return
    try:
        module = importlib.import_module(name)
    except BaseException:  # made for another system, or its requirements are missing: a program cannot import it either
        return
    for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
        _import_with_submodules(f"{name}.{found.name}")


class OnlyPackages:
    """An import finder that rejects every module outside the standard library and the packages.

    It is no protection. With it, libraries that try optional imports find the same modules on every machine, none of
    which starts a thread; and a program that tries to import something else gets the error that it would expect.
    """

    def __init__(self, packages: Sequence[str]) -> None:
        self.names = importable_names(packages) | sys.stdlib_module_names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if path is None and name not in self.names and not name.startswith("_sysconfigdata_"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def importable_names(packages: Sequence[str]) -> set[str]:
    """Return the top-level module names of distributions and of all their requirements.

    Raises
    ------
    importlib.metadata.PackageNotFoundError
        If one of ``packages`` is not installed. Requirements that are not installed are skipped.
    """
    names: set[str] = set()
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
        names |= {file.parts[0].partition(".")[0] for file in distribution.files or ()}
    return names


def _modules_of(package: str) -> Sequence[str]:
    """Return the import names of a distribution; for scikit-learn, the modules that programs use."""
    if package == "scikit-learn":
        return ["sklearn", *(f"sklearn.{module}" for module in _SCIKIT_LEARN)]
    names = {file.parts[0] for file in metadata.distribution(package).files or () if file.name == "__init__.py"}
    return [name for name in sorted(names) if name.isidentifier()]


def _adapt_threadpoolctl() -> None:
    """Make threadpoolctl work without /proc/self/maps, and ignore requests for another number of threads.

    The dynamic linker knows the loaded libraries as well. A BLAS that is asked for two threads would wait forever,
    because no program can start a thread.
    """
    import threadpoolctl  # type: ignore[import-untyped]
    from sklearn.utils.parallel import _get_threadpool_controller

    kind = type(_get_threadpool_controller())
    kind._find_libraries_with_linux = kind._find_libraries_with_dl_iterate_phdr
    for library in threadpoolctl.LibController.__subclasses__():
        library.set_num_threads = lambda self, num_threads: None


def prepare_to_fork() -> None:
    """Do once what no child should do for itself.

    Raises
    ------
    RuntimeError
        If more than one thread runs: forking would not be safe.
    """
    # glibc's qsort asks once how much memory the machine has, which a program may not ask: let it ask now.
    comparison = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    elements = ctypes.create_string_buffer(_QSORT_ELEMENTS * _QSORT_SIZE)
    ctypes.CDLL(None).qsort(elements, _QSORT_ELEMENTS, _QSORT_SIZE, comparison(_equal))
    gc.collect()
    gc.freeze()
    threads = Path("/proc/self/task")
    if threads.is_dir() and (count := len(list(threads.iterdir()))) != 1:
        raise RuntimeError(f"{count} threads run before any program does, expected 1: fork would not be safe")


def _equal(first: int, second: int) -> int:
    return 0


def read_mapped_libraries() -> None:
    """Read every page of the mapped libraries into memory, so that no page is there because a program has read it."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return
    for file in {Path("/" + line.partition("/")[2]) for line in lines if "/" in line}:
        try:
            with file.open("rb") as library:
                while library.read(_PAGES_READ):
                    pass
        except OSError:  # the mapped file was deleted meanwhile
            continue


def virtual_memory() -> int:
    """Return the address space in use, in bytes; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
