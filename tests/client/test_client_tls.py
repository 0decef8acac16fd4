"""Clients over TLS that are cancelled at any moment of dialling leave no descriptor open."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import anyio
import pytest
from tls_kit import certificates, descriptors, tls_of

from alpo.client.connection import Connection, Lost
from alpo.secure import Trust

TIMES = 200


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("certs"))


class Server:
    """A thread that takes one connection after another, makes the handshake if ``speaks``, and waits for the end."""

    def __init__(self, certs: Path, speaks: bool) -> None:
        self._files, self.speaks = tls_of(certs, "server-1").files, speaks
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.accepted = self.secured = self.ended = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            sock, _ = self._listening.accept()
            if self.accepted == -1:
                sock.close()
                return
            self.accepted += 1
            with contextlib.suppress(OSError, ssl.SSLError):
                if self.speaks:
                    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                    context.load_cert_chain(*self._files[1:])
                    with context.wrap_socket(sock, server_side=True) as secured:
                        self.secured += 1
                        while secured.recv(1 << 16):
                            pass
                else:
                    while sock.recv(1 << 16):
                        pass
            sock.close()
            self.ended += 1

    def has(self, accepted: int, secured: int) -> bool:
        """True once there were so many connections and handshakes."""
        return self.accepted >= accepted and self.secured >= secured

    def stop(self) -> None:
        self.accepted = -1
        host, port = self.address.split(":")
        socket.create_connection((host, int(port))).close()
        self._thread.join()
        self._listening.close()


@pytest.fixture(params=["silent", "speaking"])
def server(request: pytest.FixtureRequest, certs: Path) -> Iterator[Server]:
    made = Server(certs, request.param == "speaking")
    yield made
    made.stop()


@pytest.mark.anyio
async def test_a_handshake_that_is_cancelled_leaves_no_descriptor(certs: Path, server: Server) -> None:
    trust, before = Trust(tls_of(certs, "ops")), descriptors()  # while the server has nothing to do

    async def dial() -> None:
        with contextlib.suppress(Lost):
            (await Connection.open(server.address, timeout_s=60, trust=trust)).close()

    async def wait(condition: Callable[[], bool]) -> None:
        with anyio.fail_after(30):
            while not condition():
                await anyio.lowlevel.checkpoint()

    for number in range(TIMES):
        accepted, secured = server.accepted, server.secured
        async with anyio.create_task_group() as group:
            group.start_soon(dial)
            for _ in range(number // 4):
                await anyio.lowlevel.checkpoint()
            if number % 4 == 1:
                await wait(partial(server.has, accepted + 1, 0))
            elif number % 4 == 2 and server.speaks:
                await wait(partial(server.has, 0, secured + 1))
            group.cancel_scope.cancel()
        await wait(lambda: server.ended == server.accepted)
    assert server.accepted >= TIMES // 4
    await wait(lambda: descriptors() == before)
