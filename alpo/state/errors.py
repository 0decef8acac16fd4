"""Errors of a replicated state: of its variables, and of whatever is replicated. As with `alpo.errors`: each says what
is known, and survives pickling. A room of its own, because programs import errors by themselves."""

from __future__ import annotations

from alpo.errors import AlpoError
from alpo.rsm.errors import (
    Behind,
    Busy,
    Corrupt,
    Diverged,
    NewerFormat,
    NotFounded,
    Unrecoverable,
    Unsettled,
    WrongState,
)

__all__ = [
    "Behind", "Busy", "Changed", "Corrupt", "Diverged", "Full", "LockLost", "NewerFormat", "NoInteger", "NotFounded",
    "Unrecoverable", "Unsettled", "WrongState",
]


class Changed(AlpoError):
    """A condition was false, and nothing was written. ``name``: the variable; ``expected``: the LSN that it was to
    have; ``version``: the one that it has (0: it is not there)."""

    def __init__(self, message: str, *, name: str, expected: int, version: int) -> None:
        super().__init__(message)
        self.name = name
        self.expected = expected
        self.version = version


class NoInteger(AlpoError):
    """A counter holds something else than an integer, or would pass 64 bits. Nothing was written."""


class Full(AlpoError):
    """The state is as large as it may be, and the command would make it larger. Nothing was written."""


class LockLost(AlpoError):
    """The lock is not ours any more, or nobody can tell in time that it still is."""
