"""`check`: folds a user's machine in many ways and processes, and says where two differ. For users' own tests."""

from __future__ import annotations

from .call import Checked, Nondeterministic, check

__all__ = ["Checked", "Nondeterministic", "check"]
