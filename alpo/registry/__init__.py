"""A registry over a replicated state: one process leads and decides who is admitted, any number see it.

Programs make a `Registry` over an `alpo.state.State`, and enter it.
"""

from __future__ import annotations

from .operations import Admit, Operation, Readmit, Remove, Step
from .registry import Registry
from .rows import Damaged, Deposed, NotInitialised, Reject, Rows, View, ViewWatch

__all__ = [
    "Admit", "Damaged", "Deposed", "NotInitialised", "Operation", "Readmit", "Registry", "Reject", "Remove", "Rows",
    "Step", "View", "ViewWatch",
]
