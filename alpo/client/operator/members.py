"""Founding the cluster, changes of its members, who leads, and which members have a payload on disk.

Laws:

* Each request is repeated until it is answered or its time is up; asking again for what was done does no harm.
* A leader that has taken a change may need a while for it: it is not asked again meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from alpo.addresses import parse_dialled
from alpo.client.arguments import need_int, need_str
from alpo.client.connection import Connection
from alpo.client.pages import out_of_range
from alpo.client.servers import Servers
from alpo.core import requests as q
from alpo.core.members import MemberList
from alpo.errors import (
    AlpoError,
    NotEverywhere,
    Overloaded,
    ProtocolError,
    Unavailable,
)
from alpo.wire import requests as w

from .asking import at_leader, no_answer, probe_read, until_answered, unwelcome

#: Longest wait of one `wait_everyone` request at the leader.
_WAIT_MS = 500
#: Seconds, the last of a change's timeout, that are kept for asking what the change waits for.
_TOLD_S = 0.5


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """One member of the list. ``role``: "VOTER", "LEARNER" or "GONE"."""

    id: int
    address: str
    priority: int
    role: str


@dataclass(frozen=True, slots=True)
class Leadership:
    """The leadership of a cluster: server ``leader`` leads, in ``term``."""

    leader: int
    term: int


async def init(servers: Servers, timeout_s: float) -> None:
    """Found the cluster (R29), by any one of its servers. Raises `Refused` (why it cannot be), `Unavailable`."""
    async def attempt(connection: Connection) -> None:
        answer = await connection.ask(q.Initialise)
        if isinstance(answer, w.RequestRefused):
            raise unwelcome(servers, answer)

    await until_answered(lambda: servers.any(None), servers, attempt, timeout_s)


async def change(
    servers: Servers, step: q.MemberStep, id: int, address: str, priority: int, timeout_s: float
) -> list[MemberInfo]:
    """Change one member (R27); returns the new list, guaranteed.

    A server that is added, or takes a member's place, is a LEARNER at first and becomes a VOTER by itself once it has
    caught up. Raises `alpo.addresses.AddressError`, a ValueError, unless others can dial ``address`` ("" to remove a
    member), `Refused` (why it cannot be), `Unavailable` when no answer came: its message says what the leader
    waits for, if that can be told, and the change may still be made.
    """
    need_int(id=id, priority=priority)
    need_str(address=address)
    if step is not q.MemberStep.REMOVE:
        parse_dialled(address)

    async def attempt(connection: Connection) -> list[MemberInfo]:
        answer = await connection.ask(lambda number: q.ChangeMember(number, step, id, address, priority))
        if isinstance(answer, q.MembersChanged):
            return _infos(answer.members)
        raise unwelcome(servers, answer)

    told_s = min(_TOLD_S, timeout_s / 4)
    patience_s = timeout_s - told_s
    try:
        return await at_leader(servers, attempt, patience_s, patience_s)
    except ProtocolError:
        raise
    except Unavailable as error:
        why = await _under_way(servers, told_s)
        if not why:
            raise no_answer(servers, timeout_s) from error
        raise Unavailable(f"no answer within {timeout_s:g} s: {why}") from error


async def _under_way(servers: Servers, timeout_s: float) -> str:
    """The change that the leader is making, and what it waits for; "" if nobody tells."""
    async def attempt(connection: Connection) -> str:
        answer = await connection.ask(w.Status)
        return str(answer.fields.get("member_change") or "") if isinstance(answer, w.StatusAnswer) else ""

    try:
        found = await at_leader(servers, attempt, timeout_s)
    except AlpoError:
        return ""
    return f"the leader is still at it, {found}" if found else ""


async def transfer(servers: Servers, target: int, timeout_s: float) -> Leadership:
    """Have server ``target`` lead (R28). Raises `Refused` (why it cannot), `Unavailable`."""
    need_int(target=target)

    async def attempt(connection: Connection) -> Leadership:
        answer = await connection.ask(lambda number: q.Transfer(number, target))
        if isinstance(answer, q.HandedOver):
            return Leadership(answer.leader, answer.term)
        raise unwelcome(servers, answer)

    found = await at_leader(servers, attempt, timeout_s, timeout_s)
    if found.leader != target:
        raise Unavailable(f"server {found.leader} leads now, in term {found.term}, not server {target}: ask again")
    return found


def _infos(plain: list[list[Any]]) -> list[MemberInfo]:
    try:
        members = MemberList.from_plain(plain).members
    except ValueError as error:
        raise ProtocolError(f"not a member list: {error}") from error
    return [MemberInfo(m.id, m.address, m.priority, m.role.name) for m in members]


async def wait_everyone(servers: Servers, lsn: int, timeout_s: float) -> None:
    """Wait until every member has payload ``lsn``, which is guaranteed, on its disk (R18).

    Raises ValueError, `OutOfRange` for an LSN that is not in the log yet, `NotEverywhere` at the deadline.
    """
    need_int(lsn=lsn)
    if lsn < 1:
        raise ValueError(f"an LSN is 1 or more, not {lsn}")
    behind: tuple[int, ...] | None = None  # as last heard
    there = False

    async def attempt(connection: Connection) -> None:
        nonlocal behind, there
        while True:
            answer = await connection.ask(lambda number: w.AwaitReplicated(number, lsn, _WAIT_MS))
            if not isinstance(answer, w.Replicated):
                raise unwelcome(servers, answer)
            if answer.done:
                return
            if not there:
                await _require_there(servers, connection, lsn)
            there, behind = True, answer.behind

    try:
        await at_leader(servers, attempt, timeout_s)
    except (Unavailable, Overloaded) as error:
        raise NotEverywhere(_behind(lsn, behind, error), lsn=lsn, behind=behind or ()) from error


async def _require_there(servers: Servers, connection: Connection, lsn: int) -> None:
    """Raises `OutOfRange` if payload ``lsn`` is not in the log yet."""
    page = await connection.ask(probe_read)
    if not isinstance(page, w.Page):
        raise unwelcome(servers, page)
    if lsn > page.end_lsn:
        raise out_of_range(f"LSN {lsn} is", f"{page.first_lsn},{page.end_lsn}")


def _behind(lsn: int, behind: tuple[int, ...] | None, error: AlpoError) -> str:
    """The message of `NotEverywhere`."""
    if behind is None:
        why = f"nobody tells: {error}"
    elif behind:
        why = f"not yet on {'server' if len(behind) == 1 else 'servers'} {', '.join(map(str, behind))}"
    else:
        why = "a change of the members is under way"
    return f"LSN {lsn} is guaranteed, but not known to be on every member: {why}"
