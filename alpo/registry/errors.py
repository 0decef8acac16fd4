"""Errors of a registry. As with `alpo.errors`: each says what is known, and survives pickling."""

from __future__ import annotations

from alpo.errors import AlpoError


class Deposed(AlpoError):
    """Another process leads this registry now, and the operation is not in the log. Repeating never helps: end, or
    recover anew. ``token``: ours; ``version``: the LSN at which the other took over (0: somebody took the header away).
    """

    def __init__(self, message: str, *, name: str, token: int, version: int) -> None:
        super().__init__(message)
        self.name = name
        self.token = token
        self.version = version


class NotInitialised(AlpoError):
    """There is no registry of this name, and a strict one makes none. Nothing was written. Either this is the wrong
    cluster, or its data is lost, or it is the first start."""


class Damaged(AlpoError):
    """Rows without a header, or a header or row that nobody can read: whatever the log holds under this name is no
    registry. Nothing was written."""


class Reject(AlpoError):
    """An operation's own "no": it raises this in its ``apply``, and changes nothing."""
