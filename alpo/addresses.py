"""Addresses of servers: HOST:PORT, and lists of them, for servers, clients and commands. Imports next to nothing.

Laws:

* An IPv6 host has brackets in text that is read or written, and none once it is parsed.
* A host is what a resolver accepts: labels of 1 to 63 characters, or an address.
* An address that others dial (`parse_dialled`) is one host's, and means the same on every host. Names are not looked
  up.
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
_DIALLED = "must be an address that others can dial, a name"


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


def parse_dialled(text: str) -> tuple[str, int]:
    """(host, port) of an address that others dial, with its port. Raises `AddressError`, also for what `undialled`
    finds."""
    host, port = parse_address(text)
    if why := undialled(host):
        raise AddressError(f"{_shown(text)}: {why}")
    return host, port


def undialled(host: str) -> str:
    """The reason why others cannot dial ``host`` (as it is parsed), and what to give instead, as "must be …"; "" if
    they may. However it is spelt: for the system 0 and 0x0 are 0.0.0.0 too."""
    if not (host[:1].isdigit() or ":" in host):
        return ""
    import ipaddress  # imported here: most addresses are names
    from socket import inet_aton

    try:
        found = ipaddress.ip_address(host if ":" in host else inet_aton(host.rstrip(".")))
    except (ValueError, OSError):  # a name that begins with a digit
        return ""
    if isinstance(found, ipaddress.IPv6Address):
        if found.scope_id is not None:
            return f"{_DIALLED} or an address without a zone: what %{found.scope_id} means, only its own host knows"
        found = found.ipv4_mapped or found
    if found.is_unspecified:
        return f"{_DIALLED} or one address of its host: {host} stands for all of them"
    if found.is_multicast or found == ipaddress.IPv4Address("255.255.255.255"):
        return f"{_DIALLED} or an address of one host: {host} is that of a group"
    return ""


def parse_servers(servers: str | Sequence[str]) -> tuple[str, ...]:
    """The addresses of "HOST[:PORT],HOST[:PORT]" or a sequence, each as "HOST:PORT", without duplicates.

    A missing port is 7100. Raises `AddressError`, also if there are none, or for an IPv6 zone.
    """
    parts = servers.split(",") if isinstance(servers, str) else servers
    found = []
    for part in filter(None, map(str.strip, parts)):
        host, port = parse_address(part, PORT_DEFAULT)
        if "%" in host:
            raise AddressError(f"{_shown(part)}: {undialled(host)}")
        found.append(join_address(host, port))
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
