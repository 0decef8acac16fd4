"""A copy of one server's log, as it comes in (`alpo backup`). What is made of it is the caller's affair.

Law: one copy comes over one connection, from its first message to its last; what breaks off is of no use.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio

from alpo.client.connection import Connection, Lost
from alpo.client.servers import Servers
from alpo.client.verdicts import code_name
from alpo.core.ready import Code
from alpo.errors import ProtocolError, Refused, Unavailable
from alpo.wire.requests import Backup, BackupHead, BackupRows, Done, RequestRefused

from .admin import no_answer


class Overtaken(Refused):
    """Cleaning has overtaken the copy: it may be asked for anew."""


async def copy_log(
    servers: Servers, server: int | None, timeout_s: float
) -> AsyncIterator[BackupHead | BackupRows | Done]:
    """The messages of a copy: `BackupHead`, `BackupRows` in order, `Done`. ``server``: which; None: the leader.

    ``timeout_s``: how long nothing may come. Raises `Overtaken`, `Refused`, `Unavailable`, `ProtocolError`.
    """
    connection = await _connect(servers, server, timeout_s)
    try:
        number = connection.next_request()
        connection.send(Backup(number))
        await connection.drain()
        while True:
            with anyio.fail_after(timeout_s):
                messages = await connection.receive()
            for message in messages:
                if getattr(message, "request", None) != number:
                    continue
                if isinstance(message, RequestRefused):
                    kind = Overtaken if message.code == Code.OUT_OF_RANGE else Refused
                    raise kind(message.detail or code_name(message.code))
                if not isinstance(message, BackupHead | BackupRows | Done):
                    raise ProtocolError(f"an answer of the wrong kind: {type(message).__name__}")
                yield message
                if isinstance(message, Done):
                    return
    except Lost as lost:
        raise lost.reason from lost
    except TimeoutError as error:
        raise Unavailable(f"nothing came from {connection.address} for {timeout_s:g} s") from error
    finally:
        servers.drop(connection)


async def _connect(servers: Servers, server: int | None, timeout_s: float) -> Connection:
    try:
        with anyio.fail_after(timeout_s):
            return await (servers.leader() if server is None else servers.any(server))
    except Lost as lost:
        raise lost.reason from lost
    except TimeoutError as error:
        hint = " (--server ID copies any server's log, also without a leader)" if server is None else ""
        raise no_answer(servers, timeout_s, hint) from error
