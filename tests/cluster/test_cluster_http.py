"""HTTP of real servers: over TLS, while a server stops, beside an election, and in a real browser."""

from __future__ import annotations

import json
import signal
import ssl
from pathlib import Path

import pytest
import trio
from browser import Tab, browser, program
from harness import Cluster, cluster
from probe import until
from tls_rig import IDS, make_certificates, tls_cluster
from visits import Visited, visit

import alpo

_BROWSER = pytest.mark.skipif(program() is None, reason="no Chromium here: the page was looked at by no browser")


def context(certs: Path, stem: str = "") -> ssl.SSLContext:
    """A visitor's context, with a certificate if ``stem`` names one."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.load_verify_locations(certs / "ca.pem")
    if stem:
        made.load_cert_chain(certs / f"{stem}.pem", certs / f"{stem}.key")
    return made


@pytest.mark.trio
async def test_probes_need_no_certificate_and_all_else_needs_a_role(tmp_path: Path) -> None:
    async with tls_cluster(tmp_path) as running:
        at = running.visited[1]
        nobody = context(running.certs)
        assert (await visit(at, "/healthz", context=nobody)).status == 200
        assert (await visit(at, "/readyz", context=nobody)).status == 200
        for path in ("/", "/status", "/metrics", "/page.js", "/?part"):
            refused = await visit(at, path, context=nobody)
            assert refused.status == 403 and "takes a certificate with the role read or admin" in refused.text
            for stem, status in (("reader", 200), ("ops", 200), ("server-2", 200), ("billing", 403)):
                answer = await visit(at, path, context=context(running.certs, stem))
                assert answer.status == status, (path, stem)
        for stem, status in (("", 403), ("reader", 200), ("ops", 200), ("server-2", 403), ("billing", 403)):
            assert (await visit(at, "/log", context=context(running.certs, stem))).status == status, stem
        plain = await visit(at, "/status")
        assert plain.status == 403 and "use https" in plain.text
        assert (await visit(at, "/healthz")).status == 200
        # A name that is not this server's is no danger where a browser must show a certificate.
        assert (await visit(at, "/", context=context(running.certs, "ops"), host="alias.example")).status == 200
        status = json.loads((await visit(at, "/status", context=context(running.certs, "ops"))).text)
        assert [row["reachable"] for row in status["members"]] == [True] * 3  # asked with the server's own certificate
        assert status["tls"]["mode"] == "require" and status["tls"]["certificate_ends_s"] > 0
        metrics = (await visit(at, "/metrics", context=context(running.certs, "ops"))).text
        assert 'alpo_certificate_expiry_timestamp_seconds{file="cert"}' in metrics
        assert "alpo_certificate_reload_success 1.0" in metrics


@pytest.mark.trio
async def test_a_strangers_certificate_gets_no_page(tmp_path: Path) -> None:
    async with tls_cluster(tmp_path) as running:
        strangers = make_certificates(tmp_path / "strangers")
        made = context(running.certs)
        made.load_cert_chain(strangers / "ops.pem", strangers / "ops.key")

        async def failed() -> int:
            text = (await visit(running.visited[1], "/metrics", context=context(running.certs, "ops"))).text
            return next(int(float(line.split()[1])) for line in text.splitlines() if 'result="failed"' in line)

        before = await failed()  # servers that start may have met none that answered
        with pytest.raises((trio.BrokenResourceError, ssl.SSLError)):
            await visit(running.visited[1], "/status", context=made)

        async def counted() -> bool:
            return await failed() == before + 1

        await until(counted)


@pytest.mark.trio
async def test_a_server_that_stops_says_so_before_it_closes(tmp_path: Path) -> None:
    async with cluster(tmp_path, proxied=False, http=True) as running:
        leader = await running.leader()
        server = running.servers[leader]
        assert (await visit(server.visited, "/readyz")).status == 200
        for id in running.others(leader):
            running.servers[id].pause()  # no server can take over: leaving takes a while
        assert server.process is not None
        server.wanted = False
        server.process.send_signal(signal.SIGTERM)
        found: list[Visited] = []

        async def not_ready() -> bool:
            found.append(await visit(server.visited, "/readyz"))
            return found[-1].status == 503

        await until(not_ready)
        assert "running: it is stopping" in found[-1].text
        assert (await visit(server.visited, "/healthz")).status == 200
        for id in running.others(leader):
            running.servers[id].resume()
        assert await server.ended() == 0
        with pytest.raises(OSError):
            await visit(server.visited, "/healthz")


@pytest.mark.trio
async def test_a_roll_to_tls_by_restarts_that_waits_for_readiness_fails_no_append(tmp_path: Path) -> None:
    async with tls_cluster(tmp_path, mode="none") as running:
        took_s: list[float] = []

        async def append_on(stem: str, ends: trio.Event) -> None:
            async with running.connect(stem) as log:
                while not ends.is_set():
                    began_s = trio.current_time()
                    await log.append(b"on")
                    took_s.append(trio.current_time() - began_s)

        async def ready(id: int) -> bool:
            try:
                return (await visit(running.visited[id], "/readyz")).status == 200
            except (OSError, trio.BrokenResourceError, AssertionError):
                return False

        async def roll(mode: str) -> None:
            for id in IDS:
                running.configure(id, mode)
                running.processes[id].terminate()
                await until(lambda: running.processes[id].poll() is not None)
                assert running.processes[id].returncode == 0
                running.start(id)
                await until(lambda: ready(id))

        plain_ends, tls_ends = trio.Event(), trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(append_on, "", plain_ends)
            await roll("accept")
            nursery.start_soon(append_on, "ops", tls_ends)
            await roll("dial")
            plain_ends.set()
            await roll("require")
            tls_ends.set()
        async with running.connect("ops") as log:
            assert await log.append(b"last") == len(took_s) + 1
        print(f"{len(took_s)} appends during nine restarts, the longest took {1000 * max(took_s):.0f} ms")


async def _scraped(running: Cluster, id: int, name: str) -> float:
    """One value of a server's metrics; 0 if it is not there or the server does not answer."""
    try:
        text = (await visit(running.servers[id].visited, "/metrics")).text
    except OSError:
        return 0.0
    sample = f'alpo_{name}{{log="default"}} '
    return next((float(line.split()[1]) for line in text.splitlines() if line.startswith(sample)), 0.0)


