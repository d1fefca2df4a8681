"""Sphinx configuration: `make docs` builds the site into docs/_build/html."""

import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

import generate  # noqa: E402

from lang_envs import __version__ as release  # noqa: E402, F401

generate.write(DOCS / "generated")

project = "lang-envs"
html_title = "lang-envs"
copyright = "the authors of lang-envs, MIT licence"
extensions = [
    "myst_parser",  # pages are Markdown
    "sphinx.ext.autodoc",  # the API reference comes from docstrings
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",  # docstrings are in NumPy style
    "sphinx.ext.viewcode",  # [source] links, without a network
    "mathml",
]
exclude_patterns = ["_build", "generated/parts"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4

html_theme = "furo"
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["pages.css"]

highlight_language = "none"  # code blocks name their language
autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_typehints = "none"  # types are in the docstrings
napoleon_google_docstring = False
napoleon_use_ivar = True
# Without a network there are no other projects' inventories, so only our own names are checked.
nitpick_ignore_regex = [("py:.*", r"(?!lang_envs|trainers|benchmarks).*"), ("py:mod", r".*")]


def prepare(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Change docstrings where napoleon misreads them."""
    if what in ("attribute", "data", "property"):
        lines[:0] = ["..", ""]  # an empty comment, else napoleon takes the words before a colon for a type
    start = lines.index("Attributes") if "Attributes" in lines else len(lines)
    for i in reversed(range(start, len(lines))):
        if match := re.fullmatch(r"(\w+(?:, \w+)+) : (.+)", lines[i]):  # "a, b : int" are two attributes
            end = next((j for j in range(i + 1, len(lines)) if not lines[j].startswith(" ")), len(lines))
            entries = [[f"{attribute} : {match[2]}", *lines[i + 1 : end]] for attribute in match[1].split(", ")]
            lines[i:end] = [line for entry in entries for line in entry]


def skip(app: Any, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out the fields of named tuples, which have no text of ours."""
    return True if (getattr(obj, "__doc__", None) or "").startswith("Alias for field number") else None


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", prepare, priority=400)  # napoleon's priority is 500
    app.connect("autodoc-skip-member", skip)
