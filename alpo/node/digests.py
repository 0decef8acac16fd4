"""Digests of entries, to compare servers' logs (R31): served to clients, and asked for from other members.

Laws of serving:

* A digest covers only entries that are guaranteed and on this disk. A server in any state answers.
* A request costs a bounded number of ids, bytes and seconds; the answer says how far it goes. One is worked on at a
  time, in short pieces with pauses; a connection has one in the queue.
* Damage within the range is an error that names the id, never a digest of the rest.

Laws of asking: every failure (network, missing or impossible answer) is raised as `Unusable`; nothing waits longer than
`ANSWER_S_MAX`; one request at a time.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import trio

from alpo._version import __version__
from alpo.addresses import AddressError
from alpo.core.replica import Replica
from alpo.core.requests import Code
from alpo.dialling import Way
from alpo.storage.interface import Store, StoreError
from alpo.storage.scrub import DamagedAt, Span, read_on
from alpo.wire import requests as w
from alpo.wire.codec import WireError, decode_hello, decode_server, encode, version_told
from alpo.wire.framing import FrameError

from .client_connection import ClientConnection
from .link import Body, Link, LinkClosed
from .scrub import unreadable
from .security import Security
from .threads import in_thread

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
        id: int, address: str, cluster: bytes, security: Security, version: int = w.VERSION
    ) -> Inquiry:
        """Connect to server ``id`` of this cluster. ``version``: of the protocol, to try first. Raises `Unusable`."""
        made: Inquiry | None = None
        try:
            way = Way(address, name_s=ANSWER_S_MAX, tcp_s=ANSWER_S_MAX, answer_s=ANSWER_S_MAX)
            made = Inquiry(await security.dial(id, way))
            older = await made._greet(id, cluster, version, way)
            if older:
                made.close()
                made = Inquiry(await security.dial(id, way))
                await made._greet(id, cluster, older, way)
            return made
        except BaseException as error:
            if made is not None:
                made.close()
            if isinstance(error, _ERRORS):
                raise Unusable(str(error) or "no answer in time") from error
            raise

    async def _greet(self, id: int, cluster: bytes, version: int, way: Way) -> int:
        """Exchange hellos. Returns 0, or the older protocol version that the server wants: digests are the same in all.
        Raises `Unusable`."""
        with way.answering(tls=False):
            self._link.push(encode(w.ClientHello(version, cluster, f"{INQUIRER}{__version__}")))
            hello = decode_hello(await self._body())
        if isinstance(hello, w.Problem):
            if w.OLDEST_VERSION <= version_told(hello.text) < version:
                return version_told(hello.text)
            raise Unusable(hello.text)
        if not isinstance(hello, w.ServerHello) or (hello.id, hello.cluster) != (id, cluster):
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
