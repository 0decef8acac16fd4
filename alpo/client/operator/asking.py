"""Have a server answer an operator's request, which is repeated until it is answered or its time is up; and `Asking`,
on which a `Log`'s calls of this kind stand, those of the other modules here.

Law: nothing here needs the tasks behind a `Log`; each call dials, asks and is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias, TypeVar

import anyio

from alpo.client.arguments import need_seconds, seconds_text
from alpo.client.connection import Connection, Lost
from alpo.client.reasons import AWAY, UNSEEN, code_name, kind_of
from alpo.client.retry import ATTEMPT_S, Again, Clock, retried
from alpo.client.servers import Final, Servers
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
#: Refusals with an error of their own: code -> the maker of the error to raise.
Refusals: TypeAlias = Mapping[Code, Callable[[w.RequestRefused], Exception]]
_NONE: Refusals = MappingProxyType({})
#: The maker of a request of its number.
Make: TypeAlias = Callable[[int], w.ClientRequest]


class Asking:
    """A cluster that is asked: the ground of a `Log`, on which its calls stand.

    Each call is repeated until a server answers it, ``timeout_s`` seconds at most (None: what the log was given). Every
    one raises `Closed` once the log is closed.
    """

    def __init__(self, servers: Servers, timeout_s: float) -> None:
        need_seconds(timeout_s)
        self._servers = servers
        self._timeout_s = timeout_s
        #: The time in which this log lives: for libraries built on it.
        self.clock = Clock(servers.rng)

    @property
    def closed(self) -> bool:
        """True once closed, here or in the process that this one was forked from."""
        return self._servers.closed

    @property
    def forked(self) -> bool:
        """True in a process that was forked from the one that made this log. For libraries built on it."""
        return self._servers.inherited

    @property
    def timeout_s(self) -> float:
        """The seconds that a call waits for an answer, unless it is given others. For libraries built on this log."""
        return self._timeout_s

    @property
    def cluster(self) -> str:
        """The id of the cluster, in hex; "" until a server has named it. For libraries built on this log."""
        return self._servers.cluster.hex()

    @property
    def reason(self) -> AlpoError | None:
        """The reason why what is under way is not done yet, the most telling one first; None if nothing is the matter.
        For libraries built on this log."""
        return self._servers.reason

    def _seconds(self, timeout_s: float | None) -> float:
        """Seconds to wait, for every call that waits. Raises `Closed`, TypeError, ValueError."""
        self._servers.require_open()
        if timeout_s is None:
            return self._timeout_s
        need_seconds(timeout_s, zero=True)
        return timeout_s

    async def _ask(self, make: Make, wants: type[T], timeout_s: float | None, refusals: Refusals = _NONE) -> T:
        """The leader's answer to a request, as `ask`."""
        return await ask(self._servers, make, wants, self._seconds(timeout_s), refusals)


def servers_of(log: Asking) -> Servers:
    """The servers that a log knows of, and its connections to them. For the library."""
    return log._servers


async def ask(
    servers: Servers, make: Make, wants: type[T], timeout_s: float, refusals: Refusals = _NONE,
    attempt_s: float = ATTEMPT_S,
) -> T:
    """The answer of the type ``wants`` to the request that ``make`` makes of a number, from the leader.

    ``refusals``: what to raise for some codes. Raises `Refused`, `ProtocolError`, and as `at_leader`.
    """
    return await at_leader(servers, lambda there: answered(servers, there, make, wants, refusals), timeout_s, attempt_s)


async def answered(
    servers: Servers, connection: Connection, make: Make, wants: type[T], refusals: Refusals = _NONE
) -> T:
    """The answer to one request on one connection, as `ask`. Raises `Again` and `Lost`, too."""
    answer = await connection.ask(make)
    if isinstance(answer, wants):
        return answer
    if isinstance(answer, w.RequestRefused) and answer.code in refusals:
        raise refusals[Code(answer.code)](answer)
    raise unwelcome(servers, answer)


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
        except Final as lost:
            raise lost.reason from lost
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
    if isinstance(answer, w.RequestRefused) and (answer.code in UNSEEN or answer.code == Code.LOST_LEADERSHIP):
        return Again(reason_of(servers, answer))
    return refusal(answer)


def refusal(answer: w.ServerReply) -> AlpoError:
    """The error to raise for an answer that is not the one asked for, where no other try betters it."""
    if isinstance(answer, w.RequestRefused):
        return Refused(answer.detail or code_name(answer.code))
    return ProtocolError(f"an answer of the wrong kind: {type(answer).__name__}")


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
