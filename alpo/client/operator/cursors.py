"""Cursors, which hold cleaning back for readers, and trims, which let it go on.

Law: asking again for what was done does no harm.
"""

from __future__ import annotations

from typing import NamedTuple

from alpo.client.arguments import need_int, need_str
from alpo.client.connection import Connection
from alpo.client.pages import out_of_range
from alpo.client.servers import Servers
from alpo.core import requests as q
from alpo.core.machine.cursors import NAME_WANTED, valid_cursor
from alpo.core.requests import Code
from alpo.errors import Refused
from alpo.wire import requests as w

from .asking import at_leader, probe_read, unwelcome


class CursorInfo(NamedTuple):
    """A cursor at ``lsn``, the next payload that its reader needs.

    ``lag_bytes``: about how much of the log it keeps on disk; ``lag_s``: the age of payload ``lsn``.
    """

    name: str
    lsn: int
    lag_bytes: int
    lag_s: float


def _check(name: str) -> None:
    need_str(name=name)
    if not valid_cursor(name):
        raise ValueError(NAME_WANTED)


async def set_cursor(servers: Servers, name: str, lsn: int, timeout_s: float) -> None:
    """Keep payload ``lsn`` and all after it for the reader ``name``.

    Raises ValueError, `OutOfRange` for what is gone or beyond one past the end, `Refused` when there are too many
    cursors, `Unavailable` when no answer came.
    """
    _check(name)
    need_int(lsn=lsn)
    if lsn < 1:
        raise ValueError(f"an LSN is 1 or more, not {lsn}")

    async def attempt(connection: Connection) -> None:
        answer = await connection.ask(lambda number: q.SetCursor(number, name, lsn))
        if isinstance(answer, w.RequestRefused) and answer.code == Code.OUT_OF_RANGE:
            raise out_of_range(f"LSN {lsn} is", answer.detail)
        if not isinstance(answer, w.Done):
            raise unwelcome(servers, answer)

    await at_leader(servers, attempt, timeout_s)


async def drop_cursor(servers: Servers, name: str, timeout_s: float) -> int:
    """Forget the cursor; returns the LSN where it stood (0 if an earlier try, whose answer was lost, dropped it).
    Raises ValueError, `Refused` when there is none, `Unavailable`."""
    _check(name)
    tries = 0

    async def attempt(connection: Connection) -> int:
        nonlocal tries
        tries += 1
        answer = await connection.ask(lambda number: q.DropCursor(number, name))
        if isinstance(answer, w.RequestRefused) and answer.code == Code.NO_CURSOR and tries > 1:
            return 0  # an earlier try was taken, and its answer was lost
        if isinstance(answer, w.Done):
            return answer.number
        if isinstance(answer, w.RequestRefused) and answer.code == Code.NO_CURSOR:
            raise Refused(answer.detail)
        raise unwelcome(servers, answer)

    return await at_leader(servers, attempt, timeout_s)


async def cursors(servers: Servers, timeout_s: float) -> list[CursorInfo]:
    """All cursors, by name. Raises `Unavailable`."""
    async def attempt(connection: Connection) -> list[CursorInfo]:
        answer = await connection.ask(q.ListCursors)
        if isinstance(answer, w.CursorTable):
            return [CursorInfo(name, lsn, lag_bytes, lag_ms / 1000) for name, lsn, lag_bytes, lag_ms in answer.rows]
        raise unwelcome(servers, answer)

    return await at_leader(servers, attempt, timeout_s)


async def trim(servers: Servers, before: int, force: bool, timeout_s: float) -> int:
    """Let nothing below LSN ``before`` be read any more (R20); returns the first LSN that is served from now on.

    ``force``: also what a cursor's reader needs; such cursors are dropped. Raises ValueError, `OutOfRange` for an LSN
    beyond one past the end, `Refused` when a cursor needs what would go, `Unavailable` when no answer came (the trim
    may have been made).
    """
    need_int(before=before)
    if before < 1:
        raise ValueError(f"before must be positive, not {before}")

    async def attempt(connection: Connection) -> int:
        answer = await connection.ask(lambda number: q.Trim(number, before, force))
        if isinstance(answer, w.RequestRefused) and answer.code == Code.OUT_OF_RANGE:
            # A leader that was deposed without noticing may be behind: only one that still leads answers a read.
            if isinstance(await connection.ask(probe_read), w.Page):
                answer = await connection.ask(lambda number: q.Trim(number, before, force))
        if isinstance(answer, q.Trimmed):
            return answer.first_lsn
        if isinstance(answer, w.RequestRefused) and answer.code == Code.OUT_OF_RANGE:
            raise out_of_range(f"LSN {before} is", answer.detail)
        raise unwelcome(servers, answer)

    return await at_leader(servers, attempt, timeout_s)
