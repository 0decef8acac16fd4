"""Every command, `alpo status` too, says why no server could be used."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from alpo_command import Alpo
from ports import free_port

from alpo.core.requests import Code
from alpo.wire.codec import encode_problem
from alpo_cli.certificates import client_leaf, make

#: Commands that ask a server, each a correct command line.
COMMANDS = [
    "status", "member list", "explain", "explain --all", "doctor", "watch --count 1", "append x", "read --last 1",
    "outcome c 1", "transfer 1", "member add 9=127.0.0.1:1", "member remove 9", "settings show",
    "trim --before 1", "compact --all", "compact --server 1", "cursor list", "session list", "state get a",
    "registry show a", "cluster init", "backup {tmp}/never.alpo",
]
NO_CERTIFICATE = "no certificate"
#: Fault -> words of the message about it.
CAUSES = {
    NO_CERTIFICATE: "this server speaks TLS only: give --ca, --cert and --key",
    "another name": "is not the certificate of a server of elsewhere",
    "another CA": "the other side's certificate is not trusted here",
    "a certificate of another CA": "does not trust this side's certificate: another CA made it",
    "the port of HTTP": "an HTTP port answers there; the log's port is ",
    "a plain server": "the other side speaks plain, without TLS",
    "another version": "this server speaks version 99",
    "nobody there": "connection refused",
    "silence": "connected, but no hello",
    "an unknown name": "the name no-such-host.invalid cannot be resolved",
}


class Place(NamedTuple):
    """Command-line words that name servers and certificates."""

    servers: str
    words: list[str]


def _speaks(data: bytes, sock: socket.socket) -> None:
    """Answer each connection with these bytes, until the socket is shut; b"": send no answer."""
    with contextlib.ExitStack() as kept:
        while True:
            try:
                taken = kept.enter_context(sock.accept()[0])
            except OSError:
                return
            if data:
                with contextlib.suppress(OSError):  # a client that has gone
                    taken.recv(1000)
                    taken.sendall(data)
                    taken.shutdown(socket.SHUT_WR)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Place]]:
    at = tmp_path_factory.mktemp("unreached")
    home, base = at / "cluster", free_port(1)
    servers = Alpo().out(
        "cluster", "start", "--dir", home, "--base-port", str(base), "--detach", "--tls", "--http", "--size", "1"
    ).strip()
    certs = next(path.parent for path in home.rglob("ca.pem"))
    client = next(path.with_suffix("") for path in certs.glob("*.pem") if not path.stem.startswith(("ca", "server")))
    make(at / "strangers", "alpo", [client_leaf("admin:ops")], 30)
    stranger = at / "strangers"

    def words(ca: Path, stem: Path, *more: str) -> list[str]:
        return ["--ca", str(ca), "--cert", f"{stem}.pem", "--key", f"{stem}.key", *more]

    told = {"another version": encode_problem(Code.INVALID, "this server speaks version 99"), "silence": b"",
            "a plain server": b"HTTP/1.1 400 Bad Request\r\n\r\n"}
    socks = {name: socket.create_server(("127.0.0.1", 0)) for name in told}
    threads = [threading.Thread(target=_speaks, args=(told[name], sock)) for name, sock in socks.items()]
    for thread in threads:
        thread.start()
    at_sock = {name: f"127.0.0.1:{sock.getsockname()[1]}" for name, sock in socks.items()}
    right, ca = words(certs / "ca.pem", client), certs / "ca.pem"
    port = int(servers.rpartition(":")[2])
    yield {
        NO_CERTIFICATE: Place(servers, []),
        "another name": Place(servers, [*right, "--tls-name", "elsewhere"]),
        "another CA": Place(servers, words(stranger / "ca.pem", client)),
        "a certificate of another CA": Place(servers, words(ca, stranger / "ops")),
        "the port of HTTP": Place(f"127.0.0.1:{port + 80}", right),
        "a plain server": Place(at_sock["a plain server"], right),
        "another version": Place(at_sock["another version"], []),
        "nobody there": Place(f"127.0.0.1:{free_port()}", []),
        "silence": Place(at_sock["silence"], []),
        "an unknown name": Place("no-such-host.invalid:7100", []),
    }
    for sock in socks.values():
        sock.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join()
    for sock in socks.values():
        sock.close()
    Alpo().run("cluster", "stop", "--dir", home)


CASES = [
    pytest.param(command, cause, marks=[] if cause == NO_CERTIFICATE or command == "status" else [pytest.mark.soak])
    for command in COMMANDS for cause in CAUSES
]


@pytest.mark.parametrize(("command", "cause"), CASES)
def test_the_reason_is_said(command: str, cause: str, places: dict[str, Place], tmp_path: Path) -> None:
    place = places[cause]
    words = [word.format(tmp=tmp_path) for word in command.split()]
    done = Alpo(place.servers).run(*words, *place.words, "--timeout", "1.5", code=None)
    assert done.returncode in (1, 3), (done.stdout, done.stderr)
    said = done.stderr.decode() + (done.stdout.decode() if command == "doctor" else "")
    assert CAUSES[cause] in said
    assert said.count(CAUSES[cause]) <= 2, "the reason is said once, not for each try"
