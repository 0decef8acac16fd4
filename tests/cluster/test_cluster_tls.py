"""Real servers that speak TLS: clients of all kinds, roles, wrong certificates, reloads, and the switch from plain."""

from __future__ import annotations

import shutil
import socket
import threading
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest
import trio
from harness import alpo as alpo_command
from probe import until
from tls_rig import IDS, make_certificates, tls_cluster

import alpo
from alpo.dialling import Way
from alpo.node.security import Security, TlsConfig
from alpo.registry import Admit, Registry
from alpo.secure import Contexts, TlsBroken
from alpo.state import State
from alpo.state.recipes import Lock
from alpo.wire import requests as w
from alpo.wire.codec import decode_hello, encode
from alpo_cli.certificates import client_leaf, make, server_leaf
from alpo_cli.local_cluster import free_base_port


@pytest.mark.trio
async def test_a_log_over_tls_outlives_its_leader(tmp_path: Path) -> None:
    async with tls_cluster(tmp_path) as running, running.connect("both") as log:
        sizes = (1, 16_383, 16_384, 16_385, 1 << 20)
        for number, size in enumerate(sizes, 1):
            assert await log.append(bytes([number]) * size) == number
        running.kill(await running.leader())
        assert await log.append(b"after") == len(sizes) + 1
        found = [record.payload async for record in log.read()]
        assert found == [*(bytes([number]) * size for number, size in enumerate(sizes, 1)), b"after"]
        assert '"event": "leader_gone"' in "".join(map(running.log, IDS))


@pytest.mark.trio
async def test_programs_under_asyncio_and_in_threads_speak_it_too(tmp_path: Path) -> None:
    async with tls_cluster(tmp_path) as running:
        async def pipelined() -> int | None:
            async with running.connect("billing") as log:
                handles = [log.append_nowait(b"%d" % number) for number in range(500)]
                return [await handle for handle in handles][-1]

        def blocking() -> list[bytes]:
            with alpo.connect_sync(running.servers, tls=running.tls("both")) as log:
                log.append(b"x" * 100_000)
                return [record.payload for record in log.read()]

        assert await trio.to_thread.run_sync(lambda: anyio.run(pipelined, backend="asyncio")) == 500
        found = await trio.to_thread.run_sync(blocking)
        assert found == [*(b"%d" % number for number in range(500)), b"x" * 100_000]


@pytest.mark.trio
async def test_a_role_that_is_lacking_is_named_and_the_connection_lives_on(tmp_path: Path) -> None:
    async with tls_cluster(tmp_path) as running:
        async with running.connect("billing") as log:
            assert await log.append(b"one") == 1
            with pytest.raises(alpo.Refused, match=r"CN=billing \(append\) may not do this: it takes the role read"):
                _ = [record async for record in log.read()]
            with pytest.raises(alpo.Refused, match="takes the role admin"):
                await log.trim(1)
            assert await log.append(b"two") == 2
        async with running.connect("reader") as log:
            with pytest.raises(alpo.Refused, match=r"CN=reader \(read\) may not do this: it takes the role append or"):
                await log.append(b"three")
            assert [record.payload async for record in log.read()] == [b"one", b"two"]
            with pytest.raises(alpo.Refused, match="takes the role append"):
                await log.append(b"three")
        async with running.connect("ops") as log:
            assert await log.append(b"three") == 3
            await log.trim(2)
        leader = await running.leader()
        assert '"who": "CN=ops", "what": "Trim", "how": "before_lsn=2 force=False"' in running.log(leader)
        assert '"event": "no_right"' in running.log(leader)


@pytest.mark.trio
async def test_roles_in_some_logs(tmp_path: Path) -> None:
    async with tls_cluster(tmp_path) as running:
        make(running.certs, "prod", [client_leaf("append/billing:pay"), client_leaf("read/audit-*:auditor")], 30)

        def to(log: str, stem: str) -> alpo.Log:
            return alpo.connect(running.servers, timeout_s=20, tls=running.tls(stem), log=log)

        async with running.connect("ops") as log:
            for name in ("billing", "audit-eu"):
                await log.create_log(name)
        async with to("audit-eu", "ops") as log:
            await log.append(b"seen")
        async with to("billing", "pay") as log:
            assert await log.append(b"one") == 1
            with pytest.raises(alpo.Refused, match=r"takes the role read or admin in the log billing"):
                _ = [record async for record in log.read()]
        async with to("audit-eu", "auditor") as log:
            assert [record.payload async for record in log.read()] == [b"seen"]
        async with to("billing", "auditor") as log:
            with pytest.raises(alpo.Refused, match=r"CN=auditor \(read/audit-\*\) may not .* admin in the log billing"):
                _ = [record async for record in log.read()]
        async with running.connect("pay") as log:
            with pytest.raises(alpo.Refused, match=r"takes the role append or admin in the log default"):
                await log.append(b"two")
            with pytest.raises(alpo.Refused, match=r"takes the role admin in all logs"):
                await log.delete_log("billing")
            assert [each.name for each in await log.logs()] == ["billing", "audit-eu"]