@pytest.mark.trio
async def test_scrapes_go_on_through_an_election(tmp_path: Path) -> None:
    async with cluster(tmp_path, proxied=False, http=True) as running, alpo.connect(running.addresses) as log:
        await log.append(b"one")
        before = await running.leader()
        others = running.others(before)
        seen = {id: await _scraped(running, id, "unplanned_elections_total") for id in others}
        running.servers[before].kill()

        async def led_anew() -> bool:
            return sum([await _scraped(running, id, "is_leader") for id in others]) == 1

        await until(led_anew)
        assert sum([await _scraped(running, id, "elections_won_total") for id in others]) >= 1
        assert all([await _scraped(running, id, "unplanned_elections_total") > seen[id] for id in others])

        async def counted() -> bool:
            await log.append(b"more")
            return sum([await _scraped(running, id, "appended_payloads_total") for id in others]) >= 1

        await until(counted)


@pytest.mark.trio
async def test_a_port_in_use_ends_the_start(tmp_path: Path) -> None:
    async with cluster(tmp_path, proxied=False, http=True) as running:
        await running.leader()
        running.servers[1].kill()
        running.servers[1].visited = running.servers[2].visited
        running.start(1)
        running.servers[1].wanted = False
        assert await running.servers[1].ended() == 1
        assert "the port is in use" in running.servers[1].tail()
        await running.leader(running.others(1))


# -- in a browser ---------------------------------------------------------------------------------------

_FITS = "document.documentElement.scrollWidth <= window.innerWidth"
_STATE = "document.querySelector('#state').innerText"
_DARK = "getComputedStyle(document.body).backgroundColor"


async def _shows(tab: Tab, text: str) -> None:
    await tab.until(f"{_STATE}.includes({json.dumps(text)})")


@_BROWSER
@pytest.mark.trio
async def test_the_page_follows_the_cluster_by_itself(tmp_path: Path) -> None:
    async with cluster(tmp_path, proxied=False, http=True) as running, browser(tmp_path) as tab:
        leader = await running.leader()
        seen_by, other = running.others(leader)
        async with alpo.connect(running.addresses) as log:
            await log.set_cursor("<img src=x onerror=alert(1)>", 1)
            await tab.look(f"http://{running.servers[seen_by].visited}/")
            await _shows(tab, "All 3 members answer")
            await tab.until("document.getElementById('age').innerText == 'updated every 2 s'")
            assert await tab.value("document.querySelectorAll('#members tbody tr').length") == 3
            assert await tab.value("document.querySelectorAll('img').length") == 0
            await tab.value("window.stayed = true")
            running.servers[leader].kill()
            await log.append(b"after")
            await _shows(tab, "2 of 3 members answer; no other may fail.")
            await tab.until("document.querySelector('#elections').innerText.includes('was gone')")
            assert await tab.value("document.title.startsWith('⚠')")
            running.servers[other].pause()
            await _shows(tab, "1 of 3 members answer; 2 are needed.")
            running.servers[other].resume()
            running.start(leader)
            await _shows(tab, "All 3 members answer")
            assert await tab.value("window.stayed")  # nothing was loaded anew
        running.servers[seen_by].kill()
        await tab.until("document.getElementById('age').innerText.startsWith('not updated for')")
        assert not [said for said in tab.complaints if "ERR_CONNECTION" not in said and "Failed to load" not in said]


@_BROWSER
@pytest.mark.trio
@pytest.mark.parametrize("size", [3, pytest.param(9, marks=pytest.mark.soak)])
async def test_the_page_fits_narrow_and_wide_windows_in_both_schemes(tmp_path: Path, size: int) -> None:
    async with cluster(tmp_path, size, proxied=False, http=True) as running, browser(tmp_path) as tab:
        await running.leader()
        url = f"http://{running.servers[1].visited}/"
        for width in (1280, 390):
            grounds = []
            for dark in (False, True):
                await tab.look(url, width, dark=dark)
                assert await tab.value("window.innerWidth") == width
                assert await tab.value(_FITS), (width, dark)
                assert await tab.value("document.querySelectorAll('#members tbody tr').length") == size
                grounds.append(await tab.value(_DARK))
            assert grounds[0] != grounds[1]
        assert tab.complaints == []


@_BROWSER
@pytest.mark.trio
async def test_the_page_is_whole_without_scripts(tmp_path: Path) -> None:
    async with cluster(tmp_path, proxied=False, http=True) as running, browser(tmp_path) as tab:
        await running.leader()
        await tab.scripts(False)
        await tab.look(f"http://{running.servers[1].visited}/")
        assert "All 3 members answer" in await tab.value(_STATE)
        assert await tab.value("document.querySelector('noscript meta').httpEquiv") == "refresh"
