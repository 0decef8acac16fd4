"""What operators and readers ask about what the cluster keeps: outcomes of appends, who holds them.

Laws: as of `admin`, each request is repeated until it is answered or its time is up.
"""

from __future__ import annotations

from dataclasses import dataclass

from alpo.client.arguments import need_int
from alpo.client.connection import Connection
from alpo.client.ids import is_random
from alpo.client.reading import out_of_range
from alpo.client.servers import Servers
from alpo.core.ready import Fate
from alpo.errors import AlpoError, NotEverywhere, Overloaded, Refused, Unavailable
from alpo.wire import requests as w

from .admin import at_leader, check_named, probe_read, unwelcome

#: How long one request waits at the leader.
_WAIT_MS = 500


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an append: "appended" (``lsn``: of its first payload, else None), "not_appended" (as of now) or
    "too_old" (nobody can tell any more). Of a name this speaks of its life since ``birth``, the epoch that it was first
    opened with, or first after a drop (None: it is not open, or the client is random; 0: the leader is of release 0.1,
    and does not tell)."""

    outcome: str
    lsn: int | None
    birth: int | None = None


async def outcome(servers: Servers, client: str, serial: int, epoch: int | None, timeout_s: float) -> Outcome:
    """What became of the append (``client``, ``serial``), sent under ``epoch`` (None: under any). Raises ValueError,
    `Unavailable`, `Refused` for an ``epoch`` that the leader's release cannot tell of."""
    check_named(client, serial, epoch)
    asked = 0 if epoch is None or is_random(client) else epoch
    if asked < 0:
        raise ValueError("an epoch is 0 or more")

    async def attempt(connection: Connection) -> Outcome:
        answer = await connection.ask(lambda number: w.Outcome(number, client, serial, asked))
        if isinstance(answer, w.Told):
            untold = answer.birth is None and not is_random(client)
            if untold and asked:  # version 1 did not even send the epoch
                where = connection.address
                raise Refused(f"{where} is of release 0.1 and cannot tell by epoch: ask again once it is upgraded")
            return Outcome(Fate(answer.fate).name.lower(), answer.lsn or None, 0 if untold else answer.birth or None)
        raise unwelcome(servers, answer)

    return await at_leader(servers, attempt, timeout_s)


async def wait_everyone(servers: Servers, lsn: int, timeout_s: float) -> None:
    """Until every member has payload ``lsn``, which is guaranteed, on its disk (R18).

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
    page = await connection.ask(probe_read)
    if not isinstance(page, w.Page):
        raise unwelcome(servers, page)
    if lsn > page.end_lsn:
        raise out_of_range(f"LSN {lsn} is", f"{page.first_lsn},{page.end_lsn}")


def _behind(lsn: int, behind: tuple[int, ...] | None, error: AlpoError) -> str:
    if behind is None:
        why = f"nobody tells: {error}"
    elif behind:
        why = f"not yet on {'server' if len(behind) == 1 else 'servers'} {', '.join(map(str, behind))}"
    else:
        why = "a change of the members is under way"
    return f"LSN {lsn} is guaranteed, but not known to be on every member: {why}"
