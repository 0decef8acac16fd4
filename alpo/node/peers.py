"""Outgoing connections: one to every other member of any log, kept up as long as the server runs; and one to each
server that has left the cluster, while that is connected to this one.

Laws:

* A peer is dialled at the address in the member list, the configured one, and that of its last hello, in turn (R27).
* The core gets `Connected` for a full connection, and `Disconnected` when it ends: in between no message is lost
  silently (R17).
* If nothing came in for an election timeout although something was sent, the connection is half open, and is redialled.
  Every byte that arrives counts as coming in, and so does every queued byte that the kernel takes.
* Two passive servers say nothing to each other as long as a leader lives. If such a connection is half open, keepalive
  finds out within a few seconds, not only the canvass that would be lost on it.
* A peer that answers with another disk than the listed one is kept only for a while if it has other addresses: the
  server that was replaced may still run at its own.
* The replaced disk speaks for nobody: its answer tells neither whether the member is up nor where.
* A full connection that has ended is dialled again at once. The core gets `PeerGone` once that was refused, the peer's
  own connection to this server has ended too, and everything that came over either was posted (R33).
* The pause between attempts is at most `_RETRY_S_MAX`, and ends early when the peer itself dials.
* One outage is one ``peer_lost``, one ``peer_unreachable`` for each reason if it lasts (at most `_REASONS_MAX`), one
  ``peer_connected`` at its end. Until the first start is done nothing is an outage: what that waits for is reported by
  itself.
"""

from __future__ import annotations

import math
from typing import Any

import trio

from alpo.addresses import AddressError
from alpo.core.members import Identity
from alpo.core.ready import Connected, Disconnected, PeerAddress, PeerGone
from alpo.core.requests import Code
from alpo.dialling import Unreachable, Way
from alpo.wire.codec import ToldProblem, WireError, decode_hello, encode, version_told
from alpo.wire.framing import FrameError
from alpo.wire.requests import OLDEST_VERSION, VERSION, PeerHello, Problem

from .admission import FRAME_BYTES_MOST, frame_bytes
from .driver import Driver
from .link import Body, LinkClosed
from .poller import Poller
from .routes import TWICE_S, Ourselves, Route, Routes, converse, listed_incarnation, objection, our_hello, timers_differ
from .security import Security

_RETRY_S_MAX = 1.0
#: Seconds for a peer's name, which is looked up on meanwhile.
_NAME_S = 10.0
#: Seconds for each other step on the way to a peer: at first, and doubled for an address where that was too short.
_STEP_S_FIRST, _STEP_S_MAX = 1.0, 4.0
_KEEPALIVE_S = (1, 1)
#: Election timeouts to stay with another disk than the listed one, if that may be found at another address.
_STRANGER_TIMEOUTS = 4
#: Election timeouts that a peer may be away before a warning; the second if it said that it was stopping.
GRACE_TIMEOUTS, GRACE_STOPPED_TIMEOUTS = 10, 120
#: Reasons that are reported of one outage.
_REASONS_MAX = 8


class OlderVersion(Exception):
    """The other server speaks only an older ``version`` of the protocol."""

    def __init__(self, version: int) -> None:
        super().__init__(f"it speaks version {version}")
        self.version = version


