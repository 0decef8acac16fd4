"""A stream over TLS, for clients and servers by hand. One task sends and one receives; closing wakes both."""

from __future__ import annotations

import ssl

import trio

from alpo.node.threads import in_thread
from alpo.secure import SecureSocket

_RECEIVE_BYTES = 1 << 16
#: Pause after a send that was refused though the socket could be written to: TLS may want to read first.
_REFUSED_S = 0.001


class SecureStream(trio.abc.Stream):
    """A stream that owns ``sock``, a connection whose handshake is made by `shake_hands`. What breaks it comes out as
    OSError (`alpo.secure.TlsBroken`)."""

    def __init__(self, sock: SecureSocket) -> None:
        self._sock = sock

    async def shake_hands(self, turns: trio.CapacityLimiter) -> None:
        """Make the handshake. ``turns``: of handshakes that may compute at a time. Raises `alpo.secure.TlsBroken`."""
        while True:
            try:
                return await in_thread(self._sock.handshake, limiter=turns)
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(self._sock)
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(self._sock)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        left = memoryview(data)
        while left:
            try:
                left = left[self._open().send(left) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._sock)
                await trio.sleep(_REFUSED_S)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.wait_writable(self._open())

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Receive what there is, up to about ``max_bytes``; b"" at the end."""
        await trio.lowlevel.checkpoint()
        while True:
            try:
                return self._open().recv(max_bytes or _RECEIVE_BYTES)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._sock)

    def _open(self) -> SecureSocket:
        if self._sock.fileno() == -1:
            raise trio.ClosedResourceError("this stream was closed")
        return self._sock

    async def aclose(self) -> None:
        """Close at once."""
        if self._sock.fileno() != -1:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()
        await trio.lowlevel.checkpoint()
