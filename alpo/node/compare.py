"""Background comparison of this server's entries with the other members' (R31).

The scrub finds entries that do not match their own checksums; this module finds copies that match theirs, and differ
all the same.

Laws of comparing:

* Digests of a range of ids are compared, with one member at a time, over a connection made for each range. Passes over
  the log follow each other at the scrub's rate. A range holds only entries that both servers have and know to be
  guaranteed: those never change.
* A difference is bisected down to single entries. All other members are then asked for them, and the copy that a
  majority holds is right: the alarm names entries, servers, and who is wrong. It stays until a pass finds the copies
  equal.
* The comparison only reports. It changes neither the log nor who takes part in what.
* A member that cannot be asked, or gives impossible answers, is skipped; the comparison with it continues later where
  it was. Nothing is saved on disk.

Laws of serving digests to clients and other members:

* A digest covers only entries that are guaranteed and on this disk. A server in any state answers.
* A request costs a bounded number of ids, bytes and seconds; the answer says how far it goes. One is worked on at a
  time, in short pieces with pauses; a connection has one in the queue.
* Damage within the range is an error that names the id, never a digest of the rest.

Laws of asking: every failure (network, missing or impossible answer) is raised as `Unusable`; nothing waits longer than
`ANSWER_S_MAX`; one request at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import structlog
import trio

from alpo._version import __version__
from alpo.addresses import AddressError
from alpo.core.members import Identity, Member
from alpo.core.replica import Replica
from alpo.core.requests import Code
from alpo.dialling import Way
from alpo.storage.interface import Store, StoreError
from alpo.storage.scrub import DamagedAt, Span, read_on
from alpo.wire import requests as w
from alpo.wire.codec import WireError, decode_hello, decode_server, encode, version_told
from alpo.wire.framing import FrameError

from .admission import DiskCare
from .client_connection import ClientConnection
from .driver import Driver
from .link import Body, Link, LinkClosed
from .scrub import unreadable
from .security import Security
from .threads import SMALL_PART, Pace, in_thread, pass_bytes_per_s

#: Bounds of one request.
IDS_MAX, BYTES_MAX, SECONDS_MAX = 4096, 1 << 20, 1.0
#: Bytes read at a time.
PIECE_BYTES = 64 << 10


def held_id(replica: Replica) -> int:
    """Id of the last entry that is guaranteed and on this disk."""
    return min(replica.guaranteed_id, replica.log.stable_id)


class Digests:
    """Service for `RangeDigest` requests, each in its client's nursery."""

    def __init__(self, replica: Replica, store: Store) -> None:
        self._replica = replica
        self._store = store
        self._one = trio.Lock()

    def begin(self, client: ClientConnection, ask: w.RangeDigest) -> None:
        """Start one request; its answer goes to ``client``."""
        client.nursery.start_soon(self._serve, client, ask)

    async def _serve(self, client: ClientConnection, ask: w.RangeDigest) -> None:
        if ask.last_id < ask.first_id:
            client.refuse(ask.request, Code.INVALID, detail=f"no entry is from {ask.first_id} to {ask.last_id}")
            return
        try:
            async with client.paging, self._one:
                span = await self._digest(ask.first_id, ask.last_id)
        except DamagedAt as error:
            client.refuse(ask.request, Code.NOT_READY, number=error.id, detail=str(error))
        except StoreError as error:
            client.refuse(ask.request, Code.NOT_READY, detail=unreadable(error))
        else:
            client.settle(w.DigestIs(ask.request, *span[:5]))

    async def _digest(self, first_id: int, last_id: int) -> Span:
        """Digest of ``first_id`` … ``last_id``, cut to what exists and one request may cost, at least one entry. Raises
        `StoreError`."""
        span = Span.before(max(first_id, self._replica.log.base_id + 1))
        last_id = min(last_id, held_id(self._replica), span.last_id + IDS_MAX)
        stop_s = trio.current_time() + SECONDS_MAX
        while span.last_id < last_id:
            began_s = trio.current_time()
            longer = await in_thread(read_on, self._store, span, last_id, PIECE_BYTES)
            cleaned = longer.last_id == span.last_id
            span = longer
            if cleaned or span.bytes >= BYTES_MAX or trio.current_time() >= stop_s:
                break
            await trio.sleep(trio.current_time() - began_s)
        return span


