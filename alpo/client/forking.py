"""What is told that it was copied into a forked process: there it is over, here it goes on unharmed.

Laws: in the child nothing is sent, no event loop is touched, and no lock is waited for: who held it is not there.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

WHY = "this Log belongs to the process that this one was forked from: connect anew after the fork"


class Inherited(Protocol):
    """What does not survive a fork."""

    def forked(self) -> None:
        """Called in the child, before anything else runs there."""


_WATCHED: WeakSet[Inherited] = WeakSet()


def watch(what: Inherited) -> None:
    """Have it told, for as long as it lives."""
    _WATCHED.add(what)


def _in_child() -> None:
    for what in list(_WATCHED):
        what.forked()


os.register_at_fork(after_in_child=_in_child)
