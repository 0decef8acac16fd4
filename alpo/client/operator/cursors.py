"""Reader cursors: named positions in the log that hold cleaning back.

Laws: as of `admin`; to ask again does no harm.
"""

from __future__ import annotations

from typing import NamedTuple

from alpo.client.arguments import need_int, need_str
from alpo.client.connection import Connection
from alpo.client.reading import out_of_range
from alpo.client.servers import Servers
from alpo.core.cursors import valid_cursor
from alpo.core.ready import Code
from alpo.errors import Refused
from alpo.wire import requests as w

from .admin import at_leader, unwelcome


class CursorInfo(NamedTuple):
    """A cursor at ``lsn``, the next that its reader needs. ``lag_bytes``: about what it holds on disk; ``lag_s``: the
    age of the first payload that the reader has not had."""

    name: str
    lsn: int
    lag_bytes: int
    lag_s: float


def _check(name: str) -> None:
    need_str(name=name)
    if not valid_cursor(name):
        raise ValueError("a cursor's name is 1 to 128 bytes of UTF-8")


async def set_cursor(servers: Servers, name: str, lsn: int, timeout_s: float) -> None:
    """Payload ``lsn`` and all after it are needed by the reader of that name.

    Raises ValueError, `OutOfRange` for what is gone or beyond one past the end, `Refused` when there are too many
    cursors, `Unavailable` when no answer came.
    """
    _check(name)
    need_int(lsn=lsn)
    if lsn < 1:
        raise ValueError(f"an LSN is 1 or more, not {lsn}")

    async def attempt(connection: Connection) -> None:
        answer = await connection.ask(lambda number: w.SetCursor(number, name, lsn))
        if isinstance(answer, w.RequestRefused) and answer.code == Code.OUT_OF_RANGE:
            raise out_of_range(f"LSN {lsn} is", answer.detail)
        if not isinstance(answer, w.Done):
            raise unwelcome(servers, answer)

    await at_leader(servers, attempt, timeout_s)


async def drop_cursor(servers: Servers, name: str, timeout_s: float) -> int:
    """Forget the cursor; the LSN where it stood. Raises ValueError, `Refused` when there is none, `Unavailable`."""
    _check(name)
    tries = 0

    async def attempt(connection: Connection) -> int:
        nonlocal tries
        tries += 1
        answer = await connection.ask(lambda number: w.DropCursor(number, name))
        if isinstance(answer, w.RequestRefused) and answer.code == Code.NO_CURSOR and tries > 1:
            return 0  # an earlier try was taken, its answer lost
        if isinstance(answer, w.Done):
            return answer.number
        if isinstance(answer, w.RequestRefused) and answer.code == Code.NO_CURSOR:
            raise Refused(answer.detail)
        raise unwelcome(servers, answer)

    return await at_leader(servers, attempt, timeout_s)


async def cursors(servers: Servers, timeout_s: float) -> list[CursorInfo]:
    """All cursors, by name. Raises `Unavailable`."""
    async def attempt(connection: Connection) -> list[CursorInfo]:
        answer = await connection.ask(w.ListCursors)
        if isinstance(answer, w.CursorTable):
            return [CursorInfo(name, lsn, lag_bytes, lag_ms / 1000) for name, lsn, lag_bytes, lag_ms in answer.rows]
        raise unwelcome(servers, answer)

    return await at_leader(servers, attempt, timeout_s)
