"""Time to parse hostile lines of ARFF, CSV and YAML: ``python -m benchmarks.security.parsing``.

Each kind of line is made in three sizes, the next twice as long. In a linear parser the time doubles as well; a
quadratic one takes four times as long, a cubic one eight times.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lang_envs.datascicoding.tables import read_table
from lang_envs.virtualhome.tasks import load_task

_SIZES = (1 << 18, 1 << 19, 1 << 20)
_YAML_SIZES = (1 << 14, 1 << 15, (1 << 16) - 64)
_HEAD = "@relation r\n@attribute a string\n@attribute b string\n@data\n"
_MOST_GROWTH = 3.0
"""Between 2 (linear) and 4 (quadratic)."""
_NOISE, _MOST_SECONDS = 0.05, 5.0
_TIMES = 3

LINES: dict[str, Callable[[int], str]] = {
    "ARFF: spaces, then a quote": lambda n: _HEAD + "x," + " " * n + "'y\n",
    "ARFF: spaces between quotes": lambda n: _HEAD + "'x'" + " " * n + "'y'\n",
    "ARFF: spaces before each value": lambda n: _HEAD + "'x'," + " y," * (n // 3) + "\n",
    "ARFF: a quote that is not closed": lambda n: _HEAD + "'" + "x" * n + "\n",
    "ARFF: backslashes": lambda n: _HEAD + "'" + "\\" * n + "\n",
    "ARFF: quotes": lambda n: _HEAD + "'" * n + "\n",
    "ARFF: quoted values": lambda n: _HEAD + "'x'," * (n // 4) + "'y'\n",
    "ARFF: categories": lambda n: "@attribute a {" + "'x' ," * (n // 5) + "}\n@data\n",
    "ARFF: spaces among categories": lambda n: "@attribute a {" + " " * n + "'x' y}\n@data\n",
    "ARFF: an attribute of spaces": lambda n: "@attribute" + " " * n + "\n@data\n",
    "ARFF: a long name": lambda n: "@attribute " + "x" * n + "\n@data\n",
    "ARFF: a name of quotes": lambda n: "@attribute " + "'\\'" * (n // 3) + " real\n@data\n",
    "ARFF: attributes": lambda n: "@attribute x real\n" * (n // 18) + "@data\n",
    "CSV: commas": lambda n: "a,b\n" + "," * n + "\n",
    "CSV: a header of commas": lambda n: "," * n + "\n",
    "CSV: quotes": lambda n: "a,b\n" + '"' * n + "\n",
    "CSV: a quote over many lines": lambda n: 'a,b\n"' + "x\n" * (n // 2),
    "CSV: spaces": lambda n: "a,b\n" + " " * n + "\n",
    "CSV: empty lines": lambda n: "a,b\n" + "\n" * n,
}
YAML_TEXTS: dict[str, Callable[[int], str]] = {
    "YAML: aliases of aliases": lambda n: (
        "a: &a [x, x]\n"
        + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
        + "#" * n
    ),
    "YAML: brackets": lambda n: "[" * n,
    "YAML: a list": lambda n: "- x\n" * (n // 4),
    "YAML: a mapping": lambda n: "".join(f"k{k}: v\n" for k in range(n // 9)),
    "YAML: spaces": lambda n: "a:" + " " * n + "b",
    "YAML: a quoted text": lambda n: "a: '" + "''" * (n // 2) + "'",
    "YAML: a number": lambda n: "a: " + "1:" * (n // 2) + "1",
}


def seconds_to_read(file: Path) -> float:
    """How long a file takes, which is mostly refused: the shortest of some attempts."""
    taken = []
    for _ in range(_TIMES):
        started = time.perf_counter()
        with suppress(ValueError):
            if file.suffix == ".yaml":
                load_task(file)
            else:
                deque(read_table(file).rows, maxlen=0)
        taken.append(time.perf_counter() - started)
    return min(taken)


def main() -> None:
    """Print the time of each kind of line; exit with an error if one is too slow."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    failed = 0
    print(f"{'line':34} {'bytes':>10} {'seconds':>9} {'growth':>7}  (of the time, for each doubling)")
    with tempfile.TemporaryDirectory() as folder:
        for name, text_of in (LINES | YAML_TEXTS).items():
            kind = name.partition(":")[0].lower()
            file = Path(folder, f"hostile.{kind}")
            taken = []
            sizes = _YAML_SIZES if kind == "yaml" else _SIZES
            for size in sizes:
                file.write_text(text_of(size))
                taken.append(seconds_to_read(file))
            growth = (taken[-1] / taken[0]) ** (1 / (len(sizes) - 1))
            # Of YAML the length is limited instead, for PyYAML's numbers take time in the square of theirs.
            slow = taken[-1] > _MOST_SECONDS or (kind != "yaml" and growth > _MOST_GROWTH and taken[-1] > _NOISE)
            failed += slow
            print(f"{name:34} {sizes[-1]:>10,} {taken[-1]:>9.3f} {growth:>7.1f}{'  too slow' * slow}")
    if failed:
        sys.exit(f"{failed} kinds of lines take too long")


if __name__ == "__main__":
    main()
