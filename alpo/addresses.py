"""Addresses of servers: HOST:PORT, and lists of them, for servers, clients and commands. Imports next to nothing.

Laws:

* An IPv6 host has brackets in text that is read or written, and none once it is parsed.
* A host is what a resolver accepts: labels of 1 to 63 characters, or an address.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

#: Port that a server listens on, and that an address without a port means.
PORT_DEFAULT = 7100
#: Server that a client asks if none was given.
SERVER_DEFAULT = f"127.0.0.1:{PORT_DEFAULT}"
ACCEPTED = "HOST:PORT with a port from 1 to 65535 (an IPv6 host in brackets: [::1]:7100)"

#: Labels of 1 to 63 characters: for any other the resolver does not answer "unknown" but fails.
_HOST = re.compile(r"(?=.{1,253}\Z)(?![-.])[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_SHOWN_CHARS_MAX = 80


class AddressError(ValueError):
    """An address is wrong; the message is one line that says what was given and what is accepted."""


def parse_address(text: str, port_default: int | None = None) -> tuple[str, int]:
    """(host, port) of "HOST:PORT"; an IPv6 host has brackets in ``text``, and none in the result.

    ``port_default``: the port of an address without one; None: a port is required. Raises `AddressError`.
    """
    host, colon, port = text.rpartition(":")
    if port_default is not None and (not colon or port.endswith("]")):
        host, port = text, str(port_default)
    port_fits = port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535
    bracketed = host.startswith("[") and host.endswith("]")
    if not port_fits or not (_is_ipv6(host[1:-1]) if bracketed else _HOST.fullmatch(host)):
        accepted = ACCEPTED if port_default is None else ACCEPTED.replace("HOST:PORT", "HOST or HOST:PORT", 1)
        raise AddressError(f"{_shown(text)}: must be {accepted}")
    return host[1:-1] if bracketed else host, int(port)


def parse_servers(servers: str | Sequence[str]) -> tuple[str, ...]:
    """The addresses of "HOST[:PORT],HOST[:PORT]" or a sequence, each as "HOST:PORT", without duplicates.

    A missing port is 7100. Raises `AddressError`, also if there are none.
    """
    parts = servers.split(",") if isinstance(servers, str) else servers
    found = [join_address(*parse_address(part.strip(), PORT_DEFAULT)) for part in parts if part.strip()]
    if not found:
        raise AddressError("no servers are given; accepted: HOST[:PORT],…")
    return tuple(dict.fromkeys(found))


def join_address(host: str, port: int) -> str:
    """Text HOST:PORT, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_ipv6(host: str) -> bool:
    import ipaddress  # imported here: most addresses have no brackets

    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def _shown(text: str) -> str:
    shown = json.dumps(text, ensure_ascii=False)
    return shown if len(shown) <= _SHOWN_CHARS_MAX else shown[: _SHOWN_CHARS_MAX - 1] + "…"
