"""Text in pictures: how wide it is, as near as can be told without a font, and never too narrow."""

from __future__ import annotations

_NARROW = dict.fromkeys(".,:;|!il'()· ", 0.36) | dict.fromkeys("fjrtI-–[]/", 0.45)
_WIDE = dict.fromkeys("mwMW→×", 0.98)
_WIDTHS = _NARROW | _WIDE
FONT = "'DejaVu Sans', Verdana, Helvetica, Arial, sans-serif"


def width_px(text: str, size: float, *, bold: bool = False) -> float:
    """Of DejaVu Sans or Verdana, the widest of `FONT`."""
    return sum(_WIDTHS.get(c, 0.64) for c in text) * size * (1.12 if bold else 1.0)


def escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def number(value: float) -> str:
    """A coordinate: one decimal, no needless zero."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text
