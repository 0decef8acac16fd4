"""Changes of the member list, and who leads (R27, R28).

Laws:

* Each request is repeated until it is answered or its time is up; to ask again for what was done does no harm.
* A leader that has taken a change may need a while for it: it is not asked again meanwhile.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from alpo.client.arguments import need_int, need_str
from alpo.client.connection import Connection
from alpo.client.servers import Servers
from alpo.core.inputs import MemberStep
from alpo.core.members import MemberList
from alpo.errors import AlpoError, ProtocolError, Unavailable
from alpo.wire import requests as w

from .admin import at_leader, no_answer, unwelcome

#: The end of a change's time, kept for asking what it waits for.
_TOLD_S = 0.5


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """One member as the list has it. ``role``: "VOTER", "LEARNER" or "GONE"."""

    id: int
    address: str
    priority: int
    role: str


@dataclass(frozen=True, slots=True)
class Leadership:
    """``leader`` leads in ``term``."""

    leader: int
    term: int


async def change(
    servers: Servers, step: MemberStep, id: int, address: str, priority: int, timeout_s: float
) -> list[MemberInfo]:
    """Change one member; the list since then, guaranteed. A server that is added or replaced is a LEARNER at first and
    becomes a VOTER by itself once it has caught up.

    Raises `Refused` (why it cannot be), `Unavailable` when no answer came: it says what the leader waits for, if that
    can be told (whether the change will be done is then not known).
    """
    need_int(id=id, priority=priority)
    need_str(address=address)

    async def attempt(connection: Connection) -> list[MemberInfo]:
        answer = await connection.ask(lambda number: w.ChangeMember(number, step, id, address, priority))
        if isinstance(answer, w.MemberTable):
            return _infos(answer.members)
        raise unwelcome(servers, answer)

    told_s = min(_TOLD_S, timeout_s / 4)
    patience_s = timeout_s - told_s
    try:
        return await at_leader(servers, attempt, patience_s, patience_s)
    except Unavailable as error:
        why = await _under_way(servers, told_s)
        if not why:
            raise no_answer(servers, timeout_s) from error
        raise Unavailable(f"no answer within {timeout_s:g} s: {why}") from error


async def _under_way(servers: Servers, timeout_s: float) -> str:
    """The change that the leader is at, and what it waits for; "" if nobody tells."""
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
        answer = await connection.ask(lambda number: w.Transfer(number, target))
        if isinstance(answer, w.HandedOver):
            return Leadership(answer.leader, answer.term)
        raise unwelcome(servers, answer)

    found = await at_leader(servers, attempt, timeout_s, timeout_s)
    if found.leader != target:
        raise Unavailable(f"server {found.leader} leads now, in term {found.term}, not server {target}: ask again")
    return found


def _infos(text: str) -> list[MemberInfo]:
    try:
        members = MemberList.from_plain(json.loads(text)).members
    except ValueError as error:
        raise ProtocolError(f"not a member list: {error}") from error
    return [MemberInfo(m.id, m.address, m.priority, m.role.name) for m in members]
