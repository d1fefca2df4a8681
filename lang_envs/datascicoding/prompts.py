"""What the agent is told, in the style its tokenizer asks for, and how its answer becomes a program."""

from __future__ import annotations

import re
import string
import textwrap
from typing import NamedTuple

from lang_envs.sandbox.pool import SOURCE_BYTES
from lang_envs.storage import storable
from lang_envs.tokenizer import HOLE, Tokenizer

STYLES = ("completion", "infill", "chat")
HEAD = "def build_model(x_train, y_train):"
TAIL = "    return model"
_SHOWN_CHARACTERS = 2000
_SHOWN_ERROR_LINES, _SHOWN_ERROR_CHARACTERS = 3, 300
_WHOLE = re.compile(r"^def build_model\(", re.MULTILINE)
_NOT_SHOWN = re.compile(f"[^{re.escape(string.printable)}]|[\r\x0b\x0c]")


@storable
class Attempt(NamedTuple):
    """A program of the agent's that failed, and how."""

    function: str
    error: str


def style_for(tokenizer: Tokenizer) -> str:
    """The prompt style that suits a tokenizer: of its chat template, of its infill markers, or plain completion."""
    if tokenizer.chat_template:
        return "chat"
    return "infill" if tokenizer.infill else "completion"


def prompt(style: str, title: str, shape: tuple[int, int], classes: int, last: Attempt | None) -> str:
    """The observation: the task, the last program with its error where there is one, the head of the next.

    Only printable ASCII, whatever stands in the program. ``completion`` ends three spaces into the function, for the
    fourth belongs to the answer; ``infill`` has :data:`lang_envs.tokenizer.HOLE` where the body goes.
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
    """What of a failed program the next prompt shows: its beginning, and its error's last lines."""
    if len(function) > _SHOWN_CHARACTERS:
        function = function[:_SHOWN_CHARACTERS] + " ..."
    lines = [line for line in error.splitlines() if line.strip()][-_SHOWN_ERROR_LINES:]
    return Attempt(function, "\n".join(lines)[-_SHOWN_ERROR_CHARACTERS:])


def function_of(answer: str) -> str:
    """The definition of ``build_model`` that an answer means; its text is only cut and indented, never read as code.

    A fenced block counts alone. An answer that holds the whole definition is taken as it is. Of a body, lines that
    stand indented are taken as they are, and others are indented as a block; ``return model`` follows. An answer that
    is longer than a program may be is not read: the sandbox refuses it by its length.
    """
    if len(answer) > SOURCE_BYTES:
        return answer[: SOURCE_BYTES + 1]
    answer = answer.encode(errors="replace").decode()
    answer = _fenced(re.sub(r"\r\n?", "\n", answer).replace("\t", "    "))
    if _WHOLE.search(answer.lstrip()):
        return answer.strip()
    return f"{HEAD}\n{_body(answer)}\n{TAIL}"


def _fenced(answer: str) -> str:
    """What stands in the first fenced block, or the whole answer where there is none."""
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