class Peer:
    """Another member, and the connection to it."""

    def __init__(self, id: int) -> None:
        self.id = id
        #: Address given in its last hello; "" before.
        self.said_address = ""
        #: Reason why there is no full connection at present; "" while there is one, or nobody needs one.
        self.trouble = "not tried yet"
        self.route: Route | None = None
        self.incarnation = b""
        #: Identity that answered the last full connection, and the address dialled; None before.
        self.answered: tuple[Identity, str] | None = None
        #: True from when that address refuses connections until one opens, in either direction.
        self.refused = False
        #: Protocol version to try next: the newest, or an older one that the peer has just named.
        self.version = VERSION
        #: False if its last hello was one of two processes', and not the first one's (`Routes.heard`).
        self.believed = True
        #: Set while the other side has said that it is stopping.
        self.stopping = False
        #: Cancels the wait after which the present outage is reported; None: there is no outage.
        self.outage: trio.CancelScope | None = None
        #: Reasons reported of the present outage.
        self.told: set[str] = set()
        #: Seconds for a step on the way to each address.
        self.step_s: dict[str, float] = {}
        self._turn = 0
        self._kick = trio.Event()

    def kick(self) -> None:
        """End the pause between attempts: dialling may succeed now."""
        self._kick.set()

    async def pause(self, pause_s: float, least_s: float) -> bool:
        """Wait for ``pause_s`` or a kick; True if kicked. After a kick since the last pause, wait for ``least_s``
        only."""
        if self._kick.is_set():
            pause_s = min(pause_s, least_s)
        self._kick = trio.Event()
        with trio.move_on_after(pause_s):
            await self._kick.wait()
        return self._kick.is_set()

    def stay(self) -> None:
        """Dial the same address again."""
        self._turn -= 1

    def next_address(self, addresses: list[str]) -> str:
        """The next of ``addresses``, in turn."""
        self.step_s = {address: self.step_s.get(address, _STEP_S_FIRST) for address in addresses}
        self._turn += 1
        return addresses[self._turn % len(addresses)]

    def wait_longer(self, address: str) -> None:
        """Give each step on the way to ``address`` more time: what it had was too short."""
        self.step_s[address] = min(2 * self.step_s.get(address, _STEP_S_FIRST), _STEP_S_MAX)


