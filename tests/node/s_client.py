"""OpenSSL's own client as the other end of a connection: it can renew keys, which Python's ssl cannot ask for."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from alpo.tls import Tls

OPENSSL = shutil.which("openssl") or ""
#: Bytes that it reads from its standard input at once, and more.
_CHUNK_BYTES = 4_096
#: A chunk that begins with one of these is a command, not data.
_COMMANDS = b"QqRrKkBbCc"


class SClient:
    """The process as a stream of bytes. Its input is a socket that keeps messages apart, so that each chunk is data or
    a command as a whole."""

    def __init__(self, process: subprocess.Popen[bytes], inside: socket.socket, out: socket.socket) -> None:
        self.process = process
        self._in, self._out = trio.socket.from_stdlib_socket(inside), trio.socket.from_stdlib_socket(out)
        self._turn = trio.Lock()
        self.renewals = 0

    async def send(self, data: bytes) -> None:
        """Send data. A key renewal may come between any two of its chunks."""
        view = memoryview(data)
        assert view[0] not in _COMMANDS
        while view:
            size = min(_CHUNK_BYTES, len(view))
            while size < len(view) and view[size] in _COMMANDS:
                size -= 1  # else the next chunk would be a command
            await self._say(view[:size])
            view = view[size:]

    async def renew_keys(self, ask: bool) -> None:
        """Renew its key; ``ask``: the other side is to renew its own too."""
        await self._say(memoryview(b"K" if ask else b"k"))
        self.renewals += 1

    async def _say(self, chunk: memoryview) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended, which `receive` shows
            async with self._turn:
                await self._in.send(chunk)

    async def receive(self) -> bytes:
        """Bytes that have come; b"" at the end."""
        return await self._out.recv(1 << 16)


def _start(command: list[str], stdin: int, stdout: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=subprocess.DEVNULL)


@asynccontextmanager
async def s_client(address: str, tls: Tls) -> AsyncIterator[SClient]:
    """Connect, with ``tls``'s certificate."""
    ca, cert, key = tls.files
    inside, its_in = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    out, its_out = socket.socketpair()
    command = [OPENSSL, "s_client", "-connect", address, "-brief", "-CAfile", ca, "-cert", cert, "-key", key]
    with inside, out:
        with its_in, its_out:
            process = _start(command, its_in.fileno(), its_out.fileno())
        with process:
            try:
                yield SClient(process, inside, out)
            finally:
                process.kill()