@pytest.mark.trio
async def test_a_state_and_a_registry_take_the_roles_that_the_page_says(tmp_path: Path) -> None:
    async with tls_cluster(tmp_path) as running:
        async with running.connect("both") as log, State(log, snapshots="off") as state:
            async with Lock(state, "lock"), Registry(state, "agents") as registry:
                assert await registry.apply(Admit("a", {"cpu": 8})) is True
            for _ in range(2):
                kept = await state.snapshot()
            with pytest.raises(alpo.Refused, match="takes the role admin"):
                await state.snapshot(trim=True)  # the snapshot itself is written
            assert kept.first_lsn == 1 and (await state.status()).previous == (kept.begin, kept.end)
        async with running.connect("reader") as log, State(log, snapshots="off") as state:
            assert set((await Registry.view(state, "agents")).rows) == {"a"}
            with pytest.raises(alpo.Refused, match="takes the role append"):
                await state.put("x", b"1")
        async with running.connect("billing") as log, State(log, snapshots="off") as state:
            with pytest.raises(alpo.Refused, match="takes the role read"):
                await state.fetch("x")
        async with running.connect("ops") as log, State(log, snapshots="off") as state:
            assert (await state.snapshot(trim=True)).first_lsn > 1
            assert set((await Registry.view(state, "agents")).rows) == {"a"}


@pytest.mark.trio
async def test_a_server_in_another_s_place_is_never_talked_to(tmp_path: Path) -> None:
    async with tls_cluster(tmp_path) as running:
        make(tmp_path / "certs", "test", [server_leaf("4=127.0.0.1")], 30)  # made by this CA for another cluster
        for stem, held in (("server-2", "peer/2"), ("server-4", "no role"), ("billing", "append")):
            running.kill(3)
            (tmp_path / "server-3.log").unlink()
            running.configure(3, stem=stem)
            running.start(3)
            for id in (1, 2):
                await running.logged(id, f"CN={stem} ({held}) may not do this: it takes the role peer/3")
            assert "peer_connected" not in running.log(3)
            for id in (1, 2) if stem == "server-2" else ():
                await running.logged(id, "CN=server-2 (peer/2) is not the certificate of server 3")
        async with running.connect("billing") as log:
            assert await log.append(b"two of three go on") == 1
        running.kill(3)
        running.configure(3)
        running.start(3)
        await running.logged(3, "peer_connected", 2)


@pytest.mark.trio
async def test_servers_ask_each_other_over_tls_too(tmp_path: Path) -> None:
    """Servers check certificates also when they ask each other over extra streams, as to compare their copies."""
    async with tls_cluster(tmp_path) as running:
        security = Security(TlsConfig("require", running.tls("server-1"), {}))
        link = await security.dial(2, Way(running.addresses[2]))
        link.push(encode(w.ClientHello(w.VERSION, b"", "test")))
        assert isinstance(decode_hello((await link.receive())[0]), w.ServerHello)
        link.close("answered")
        with pytest.raises(TlsBroken, match=r"CN=server-2 \(peer/2\) is not the certificate of server 3"):
            await security.dial(3, Way(running.addresses[2]))
        strangers = make_certificates(tmp_path / "strangers")
        with pytest.raises(TlsBroken, match="not trusted here"):
            await Security(TlsConfig("dial", running.tls("server-1", strangers), {})).dial(2, Way(running.addresses[2]))


@pytest.mark.trio
async def test_every_command_speaks_it(tmp_path: Path) -> None:
    async with tls_cluster(tmp_path) as running:
        ca, cert, key = running.tls("ops").files
        shared = ["--servers", running.servers, "--ca", ca, "--cert", cert, "--key", key, "--tls-name", "prod"]
        backup = str(tmp_path / "monday.alpo")
        for command in (
            ["append", "x"], ["read"], ["status"], ["doctor"], ["explain"], ["member", "list"], ["settings", "show"],
            ["session", "list"], ["cursor", "set", "me", "2"], ["cursor", "list"], ["compact", "--all"],
            ["backup", backup],
            ["import", str(tmp_path / "server-1.toml"), "--client", "importer"], ["trim", "--before", "2"],
            ["bench", "append", "--seconds", "0.2", "--yes"], ["transfer", "2"],
        ):
            code, out, err = await alpo_command(*command, *shared)
            assert code == 0, (command, out, err)
        config = ["--config", str(tmp_path / "server-1.toml")]
        code, out, err = await alpo_command("status", *config)
        assert code == 0 and "127.0.0.1" in out, err


