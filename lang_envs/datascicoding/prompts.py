"""Observations of DataSciCoding in three prompt styles, and conversion of actions to programs."""

from __future__ import annotations

import re
import string
import textwrap
from typing import NamedTuple

from lang_envs.sandbox.pool import SOURCE_BYTES
from lang_envs.storage import storable
from lang_envs.tokenizer import HOLE, Tokenizer

STYLES = ("completion", "infill", "chat")
"""Names of the prompt styles."""
HEAD = "def build_model(x_train, y_train):"
TAIL = "    return model"
"""First and last line of the function that the agent completes."""
_SHOWN_CHARACTERS = 2000
"""Of a program that failed."""
_SHOWN_ERROR_LINES, _SHOWN_ERROR_CHARACTERS = 3, 300
_WHOLE = re.compile(r"^def build_model\(", re.MULTILINE)
_NOT_SHOWN = re.compile(f"[^{re.escape(string.printable)}]|[\r\x0b\x0c]")


@storable
class Attempt(NamedTuple):
    """The last program and its error, as far as the next observation shows them."""

    function: str
    error: str


def style_for(tokenizer: Tokenizer) -> str:
    """Return the prompt style for a tokenizer: chat, infill or completion, the first that it supports."""
    if tokenizer.chat_template:
        return "chat"
    return "infill" if tokenizer.infill else "completion"


def prompt(style: str, title: str, shape: tuple[int, int], classes: int, last: Attempt | None) -> str:
    """Return an observation: the task, the last program with its error if there is one, the head of the function.

    It is printable ASCII; other characters of the program become ``?``. ``completion`` ends after three of the four
    spaces of indentation, because the fourth is the space that begins every action. ``infill`` contains
    :data:`lang_envs.tokenizer.HOLE` in place of the body.

    Parameters
    ----------
    style : str
        One of ``STYLES``.
    title : str
        Public name of the data set.
    shape : tuple of int
        Rows and columns of ``x_train``.
    classes : int
        Number of classes.
    last : Attempt or None
        The last program, if it failed.
    """
    task = f"{title}: x_train {shape}, {classes} classes."
    if style == "chat":
        parts = [
            f"{task}\nWrite the body of `{HEAD}` with scikit-learn and NumPy; the imports belong into it. "
            "`return model` follows; the model is fitted and has predict_proba. One thread, no files, no network. "
            "Answer with code alone."
        ]
        if last is not None:
            parts.append(f"Your last program failed:\n{last.function}\n{last.error}")
        return _shown("\n\n".join(parts))
    lines = [f"# {task}"]
    if last is not None:
        lines += [last.function, *(f"# {line}" for line in last.error.splitlines())]
    start = _shown("\n".join(lines)) + f"\n{HEAD}\n"
    return f"{start}{HOLE}\n{TAIL}\n" if style == "infill" else f"{start}   "


def _shown(text: str) -> str:
    return _NOT_SHOWN.sub("?", text).replace(HOLE, "?")


def attempt(function: str, error: str) -> Attempt:
    """Return what the next observation shows of a failed program: its beginning, and the last lines of its error."""
    if len(function) > _SHOWN_CHARACTERS:
        function = function[:_SHOWN_CHARACTERS] + " ..."
    lines = [line for line in error.splitlines() if line.strip()][-_SHOWN_ERROR_LINES:]
    return Attempt(function, "\n".join(lines)[-_SHOWN_ERROR_CHARACTERS:])


def function_of(answer: str) -> str:
    """Return the definition of ``build_model`` for an answer. Its text is cut and indented, but not parsed or run.

    If there is a fenced code block, only that block counts. A whole definition is returned as it is. In a body,
    indented lines are kept, other lines are indented as a block, and ``return model`` is appended. An answer that is
    longer than the limit of programs is only cut, and the sandbox rejects it by its length.
    """
    if len(answer) > SOURCE_BYTES:
        return answer[: SOURCE_BYTES + 1]
    answer = answer.encode(errors="replace").decode()
    answer = _fenced(re.sub(r"\r\n?", "\n", answer).replace("\t", "    "))
    if _WHOLE.search(answer.lstrip()):
        return answer.strip()
    return f"{HEAD}\n{_body(answer)}\n{TAIL}"


def _fenced(answer: str) -> str:
    """Return the content of the first fenced block, or the whole answer where there is none."""
    _, fence, rest = answer.partition("```")
    _, newline, block = rest.partition("\n")
    return block.partition("```")[0] if fence and newline else answer


def _body(answer: str) -> str:
    first, *rest = answer.strip("\n").rstrip().split("\n")
    indents = [_indent(line) for line in rest if line.strip()]
    least = min(indents, default=0)
    opens = first.partition("#")[0].rstrip().endswith(":")
    if opens and _indent(first) < least and not (indents[0] >= 8 and least >= 4):
        least = 0  # what follows is the block of the first line
    elif least >= 4 > _indent(first):
        least = 4  # the prompt had indented the first line already
    return textwrap.indent("\n".join((first.lstrip(), *(line[least:] for line in rest))), "    ")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
