"""Telling systemd how the server stands (sd_notify): a datagram to the socket that it names, if it names one."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(*lines: str) -> None:
    """Send these assignments ("READY=1") as one message. Never blocks; that nobody listens is no error."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.sendto("\n".join(lines).encode(), "\0" + path[1:] if path[0] == "@" else path)
