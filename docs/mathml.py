"""A Sphinx extension that writes equations as MathML, which browsers show without a script or a network."""

from typing import Any

from docutils.nodes import SkipNode, math, math_block
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx


def _inline(writer: Any, node: math) -> None:
    writer.body.append(tex2mathml(node.astext()))
    raise SkipNode


def _block(writer: Any, node: math_block) -> None:
    writer.body.append(
        f'<div class="math" style="margin: 1em 0; overflow-x: auto">{tex2mathml(node.astext(), as_block=True)}</div>'
    )
    raise SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
