"""Addresses of servers, as every command, client and configuration writes them."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpo.addresses import (
    ACCEPTED,
    AddressError,
    join_address,
    parse_address,
    parse_dialled,
    parse_servers,
    undialled,
)

ADDRESS = "must be HOST:PORT with a port from 1 to 65535 (an IPv6 host in brackets: [::1]:7100)"


@pytest.mark.parametrize(("text", "parsed"), [
    ("a:1", ("a", 1)), ("127.0.0.1:65535", ("127.0.0.1", 65535)), ("[::1]:7100", ("::1", 7100)),
    ("log-1.example.:80", ("log-1.example.", 80)),
])
def test_host_and_port(text: str, parsed: tuple[str, int]) -> None:
    assert parse_address(text) == parse_address(text, 1) == parsed
    assert join_address(*parsed) == text


@pytest.mark.parametrize(("text", "parsed"), [
    ("a", ("a", 7100)), ("127.0.0.1", ("127.0.0.1", 7100)), ("[::1]", ("::1", 7100)),
])
def test_a_port_may_be_left_out_where_there_is_a_default(text: str, parsed: tuple[str, int]) -> None:
    assert parse_address(text, 7100) == parsed
    with pytest.raises(AddressError, match="must be HOST:PORT with"):
        parse_address(text)


@pytest.mark.parametrize("text", [
    "", ":", ":1", "a:", "a:0", "a:65536", "a:x", "a:１", "a:999999", "::1", "::1:7", "[::1", "[a]:1", "[]:1",
    "-a:1", "a..b:1", "a b:1", "a:1:2", "é:1", f"{'x' * 64}:1",
])
def test_what_is_no_address(text: str) -> None:
    for default in (None, 7100):
        with pytest.raises(AddressError, match="must be HOST"):
            parse_address(text, default)


@given(st.text(max_size=30) | st.from_regex(r"\[?[0-9a-z:.]{0,12}\]?:[0-9]{0,6}", fullmatch=True))
def test_any_text_is_an_address_or_a_clear_error(text: str) -> None:
    try:
        host, port = parse_address(text)
    except AddressError as error:
        assert str(error).endswith(ACCEPTED)
        assert "\n" not in str(error)
    else:
        assert host and 1 <= port <= 65535
        before, _, after = text.rpartition(":")
        assert (host, port) == (before.removeprefix("[").removesuffix("]"), int(after))


@pytest.mark.parametrize("host", ["a..b", "..", ".a", "-a", "x" * 64, "a." + "x" * 64 + ".b", "a." * 127, "a b", ""])
def test_a_host_that_no_resolver_takes_is_no_address(host: str) -> None:
    with pytest.raises(AddressError):
        parse_address(f"{host}:7100")


HOSTS = ["a.b.", "a-b_c", "_x", "x" * 63 + "." + "y" * 63, "1.2.3.4", "a." * 126 + "b", "xn--a"]


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_that_is_an_address_is_taken_by_the_resolver(host: str) -> None:
    assert parse_address(f"{host}:7100") == (host, 7100)
    host.encode("idna")


@pytest.mark.parametrize(("host", "instead"), [
    *((host, f"one address of its host: {host} stands for all of them") for host in (
        "0.0.0.0", "0", "00", "0x0", "0.0", "0x0.0x0", "0.0.0.0.", "::", "::0", "0:0:0:0:0:0:0:0", "::0.0.0.0",
        "::ffff:0.0.0.0", "::ffff:0:0",
    )),
    *((f"{host}%eth0", "an address without a zone: what %eth0 means, only its own host knows") for host in (
        "fe80::1", "::", "::1", "2001:db8::1",
    )),
    ("fe80::1%1", "an address without a zone: what %1 means, only its own host knows"),
    *((host, f"an address of one host: {host} is that of a group") for host in (
        "224.0.0.1", "239.1.2.3", "255.255.255.255", "0xffffffff", "ff02::1", "::ffff:224.0.0.1",
    )),
])
def test_what_others_cannot_dial(host: str, instead: str) -> None:
    assert undialled(host) == f"must be an address that others can dial, a name or {instead}"
    text = join_address(host, 7100)
    assert parse_address(text) == (host, 7100), "a server may listen there"
    with pytest.raises(AddressError) as refused:
        parse_dialled(text)
    assert str(refused.value) == f'"{text}": {undialled(host)}'


@pytest.mark.parametrize("host", [
    "a", "localhost", "127.0.0.1", "127.1", "10.0.0.1", "1.2.3", "0a", "0.0.0.0.example", "0-0", "169.254.0.1", "::1",
    "fe80::1", "::ffff:10.0.0.1", "2001:db8::1", "00.example.org", "3com.com", "0x", "_0",
])
def test_what_others_may_dial(host: str) -> None:
    assert undialled(host) == ""
    assert parse_dialled(join_address(host, 1)) == (host, 1)


@given(st.from_regex(r"[0-9a-fx:.%]{1,20}", fullmatch=True))
def test_the_system_dials_what_others_may_dial_and_no_wildcard(host: str) -> None:
    """Whatever is refused as a wildcard is one for the system, and the reverse."""
    try:
        found, _ = parse_address(join_address(host, 1))
        looked_up = socket.getaddrinfo(found.rstrip("."), 1, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (AddressError, OSError, UnicodeError):
        return
    wildcards = {"0.0.0.0", "::", "::ffff:0.0.0.0"}
    assert ("stands for all of them" in undialled(found)) == (looked_up[0][4][0] in wildcards and "%" not in host)


def test_lists() -> None:
    with pytest.raises(AddressError, match="without a zone"):
        parse_servers("a:1,[fe80::1%eth0]:7100")
    assert parse_servers("a:1, [::1]:2,,b") == ("a:1", "[::1]:2", "b:7100")
    assert parse_servers(["[::1]", "[::1]:7100", "c:3"]) == ("[::1]:7100", "c:3")
    nothings: tuple[str | list[str], ...] = ("", " , ", [])
    for nothing in nothings:
        with pytest.raises(AddressError, match="no servers"):
            parse_servers(nothing)


def test_what_commands_share_with_servers_needs_no_pydantic() -> None:
    code = "import sys, alpo.addresses; sys.exit(bool({'pydantic', 'trio', 'asyncio'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
