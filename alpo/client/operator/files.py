"""Servers' data files: having one made smaller, and a copy of a server's log as it comes in (`alpo backup`).

Laws:

* A server is asked to give space back and watched over one connection; a restart of the server, which forgets the
  request, breaks that connection.
* A copy comes over one connection, from its first message to its last; a copy that breaks off is of no use. The caller
  decides what to do with a copy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

import anyio

from alpo.client.arguments import need_int
from alpo.client.connection import Connection, Lost
from alpo.client.reasons import AWAY, code_name, kind_of
from alpo.client.servers import Servers
from alpo.core.requests import Code
from alpo.errors import AlpoError, Refused, Unavailable
from alpo.wire.requests import (
    Backup,
    BackupHead,
    BackupRows,
    Done,
    GiveBack,
    Page,
    RequestRefused,
    ServerReply,
    Status,
    StatusAnswer,
)

from .asking import Asking, no_answer, probe_read, refusal

_LOOK_S = 0.2
#: Refusals of a copy after which another may be had: cleaning has overtaken it, or its server leads no more.
_AGAIN = {Code.OUT_OF_RANGE, *AWAY}


@dataclass(frozen=True, slots=True)
class FileSpace:
    """The space of ``server``'s data file, its WAL included: all of it, and the part that holds nothing.

    ``giving_back``: that part is being given back to the file system.
    """

    server: int
    disk_bytes: int
    free_bytes: int
    giving_back: bool


class BackupInfo(NamedTuple):
    """A finished backup: the first and last LSN that it holds, and its size in bytes."""

    first_lsn: int
    last_lsn: int
    bytes: int


class FileCalls(Asking):
    """The calls of a `Log` about servers' data files."""

    async def compact(self, server: int, timeout_s: float | None = None) -> FileSpace:
        """Have a server give the free space of its data file back to the file system, while it serves.

        Waits until all is given back, and returns how the file is then; ``timeout_s`` bounds how long nothing may come
        of it. Raises `Refused`, `Unavailable`, `ProtocolError`.
        """
        async with aclosing(watch(self._servers, server, self._seconds(timeout_s))) as seen:  # type: ignore[type-var]
            async for now in seen:
                last = now
        return last


async def watch(servers: Servers, server: int, timeout_s: float) -> AsyncIterator[FileSpace]:
    """Have ``server`` give its file's free space back. Yields the file's space before, then as it shrinks.

    Ends once all is given back (``giving_back`` is False in the last item). ``timeout_s``: seconds without
    progress before `Unavailable`. Raises `Refused`, `Unavailable`, `ProtocolError`.
    """
    need_int(server=server)
    connection: Connection | None = None
    try:
        with anyio.fail_after(timeout_s):
            connection = await servers.lend(lambda: servers.any(server))
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
        reason = servers.reason if connection is None else None
        why = f": {reason}" if reason is not None else ""
        raise kind_of(reason)(f"no answer from server {server} within {timeout_s:g} s{why}") from error
    finally:
        if connection is not None:
            servers.drop(connection)


async def _begin(connection: Connection) -> None:
    answer = await connection.ask(GiveBack)
    if not isinstance(answer, Done):
        raise refusal(answer)


async def _look(connection: Connection) -> FileSpace:
    answer = await connection.ask(Status)
    if not isinstance(answer, StatusAnswer):
        raise refusal(answer)
    disk_bytes, free_bytes = (answer.fields.get(key) for key in ("disk_bytes", "file_free_bytes"))
    if not isinstance(disk_bytes, int) or not isinstance(free_bytes, int):
        raise Refused(f"server {connection.hello.id} has no data file to make smaller")
    return FileSpace(connection.hello.id, disk_bytes, free_bytes, answer.fields.get("giving_back") is True)


class Overtaken(Refused):
    """The end of a copy that cleaning, or another leader, has overtaken: a new copy may be asked for."""


async def copy_log(
    servers: Servers, server: int | None, timeout_s: float
) -> AsyncIterator[BackupHead | BackupRows | Done]:
    """The messages of a copy of server ``server``'s log (None: the leader's): `BackupHead`, `BackupRows` in order,
    `Done`.

    ``timeout_s``: seconds without a message before `Unavailable`. Raises `Overtaken`, `Refused`, `Unavailable`,
    `ProtocolError`.
    """
    until_s = anyio.current_time() + timeout_s
    connection = await _connect(servers, server, timeout_s)
    try:
        if server is None:  # a read shows all that was acknowledged, and a deposed server keeps it
            with anyio.fail_after(until_s - anyio.current_time()):
                page = await connection.ask(probe_read)
            if not isinstance(page, Page):
                raise _end_of_copy(page)
        number = connection.next_request()
        connection.send(Backup(number))
        await connection.drain()
        wait_s = until_s - anyio.current_time()
        while True:
            with anyio.fail_after(wait_s):
                messages = await connection.receive()
            wait_s = timeout_s
            for message in messages:
                if getattr(message, "request", None) != number:
                    continue
                if not isinstance(message, BackupHead | BackupRows | Done):
                    raise _end_of_copy(message)
                yield message
                if isinstance(message, Done):
                    return
    except Lost as lost:
        raise lost.reason from lost
    except TimeoutError as error:
        raise Unavailable(f"nothing came from {connection.address} for {timeout_s:g} s") from error
    finally:
        servers.drop(connection)


def _end_of_copy(answer: ServerReply) -> AlpoError:
    """The error to raise for an answer that ends a copy."""
    if isinstance(answer, RequestRefused) and answer.code in _AGAIN:
        return Overtaken(answer.detail or code_name(answer.code))
    return refusal(answer)


async def _connect(servers: Servers, server: int | None, timeout_s: float) -> Connection:
    try:
        with anyio.fail_after(timeout_s):
            return await servers.lend(lambda: servers.leader() if server is None else servers.any(server))
    except Lost as lost:
        raise lost.reason from lost
    except TimeoutError as error:
        hint = " (--server ID copies any server's log, also without a leader)" if server is None else ""
        raise no_answer(servers, timeout_s, hint) from error