class Peers:
    """All peers, with a task for each in the nursery given to `start`."""

    def __init__(
        self, us: Ourselves, driver: Driver, poller: Poller, routes: Routes, configured: dict[int, str],
        security: Security,
    ) -> None:
        self._us = us
        self._driver = driver
        self._poller = poller
        self._replica = driver.replica
        self._routes = routes
        self._configured = configured
        self._security = security
        self._nursery: trio.Nursery | None = None
        self._gone = self._leads = False
        self._others, self._removed = frozenset[int](), frozenset[int]()
        self._seen: tuple[object, ...] = (None, None)
        self._asked = 0  # the server that was sought then
        self.by_id: dict[int, Peer] = {}
        #: The version of the protocol that each server, of this disk, spoke last.
        self.spoken: dict[Identity, int] = {}

    def start(self, nursery: trio.Nursery) -> None:
        """Begin to dial every member."""
        self._nursery = nursery
        self.follow_members()
        self._driver.watchers.after_change.append(self.follow_members)

    def follow_members(self) -> None:
        """Dial new members; redial restricted connections if the member list has changed. Drop what a reign that has
        ended has not sent yet."""
        leads = self._replica.reign is not None
        if self._leads and not leads:
            self._routes.abandon()
        self._leads = leads
        latest, cluster, asked = self._replica.members.latest, self._replica.out.cluster, self._replica.asked_id
        seen = latest, cluster, asked, self._others, self._removed
        if self._nursery is None or (latest is self._seen[0] and cluster is self._seen[1] and seen == self._seen):
            return
        to_ask = {asked, self._asked} - {0}  # servers that were or are sought may now be at other addresses
        self._seen, self._asked = seen, asked
        self._notice_removal()
        for id in sorted(self._wanted() | to_ask):
            if id not in self.by_id:
                self._begin(self._nursery, id)
                continue
            peer = self.by_id[id]
            if peer.route is not None and (id in to_ask or not self._is_listed(peer)):
                peer.route.link.close("another server is to be found there")
            self._reopen(peer)
            peer.kick()

    def _begin(self, nursery: trio.Nursery, id: int) -> None:
        self.by_id[id] = Peer(id)
        nursery.start_soon(self._keep_dialled, self.by_id[id])

    def follow_others(self, ids: frozenset[int], removed: frozenset[int]) -> None:
        """Dial these servers, too, the members of other logs: one that has left the first log may still be needed.
        ``removed``: those that have, which are dialled while they are connected: their logs may be deleted."""
        self._others, self._removed = ids, removed
        self.follow_members()

    def _notice_removal(self) -> None:
        gone = self._replica.status_text == "GONE"
        if gone and not self._gone:
            self._driver.note("gone", members=[member.id for member in self._replica.members.latest.replicas])
        self._gone = gone

    def _wanted(self) -> set[int]:
        """Ids to dial: those that are needed, and removed servers that are connected: their logs may be deleted."""
        back = {who.id for who, route in self._routes.accepted.items() if route.full and who.id in self._removed
                and self._replica.members.identity(who.id) == who}
        return self._needed() | back

    def _needed(self) -> set[int]:
        """Ids of members of any log, of a removed one that must be informed, and one that is sought; before the first
        start of those configured."""
        replica = self._replica
        ids = {member.id for member in replica.members.latest.replicas} or set(self._configured)
        if replica.leadership is not None:
            ids |= set(replica.leadership.peers)
        return (ids | self._others | {replica.asked_id}) - {0, self._us.me.id}

    def _is_listed(self, peer: Peer) -> bool:
        listed = listed_incarnation(self._replica, peer.id)
        return not listed or not peer.incarnation or listed == peer.incarnation

    def heard_from(self, who: Identity, address: str, open_for_all: bool) -> None:
        """Note that a peer has dialled this server, so it is up, and says that it is at ``address``; "": that is not
        to be believed. ``open_for_all``: dialling it would now open a full connection."""
        if self._nursery is not None and who.id not in self.by_id and who.id in self._wanted():
            self._begin(self._nursery, who.id)
        peer = self.by_id.get(who.id)
        if peer is not None and not self._was_replaced(who):
            peer.said_address, peer.refused = address or peer.said_address, False
            if open_for_all:
                self._reopen(peer)
            peer.kick()

    def twice(self) -> list[dict[str, Any]]:
        """Value of the status key ``twice``: members of which two processes run."""
        return self._routes.twice(trio.current_time())

    def _was_replaced(self, who: Identity) -> bool:
        member = self._replica.members.latest.get(who.id)
        return member is not None and member.incarnation != who.incarnation and who.incarnation in member.retired

    def _reopen(self, peer: Peer) -> None:
        if peer.route is not None and not peer.route.full:
            peer.route.link.close("the first start is done: to be opened for everything")

    def _addresses(self, peer: Peer) -> list[str]:
        asked = self._replica.asked_address(peer.id)
        if asked:
            return [asked]
        listed = self._replica.address_of(peer.id)
        found = [listed, self._configured.get(peer.id, ""), peer.said_address]
        return list(dict.fromkeys(address for address in found if address))

    async def _keep_dialled(self, peer: Peer) -> None:
        heartbeat_s = self._us.timers_ms[0] / 1000
        pause_s = heartbeat_s / 2
        while peer.id in self._wanted():
            was_up = False
            addresses = self._addresses(peer)
            began_s = trio.current_time()
            if addresses:
                address = peer.next_address(addresses)
                try:
                    was_up = await self._session(peer, address)
                except OlderVersion as older:
                    peer.version = older.version
                    peer.stay()
                    continue
                except (LinkClosed, FrameError, WireError, OSError, AddressError) as error:
                    self._note_trouble(peer, str(error) or "no answer in time")
                    if isinstance(error, Unreachable) and error.late:
                        peer.wait_longer(address)
                    if peer.answered is not None and peer.answered[1] == address and _is_refused(error):
                        peer.refused = True
                        self._tell_if_gone(peer)
            peer.version = VERSION  # another release may run there by now
            if was_up and trio.current_time() - began_s > heartbeat_s:
                peer.stay()
                continue
            pause_s = heartbeat_s / 2 if was_up else min(pause_s * 2, _RETRY_S_MAX)
            if await peer.pause(pause_s, heartbeat_s / 2):
                pause_s = heartbeat_s / 2
        self._end_outage(peer)
        del self.by_id[peer.id]

    def accepted_ended(self, who: Identity) -> None:
        """Note that the connection that ``who`` had dialled has ended, and that all that came over it was posted."""
        peer = self.by_id.get(who.id)
        if peer is not None and peer.answered is not None and peer.answered[0] == who:
            self._tell_if_gone(peer)

    def _tell_if_gone(self, peer: Peer) -> None:
        """Tell the core if the peer's process must be gone: refused, and no connection left in either direction."""
        if peer.refused and peer.answered is not None and peer.route is None:
            if peer.answered[0] not in self._routes.accepted:
                self._driver.post(PeerGone(peer.answered[0]))
                self._driver.kick(at_once=True)
                self._routes.stores.gone(peer.answered[0])

    def _note_trouble(self, peer: Peer, trouble: str) -> None:
        if peer.id not in self._needed():
            return self._end_outage(peer)
        if not peer.trouble:
            self._driver.note("peer_lost", peer=peer.id, why=trouble)
        peer.trouble = trouble
        if peer.outage is None and self._nursery is not None:
            peer.outage = trio.CancelScope()
            self._nursery.start_soon(self._warn_if_it_lasts, peer, peer.outage)
        elif peer.told:
            self._warn(peer)

    async def _warn_if_it_lasts(self, peer: Peer, outage: trio.CancelScope) -> None:
        """Report the outage if it lasts; ``outage`` is cancelled when the peer is connected, or is no peer any more."""
        timeouts, started = GRACE_STOPPED_TIMEOUTS if peer.stopping else GRACE_TIMEOUTS, False
        with outage:
            while not started:
                started = self._replica.first_start.started
                await trio.sleep(timeouts * self._us.timers_ms[1] / 1000)
            self._warn(peer)

    def _warn(self, peer: Peer) -> None:
        """Report the outage, once for each reason: a wrong certificate may show only after a slow start."""
        if peer.trouble in peer.told or len(peer.told) == _REASONS_MAX:
            return
        if self._replica.status_text not in ("GONE", "RETIRED"):  # else this server is the one that nobody talks to
            peer.told.add(peer.trouble)
            self._driver.note("peer_unreachable", peer=peer.id, why=peer.trouble)

    def _end_outage(self, peer: Peer) -> None:
        peer.trouble, peer.stopping, peer.told = "", False, set()
        if peer.outage is not None:
            peer.outage.cancel()
            peer.outage = None

    async def _session(self, peer: Peer, address: str) -> bool:
        """One connection from dialling to its end. True if it was full. Raises what ended it before or during the
        hellos."""
        began_s = trio.current_time()
        step_s = peer.step_s.get(address, _STEP_S_FIRST)
        way = Way(address, name_s=_NAME_S, tcp_s=step_s, answer_s=step_s)
        generation = self._security.generation
        queue_bytes_max = 2 * self._replica.cfg.peer_inflight_bytes_max + FRAME_BYTES_MOST
        link = await self._security.dial(peer.id, way, queue_bytes_max, _KEEPALIVE_S)
        try:
            target, version = Identity(peer.id, listed_incarnation(self._replica, peer.id)), peer.version
            link.open_lanes()
            link.push(encode(our_hello(self._us, self._replica, target, version)))
            with way.answering(tls=False, least_s=self._us.timers_ms[1] / 1000):
                first, *rest = await link.receive()
            link.allow_frames(frame_bytes(self._replica.settings))
            hello = self._judge_answer(peer, first, address, began_s)
            if generation != self._security.generation:
                raise LinkClosed("the certificates have changed")
            full = bool(
                self._replica.cluster and hello.cluster == self._replica.cluster
                and target.incarnation and hello.incarnation == target.incarnation
            )
            if full:
                link.allow_frames(FRAME_BYTES_MOST)  # another log's payloads may be larger
            route = Route(link, full, version, hello.process)
            peer.refused = False
            if full:
                peer.answered = Identity(hello.id, hello.incarnation), address
            stay_s = math.inf if full or self._is_listed(peer) or len(self._addresses(peer)) == 1 else (
                _STRANGER_TIMEOUTS * self._us.timers_ms[1] / 1000
            )
            with trio.move_on_after(stay_s if peer.believed else min(stay_s, TWICE_S)):
                await self._converse(peer, route, Identity(hello.id, hello.incarnation), rest)
            return full
        finally:
            link.close("done with")

    def _judge_answer(self, peer: Peer, body: Body, address: str, began_s: float) -> PeerHello:
        hello = decode_hello(body)
        if isinstance(hello, Problem):
            if OLDEST_VERSION <= version_told(hello.text) < peer.version:
                raise OlderVersion(version_told(hello.text))
            raise LinkClosed(f"{address} says: {hello.text}")
        if not isinstance(hello, PeerHello):
            raise LinkClosed(f"{address} is no ALPO server's peer port")
        problem = objection(self._us, self._replica, hello)
        if not problem and hello.id != peer.id:
            problem = f"is server {hello.id}, not {peer.id}"
        if problem:
            raise LinkClosed(f"{address}: {problem}")
        if timers_differ(self._us, hello):
            note_timers(self._driver, peer.id, hello, self._us)
        who = Identity(hello.id, hello.incarnation)
        twice, peer.believed = self._routes.heard(self._driver, hello, address, began_s)
        if not peer.believed and self._routes.rival(who, hello.process):
            raise LinkClosed(twice)
        if not self._was_replaced(who) and peer.believed:
            peer.said_address = hello.address
        peer.incarnation = hello.incarnation
        return hello

    async def _converse(self, peer: Peer, route: Route, who: Identity, bodies: list[Body]) -> None:
        peer.route = self._routes.dialled[peer.id] = route
        route.who = who
        self.spoken[who] = route.version
        link, full, replaced = route.link, route.full, self._was_replaced(who)
        link.traffic = self._driver.counters.traffic_with(peer.id)[0]
        if not replaced:
            if peer.believed:
                self._driver.post(PeerAddress(who.id, who.incarnation, peer.said_address))
        if full:
            self._driver.note("peer_connected", peer=peer.id, address=link.remote)
            self._end_outage(peer)
            self._driver.post(Connected(peer.id))
        elif not replaced:
            self._note_trouble(peer, self._why_restricted(peer, who))
        self._driver.kick()
        self._routes.stores.look(peer.id)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.drain)
                nursery.start_soon(self._watch_silence, route)
                try:
                    await converse(self._driver, self._poller, self._routes, route, who, bodies)
                except (LinkClosed, FrameError, WireError) as error:
                    if not replaced:
                        peer.stopping = isinstance(error, ToldProblem) and error.problem.code == Code.NOT_READY
                        self._note_trouble(peer, str(error))
                nursery.cancel_scope.cancel()
        finally:
            if self._routes.dialled.get(peer.id) is route:
                del self._routes.dialled[peer.id]
            peer.route = None
            if full:
                self._driver.post(Disconnected(peer.id))
                self._driver.kick()
                self._routes.stores.look(peer.id)

    def _why_restricted(self, peer: Peer, who: Identity) -> str:
        listed = listed_incarnation(self._replica, peer.id)
        if listed and listed != who.incarnation:
            return "its disk is not the one that the member list knows: it was lost or wiped"
        if self._replica.first_start.started:
            return "it does not know this server as a member, or not yet"
        return "first start under way"

    async def _watch_silence(self, route: Route) -> None:
        """Close a connection over which nothing came for an election timeout although something was sent."""
        timeout_s = self._us.timers_ms[1] / 1000
        while True:
            now_s, since_s = trio.current_time(), route.silent_since_s
            if since_s is None:  # no answer is due; align with the other connections, so that one wake-up serves all
                await trio.sleep_until((now_s // timeout_s + 1) * timeout_s)
            elif now_s < since_s + timeout_s:
                await trio.sleep_until(since_s + timeout_s)
            else:
                route.link.close("no answer for an election timeout")
                return


def note_timers(driver: Driver, peer: int, hello: PeerHello, us: Ourselves) -> None:
    """Log that a peer has other timers than this server."""
    driver.note("timers_differ", peer=peer, theirs_ms=hello.timers_ms, ours_ms=us.timers_ms)


def _is_refused(error: BaseException) -> bool:
    """True if the host answered that nobody listens there, at every address that its name stands for."""
    return isinstance(error, Unreachable) and error.refused
