"""Bounds on connections: they fit the limit of open files, and leave places to members, operators and other hosts."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from alpod import Serving, flags
from hypothesis import given
from hypothesis import strategies as st
from node_rig import Client, connect_raw, lone, rig, until
from ports import free_port
from tls_kit import Open, certificates, security_of, tls_of

import alpo
from alpo.core.requests import Code
from alpo.node.admission import MEMBER_FILES, OWN_FILES, Limits, fitted
from alpo.secure import Contexts
from alpo.wire import requests as w

#: Another host.
CROWD = "127.0.0.2"


def total(limits: Limits) -> int:
    return (
        limits.client_connections_max + limits.silent_connections_max + limits.operator_connections_max
        + limits.visitor_connections_max
    )


@given(st.integers(1, 1 << 20), st.integers(1, 100_000), st.integers(0, 6))
def test_all_bounds_together_fit_and_none_is_zero(files: int, clients: int, others: int) -> None:
    wanted = Limits(client_connections_max=clients)
    found = fitted(wanted, files, others)
    room = max(files - OWN_FILES - MEMBER_FILES * max(others, 2), 8)
    assert found is wanted if total(wanted) <= room else total(found) <= room
    least = min(
        found.client_connections_max, found.silent_connections_max, found.operator_connections_max,
        found.visitor_connections_max,
    )
    assert least >= 1 and found.client_connections_max <= clients
    taken = Limits()
    taken.take(found)
    assert total(taken) == total(found)


async def says(address: str, library: str, host: str = "") -> w.ServerHello | w.Problem | None:
    """The answer to a hello; the connection stays open."""
    if host:
        name, _, port = address.partition(":")
        sock = trio.socket.socket()
        await sock.bind((host, 0))
        await sock.connect((name, int(port)))
        client = Client(trio.SocketStream(sock))
    else:
        client = await connect_raw(address)
    _kept.append(client)
    answer: w.ServerHello | w.Problem | None = await client.greet(w.ClientHello(w.VERSION, b"", library))
    return answer


_kept: list[Client] = []


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    yield
    while _kept:
        _kept.pop().stream.socket.close()


@pytest.mark.trio
async def test_one_host_leaves_a_tenth_to_others_and_operators_have_more() -> None:
    async with lone(limits=Limits(client_connections_max=10, operator_connections_max=2)) as (node, at, _):
        for _ in range(8):
            assert isinstance(await says(at, "alpo-python 1"), w.ServerHello)
        refused = await says(at, "alpo-python 1")
        assert isinstance(refused, w.Problem) and refused.code == Code.OVERLOADED
        assert refused.text == "9 clients of 127.0.0.1 are connected already: the last places are for other hosts"
        assert isinstance(await says(at, "alpo-python 1", CROWD), w.ServerHello)
        refused = await says(at, "alpo-python 1", CROWD)
        assert isinstance(refused, w.Problem) and refused.text == "10 clients are connected already"
        for library in (f"{w.COMMAND}1", "alpod 1"):
            assert isinstance(await says(at, library), w.ServerHello)
        assert isinstance(await says(at, f"{w.COMMAND}1"), w.Problem)
        assert len(node.listener.clients) == 12
        for client in _kept:
            client.stream.socket.close()
        await until(lambda: len(node.listener.clients) == 1 and dict(node.listener._of_host) == {"127.0.0.1": 1})


@pytest.mark.trio
async def test_with_tls_an_operator_is_who_has_the_role(tmp_path: Path) -> None:
    certificates(tmp_path)
    hello = w.ClientHello(w.VERSION, b"", f"{w.COMMAND}1")
    limits = Limits(client_connections_max=1, operator_connections_max=2)
    async with rig(limits=limits, security=lambda id: security_of(tmp_path, id)) as r, AsyncExitStack() as stack:
        answers = []
        for stem in ("billing", "billing", "ops", "server-2", "ops"):
            context = Contexts.load(tls_of(tmp_path, stem)).client
            _, stream = await stack.enter_async_context(Open(r.addresses[0], context))
            answers.append(type(await Client(cast(Any, stream)).greet(hello)))
        assert answers == [w.ServerHello, w.Problem, w.ServerHello, w.ServerHello, w.Problem]


@pytest.mark.trio
async def test_those_turned_away_are_bounded_too() -> None:
    """Connections that are turned away stay open until they have read why; their number has a limit, too."""
    async with lone(limits=Limits(client_connections_max=1, silent_connections_max=5)) as (node, at, _):
        for _ in range(20):
            with contextlib.suppress(trio.BrokenResourceError):
                await says(at, "alpo-python 1")
            assert node.listener.silent <= 5


class Few(Serving):
    """An alpod that may open ``files`` files."""

    def __init__(self, files: int, *arguments: str, **environ: str) -> None:
        self.process = subprocess.Popen(
            ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", sys.executable, "-m", "alpo.daemon", *arguments],
            stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | environ,
        )
        self.lines: list[dict[str, object]] = []


def test_with_forty_files_a_hundred_connections_delay_nobody(tmp_path: Path) -> None:
    """A program and an operator are served beside a hundred connections that send one byte and may take minutes."""
    port = free_port()
    with Few(40, *flags(tmp_path / "data", port), ALPOD_LIMITS_HELLO_TIMEOUT_S="300") as server, ExitStack() as stack:
        (told,) = [line for line in server.lines if line["event"] == "few_files"]
        bounds = [told[name] for name in ("clients", "silent", "operators", "visitors")]
        assert told["files"] == 40 and sum(map(int, map(str, bounds))) <= 40 - OWN_FILES - 2 * MEMBER_FILES
        for _ in range(100):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            with contextlib.suppress(OSError):  # closed for a newer one
                sock.send(b"x")
        with alpo.connect_sync(f"127.0.0.1:{port}", timeout_s=60) as log:
            log.init()
            assert [log.append(b"x") for _ in range(3)] == [1, 2, 3]
            assert [record.payload for record in log.read()] == [b"x"] * 3
            assert log.status()[0]["reachable"]


def test_enough_files_are_not_told_of(tmp_path: Path) -> None:
    with Few(2000, *flags(tmp_path / "data", free_port())) as server:
        assert not [line for line in server.lines if line["event"] == "few_files"]
