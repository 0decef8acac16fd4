"""The pages of a server: which paths there are, who may see them, and their contents, made at most once a second.

`/healthz`: the server lives. `/readyz`: requests may be sent to it. `/metrics`: for Prometheus. `/status`: the whole
cluster, as JSON; `/status?log=NAME`: another log than the first. `/`: the same for people. `/log`: payloads, for
visitors that may read the log. Nothing can be changed here.

The other members' own accounts of themselves are asked for as long as somebody looks. Laws:

* Each is asked once a second, all at the same time; one that does not answer within a second delays no other, and is
  not asked again before it has answered, or could not be reached.
* Nobody is asked once nobody has looked for a while, and the connections are closed then.
* A member that does not answer keeps its last account, with its age.
"""

from __future__ import annotations

import functools
import ipaddress
import json
import math
import socket
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import trio

from alpo.addresses import parse_address
from alpo.core.directory import FIRST_NAME
from alpo.node.compare import Inquiry, Unusable
from alpo.node.driver import wall_ms
from alpo.node.pages import OutOfRange
from alpo.node.reads import NotReady
from alpo.node.report import Report
from alpo.node.scrub import unreadable
from alpo.node.security import missing_role
from alpo.storage.interface import StoreError
from alpo.tls import Rights
from alpo.wire.requests import VERSION, Read

from .metrics import PATHS, Metrics
from .page import Wanted, payloads_page, render

#: Seconds between two rounds, for one answer, and after the last look until nobody is asked any more.
ROUND_S, ANSWER_S, LOOKED_S = 1.0, 1.0, 10.0


class _Other:
    """Knowledge of one member. ``fields`` None: it never answered."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] | None = None
        self.answered_s = -math.inf
        self.problem = "not asked yet"
        self.inquiry: Inquiry | None = None
        self.is_asked = False


class Others:
    """All other members."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._known: dict[int, _Other] = {}
        self._looked_s = self._asked_s = -math.inf
        self._wanted = trio.Event()
        self._asked = trio.Condition()
        self._answered = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        """Ask while somebody looks, until cancelled."""
        try:
            while True:
                await self._wanted.wait()
                async with trio.open_nursery() as nursery:
                    await self._ask_while_looked_at(nursery)
                    nursery.cancel_scope.cancel()
                self._wanted = trio.Event()
                self._asked_s = -math.inf
                self._hang_up()
        finally:
            self._hang_up()

    async def _ask_while_looked_at(self, nursery: trio.Nursery) -> None:
        while trio.current_time() - self._looked_s < LOOKED_S:
            began_s = trio.current_time()
            await self._round(nursery)
            async with self._asked:
                self._asked_s = trio.current_time()
                self._asked.notify_all()
            await trio.sleep_until(began_s + ROUND_S)

    async def rows(self, own: dict[str, Any]) -> list[dict[str, Any]]:
        """A row for each member, by id, of which ``own`` is this server's. Keys are those of `alpo status --json`, and
        ``age_s``: seconds since it answered, None if it never did; ``problem``: why it does not."""
        self._looked_s = trio.current_time()
        self._wanted.set()
        with trio.move_on_after(ANSWER_S + 0.5):
            async with self._asked:
                while self._looked_s - self._asked_s > 2 * ROUND_S + ANSWER_S:
                    await self._asked.wait()
        return self._rows(own)

    def _rows(self, own: dict[str, Any]) -> list[dict[str, Any]]:
        found = {self._report.host.us.me.id: {**own, "age_s": 0.0, "problem": None}}
        now_s = trio.current_time()
        for id, address in self._members().items():
            other = self._known.get(id) or _Other()
            row = dict(other.fields or {"id": id, "address": address})
            row["id"], row["reachable"] = id, not other.problem
            row["age_s"] = round(now_s - other.answered_s, 1) if other.fields is not None else None
            row["problem"] = other.problem or None
            found[id] = row
        return [found[id] for id in sorted(found)]

    async def once(self, own: dict[str, Any]) -> list[dict[str, Any]]:
        """Rows as of `rows`, asked for this once, without `run`."""
        try:
            async with trio.open_nursery() as nursery:
                await self._round(nursery)
                nursery.cancel_scope.cancel()
            return self._rows(own)
        finally:
            self._hang_up()

    def _members(self) -> dict[int, str]:
        """The other members' addresses, by id."""
        r = self._report.replica
        listed = {member.id: member.address for member in r.members.latest.replicas}
        found = listed or {one.id: one.address for one in r.cfg.configured}
        return {id: address for id, address in found.items() if id != self._report.host.us.me.id}

    async def _round(self, nursery: trio.Nursery) -> None:
        """Ask all that are not still being asked; returns once they have answered, or after `ANSWER_S`."""
        members = self._members()
        for id in [id for id in self._known if id not in members]:
            self._close(self._known.pop(id))
        for id, address in members.items():
            other = self._known.setdefault(id, _Other())
            if not other.is_asked:
                other.is_asked = True
                nursery.start_soon(self._ask, id, address, other)
        with trio.move_on_after(ANSWER_S):
            while any(other.is_asked for other in self._known.values()):
                await self._answered.park()
        for other in self._known.values():
            if other.is_asked:
                other.problem = other.problem or "no answer within a second"

    async def _ask(self, id: int, address: str, other: _Other) -> None:
        answered = False
        try:
            if other.inquiry is None:
                report = self._report
                peer = report.host.peers.by_id.get(id)
                version = peer.route.version if peer is not None and peer.route is not None else VERSION
                other.inquiry = await Inquiry.open(
                    id, address, report.replica.cluster, report.host.security, version, report.log.name()
                )
            with trio.move_on_after(ANSWER_S):
                other.fields = await other.inquiry.status()
                other.answered_s, other.problem, answered = trio.current_time(), "", True
            if not answered:
                other.problem = "no answer within a second"
        except Unusable as error:
            other.problem = str(error)
        except Exception as error:  # an answer that makes no sense is no reason to end this server
            other.problem = f"its answer makes no sense: {type(error).__name__}"
        finally:
            other.is_asked = False
            if not answered:
                self._close(other)
            self._answered.unpark_all()

    def _hang_up(self) -> None:
        for other in self._known.values():
            self._close(other)

    def _close(self, other: _Other) -> None:
        inquiry, other.inquiry = other.inquiry, None
        if inquiry is not None:
            inquiry.close()


