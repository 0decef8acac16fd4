"""An idle connection whose other end is gone without notice."""

from __future__ import annotations

import ctypes
import socket
import sys
from types import SimpleNamespace
from typing import cast

import pytest
from damage_kit import cluster_of
from message_kit import messages
from node_rig import rig, until

from alpo.core.members import Identity
from alpo.core.messages import Envelope, wants_answer
from alpo.node.link import Link
from alpo.node.routes import Route, Routes
from alpo.wire.requests import VERSION

_SO_ATTACH_FILTER = 26
_RETURN = 0x06


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def drop_all_that_comes(sock: socket.socket) -> None:
    """Make the kernel drop all that arrives for ``sock``, as if it had been lost on its way."""
    program = _Program(1, ctypes.pointer(_Instruction(_RETURN, 0, 0, 0)))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, bytes(program))


@pytest.mark.skipif(sys.platform != "linux", reason="socket filters and these keepalive options are Linux's")
@pytest.mark.trio
async def test_an_idle_half_open_connection_is_dialled_anew() -> None:
    async with rig(2) as r:
        leader = await r.leader()
        passive = next(node for node in r.nodes if node is not leader)
        await until(lambda: passive.us.me in leader.routes.accepted)
        idle = passive.routes.dialled[leader.us.me.id]
        drop_all_that_comes(leader.routes.accepted[passive.us.me].link._sock)
        await until(lambda: passive.routes.dialled.get(leader.us.me.id) not in (None, idle))
        assert leader.replica.state.value == "leader"


def test_only_what_wants_an_answer_makes_a_silence_count() -> None:
    us, them = Identity(1, b"a" * 16), Identity(2, b"b" * 16)
    _, leader, _ = cluster_of()
    for message in messages(leader):
        routes = Routes()
        link = SimpleNamespace(push=lambda data: None, long_entries=0, queued_bytes=0)
        route = Route(cast(Link, link), True, VERSION)
        routes.dialled[them.id] = routes.accepted[them] = route
        routes.send([Envelope(b"c" * 16, us, them, message)], now_s=5.0)
        assert route.silent_since_s == (5.0 if wants_answer(message) else None), message
