"""What a refusal of an append means to its user (R21).

Laws: a refusal that leaves the outcome open has no error here (`UNSEEN`, LOST_LEADERSHIP): it asks for another try.
Every other one is for good, and its error means "not in the log", unless an earlier try may have been appended and the
refusal says nothing of it.
"""

from __future__ import annotations

from alpo.core.ready import Code
from alpo.errors import (
    AlpoError,
    Fenced,
    NoSpace,
    NotGuaranteed,
    Overloaded,
    Refused,
    SerialReused,
    SessionExpired,
    Skipped,
    TooLarge,
    Unavailable,
)
from alpo.wire.requests import AppendRefused

#: The transmission was not taken, and that says nothing about the next one.
UNSEEN = frozenset({Code.NOT_LEADER, Code.SERIAL_EXPECTED, Code.OVERLOADED, Code.NOT_READY, Code.NO_SPACE})
#: The session is over for whoever is told so.
ENDS = frozenset({Code.FENCED, Code.DROPPED})
#: The server does not lead (any more): ask another.
AWAY = frozenset({Code.NOT_LEADER, Code.LOST_LEADERSHIP})


def kind_of(reason: AlpoError | None) -> type[AlpoError]:
    """The error for what was not done by its deadline, for that last reason."""
    return next((kind for kind in (NoSpace, Overloaded) if isinstance(reason, kind)), Unavailable)


def unknown(text: str, client: str, serial: int, epoch: int, too_old: bool = False) -> NotGuaranteed:
    """The outcome cannot be told; the message says what to retry with."""
    where = f"client {client}, serial {serial}, epoch {epoch}"
    return NotGuaranteed(f"{text} ({where})", client=client, serial=serial, epoch=epoch, too_old=too_old)


def verdict(answer: AppendRefused, serial: int, epoch: int, maybe: bool, taken_over: bool = False) -> AlpoError:
    """The error of a refusal for good.

    ``maybe``: an earlier try may have been appended, which this does not settle. ``taken_over``: the refusal shows that
    another process writes under this name.
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
    if code == Code.SKIPPED:
        return Skipped(f"serial {serial} of {client} was skipped")
    if code == Code.SESSION_EXPIRED:
        return SessionExpired(f"the client id {client} has ended")
    if code == Code.TOO_LARGE:
        return TooLarge(answer.detail or f"over the limit of {answer.number} bytes")
    return Refused(answer.detail or f"refused: {code_name(code)}")


def fenced(answer: AppendRefused) -> Fenced:
    """Who fenced the session, as far as its refusal tells."""
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