#: Longest wait for an answer: a digest takes at most a second, and a server makes one at a time.
ANSWER_S_MAX = 10.0
#: Beginning of the name by which a server that asks another one calls itself.
INQUIRER = "alpod "
_CALLED = f"{INQUIRER}{__version__}"
#: Longest answer: a status that lists much damage.
_ANSWER_BYTES_MAX = 1 << 20
_ERRORS = OSError, AddressError, FrameError, LinkClosed, WireError, trio.TooSlowError


class Unusable(Exception):
    """The server cannot be asked, or its answer makes no sense; the message says why."""


class DamagedThere(Exception):
    """Entry ``id`` is damaged on the other server."""

    def __init__(self, id: int) -> None:
        super().__init__(f"entry {id} is damaged there")
        self.id = id


class Inquiry:
    """Connection made by `open`, to be closed with `close`."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._bodies: deque[Body] = deque()
        self._request = 0

    @staticmethod
    async def open(
        id: int, address: str, cluster: bytes, security: Security, version: int = w.VERSION, log: str = ""
    ) -> Inquiry:
        """Connect to server ``id`` of this cluster, for a log of this name. ``version``: of the protocol, to try first.
        Raises `Unusable`."""
        made: Inquiry | None = None
        try:
            way = Way(address, name_s=ANSWER_S_MAX, tcp_s=ANSWER_S_MAX, answer_s=ANSWER_S_MAX)
            made = Inquiry(await security.dial(id, way))
            older = await made._greet(id, w.ClientHello(version, cluster, _CALLED, log), way)
            if older:
                made.close()
                made = Inquiry(await security.dial(id, way))
                await made._greet(id, w.ClientHello(older, cluster, _CALLED, log), way)
            return made
        except BaseException as error:
            if made is not None:
                made.close()
            if isinstance(error, _ERRORS):
                raise Unusable(str(error) or "no answer in time") from error
            raise

    async def _greet(self, id: int, ours: w.ClientHello, way: Way) -> int:
        """Exchange hellos. Returns 0, or the older protocol version that the server wants: digests are the same in all.
        Raises `Unusable`."""
        with way.answering(tls=False):
            self._link.push(encode(ours))
            hello = decode_hello(await self._body())
        if isinstance(hello, w.Problem):
            if w.OLDEST_VERSION <= version_told(hello.text) < ours.version:
                return version_told(hello.text)
            raise Unusable(hello.text)
        if not isinstance(hello, w.ServerHello) or (hello.id, hello.cluster) != (id, ours.cluster):
            raise Unusable("another server answers there")
        self._link.allow_frames(_ANSWER_BYTES_MAX)
        return 0

    async def digest(self, first_id: int, last_id: int) -> w.DigestIs:
        """Ask for the digest of entries ``first_id`` … ``last_id``. Raises `Unusable`, `DamagedThere`."""
        answer = await self._ask(w.RangeDigest(self._request + 1, first_id, last_id))
        if isinstance(answer, w.RequestRefused) and answer.request == self._request:
            if answer.code == Code.NOT_READY and first_id <= answer.number <= last_id:
                raise DamagedThere(answer.number)
            raise Unusable(answer.detail)
        if isinstance(answer, w.Problem):
            raise Unusable(answer.text)
        if not isinstance(answer, w.DigestIs) or answer.request != self._request:
            raise Unusable("its answer makes no sense")
        if answer.last_id >= answer.first_id and not first_id <= answer.first_id <= answer.last_id <= last_id:
            raise Unusable("its answer is about other entries")
        return answer

    async def status(self) -> dict[str, Any]:
        """Ask for the server's status. Raises `Unusable`."""
        answer = await self._ask(w.Status(self._request + 1))
        if isinstance(answer, w.StatusAnswer) and answer.request == self._request:
            return dict(answer.fields)
        raise Unusable(answer.detail if isinstance(answer, w.RequestRefused) else "its answer makes no sense")

    async def _ask(self, request: w.RangeDigest | w.Status) -> w.ServerReply | w.Problem:
        """The next message that comes after this request. Raises `Unusable`."""
        self._request += 1
        try:
            with trio.fail_after(ANSWER_S_MAX):
                self._link.push(encode(request))
                return decode_server(await self._body())
        except _ERRORS as error:
            raise Unusable(str(error) or "no answer in time") from error

    async def _body(self) -> Body:
        while not self._bodies:
            self._bodies.extend(await self._link.receive())
        return self._bodies.popleft()

    def close(self) -> None:
        """Close at once."""
        self._link.close("done with")


