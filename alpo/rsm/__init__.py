"""Replicated state machines of one's own: `check` finds machines that are not the same however they are folded."""

from __future__ import annotations

from .checking import Checked, Nondeterministic, check

__all__ = ["Checked", "Nondeterministic", "check"]