#: Seconds for which an answer is kept, whoever asks.
KEPT_S = 1.0
HTML, JSON, PLAIN = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """An answer; ``headers`` are those that not every answer has."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def text(status: int, text: str, *headers: tuple[str, str]) -> Answer:
        return Answer(status, PLAIN, text.encode("utf-8", "replace") + b"\n", headers)


class Visit:
    """One request. ``host``: see `site.Site`; ``secure``: it came over TLS; ``rights``: of its certificate."""

    def __init__(
        self, method: bytes, target: bytes, host: str | None, rights: Rights | None = None, secure: bool = False
    ) -> None:
        path, _, query = target.decode("latin-1").partition("?")
        self.method, self.path, self.query = method, path, query
        self.host, self.rights, self.secure = host, rights, secure

    @property
    def label(self) -> str:
        """The path for metrics: only known ones, as visitors could invent any number."""
        return self.path if self.path in PATHS else "other"


class Kept:
    """An answer that is made anew at most once in `KEPT_S`; whoever asks meanwhile waits for the same one."""

    def __init__(self, make: Callable[[], Awaitable[Answer]]) -> None:
        self._make = make
        self._made: Answer | Exception | None = None
        self._made_s = -math.inf
        self._turn = trio.Lock()

    async def get(self) -> Answer:
        """The answer. Raises the error that making it raised; an error is kept as long as an answer."""
        async with self._turn:
            if self._made is None or trio.current_time() - self._made_s >= KEPT_S:
                try:
                    self._made = await self._make()
                except Exception as error:  # kept, too: visitors must not ask a failing store one by one
                    self._made = error
                self._made_s = trio.current_time()
            if isinstance(self._made, Exception):
                raise self._made.with_traceback(None)
            return self._made


class Site:
    """Pages for visitors. ``auth``: "cert" if all but probes need a certificate with a role, else "none". ``names``:
    further host names of this server."""

    def __init__(self, report: Report, *, auth: str, names: frozenset[str] = frozenset()) -> None:
        self._report = report
        #: Need of visitors; may be changed at any time.
        self.auth = auth
        self._names = names | {"localhost", socket.gethostname().lower()}
        self._others = Others(report)
        self._metrics = Metrics(report)
        self._looking = trio.Lock()  # one visitor at a time has payloads read
        self._pages: dict[tuple[str, str], Kept] = {
            ("/metrics", ""): Kept(self._scrape),
            ("/status", ""): Kept(functools.partial(self._status, report)),
            ("/", ""): Kept(self._whole_page),
            ("/", "part"): Kept(self._part),
        }
        #: Status of each other log that was looked at, by its number, with the account that it is made of.
        self._of_logs: dict[int, tuple[Report, Kept]] = {}

    @property
    def log_port(self) -> int:
        """The port of the log, for a client that takes this port for it."""
        return parse_address(self._report.host.us.address)[1]

    async def run(self) -> None:
        """Ask the other members as long as somebody looks, until cancelled."""
        await self._others.run()

    async def answer(self, visit: Visit) -> Answer:
        """The answer to a request; never raises."""
        if visit.method not in (b"GET", b"HEAD"):
            return Answer.text(405, "only GET and HEAD: nothing can be changed here", ("Allow", "GET, HEAD"))
        if visit.path == "/healthz":
            return Answer.text(200, "ok")
        if visit.path == "/readyz":
            return self._readiness(visit.query.split("&"))
        if not visit.secure and visit.host is not None and not self._is_ours(visit.host):
            return Answer.text(421, "this is no name of this server: use its address, or a name in the member list")
        if visit.path not in PATHS:
            return Answer.text(404, "there is nothing here: see /, /log, /status, /metrics, /healthz and /readyz")
        named = parse_qs(visit.query).get("log", [FIRST_NAME])[-1]
        if problem := self._objection(visit, named if visit.path == "/status" else FIRST_NAME):
            return problem
        if visit.path in _ASSETS:
            return _asset(visit.path)
        kept = self._pages.get((visit.path, "part" if visit.query == "part" else ""))
        if visit.path == "/status" and named != FIRST_NAME:
            kept = self._status_of(named)
        if kept is None and visit.path != "/log":
            return Answer.text(404, "there is nothing here")
        try:
            return await kept.get() if kept is not None else await self._payloads(visit)
        except NotReady as error:
            return Answer.text(503, str(error))
        except StoreError as error:
            return Answer.text(503, unreadable(error))
        except Exception as error:  # a page that cannot be made is no reason to end a server that keeps a log
            self._report.log.driver.note("page_failed", path=visit.path, why=f"{type(error).__name__}: {error}")
            return Answer.text(500, "this page cannot be made: see the server's log")

    def _status_of(self, name: str) -> Kept | None:
        """The status of another log than the first; None if none of this name runs here."""
        running = {number: (named, report) for number, named, report in self._report.host.reports()}
        for number, (report, _) in list(self._of_logs.items()):
            if number not in running or running[number][1] is not report:
                del self._of_logs[number]
        for number, (named, report) in running.items():
            if named == name:
                made = report, Kept(functools.partial(self._status, report))
                return self._of_logs.setdefault(number, made)[1]
        return None

    def _objection(self, visit: Visit, log: str) -> Answer | None:
        """The refusal of a visit that may not see the page, of this log; None if it may."""
        mode, rights = self._report.host.security.mode, visit.rights
        if mode == "require" and not visit.secure:
            return Answer.text(403, "this server speaks TLS only here: use https")
        if self.auth != "cert" or (
            rights is not None and ({"read", "admin"} & rights.roles_in(log) or rights.peers)
        ):
            return None
        held = str(rights) if visit.secure and rights is not None else "no certificate"
        return Answer.text(403, f"{held}: this takes a certificate with the role read or admin")

    async def _payloads(self, visit: Visit) -> Answer:
        """Payloads, for a visitor that may read the log, whatever `auth` says. Raises `StoreError`, `NotReady`."""
        security = self._report.host.security
        if security.mode != "off" and (visit.rights is None or missing_role(visit.rights, Read)):
            return Answer.text(403, "payloads take a certificate with the role read or admin")
        try:
            wanted = Wanted.of(visit.query)
            async with self._looking:
                text = await payloads_page(wanted, self._report.log.reads.look, self._report.host.us.me.id)
        except OutOfRange as error:
            return Answer.text(404, f"the log goes from LSN {error.first_lsn} to {error.last_lsn}")
        except ValueError as error:
            return Answer.text(400, str(error))
        return Answer(200, HTML, text.encode("utf-8", "replace"))

    def _is_ours(self, host: str) -> bool:
        """True if ``host`` is an address or a name of this cluster's: a page elsewhere cannot have its own name point
        here and read what a browser within may see."""
        try:
            ipaddress.ip_address(host)
            return True
        except ValueError:
            pass
        replica = self._report.replica
        addresses = [member.address for member in replica.members.latest.members] + [replica.cfg.address]
        ours = self._names | {one.rpartition(":")[0].strip("[]").lower() for one in addresses}  # whatever members say
        return host.lower() in ours

    def _readiness(self, queries: list[str]) -> Answer:
        checks = self._report.checks(must_lead="leader" in queries)
        ready = all(check.holds for check in checks)
        if "verbose" in queries:
            lines = [f"[+]{one.name} ok" if one.holds else f"[-]{one.name} failed: {one.why}" for one in checks]
            lines.append("ready" if ready else "not ready")
        else:
            lines = [f"{one.name}: {one.why}" for one in checks if not one.holds] or ["ready"]
        return Answer.text(200 if ready else 503, "\n".join(lines))

    # -- contents ---------------------------------------------------------------------------------------

    async def _scrape(self) -> Answer:
        return Answer(200, self._metrics.content_type, await self._metrics.text())

    async def _view(self, report: Report) -> dict[str, Any]:
        """A log on the whole cluster: each member's status, and what only this server tells. Raises `StoreError`."""
        now_ms = wall_ms()
        own = await report.status(now_ms)
        lookups = await report.lookups()
        r, counters = report.replica, report.log.driver.counters
        contexts = report.host.security.contexts
        members = await (self._others.rows(own) if report is self._report else Others(report).once(own))
        return {
            "members": members,
            "seen_by": report.host.us.me.id,
            "time_ms": now_ms,
            "rates": [list(rate) for rate in report.log.pulse.rates],
            "elections": [election._asdict() for election in reversed(counters.elections.recent)],
            "cursors_all": len(r.cursors.now),
            "cursors": [
                {"name": one.name, "lsn": one.lsn, "lag_bytes": one.lag_bytes, "lag_s": one.lag_s}
                for one in lookups.cursors
            ],
            "sessions": {
                "named": r.sessions.names, "unnamed": r.sessions.randoms, "unnamed_max": r.settings.sessions_max,
                "ended": counters.sessions_ended, "refused": counters.connections_refused["no_right"],
            },
            "fully_replicated_lsn": lookups.fully_replicated_lsn,
            "lag_s": {str(id): lag_s for id, lag_s in lookups.lag_s.items()},
            "clients_max": report.host.limits.client_connections_max,
            "tls": {
                "mode": report.host.security.mode,
                "certificate_ends_s": contexts.cert_ends_s if contexts is not None else None,
                "ca_ends_s": contexts.ca_ends_s if contexts is not None else None,
            },
        }

    async def _status(self, report: Report) -> Answer:
        text = json.dumps(await self._view(report), default=_plain)
        return Answer(200, JSON, text.encode() + b"\n")

    async def _whole_page(self) -> Answer:
        return Answer(200, HTML, render(await self._view(self._report), whole=True).encode("utf-8", "replace"))

    async def _part(self) -> Answer:
        return Answer(200, HTML, render(await self._view(self._report), whole=False).encode("utf-8", "replace"))


_ASSETS: Mapping[str, str] = {
    "/page.css": "text/css; charset=utf-8", "/page.js": "text/javascript; charset=utf-8",
}


def _asset(path: str) -> Answer:
    return Answer(200, _ASSETS[path], files("alpo.node.http").joinpath(path[1:]).read_bytes())


def _plain(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else str(value)