log = structlog.get_logger()

#: Seconds until another member is tried when one could not be asked.
RETRY_S = 10.0
#: Bytes that one question counts at least, towards the rate.
ASKING_BYTES = 4096
#: Most entries that differ: found in one range; remembered for one member.
DIFFERING_A_RANGE_MAX, DIFFERING_MAX = 10, 100
#: Ids in one sentence or event.
_TOLD_MAX = 10


class Copies(NamedTuple):
    """Servers grouped by their copy of an entry, largest group first. ``silent``: members that could not be asked."""

    groups: tuple[tuple[int, ...], ...]
    silent: tuple[int, ...]

    @property
    def wrong(self) -> tuple[int, ...]:
        """Ids of servers whose copy differs from the majority's; () if no copy has a majority."""
        members = sum(map(len, self.groups)) + len(self.silent)
        if 2 * len(self.groups[0]) <= members:
            return ()
        return tuple(sorted(id for group in self.groups[1:] for id in group))

    def to_plain(self) -> dict[str, list[Any]]:
        """Plain form, ready for JSON, for status and events."""
        return {"copies": list(map(list, self.groups)), "wrong": list(self.wrong), "silent": list(self.silent)}


class Comparer:
    """Task that compares. Does nothing if there is no scrub."""

    def __init__(
        self, driver: Driver, store: Store, care: DiskCare, security: Security | None = None,
        log_name: Callable[[], str] = lambda: "", pace: Pace | None = None,
    ) -> None:
        """``log_name`` returns the log's name for hellos, "": the first log; ``pace``: of all logs of the server."""
        self._pace = pace or Pace(0)
        self._driver = driver
        self._log_name = log_name
        self._security = security or Security()
        self._replica = driver.replica
        self._store = store
        self._bytes_per_s = care.scrub_bytes_per_s
        self._pass_s = care.scrub_pass_s
        self._range_bytes = 0  # bytes of the present range compared so far
        self._last_peer = 0
        self._next_ids: dict[Identity, int] = {}  # next id for each member whose pass is not finished
        self._found: dict[tuple[Identity, int], Copies] = {}  # by (compared member, entry id)
        self._told: dict[Copies, list[int]] = {}
        self._why: dict[int, str] = {}
        self._passes = 0

    async def run(self) -> None:
        """Compare until cancelled."""
        if not self._bytes_per_s:
            return
        while True:
            began_s = trio.current_time()
            peer = self._next_peer()
            passed = peer is not None and await self._compare_with(peer)
            self._tell()
            rest_s = began_s + self._pass_s / SMALL_PART - trio.current_time() if passed else RETRY_S
            await trio.sleep(max(rest_s, 0.0))

    def _others(self) -> list[Member]:
        r = self._replica
        members = r.members.latest
        return [member for member in members.replicas if member.id != r.me.id] if members.holds(r.me) else []

    def _next_peer(self) -> Member | None:
        """The member to compare with after the one before; None without other members."""
        others = self._others()
        peer = min(others, key=lambda member: (member.id <= self._last_peer, member.id), default=None)
        if peer is not None:
            self._last_peer = peer.id
        return peer

    async def _compare_with(self, peer: Member) -> bool:
        """Do a pass with one member, or the rest of one; False if it was interrupted."""
        why, passed = "", False
        try:
            passed = await self._pass(peer.identity)
        except (Unusable, StoreError) as error:
            why = str(error)
        if why and self._why.get(peer.id) != why:
            log.warning("cannot_compare", peer=peer.id, why=why)
        self._why[peer.id] = why
        return passed

    async def _open(self, id: int) -> Inquiry:
        """Connect to server ``id``. Raises `Unusable`."""
        replica = self._replica
        return await Inquiry.open(id, replica.address_of(id), replica.cluster, self._security, log=self._log_name())

    async def _pass(self, peer: Identity) -> bool:
        """Compare range by range. True at the end of the log; False if ``peer`` is no longer a member. Raises
        `Unusable`, `StoreError`."""
        next_id = self._next_ids.get(peer, 1)
        while self._replica.members.latest.holds(peer):
            began_s = trio.current_time()
            first_id = max(next_id, self._replica.log.base_id + 1)
            last_id = min(held_id(self._replica), first_id - 1 + IDS_MAX - (first_id - 1) % IDS_MAX)
            if first_id > last_id:
                self._next_ids.pop(peer, None)
                self._passes += 1
                return True
            self._range_bytes = 0
            inquiry = await self._open(peer.id)
            try:
                differing = await self._differing(inquiry, first_id, last_id)
            finally:
                inquiry.close()
            self._keep(peer, first_id, last_id, await self._settle(peer.id, differing))
            next_id = self._next_ids[peer] = last_id + 1
            log_bytes = await in_thread(self._store.live_bytes)
            rate = pass_bytes_per_s(log_bytes, self._bytes_per_s, self._pass_s)
            paid_s = began_s + self._range_bytes / rate
            await trio.sleep(max(paid_s - trio.current_time(), 0.0))
        self._next_ids.pop(peer, None)
        return False

    async def _differing(self, inquiry: Inquiry, first_id: int, last_id: int) -> dict[int, tuple[bytes, bytes]]:
        """The first few differing entries of a range: id -> (our digest, the other's). Entries that either side lacks,
        or has damaged, are left out. Raises `Unusable`, `StoreError`."""
        found: dict[int, tuple[bytes, bytes]] = {}
        todo = [(first_id, last_id)]
        while todo and len(found) < DIFFERING_A_RANGE_MAX:
            first_id, last_id = todo.pop()
            if first_id > last_id:
                continue
            await self._rest(ASKING_BYTES)
            try:
                theirs = await inquiry.digest(first_id, last_id)
                ours = await self._our_digest(theirs.first_id, theirs.last_id)
            except (DamagedThere, DamagedAt) as error:
                todo += [(error.id + 1, last_id), (first_id, error.id - 1)]
                continue
            if ours is None or theirs.last_id < theirs.first_id:
                continue
            todo.append((theirs.last_id + 1, last_id))
            first_id, last_id = theirs.first_id, theirs.last_id
            if ours.digest != theirs.digest and first_id < last_id:
                middle_id = (first_id + last_id) // 2
                todo += [(middle_id + 1, last_id), (first_id, middle_id)]
                continue
            self._range_bytes += ours.bytes
            if ours.digest != theirs.digest:
                found[first_id] = ours.digest, theirs.digest
        return found

    async def _our_digest(self, first_id: int, last_id: int) -> Span | None:
        """Digest of exactly these entries here; None if they were cleaned. Raises `DamagedAt`, `StoreError`."""
        span = Span.before(first_id)
        while span.last_id < last_id:
            longer = await in_thread(read_on, self._store, span, last_id, PIECE_BYTES)
            if longer.last_id == span.last_id:
                return None
            await self._rest(longer.bytes - span.bytes)
            span = longer
        return span

    async def _rest(self, size_bytes: int) -> None:
        await self._pace.keep(size_bytes)
        await trio.sleep(size_bytes / self._bytes_per_s)

    # -- what differs -----------------------------------------------------------------------------------

    async def _settle(self, peer: int, differing: dict[int, tuple[bytes, bytes]]) -> dict[int, Copies]:
        """Ask all other members for the differing entries; returns who holds which copy, by id."""
        ours_id = self._replica.me.id
        held = {id: {ours_id: ours, peer: theirs} for id, (ours, theirs) in differing.items()}
        others = [member.id for member in self._others() if member.id != peer] if held else []
        for other in others:
            try:
                inquiry = await self._open(other)
                try:
                    for id, copies in held.items():
                        digest = await _copy(inquiry, id)
                        if digest is not None:
                            copies[other] = digest
                finally:
                    inquiry.close()
            except Unusable as error:
                log.info("cannot_settle", peer=other, why=str(error))
        return {id: _grouped(copies, {ours_id, peer, *others}) for id, copies in held.items()}

    def _keep(self, peer: Identity, first_id: int, last_id: int, found: dict[int, Copies]) -> None:
        """Replace what is known of this range; if too many entries differ, the first are kept."""
        others = {key: copies for key, copies in self._found.items() if key[0] != peer}
        of_peer = {id: copies for (who, id), copies in self._found.items() if who == peer}
        now = {id: copies for id, copies in of_peer.items() if not first_id <= id <= last_id} | found
        self._found = others | {(peer, id): now[id] for id in sorted(now)[:DIFFERING_MAX]}
        self._tell()

    def _tell(self) -> None:
        """Raise or clear the alarm if the findings changed."""
        members, base_id = self._replica.members.latest, self._replica.log.base_id
        self._found = {key: copies for key, copies in self._found.items() if members.holds(key[0]) and key[1] > base_id}
        best: dict[int, Copies] = {}  # entry id -> its finding with the fewest silent members
        for (_, id), copies in self._found.items():
            if id not in best or len(copies.silent) < len(best[id].silent):
                best[id] = copies
        now: dict[Copies, list[int]] = {}
        for id in sorted(best):
            now.setdefault(best[id], []).append(id)
        for copies, ids in now.items():
            if self._told.get(copies) != ids:
                self._driver.note("diverged", ids=ids[:_TOLD_MAX], **copies.to_plain())
        if self._told and not now:
            self._driver.note("diverged_no_more")
        self._told = now

    def fields(self) -> dict[str, Any]:
        """Status keys of the comparison."""
        diverged = [{"ids": ids, **copies.to_plain()} for copies, ids in self._told.items()]
        return {"diverged": diverged, "compare_passes": self._passes}

    def remarks(self) -> list[str]:
        """Sentences for an operator; [] while all copies agree."""
        return [_sentence(ids, copies) for copies, ids in self._told.items()]


