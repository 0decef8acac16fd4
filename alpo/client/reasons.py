"""Reasons why something was not done: the meaning of an append's refusal, and why no server would do.

Laws of refusals: a refusal that leaves the outcome open (`UNSEEN`, LOST_LEADERSHIP) has no error here: the append is
sent again. Every other refusal is final, and its error means "not in the log", unless an earlier try may have been
appended and the refusal says nothing of it.

Laws of `Reasons`:

* Reasons have an order: first an answer to the request itself, then that too few servers answer, then what servers say
  of themselves, then addresses where no server answers.
* An error which says that repeating does not help (`LASTING`) is raised only if no server of the cluster answers, and a
  server of another cluster answers in its place, or most addresses are wrong: else the cluster may yet come back.
* One reason is kept for each address, the newest, of `ADDRESSES_MAX` addresses; `TOLD_MAX` are reported.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from alpo.core.requests import Code
from alpo.errors import (
    AlpoError,
    Conflict,
    Fenced,
    NoSpace,
    NoSuchLog,
    NotGuaranteed,
    Overloaded,
    ProtocolError,
    Refused,
    SerialReused,
    SessionExpired,
    Skipped,
    TlsMismatch,
    TooLarge,
    Unavailable,
)
from alpo.wire.framing import CLUSTER_TOLD, TLS_ONLY_TOLD
from alpo.wire.requests import AppendRefused, Problem

#: Refusals of a transmission that was not taken; another one may be.
UNSEEN = frozenset({Code.NOT_LEADER, Code.SERIAL_EXPECTED, Code.OVERLOADED, Code.NOT_READY, Code.NO_SPACE})
#: Refusals that end the session of the process that gets them.
ENDS = frozenset({Code.FENCED, Code.DROPPED})
#: Refusals of a server that does not lead (any more): another is to be asked.
AWAY = frozenset({Code.NOT_LEADER, Code.LOST_LEADERSHIP})


class OtherCluster(ProtocolError):
    """The reason of a server that belongs to another cluster. Users get a `ProtocolError`."""


#: Errors that are over by themselves, so that a question may be asked again; and those that no other try can avoid.
PASSING = (Unavailable, Overloaded, NoSpace)
LASTING = (ProtocolError, TlsMismatch)
_KINDS = (NoSpace, Overloaded, TlsMismatch, ProtocolError, NoSuchLog, Refused)


def kind_of(reason: AlpoError | None) -> type[AlpoError]:
    """The error class for what was not done by its deadline, by the last reason known."""
    return next((kind for kind in _KINDS if isinstance(reason, kind)), Unavailable)


def unknown(text: str, client: str, serial: int, epoch: int, too_old: bool = False) -> NotGuaranteed:
    """The error of an outcome that cannot be told; the message says what to retry with."""
    where = f"client {client}, serial {serial}, epoch {epoch}"
    return NotGuaranteed(f"{text} ({where})", client=client, serial=serial, epoch=epoch, too_old=too_old)


def verdict(answer: AppendRefused, serial: int, epoch: int, maybe: bool, taken_over: bool = False) -> AlpoError:
    """The error of an append that was refused for good.

    ``maybe``: an earlier try may have been appended, and the refusal says nothing of that. ``taken_over``: the refusal
    shows that another process writes under this name.
    """
    if answer.code == Code.TOO_OLD:
        return unknown("too old to tell", answer.client, serial, epoch, too_old=True)
    error = fenced(answer) if taken_over else _verdict(answer, serial)
    if maybe:
        text = f"{error}; an earlier try may have been appended"
        return unknown(text, answer.client, serial, epoch, too_old=True)
    return error


def _verdict(answer: AppendRefused, serial: int) -> AlpoError:
    code, client = answer.code, answer.client
    if code in ENDS:
        return fenced(answer)
    if code == Code.SERIAL_REUSED:
        return SerialReused(f"serial {serial} of {client} is in the log with another payload or epoch")
    if code == Code.CONFLICT:
        return Conflict(f"the log's last LSN is {answer.number}, not the one expected", last_lsn=answer.number)
    if code == Code.SKIPPED:
        return Skipped(f"serial {serial} of {client} was skipped")
    if code == Code.SESSION_EXPIRED:
        return SessionExpired(f"the client id {client} has ended")
    if code == Code.TOO_LARGE:
        return TooLarge(answer.detail or f"over the limit of {answer.number} bytes")
    return Refused(answer.detail or f"refused: {code_name(code)}")


def fenced(answer: AppendRefused) -> Fenced:
    """The error of a session that was fenced; tells by whom, as far as the refusal does."""
    if answer.code == Code.SERIAL_REUSED:
        return Fenced(f"another process appends as {answer.client}: it has used serial {answer.serial}")
    if answer.code == Code.DROPPED:
        again = f", and opened again (epoch {answer.number})" if answer.number else ""
        return Fenced(f"the session {answer.client} was dropped{again}", epoch=answer.number)
    text = f"a newer process has opened the session {answer.client} (epoch {answer.number})"
    return Fenced(text, epoch=answer.number)


def code_name(code: int) -> str:
    """The name of a refusal's code."""
    try:
        return Code(code).name
    except ValueError:
        return f"code {code}"


