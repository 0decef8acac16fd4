"""Certificates of every kind, good and bad, and clients by hand that speak TLS to the servers of `node_rig`."""

from __future__ import annotations

import datetime
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import trio
from node_rig import WAIT_S, Client
from secure_stream import SecureStream

from alpo.node.security import Mode, Security, TlsConfig
from alpo.secure import Contexts, SecureSocket, TlsBroken
from alpo.tls import Tls
from alpo.wire import requests as w
from alpo.wire.codec import encode
from alpo_cli.certificates import client_leaf, make, server_leaf

NAME = "prod"
CLIENTS = ("admin:ops", "append:billing")
BOTH_USES = ("clientAuth", "serverAuth")
HELLO = encode(w.ClientHello(w.VERSION, b"", "test"))


def certificates(at: Path) -> Path:
    """A CA, three servers' certificates and the clients'."""
    make(at, NAME, [*(server_leaf(f"{id}=127.0.0.1,localhost") for id in (1, 2, 3)), *map(client_leaf, CLIENTS)], 30)
    return at


def leaf(
    at: Path, stem: str, role: str = "admin", uses: Sequence[str] = BOTH_USES, ends_in_s: float = 3_600,
    name: str = NAME,
) -> Tls:
    """Make, or replace, a certificate of the CA in ``at``; ``ends_in_s`` is below 0 for one that has ended."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    ca = x509.load_pem_x509_certificate((at / "ca.pem").read_bytes())
    signer = cast(Any, serialization.load_pem_private_key((at / "ca.key").read_bytes(), None))
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    known = {"clientAuth": ExtendedKeyUsageOID.CLIENT_AUTH, "serverAuth": ExtendedKeyUsageOID.SERVER_AUTH}
    made = (
        x509.CertificateBuilder().subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, stem)]))
        .issuer_name(ca.subject).public_key(key.public_key()).serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2)).not_valid_after(now + datetime.timedelta(seconds=ends_in_s))
        .add_extension(x509.ExtendedKeyUsage([known[use] for use in uses]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"alpo://{name}/{role}")]), critical=False
        )
        .sign(signer, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for end, text in (("key", private), ("pem", made.public_bytes(serialization.Encoding.PEM))):
        path = at / f"{stem}.{end}"
        path.unlink(missing_ok=True)
        path.touch(0o600)
        path.write_bytes(text)
    return tls_of(at, stem)


def tls_of(at: Path, stem: str) -> Tls:
    return Tls(at / "ca.pem", at / f"{stem}.pem", at / f"{stem}.key", NAME)


def security_of(at: Path, id: int = 1, mode: Mode = "require", stem: str = "") -> Security:
    """TLS of server ``id``; ``stem``: of its certificate's files."""
    return Security(TlsConfig(mode, tls_of(at, stem or f"server-{id}"), {}))


def descriptors() -> int:
    """Number of open files and sockets of this process."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def client_hello(contexts: Contexts) -> bytes:
    """The first message of a client's handshake."""
    out = ssl.MemoryBIO()
    try:
        contexts.client.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        return out.read()
    raise AssertionError("a handshake by itself")


async def plain_socket(address: str) -> socket.socket:
    """A connected socket, for trio's functions that wait."""
    host, port = address.rsplit(":", 1)
    stream = await trio.open_tcp_stream(host, int(port))
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    return sock


class Open:
    """A TLS connection of a client, as a context manager. Raises `TlsBroken` if the handshake fails here."""

    def __init__(self, address: str, context: ssl.SSLContext) -> None:
        self._address, self._context = address, context

    async def __aenter__(self) -> tuple[SecureSocket, SecureStream]:
        sock = await plain_socket(self._address)
        try:
            wrapped = self._context.wrap_socket(sock, do_handshake_on_connect=False)
            assert isinstance(wrapped, SecureSocket)
            sock = wrapped
            self._stream = SecureStream(wrapped)
            with trio.fail_after(WAIT_S):
                await self._stream.shake_hands(trio.CapacityLimiter(1))
        except BaseException:
            sock.close()
            raise
        return wrapped, self._stream

    async def __aexit__(self, *_: object) -> None:
        await trio.aclose_forcefully(self._stream)


async def greeted(stream: SecureStream, log: str = "") -> Client:
    """A client on ``stream`` that has said hello."""
    client = Client(cast(Any, stream))
    client.hello = await client.greet(w.ClientHello(w.VERSION, b"", "test", log))
    assert isinstance(client.hello, w.ServerHello), client.hello
    return client


async def refusal_of(address: str, context: ssl.SSLContext) -> str:
    """The words with which a connection ends for a client that says hello over TLS."""
    try:
        async with Open(address, context) as (_, stream):
            with trio.fail_after(WAIT_S):
                await stream.send_all(HELLO)
                while await stream.receive_some():
                    pass
    except TlsBroken as error:
        return str(error)
    return "closed without a word"