async def _copy(inquiry: Inquiry, id: int) -> bytes | None:
    """The other server's digest of entry ``id``; None if it has none, or a damaged one. Raises `Unusable`."""
    try:
        answer = await inquiry.digest(id, id)
    except DamagedThere:
        return None
    return answer.digest if answer.first_id == answer.last_id == id else None


def _grouped(copies: dict[int, bytes], members: set[int]) -> Copies:
    by_digest: dict[bytes, list[int]] = {}
    for server in sorted(copies):
        by_digest.setdefault(copies[server], []).append(server)
    groups = sorted(map(tuple, by_digest.values()), key=lambda group: (-len(group), group))
    return Copies(tuple(groups), tuple(sorted(members - copies.keys())))


def _sentence(ids: Sequence[int], copies: Copies) -> str:
    shown = _names("entry", "entries", ids[:_TOLD_MAX]) + (" …" if len(ids) > _TOLD_MAX else "")
    held = " and another by ".join(_servers(group) for group in copies.groups)
    says = f"{shown}: one copy is held by {held}"
    if copies.wrong:
        who = _servers(copies.wrong)
        return f"{says}, which is wrong: look (alpo log diff), then give {who} an empty directory"
    unasked = f" ({_servers(copies.silent)} cannot tell)" if copies.silent else ""
    return f"{says}; which of them is wrong is not known{unasked}: look (alpo log diff)"


def _servers(ids: Sequence[int]) -> str:
    return _names("server", "servers", ids)


def _names(one: str, many: str, ids: Sequence[int]) -> str:
    if len(ids) == 1:
        return f"{one} {ids[0]}"
    return f"{many} {', '.join(map(str, ids[:-1]))} and {ids[-1]}"