def of_problem(address: str, problem: Problem) -> AlpoError:
    """The reason of a server that ended the connection with this `Problem`."""
    text = f"{address}: {problem.text}"
    if problem.code == Code.NO_RIGHT:
        return (TlsMismatch if problem.text == TLS_ONLY_TOLD else Refused)(text)
    if problem.code == Code.OVERLOADED:
        return Overloaded(text)
    if problem.code == Code.NO_SUCH_LOG:
        return NoSuchLog(text)
    if problem.code == Code.NOT_READY:
        return Unavailable(text)
    _, told, theirs = problem.text.partition(CLUSTER_TOLD)
    if told:
        return Unavailable(text) if theirs.startswith(" none") else OtherCluster(text)
    return ProtocolError(text)


ADDRESSES_MAX = 64
TOLD_MAX = 4
#: The key of a reason that belongs to no one address.
_ALL = ""


class _Rank(IntEnum):
    """The weight of a reason; the lowest rank is told first."""

    ANSWER = 0
    FEW = 1
    SAYS = 2
    SILENT = 3


class _Reason(NamedTuple):
    rank: _Rank
    error: AlpoError


class Reasons:
    """The newest reason of each address, why no server there would do."""

    def __init__(self) -> None:
        self._known: dict[str, _Reason] = {}

    def answered(self, address: str, error: AlpoError) -> None:
        """Note that the server at ``address`` refused what it was asked."""
        self._note(address, _Rank.ANSWER, error)

    def says(self, address: str, error: AlpoError) -> None:
        """Note that the server at ``address`` says of itself that it would refuse."""
        self._note(address, _Rank.SAYS, error)

    def lost(self, address: str, error: AlpoError) -> None:
        """Note that there is no connection to ``address`` (any more)."""
        rank = _Rank.SILENT
        if isinstance(error, LASTING):
            rank = _Rank.SAYS
        elif isinstance(error, NoSpace | Overloaded | Refused):
            rank = _Rank.ANSWER
        self._note(address, rank, error)

    def counted(self, answering: int, servers: int) -> None:
        """Note that ``answering`` of the cluster's servers answer, and none of them will do."""
        self._known.pop(_ALL, None)
        if 0 < answering <= servers // 2:
            few = f"{answering} of {servers} servers {'answers' if answering == 1 else 'answer'}"
            self._note(_ALL, _Rank.FEW, Unavailable(f"{few}, less than a majority (see alpo status)"))

    def crowded(self, error: AlpoError) -> None:
        """Note that a caller's turn for a connection did not come in time."""
        self._note(_ALL, _Rank.ANSWER, error)

    def found(self, address: str) -> None:
        """Note that the server at ``address`` will do: all reasons are over, but for a refusal of its own."""
        own = self._known.get(address)
        self._known = {address: own} if own is not None and own.rank is _Rank.ANSWER else {}

    def knows(self, address: str) -> bool:
        """True if there is a reason for ``address``."""
        return address in self._known

    def lasts(self, address: str) -> bool:
        """True if the reason for ``address`` is one that no other try betters."""
        return address in self._known and isinstance(self._known[address].error, LASTING)

    def over(self) -> None:
        """Note that a server has done what it was asked: all reasons are over."""
        self._known.clear()

    def _note(self, address: str, rank: _Rank, error: AlpoError) -> None:
        self._known.pop(address, None)
        self._known[address] = _Reason(rank, error)
        if len(self._known) > ADDRESSES_MAX:
            del self._known[next(iter(self._known))]

    @property
    def told(self) -> AlpoError | None:
        """The most telling reason, with the others in its message; None if nothing is the matter."""
        if not self._known:
            return None
        newest_first = list(self._known.values())[::-1]
        errors = [reason.error for reason in sorted(newest_first, key=lambda reason: reason.rank)]
        texts = list(dict.fromkeys(map(str, errors)))
        more = [f"{len(texts) - TOLD_MAX} more"] if len(texts) > TOLD_MAX else []
        return self._kind(errors[0])("; ".join([*texts[:TOLD_MAX], *more]))

    def _kind(self, first: AlpoError) -> type[AlpoError]:
        """The class of all reasons together, of which ``first`` is told first."""
        if not isinstance(first, LASTING):
            return type(first)
        wrong = [reason.error for reason in self._known.values() if isinstance(reason.error, LASTING)]
        heard = sum(reason.rank < _Rank.SILENT for reason in self._known.values()) > len(wrong)
        replaced = any(isinstance(error, OtherCluster) for error in wrong)
        if heard or not (replaced or 2 * len(wrong) > len(self._known)):
            return Unavailable
        return TlsMismatch if all(isinstance(error, TlsMismatch) for error in wrong) else ProtocolError
