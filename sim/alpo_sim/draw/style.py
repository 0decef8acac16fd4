"""Colours (Okabe and Ito's, that colour-blind readers tell apart; their tints for terms) and dashes."""

from __future__ import annotations

INK, GREY, FAINT, ALARM = "#1a1a1a", "#6b6b6b", "#a3a3a3", "#b3261e"
PAPER = "#ffffff"
ALARM_TINT = "#fbe3e1"
SURE = "#00694d"  # of what is guaranteed

#: Of messages by kind; their answers are dashed.
KIND_COLOURS = {
    "canvass": "#0072B2",
    "vote": "#D55E00",
    "defer": "#AA3377",
    "append": "#222222",
    "mark": "#009E73",
    "heartbeat": FAINT,
    "handover": "#007A5A",
    "start": "#8a6d3b",
}
KIND_WIDTHS = {"heartbeat": 0.8, "mark": 1.1, "handover": 2.2, "append": 1.5}

#: (light, dark) by term, over and over; term 0: none yet.
_TERMS = (
    ("#cfe6f5", "#56B4E9"), ("#fbe0b0", "#E69F00"), ("#c9e9dc", "#33b38c"), ("#f0d3e3", "#CC79A7"),
    ("#f7f1a8", "#d6c800"), ("#dcd9f2", "#8f86d6"),
)


def term_tint(term: int) -> str:
    return _TERMS[(term - 1) % len(_TERMS)][0] if term else "#f4f4f4"


def term_colour(term: int) -> str:
    return _TERMS[(term - 1) % len(_TERMS)][1] if term else "#cccccc"
