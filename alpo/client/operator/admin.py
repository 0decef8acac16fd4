"""The operator's requests: sessions, trims, first start, and appends retried by hand.

Laws: each request is repeated until it is answered or its time is up; one that changes something and may have been
taken before is judged with that in mind, so that an outcome is only called known when it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeVar

import anyio

from alpo.client.arguments import need_int, need_str
from alpo.client.connection import Connection, Lost
from alpo.client.ids import NAME_BYTES_MAX, is_random
from alpo.client.opening import Opening, nonces
from alpo.client.payloads import Parcel, Payload, batch
from alpo.client.reading import out_of_range
from alpo.client.servers import PAUSE_FIRST_S, PAUSE_MAX_S, Servers
from alpo.client.verdicts import AWAY, UNSEEN, code_name, kind_of, unknown, verdict
from alpo.core.ready import Code
from alpo.errors import (
    AlpoError,
    NoSpace,
    NotGuaranteed,
    Overloaded,
    ProtocolError,
    Refused,
    SerialExpected,
    TooLarge,
    Unavailable,
)
from alpo.wire.requests import (
    Append,
    Appended,
    AppendRefused,
    Drop,
    Init,
    ListSessions,
    Opened,
    Page,
    Read,
    RequestRefused,
    ServerReply,
    SessionTable,
    Trim,
    Trimmed,
)

T = TypeVar("T")

ATTEMPT_S = 1.0


@dataclass(frozen=True, slots=True)
class ByHand:
    """How a retry by hand ended: appended at ``lsn`` …, now or (``duplicate``) before."""

    lsn: int
    count: int
    client: str
    serial: int
    epoch: int
    duplicate: bool


class SessionInfo(NamedTuple):
    """One client as the cluster knows it. ``epoch`` is 0 for random ids; ``last_time`` is UTC."""

    client: str
    epoch: int
    last_serial: int
    last_id: int
    last_time: datetime


class _Again(Exception):
    """This try was of no use; another may be."""

    def __init__(self, reason: AlpoError) -> None:
        super().__init__(str(reason))
        self.reason = reason


async def sessions(servers: Servers, timeout_s: float) -> list[SessionInfo]:
    """All sessions of the cluster, as the log has them. Raises `Unavailable`."""
    async def attempt(connection: Connection) -> list[SessionInfo]:
        answer = await connection.ask(ListSessions)
        if isinstance(answer, SessionTable):
            start = datetime(1970, 1, 1, tzinfo=UTC)
            return [SessionInfo(c, e, s, i, start + timedelta(milliseconds=ms)) for c, e, s, i, ms in answer.rows]
        raise unwelcome(servers, answer)

    return await at_leader(servers, attempt, timeout_s)


async def drop_session(servers: Servers, name: str, epoch: int | None, timeout_s: float) -> int:
    """Forget the named session, if ``epoch`` is its current one (None: whatever it is); returns that epoch.

    Raises `Refused` when there is no such session or its epoch is another, `Unavailable` when no answer came.
    """
    need_str(name=name)
    need_int(epoch=epoch or 0)
    tries = 0

    async def attempt(connection: Connection) -> int:
        nonlocal tries
        tries += 1
        answer = await connection.ask(lambda number: Drop(number, name, epoch or 0))
        if isinstance(answer, RequestRefused) and answer.code == Code.EPOCH:
            if answer.number:
                raise Refused(f"the session {name} has epoch {answer.number}")
            if tries > 1 and epoch:
                return epoch  # an earlier try was taken, its answer lost
            raise Refused(f"there is no session {name}")
        if isinstance(answer, RequestRefused) and epoch and _not_known_yet(connection, answer):
            raise _Again(_unknown_epoch(name, epoch))
        if isinstance(answer, RequestRefused):
            raise unwelcome(servers, answer)
        return int(getattr(answer, "number", 0))

    return await at_leader(servers, attempt, timeout_s)


async def trim(servers: Servers, before: int, force: bool, timeout_s: float) -> int:
    """Let nothing below LSN ``before`` be read any more (R20); the first LSN that is served from now on.

    ``force``: also what a cursor's reader needs; such cursors are dropped. To ask again does no harm. Raises
    ValueError, `OutOfRange` for an LSN beyond one past the end, `Refused` when a cursor needs what would go,
    `Unavailable` when no answer came (whether it was done is then not known).
    """
    need_int(before=before)
    if before < 1:
        raise ValueError(f"before must be positive, not {before}")

    async def attempt(connection: Connection) -> int:
        answer = await connection.ask(lambda number: Trim(number, before, force))
        if isinstance(answer, RequestRefused) and answer.code == Code.OUT_OF_RANGE:
            # A leader that was deposed without noticing may be behind: is this one still the leader?
            if isinstance(await connection.ask(probe_read), Page):
                answer = await connection.ask(lambda number: Trim(number, before, force))
        if isinstance(answer, Trimmed):
            return answer.first_lsn
        if isinstance(answer, RequestRefused) and answer.code == Code.OUT_OF_RANGE:
            raise out_of_range(f"LSN {before} is", answer.detail)
        raise unwelcome(servers, answer)

    return await at_leader(servers, attempt, timeout_s)


async def init(servers: Servers, timeout_s: float) -> None:
    """Found the cluster (R29), by any one of its servers. Raises `Refused` (why it cannot), `Unavailable`."""
    async def attempt(connection: Connection) -> None:
        answer = await connection.ask(Init)
        if isinstance(answer, RequestRefused):
            raise unwelcome(servers, answer)

    await _until_answered(lambda: servers.any(None), servers, attempt, timeout_s)


async def append_by_hand(
    servers: Servers, payloads: Iterable[Payload], client: str, serial: int, epoch: int | None, timeout_s: float
) -> ByHand:
    """Send, once more, what may have been sent as (``client``, ``serial``, ``epoch``); several payloads as one batch.

    ``epoch`` None: the one on record; none on record: the name is opened first (R22). Random ids have none. Raises
    as `Log.append`; `NotGuaranteed` names the epoch to retry with.
    """
    check_named(client, serial, epoch)
    retry = _ByHand(servers, batch(payloads), client, serial, 0 if is_random(client) else epoch)
    try:
        return await at_leader(servers, retry.attempt, timeout_s)
    except (Unavailable, Overloaded, NoSpace) as error:
        if retry.maybe:
            raise retry.unknown(str(error)) from error
        raise


def check_named(client: str, serial: int, epoch: int | None) -> None:
    """Raises TypeError, ValueError."""
    need_str(client=client)
    need_int(serial=serial, epoch=epoch or 0)
    if serial < 1 or not 1 <= len(client.encode()) <= NAME_BYTES_MAX:
        raise ValueError("a serial is 1 or more, a client id 1 to 128 bytes")


class _ByHand:
    """One retry by hand, over as many connections as it takes."""

    def __init__(self, servers: Servers, parcel: Parcel, client: str, serial: int, epoch: int | None) -> None:
        self.maybe = False
        self._servers = servers
        self._parcel = parcel
        self._client = client
        self._serial = serial
        self._epoch = epoch
        self._opening = Opening(client, nonces(servers.rng))

    def unknown(self, text: str) -> NotGuaranteed:
        return unknown(text, self._client, self._serial, self._epoch or 0)

    async def attempt(self, connection: Connection) -> ByHand:
        hello, parcel = connection.hello, self._parcel
        if parcel.largest > hello.payload_bytes_max or parcel.size > max(hello.batch_bytes_max, parcel.largest):
            raise TooLarge(f"{parcel.size} bytes are over the limit of the cluster")
        if self._epoch is None:
            self._epoch = await self._find_epoch(connection)
        answer = await self._send(connection)
        if isinstance(answer, AppendRefused) and answer.code == Code.SERIAL_EXPECTED:
            # No verdict, and a leader that was deposed without noticing may say it: is this one still the leader?
            if isinstance(await connection.ask(probe_read), Page):
                answer = await self._send(connection)
            if isinstance(answer, AppendRefused) and answer.code == Code.SERIAL_EXPECTED and not self.maybe:
                text = f"serial {self._serial} is above the next, {answer.number}"
                raise SerialExpected(text, expected=answer.number)
        if isinstance(answer, Appended):
            return ByHand(
                answer.lsns[0], parcel.number, self._client, self._serial, self._epoch or 0, answer.duplicate
            )
        if self._epoch and _not_known_yet(connection, answer):
            raise _Again(_unknown_epoch(self._client, self._epoch))
        raise self._refused(answer)

    async def _find_epoch(self, connection: Connection) -> int:
        answer = await connection.ask(self._opening.ask)
        if isinstance(answer, Opened):
            return answer.epoch
        if isinstance(answer, RequestRefused) and answer.code == Code.EPOCH:
            return answer.number
        raise unwelcome(self._servers, answer)

    async def _send(self, connection: Connection) -> Appended | AppendRefused:
        request = Append(self._client, self._epoch or 0, self._serial, False, True, [self._parcel.item])
        before, self.maybe = self.maybe, True
        connection.send(request)
        await connection.drain()
        while True:
            for message in await connection.receive():
                if isinstance(message, Appended | AppendRefused) and message.client == self._client:
                    taken = isinstance(message, AppendRefused) and message.code == Code.LOST_LEADERSHIP
                    self.maybe = before or taken
                    return message

    def _refused(self, answer: AppendRefused) -> Exception:
        if answer.code in UNSEEN or answer.code == Code.LOST_LEADERSHIP:
            return _Again(_reason(self._servers, answer))
        # It was sent before, by whoever asks for this retry: of that nobody can tell after a drop.
        return verdict(answer, self._serial, self._epoch or 0, self.maybe or answer.code == Code.DROPPED)


def probe_read(number: int) -> Read:
    """Of the last payload: only the leader answers, and how far the log goes by then."""
    return Read(number, 0, 0, 1, 0, 1, True, 0, "")


async def at_leader(
    servers: Servers, attempt: Callable[[Connection], Awaitable[T]], timeout_s: float, attempt_s: float = ATTEMPT_S
) -> T:
    """Have the leader answer, whoever that is by then; ``attempt_s``: patience with the first one that is asked."""
    return await _until_answered(lambda: servers.leader(fresh=False), servers, attempt, timeout_s, attempt_s)


async def _until_answered(
    connect: Callable[[], Awaitable[Connection]], servers: Servers, attempt: Callable[[Connection], Awaitable[T]],
    timeout_s: float, attempt_s: float = ATTEMPT_S,
) -> T:
    """Try until ``attempt`` returns. Raises what it raises; at the deadline as `kind_of` says."""
    pause_s = 0.0
    try:
        with anyio.fail_after(timeout_s):
            while True:
                servers.require_open()
                connection: Connection | None = None
                whole = False
                try:
                    connection = await connect()
                    with anyio.move_on_after(attempt_s):
                        result = await attempt(connection)
                        whole = True
                        servers.reasons.over()
                        return result
                    servers.hint = None
                    servers.reasons.lost(connection.address, Unavailable(f"{connection.address} does not answer"))
                except Lost as lost:
                    if connection is not None:  # else it is known already
                        servers.reasons.lost(connection.address, lost.reason)
                except _Again as again:
                    if connection is not None:
                        servers.reasons.answered(connection.address, again.reason)
                finally:
                    if connection is not None:
                        (servers.give_back if whole else servers.drop)(connection)
                attempt_s *= 2
                await anyio.sleep(pause_s)
                pause_s = min(max(pause_s * 2, PAUSE_FIRST_S), PAUSE_MAX_S)
    except TimeoutError as error:
        raise no_answer(servers, timeout_s) from error


def no_answer(servers: Servers, timeout_s: float, hint: str = "") -> AlpoError:
    """The error for what nobody answered in time, with the reason for it."""
    reason = servers.reason
    why = f": {reason}" if reason is not None else ""
    return kind_of(reason)(f"no answer within {timeout_s:g} s{why}{hint}")


def unwelcome(servers: Servers, answer: ServerReply) -> Exception:
    """What to do about an answer that is not the one hoped for."""
    if not isinstance(answer, RequestRefused):
        return ProtocolError(f"an answer of the wrong kind: {type(answer).__name__}")
    if answer.code in UNSEEN or answer.code == Code.LOST_LEADERSHIP:
        return _Again(_reason(servers, answer))
    return Refused(answer.detail or code_name(answer.code))


def _not_known_yet(connection: Connection, answer: RequestRefused | AppendRefused) -> bool:
    """A leader that says no and names itself has not heard of the epoch that was claimed: no verdict (R22)."""
    return answer.code == Code.NOT_LEADER and answer.leader == connection.hello.id != 0


def _unknown_epoch(client: str, epoch: int) -> Unavailable:
    return Unavailable(f"no server knows an epoch {epoch} of {client} yet (mistyped?)")


def _reason(servers: Servers, answer: RequestRefused | AppendRefused) -> AlpoError:
    """Why a server would not do, as a user may read it; its hint is taken."""
    if answer.code in AWAY:
        servers.hint = answer.leader_address or None
        return Unavailable(answer.detail or "the server does not lead")
    if answer.code == Code.NO_SPACE:
        return NoSpace(answer.detail)
    if answer.code == Code.OVERLOADED:
        return Overloaded(answer.detail or "the server is overloaded")
    return Unavailable(answer.detail or f"the server is not ready: {code_name(answer.code)}")