@pytest.mark.trio
async def test_two_clusters_under_one_ca_are_strangers(tmp_path: Path) -> None:
    async with tls_cluster(tmp_path) as running:
        make(tmp_path / "certs", "test", [client_leaf("admin:other")], 30)
        log = running.connect("other", timeout_s=3)
        async with log:
            with pytest.raises(alpo.Refused, match=r"CN=other \(no role\) may not do this"):
                await log.append(b"no")
        tls = alpo.Tls(*running.tls("ops").files, name="test")
        async with alpo.connect(running.servers, timeout_s=3, tls=tls) as log:
            with pytest.raises(alpo.ProtocolError, match="is not the certificate of a server of test"):
                await log.append(b"no")


@pytest.mark.trio
async def test_who_is_not_trusted_hears_why(tmp_path: Path) -> None:
    async with tls_cluster(tmp_path) as running:
        strangers = make_certificates(tmp_path / "strangers")
        shutil.copy(running.certs / "ca.pem", strangers / "ca.pem")  # trust in one direction alone
        async with running.connect("ops", timeout_s=3, certs=strangers) as log:
            with pytest.raises(alpo.TlsMismatch, match="does not trust this side's certificate: another CA made it"):
                await log.append(b"no")
        async with running.connect(timeout_s=3) as log:
            with pytest.raises(alpo.TlsMismatch, match="this server speaks TLS only: give --ca, --cert and --key"):
                await log.append(b"no")


@pytest.mark.trio
async def test_tls_to_a_plain_server_is_told_so(tmp_path: Path) -> None:
    async with tls_cluster(tmp_path, mode="none") as running, running.connect("ops", timeout_s=3) as log:
        with pytest.raises(alpo.TlsMismatch, match="speaks plain, without TLS"):
            await log.append(b"no")


@pytest.mark.trio
async def test_certificates_are_renewed_and_wrong_ones_leave_what_was(tmp_path: Path) -> None:
    async with tls_cluster(tmp_path) as running, running.connect("billing") as log:
        leader = await running.leader()
        own = running.certs / f"server-{leader}.key"
        good = own.read_bytes()
        own.write_bytes((running.certs / "ca.key").read_bytes())
        running.reload(leader)
        await running.logged(leader, '"event": "reload_failed"')
        assert "this is the key of another certificate" in running.log(leader)
        assert await log.append(b"one") == 1
        async with running.connect("billing") as another:
            assert await another.append(b"two") == 2
        own.write_bytes(good)
        running.reload(leader)
        await running.logged(leader, '"event": "tls_reloaded"')
        assert await log.append(b"three") == 3


@pytest.mark.trio
async def test_a_ca_is_replaced_while_the_log_is_appended_to(tmp_path: Path) -> None:
    async with tls_cluster(tmp_path) as running:
        old = running.certs
        new = make_certificates(tmp_path / "new")
        both = tmp_path / "both"
        shutil.copytree(old, both)
        (both / "ca.pem").write_bytes((old / "ca.pem").read_bytes() + (new / "ca.pem").read_bytes())
        mixed = tmp_path / "mixed"
        shutil.copytree(new, mixed)
        shutil.copy(both / "ca.pem", mixed / "ca.pem")
        async with running.connect("billing", certs=both) as before, running.connect("billing", certs=mixed) as after:
            for number, certs in enumerate((both, mixed, new), 1):
                for id in IDS:
                    running.configure(id, certs=certs)
                    times = running.log(id).count('"event": "tls_reloaded"')
                    running.reload(id)
                    await running.logged(id, '"event": "tls_reloaded"', times + 1)
                assert await (before if certs is both else after).append(b"%d" % number) == number
            with pytest.raises(alpo.TlsMismatch, match="another CA made it"):  # its connection has ended too
                await before.append(b"no", timeout_s=3)


