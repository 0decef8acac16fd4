"""State of the live view, and the keys that change it. Pure."""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

#: Sent by an arrow, a function key or Alt with a key.
_SEQUENCE = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|O.|[^\x1b])")


class Page(Enum):
    """Part of the view that fills the screen."""

    MEMBERS = "members"
    SERVER = "server"
    EVENTS = "events"
    HELP = "help"


class View(NamedTuple):
    """State of the view; ``server``: the id of the one shown on its page."""

    page: Page = Page.MEMBERS
    server: int = 0
    paused: bool = False


KEYS = (
    ("q", "quit"), ("p", "pause, and go on"), ("1-9", "one server in full, by its id"),
    ("e", "the newest events of all servers"), ("?", "this help"), ("Esc", "back to all members"),
)


def press(view: View, keys: bytes) -> View | None:
    """The view after these keys, as they were read at once; None: quit. Unknown keys do nothing."""
    for key in _SEQUENCE.sub(b"", keys).decode("ascii", "replace"):
        if key == "q":
            return None
        if key == "\x1b":
            view = View(paused=view.paused)
        elif key == "p":
            view = view._replace(paused=not view.paused)
        elif key == "e":
            view = _turn(view, Page.EVENTS)
        elif key == "?":
            view = _turn(view, Page.HELP)
        elif key in "123456789":
            view = _turn(view, Page.SERVER, int(key))
    return view


def _turn(view: View, page: Page, server: int = 0) -> View:
    """Turn to a page, or back to the members if it is shown already."""
    if (view.page, view.server) == (page, server):
        page, server = Page.MEMBERS, 0
    return view._replace(page=page, server=server)
