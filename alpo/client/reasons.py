"""Why no server would do: what the last try of each address came to.

Laws:

* An answer to what was asked comes first, then that too few servers answer, then what servers say of themselves, then
  addresses where nobody answers.
* One reason is kept for each address, the newest, of `ADDRESSES_MAX` addresses; `TOLD_MAX` are told.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from alpo.errors import AlpoError, NoSpace, Overloaded, ProtocolError, Unavailable

ADDRESSES_MAX = 64
TOLD_MAX = 4
#: Where a reason is kept that is of no one address.
_ALL = ""


class _Rank(IntEnum):
    """How telling it is; the lowest is told first."""

    ANSWER = 0
    FEW = 1
    SAYS = 2
    SILENT = 3


class _Reason(NamedTuple):
    rank: _Rank
    error: AlpoError


class Reasons:
    """The newest of every address, the newest of all at the end."""

    def __init__(self) -> None:
        self._known: dict[str, _Reason] = {}

    def answered(self, address: str, error: AlpoError) -> None:
        """The server there would not do what it was asked."""
        self._note(address, _Rank.ANSWER, error)

    def says(self, address: str, error: AlpoError) -> None:
        """The server there says of itself that it will not do."""
        self._note(address, _Rank.SAYS, error)

    def lost(self, address: str, error: AlpoError) -> None:
        """There is no connection to that address (any more)."""
        rank = _Rank.SILENT
        if isinstance(error, NoSpace | Overloaded):
            rank = _Rank.ANSWER
        elif isinstance(error, ProtocolError):
            rank = _Rank.SAYS
        self._note(address, rank, error)

    def counted(self, answering: int, servers: int) -> None:
        """So many of the cluster's servers answer, and none that will do."""
        self._known.pop(_ALL, None)
        if 0 < answering <= servers // 2:
            few = f"{answering} of {servers} servers {'answers' if answering == 1 else 'answer'}"
            self._note(_ALL, _Rank.FEW, Unavailable(f"{few}, less than a majority (see alpo status)"))

    def found(self, address: str) -> None:
        """The server there will do: what was the matter elsewhere is over, and what it last answered stays."""
        own = self._known.get(address)
        self._known = {address: own} if own is not None and own.rank is _Rank.ANSWER else {}

    def over(self) -> None:
        """A server has done what it was asked."""
        self._known.clear()

    def _note(self, address: str, rank: _Rank, error: AlpoError) -> None:
        self._known.pop(address, None)
        self._known[address] = _Reason(rank, error)
        if len(self._known) > ADDRESSES_MAX:
            del self._known[next(iter(self._known))]

    @property
    def told(self) -> AlpoError | None:
        """The most telling one, with the others in its message; None if nothing is the matter."""
        if not self._known:
            return None
        newest_first = list(self._known.values())[::-1]
        errors = [reason.error for reason in sorted(newest_first, key=lambda reason: reason.rank)]
        texts = list(dict.fromkeys(map(str, errors)))
        if len(texts) == 1:
            return errors[0]
        more = [f"{len(texts) - TOLD_MAX} more"] if len(texts) > TOLD_MAX else []
        return type(errors[0])("; ".join([*texts[:TOLD_MAX], *more]))
