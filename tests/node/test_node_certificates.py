"""Certificates that change, or end, while a server runs; nobody sends SIGHUP."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from node_rig import Client, append, random_id, rig, until
from tls_kit import Open, greeted, leaf, refusal_of, security_of, tls_of

from alpo.core import requests as q
from alpo.node import listener
from alpo.node.host import Host
from alpo.secure import Contexts, TlsBroken
from alpo.wire import requests as w


class Renewing:
    """A server that reads its certificates in ``at`` all the time. ``noted``: its events about TLS."""

    def __init__(self, at: Path, node: Host, address: str, client: Client) -> None:
        self.at, self.node, self.address, self.client = at, node, address, client
        self.noted: list[tuple[str, dict[str, Any]]] = []
        self._serial, self._id = 0, random_id()
        note = node.driver.note

        def note_too(name: str, /, **fields: Any) -> None:
            self.noted.append((name, fields))
            note(name, **fields)

        node.driver.note = note_too  # type: ignore[method-assign]

    def why(self) -> list[str]:
        return [fields["why"] for name, fields in self.noted if name == "tls_reload_failed"]

    async def append(self) -> None:
        self._serial += 1
        answer = await self.client.ask(append(self._id, self._serial, b"on"))
        assert isinstance(answer, q.Appended), answer

    async def shown(self, context: ssl.SSLContext | None = None) -> str:
        """The number of the certificate that the server shows, and takes the client's with. Raises `TlsBroken`."""
        async with Open(self.address, context or Contexts.load(tls_of(self.at, "ops")).client) as (sock, stream):
            await greeted(stream)
            return str((sock.getpeercert() or {})["serialNumber"])

    async def refused(self, context: ssl.SSLContext | None = None) -> str:
        """Wait until a new connection is refused; the words."""
        with trio.fail_after(60):
            while True:
                try:
                    await self.shown(context)
                except TlsBroken as error:
                    return str(error)
                await self.append()


@asynccontextmanager
async def renewing(certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Renewing]:
    mine = tmp_path / "mine"
    shutil.copytree(certs, mine)
    monkeypatch.setattr(listener, "CERTIFICATES_LOOK_S", 0.01)
    async with rig(security=lambda id: security_of(mine, id)) as servers:
        async with Open(servers.addresses[0], Contexts.load(tls_of(mine, "ops")).client) as (_, stream):
            client = await greeted(stream)
            assert await client.ask(q.Initialise(1)) == w.Done(1, 0)
            yield Renewing(mine, await servers.leader(), servers.addresses[0], client)


def _key_of_another(at: Path) -> None:
    shutil.copy(at / "server-2.key", at / "new")
    (at / "new").replace(at / "server-1.key")  # replaced at once: a look amid a copy finds half a key


@pytest.mark.parametrize(("spoil", "words"), [
    (_key_of_another, "server-1.key: this is the key of another certificate"),
    (lambda at: (at / "server-1.pem").unlink(), "server-1.pem: No such file"),
    (lambda at: (at / "server-1.key").unlink(), "server-1.key: No such file"),
    (lambda at: (at / "ca.pem").unlink(), "ca.pem: No such file"),
    (lambda at: (at / "server-1.pem").write_text("-----BEGIN CERTIFICATE-----\nMII"), "no certificate with its key"),
    (lambda at: (at / "server-1.pem").write_text(""), "no certificate with its key"),
    (lambda at: (at / "ca.pem").write_text("nobody"), "no certificate of a CA"),
    (lambda at: (at / "server-1.key").chmod(0o644), "others may read this key"),
], ids=["mismatch", "no certificate", "no key", "no CA", "half a certificate", "empty", "CA of junk", "open key"])
@pytest.mark.trio
async def test_files_that_are_wrong_are_noticed_and_those_before_stay_in_force(
    certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], object], words: str
) -> None:
    async with renewing(certs, tmp_path, monkeypatch) as server:
        spare = Contexts.load(tls_of(certs, "ops")).client
        first = await server.shown(spare)
        spoil(server.at)
        if words.startswith("others"):  # a look sees times, sizes and inodes, but no permissions
            (server.at / "server-1.key").touch()
        await until(lambda: len(server.why()) >= 2)
        assert all(words in why for why in server.why()), server.why()
        await server.append()
        assert await server.shown(spare) == first
        assert not [name for name, _ in server.noted if name == "tls_reloaded"]
        for name in ("ca.pem", "ca.key"):
            shutil.copy(certs / name, server.at / name)
        leaf(server.at, "server-1", "peer/1")
        while await server.shown(spare) == first:  # a look between the two finds the first one sound again
            await server.append()
        assert "tls_reloaded" in [name for name, _ in server.noted]
        await server.append()  # over the connection that began with the first


@pytest.mark.trio
async def test_a_renewed_certificate_is_found_again_and_again_and_ends_no_connection(
    certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with renewing(certs, tmp_path, monkeypatch) as server:
        shown = {await server.shown()}
        for number in range(1, 6):
            leaf(server.at, "server-1", "peer/1")
            while await server.shown() in shown:
                await server.append()
            shown.add(await server.shown())
            assert len(shown) == number + 1
            await server.append()


@pytest.mark.trio
async def test_a_client_s_certificate_that_ends_is_refused_from_then_on(
    certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with renewing(certs, tmp_path, monkeypatch) as server:
        for ends_in_s in (2, 8, 32):  # a busy machine may be too slow for the first
            context = Contexts.load(leaf(server.at, "short", ends_in_s=ends_in_s)).client
            try:
                async with Open(server.address, context) as (_, stream):
                    client = await greeted(stream)
                    id = random_id()
                    assert isinstance(await client.ask(append(id, 1, b"before")), q.Appended)
                    words = "this side's certificate has expired, says the other side"
                    assert await server.refused(context) == words
                    assert await refusal_of(server.address, context) == words
                    assert isinstance(await client.ask(append(id, 2, b"after")), q.Appended)
                    break
            except TlsBroken:
                continue
        else:
            raise AssertionError("never connected in time")
        assert any("certificate has expired" in each["why"] for each in server.node.listener.strangers.fields())
        await server.shown()  # others connect


@pytest.mark.trio
async def test_a_server_s_certificate_that_ends_is_refused_and_a_renewed_one_is_taken(
    certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with renewing(certs, tmp_path, monkeypatch) as server:
        leaf(server.at, "server-1", "peer/1", ends_in_s=2)
        why = await server.refused()
        assert why == "the other side's certificate is not trusted here: certificate has expired"
        await server.append()
        leaf(server.at, "server-1", "peer/1")
        with trio.fail_after(20):
            while True:
                await server.append()
                try:
                    await server.shown()
                except TlsBroken as error:
                    assert str(error) == why
                else:
                    break
        await server.append()