@pytest.mark.trio
async def test_from_plain_to_tls_and_back_without_an_error(tmp_path: Path) -> None:
    async with tls_cluster(tmp_path, mode="none") as running:
        appended = 0
        stop = trio.Event()

        async def append_on(stem: str, until_set: trio.Event) -> None:
            nonlocal appended
            async with running.connect(stem) as log:
                while not until_set.is_set():
                    await log.append(b"on")
                    appended += 1

        async def to(mode: str) -> None:
            for id in IDS:
                running.configure(id, mode)
                times = running.log(id).count('"event": "reloaded"')
                running.reload(id)
                await running.logged(id, '"event": "reloaded"', times + 1)
            wanted = appended + 20
            await until(lambda: appended >= wanted)

        async with trio.open_nursery() as nursery:
            plain_ends = trio.Event()
            nursery.start_soon(append_on, "", plain_ends)
            await to("accept")
            nursery.start_soon(append_on, "ops", stop)
            await to("dial")
            plain_ends.set()
            await to("require")
            tls_ends, stop = stop, trio.Event()
            await to("dial")
            await to("accept")
            nursery.start_soon(append_on, "", stop)
            tls_ends.set()
            await to("off")
            stop.set()
        async with running.connect() as log:
            assert (await log.append(b"last")) == appended + 1


@pytest.mark.trio
async def test_half_a_handshake_holds_nobody_up(tmp_path: Path) -> None:
    async with tls_cluster(tmp_path) as running, running.connect("billing") as log:
        leader = await running.leader()
        host, port = running.addresses[leader].split(":")
        hello = bytes.fromhex("16030100c8010000c40303") + bytes(100)
        socks = []
        for at in (*range(1, 12), 40, 100):
            sock = socket.create_connection((host, int(port)))
            sock.sendall(hello[:at])
            socks.append(sock)
        for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03" + bytes(500), bytes(300)):
            sock = socket.create_connection((host, int(port)))
            sock.sendall(junk)
            socks.append(sock)
        for number in range(1, 21):
            assert await log.append(b"on") == number
        assert '"event": "passive"' not in running.log(leader)
        async with await trio.open_tcp_stream(host, int(port)) as silent:
            running.configure(leader, "off")  # while it waits for the first bytes
            running.reload(leader)
            await running.logged(leader, '"event": "reloaded"')
            await silent.send_all(hello)
            while await silent.receive_some():
                pass
        assert running.processes[leader].poll() is None
        for sock in socks:
            sock.close()


@pytest.mark.trio
async def test_a_local_cluster_has_its_own_certificates_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CA", "CERT", "KEY"):  # of another cluster
        monkeypatch.setenv(f"ALPO_{name}", str(tmp_path / "nowhere"))
    for flags in ((), ("--tls",)):
        where = ("--dir", str(tmp_path / f"cluster{len(flags)}"))
        start = ("cluster", "start", *where, "--size", "1", "--base-port", str(free_base_port(1)), "--detach", *flags)
        try:
            code, out, err = await alpo_command(*start)
            assert code == 0 and out.startswith("127.0.0.1:"), err
            assert ("clients: export ALPO_CA=" in err) == bool(flags)
        finally:
            code, _, err = await alpo_command("cluster", "stop", *where)
            assert code == 0, err


@pytest.mark.trio
async def test_a_flood_of_handshakes_and_silence_deposes_nobody(tmp_path: Path) -> None:
    """Handshakes follow each other, 300 clients send nothing, 300 stop half-way; a server still comes back."""
    async with tls_cluster(tmp_path) as running, running.connect("billing") as log:
        leader = await running.leader()
        host, port = running.addresses[leader].split(":")
        other = next(id for id in IDS if id != leader)
        contexts = Contexts.load(running.tls("reader"))
        over = threading.Event()
        made = [0]

        def shake_hands() -> None:
            while not over.is_set():
                with socket.create_connection((host, int(port))) as sock, contexts.client.wrap_socket(sock):
                    made[0] += 1

        with ExitStack() as stack:
            for number in range(600):
                sock = stack.enter_context(socket.create_connection((host, int(port))))
                sock.sendall((bytes.fromhex("16030100c8010000c40303") + bytes(100))[: number % 2 * 60])
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(trio.to_thread.run_sync, shake_hands)
                try:
                    await running.logged(other, '"event": "following"')
                    running.kill(other)
                    running.start(other)
                    for number in range(1, 201):
                        assert await log.append(b"on") == number
                    await running.logged(other, '"event": "following"', 2)
                    await until(lambda: made[0] >= 100)
                finally:
                    over.set()
        assert '"event": "passive"' not in running.log(leader)
        assert await running.leader() == leader
