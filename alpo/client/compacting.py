"""Having a server make its data file smaller (R19), and watching it.

Law: it is asked and watched over one connection; a restart of the server, which forgets the asking, breaks that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import anyio

from alpo.errors import ProtocolError, Refused, Unavailable
from alpo.wire.requests import Done, GiveBack, RequestRefused, Status, StatusAnswer

from .arguments import need_int
from .connection import Connection, Lost
from .servers import Servers
from .verdicts import code_name

_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class FileSpace:
    """What the data file of ``server`` takes, its WAL included, and how much of it holds nothing. ``giving_back``: the
    latter is on its way to the file system."""

    server: int
    disk_bytes: int
    free_bytes: int
    giving_back: bool


async def compact(servers: Servers, server: int, timeout_s: float) -> FileSpace:
    """As `watch`, to its end: how the file is then."""
    async with aclosing(watch(servers, server, timeout_s)) as seen:  # type: ignore[type-var]
        async for now in seen:
            last = now
    return last


async def watch(servers: Servers, server: int, timeout_s: float) -> AsyncIterator[FileSpace]:
    """Ask it, and look on: how it was before, then how far it is, to the end (``giving_back`` is False then).

    ``timeout_s``: how long nothing may come of it. Raises `Refused`, `Unavailable`, `ProtocolError`.
    """
    need_int(server=server)
    connection: Connection | None = None
    try:
        with anyio.fail_after(timeout_s):
            connection = await servers.any(server)
            before = await _look(connection)
        yield before
        with anyio.fail_after(timeout_s):
            await _begin(connection)
        least, since_s = before, anyio.current_time()
        while True:
            with anyio.fail_after(timeout_s):
                now = await _look(connection)
            yield now
            if not now.giving_back:
                return
            if now.free_bytes < least.free_bytes or now.disk_bytes < least.disk_bytes:
                least, since_s = now, anyio.current_time()
            elif anyio.current_time() - since_s > timeout_s:
                raise Unavailable(f"server {server} has given nothing back for {timeout_s:g} s; it goes on by itself")
            await anyio.sleep(_LOOK_S)
    except Lost as lost:
        raise lost.reason from lost
    except TimeoutError as error:
        why = f": {servers.reason}" if connection is None and servers.reason is not None else ""
        raise Unavailable(f"no answer from server {server} within {timeout_s:g} s{why}") from error
    finally:
        if connection is not None:
            servers.drop(connection)


async def _begin(connection: Connection) -> None:
    answer = await connection.ask(GiveBack)
    if not isinstance(answer, Done):
        raise _unwelcome(answer)


async def _look(connection: Connection) -> FileSpace:
    answer = await connection.ask(Status)
    if not isinstance(answer, StatusAnswer):
        raise _unwelcome(answer)
    disk_bytes, free_bytes = (answer.fields.get(key) for key in ("disk_bytes", "file_free_bytes"))
    if not isinstance(disk_bytes, int) or not isinstance(free_bytes, int):
        raise Refused(f"server {connection.hello.id} has no data file to make smaller")
    return FileSpace(connection.hello.id, disk_bytes, free_bytes, answer.fields.get("giving_back") is True)


def _unwelcome(answer: Any) -> Exception:
    if isinstance(answer, RequestRefused):
        return Refused(answer.detail or code_name(answer.code))
    return ProtocolError(f"an answer of the wrong kind: {type(answer).__name__}")
