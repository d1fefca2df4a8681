"""Pictures of simple shapes, drawn at a multiple of their size and scaled down, which smooths edges."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

INK, PAPER, WHITE = "#3a3530", "#fffaf0", "#ffffff"
Place = tuple[float, float]
"""Row and column of the middle of a cell, in cells."""
Sprite = list[tuple[Any, ...]]
"""Shapes: a method of Pillow's ``ImageDraw``, fill, outline, and points (right, down) in cells from the middle."""
_SMOOTH = 3
"""Pixels are drawn at so many times their number in each direction."""
_LINE_WIDTH = 4


class Picture:
    """A picture of cells with a caption below.

    Parameters
    ----------
    rows, columns : float
        Height and width, in cells.
    cell, caption : int
        Side of a cell and height of the caption, in pixels.

    Raises
    ------
    ImportError
        If Pillow is not installed.
    """

    def __init__(self, rows: float, columns: float, cell: int, caption: int) -> None:
        try:
            from PIL import Image, ImageDraw
        except ImportError:
            raise ImportError("pictures need Pillow: pip install 'lang-envs[render]'") from None
        self.size = round(columns * cell), round(rows * cell) + caption
        self.unit = cell * _SMOOTH
        self._image = Image.new("RGB", (self.size[0] * _SMOOTH, self.size[1] * _SMOOTH), PAPER)
        self._pen = ImageDraw.Draw(self._image)

    def fill(self, top: float, left: float, bottom: float, right: float, colour: str, outline: str) -> None:
        """Draw a filled rectangle; edges in cells."""
        corners = (left * self.unit, top * self.unit, right * self.unit - 1, bottom * self.unit - 1)
        self._pen.rectangle(corners, colour, outline, _SMOOTH // 2)

    def stamp(self, sprite: Iterable[tuple[Any, ...]], at: Place, size: float = 1) -> None:
        """Draw a sprite in a cell, ``size`` times as large as a cell."""
        for method, fill, outline, *points in sprite:
            moved = [(at[1 - k % 2] + 0.5 + size * value) * self.unit for k, value in enumerate(points)]
            getattr(self._pen, method)(moved, fill=fill, outline=outline, width=_LINE_WIDTH)

    def write(
        self, text: str, down: float, across: float, height: float, colour: str = INK, anchor: str = "la"
    ) -> None:
        """Write a line of text at a point, ``height`` cells high; ``anchor`` is Pillow's."""
        from PIL import ImageFont

        font = ImageFont.load_default(height * self.unit)
        self._pen.text((across * self.unit, down * self.unit), text, colour, font, anchor)

    def array(self) -> np.ndarray:
        """Return the picture as a uint8 array of shape (height, width, 3)."""
        from PIL import Image

        return np.array(self._image.resize(self.size, Image.Resampling.LANCZOS))
