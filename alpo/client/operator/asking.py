"""Have a server answer an operator's request: each is repeated until it is answered or its time is up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from alpo.client.arguments import seconds_text
from alpo.client.connection import Connection, Lost
from alpo.client.reasons import AWAY, UNSEEN, code_name, kind_of
from alpo.client.retry import ATTEMPT_S, Again, retried
from alpo.client.servers import Servers
from alpo.core.requests import Code
from alpo.errors import (
    AlpoError,
    NoSpace,
    Overloaded,
    ProtocolError,
    Refused,
    Unavailable,
)
from alpo.wire import requests as w

T = TypeVar("T")


async def at_leader(
    servers: Servers, attempt: Callable[[Connection], Awaitable[T]], timeout_s: float, attempt_s: float = ATTEMPT_S
) -> T:
    """Call ``attempt`` with a connection to the leader until it returns or ``timeout_s`` is over; returns its result.

    ``attempt_s``: how long the first leader asked may take, doubled with every try. Raises what ``attempt`` raises,
    `Lost` and `Again` excepted; at the deadline as `kind_of` says.
    """
    return await until_answered(lambda: servers.leader(fresh=False), servers, attempt, timeout_s, attempt_s)


async def until_answered(
    connect: Callable[[], Awaitable[Connection]], servers: Servers, attempt: Callable[[Connection], Awaitable[T]],
    timeout_s: float, attempt_s: float = ATTEMPT_S,
) -> T:
    """Return what ``attempt`` makes of a connection of ``connect``; both are repeated until ``attempt`` returns.

    They are repeated after `Lost` from either, and after `Again`; any other error of either passes through. Raises
    `Unavailable` once ``timeout_s`` is over, with the most telling reason; ``attempt_s``: seconds for one attempt.
    """
    async def once(seconds: float) -> T:
        servers.require_open()
        connection: Connection | None = None
        whole = False
        try:
            connection = await servers.lend(connect)
            with anyio.move_on_after(seconds):
                result = await attempt(connection)
                whole = True
                servers.reasons.over()
                return result
            servers.hint = None
            servers.reasons.lost(connection.address, Unavailable(f"{connection.address} does not answer"))
        except Lost as lost:
            if connection is not None:  # else the code that dialled has noted the loss
                servers.reasons.lost(connection.address, lost.reason)
        except Again as again:
            if connection is not None and again.reason is not None:
                servers.reasons.answered(connection.address, again.reason)
        finally:
            if connection is not None:
                (servers.give_back if whole else servers.drop)(connection)
        raise Again

    try:
        return await retried(once, timeout_s, attempt_s)
    except TimeoutError as error:
        raise no_answer(servers, timeout_s) from error


def probe_read(number: int) -> w.Read:
    """A request to read the last payload: only the leader answers, and its page tells where the log ends."""
    return w.Read(number, 0, 0, 1, 0, 1, True, 0, "")


def no_answer(servers: Servers, timeout_s: float, hint: str = "") -> AlpoError:
    """The error for a request that nobody answered in time, with the last known reason."""
    reason = servers.reason
    why = f": {reason}" if reason is not None else ""
    return kind_of(reason)(f"no answer within {seconds_text(timeout_s)}{why}{hint}")


def unwelcome(servers: Servers, answer: w.ServerReply) -> Exception:
    """The error to raise for an answer that is not the one asked for: `Again`, `Refused` or `ProtocolError`."""
    if not isinstance(answer, w.RequestRefused):
        return ProtocolError(f"an answer of the wrong kind: {type(answer).__name__}")
    if answer.code in UNSEEN or answer.code == Code.LOST_LEADERSHIP:
        return Again(reason_of(servers, answer))
    return Refused(answer.detail or code_name(answer.code))


def reason_of(servers: Servers, answer: w.RequestRefused | w.AppendRefused) -> AlpoError:
    """The error for a user that a server's refusal means. Notes where the server says that the leader is."""
    if answer.code in AWAY:
        servers.hint = answer.leader_address or None
        return Unavailable(answer.detail or "the server does not lead")
    if answer.code == Code.NO_SPACE:
        return NoSpace(answer.detail)
    if answer.code == Code.OVERLOADED:
        return Overloaded(answer.detail or "the server is overloaded")
    return Unavailable(answer.detail or f"the server is not ready: {code_name(answer.code)}")
