"""Sessions, what became of their appends, and appends retried by hand; cursors of readers, and trims.

Law: a request that changes something, and may have been taken before, is judged with that in mind, so that an outcome
is only called known when it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

from alpo.client.arguments import Parcel, Payload, batch, need_int, need_str, place_of
from alpo.client.connection import Connection
from alpo.client.pages import out_of_range
from alpo.client.reasons import UNSEEN, unknown, verdict
from alpo.client.retry import Again
from alpo.client.servers import Servers
from alpo.client.session import Opening, nonces
from alpo.core import requests as q
from alpo.core.entries import CLIENT_BYTES_MAX, is_random
from alpo.core.machine.cursors import NAME_WANTED, valid_cursor
from alpo.core.requests import Code, Fate
from alpo.errors import (
    NoSpace,
    NotGuaranteed,
    OutOfRange,
    Overloaded,
    Refused,
    SerialExpected,
    TooLarge,
    Unavailable,
)
from alpo.wire import requests as w

from .asking import Asking, Refusals, answered, at_leader, probe_read, reason_of, unwelcome


@dataclass(frozen=True, slots=True)
class ByHand:
    """The result of a retry by hand: ``count`` payloads from ``lsn`` on, appended now or (``duplicate``) before."""

    lsn: int
    count: int
    client: str
    serial: int
    epoch: int
    duplicate: bool


class SessionInfo(NamedTuple):
    """One session of the cluster. ``epoch`` is 0 for random ids; ``last_id`` and ``last_time`` (UTC) are those of its
    last entry."""

    client: str
    epoch: int
    last_serial: int
    last_id: int
    last_time: datetime


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an append.

    ``outcome``: "appended" (``lsn``: that of its first payload), "not_appended" (as of now) or "too_old" (nobody can
    tell any more). For a named client this holds for the session's present life, since ``birth``: the epoch that it was
    first opened with, or first after a drop. ``birth`` is None if the session is not open or the client is random.
    """

    outcome: str
    lsn: int | None
    birth: int | None = None


class SessionCalls(Asking):
    """The calls of a `Log` about sessions and their appends."""

    async def append_by_hand(
        self, payloads: Iterable[Payload], *, client: str, serial: int, epoch: int | None = None,
        expect_last: int | None = None, timeout_s: float | None = None,
    ) -> ByHand:
        """Send, once more, what another process may have sent as (``client``, ``serial``, ``epoch``).

        Several payloads are one batch. ``epoch`` None: the one on record; if none is, the name is opened first. Random
        client ids have no epoch. ``expect_last``: as it was sent with. Raises as `Log.append`; `NotGuaranteed` names
        the epoch to retry with.
        """
        seconds = self._seconds(timeout_s)
        _check_named(client, serial, epoch)
        place_of(serial, expect_last)
        epoch = 0 if is_random(client) else epoch
        retry = _ByHand(self._servers, batch(payloads), client, serial, epoch, expect_last)
        try:
            return await at_leader(self._servers, retry.attempt, seconds)
        except (Unavailable, Overloaded, NoSpace) as error:
            if retry.maybe:
                raise retry.unknown(str(error)) from error
            raise

    async def sessions(self, timeout_s: float | None = None) -> list[SessionInfo]:
        """All sessions of the cluster. Raises `Unavailable`."""
        start = datetime(1970, 1, 1, tzinfo=UTC)
        return [
            SessionInfo(r.client, r.epoch, r.last_serial, r.last_id, start + timedelta(milliseconds=r.last_time_ms))
            for r in (await self._ask(q.ListSessions, q.Sessions, timeout_s)).rows
        ]

    async def drop_session(self, name: str, epoch: int | None = None, timeout_s: float | None = None) -> int:
        """Forget the named session, if ``epoch`` is its current one (None: whatever it is); returns that epoch.

        Raises `Refused` when there is no such session or its epoch is another, `Unavailable` when no answer came.
        """
        need_str(name=name)
        need_int(epoch=epoch or 0)
        tries = 0

        async def attempt(connection: Connection) -> int:
            nonlocal tries
            tries += 1
            answer = await connection.ask(lambda number: q.DropSession(number, name, epoch or 0))
            if isinstance(answer, w.RequestRefused) and answer.code == Code.EPOCH:
                if answer.number:
                    raise Refused(f"the session {name} has epoch {answer.number}")
                if tries > 1 and epoch:
                    return epoch  # an earlier try was taken, and its answer was lost
                raise Refused(f"there is no session {name}")
            if isinstance(answer, w.RequestRefused) and epoch and _not_known_yet(connection, answer):
                raise Again(_unknown_epoch(name, epoch))
            if isinstance(answer, w.RequestRefused):
                raise unwelcome(self._servers, answer)
            return int(getattr(answer, "number", 0))

        return await at_leader(self._servers, attempt, self._seconds(timeout_s))

    async def outcome(
        self, client: str, serial: int, timeout_s: float | None = None, *, epoch: int | None = None
    ) -> Outcome:
        """Tell what became of the append (``client``, ``serial``), as of now.

        With the ``epoch`` that it was sent under, what was appended under another does not count, and of what was sent
        before the session was dropped nobody can tell. "not_appended" is no promise for later: a transmission that is
        still on its way may arrive. Raises ValueError, `Unavailable`.
        """
        _check_named(client, serial, epoch)
        asked = 0 if epoch is None or is_random(client) else epoch
        if asked < 0:
            raise ValueError("an epoch is 0 or more")
        told = await self._ask(lambda number: q.Outcome(number, client, serial, asked), q.Told, timeout_s)
        return Outcome(Fate(told.fate).name.lower(), told.lsn or None, told.birth or None)


def _check_named(client: str, serial: int, epoch: int | None) -> None:
    """Check a client id, a serial and an epoch. Raises TypeError, ValueError."""
    need_str(client=client)
    need_int(serial=serial, epoch=epoch or 0)
    if serial < 1 or not 1 <= len(client.encode()) <= CLIENT_BYTES_MAX:
        raise ValueError(f"a serial is 1 or more, a client id 1 to {CLIENT_BYTES_MAX} bytes")


class _ByHand:
    """One retry by hand, over as many connections as it takes. ``maybe``: an earlier try may have been appended."""

    def __init__(
        self, servers: Servers, parcel: Parcel, client: str, serial: int, epoch: int | None, expect_last: int | None
    ) -> None:
        self.maybe = False
        self._servers = servers
        self._parcel = parcel
        self._client = client
        self._serial = serial
        self._epoch = epoch
        self._expect_last = expect_last
        self._opening = Opening(client, nonces(servers.rng))

    def unknown(self, text: str) -> NotGuaranteed:
        """The error for an outcome that cannot be told."""
        return unknown(text, self._client, self._serial, self._epoch or 0)

    async def attempt(self, connection: Connection) -> ByHand:
        hello, parcel = connection.hello, self._parcel
        if parcel.largest > hello.payload_bytes_max or parcel.size > max(hello.batch_bytes_max, parcel.largest):
            raise TooLarge(f"{parcel.size} bytes are over the limit of the cluster")
        if self._epoch is None:
            self._epoch = await self._find_epoch(connection)
        answer = await self._send(connection)
        if isinstance(answer, w.AppendRefused) and answer.code == Code.SERIAL_EXPECTED:
            # This is no verdict, and a leader that was deposed without noticing may say so: only a real leader answers
            # a read. (A server that does not let this client read is not told from it.)
            with suppress(Refused):
                await answered(self._servers, connection, probe_read, w.Page)
                answer = await self._send(connection)
            if isinstance(answer, w.AppendRefused) and answer.code == Code.SERIAL_EXPECTED and not self.maybe:
                text = f"serial {self._serial} is above the next, {answer.number}"
                raise SerialExpected(text, expected=answer.number)
        if isinstance(answer, q.Appended):
            return ByHand(
                answer.lsns[0], parcel.number, self._client, self._serial, self._epoch or 0, answer.duplicate
            )
        if self._epoch and _not_known_yet(connection, answer):
            raise Again(_unknown_epoch(self._client, self._epoch))
        raise self._refused(answer)

    async def _find_epoch(self, connection: Connection) -> int:
        """The session's epoch; opens the session if it is not open."""
        answer = await connection.ask(self._opening.ask)
        if isinstance(answer, q.Opened):
            return answer.epoch
        if isinstance(answer, w.RequestRefused) and answer.code == Code.EPOCH:
            return answer.number
        raise unwelcome(self._servers, answer)

    async def _send(self, connection: Connection) -> q.Appended | w.AppendRefused:
        epoch, item, expect_last = self._epoch or 0, self._parcel.item, self._expect_last
        request: w.Append | w.AppendAfter = w.Append(self._client, epoch, self._serial, False, True, [item])
        if expect_last is not None:
            request = w.AppendAfter(self._client, epoch, self._serial, True, expect_last, item)
        before, self.maybe = self.maybe, True
        connection.send(request)
        await connection.drain()
        while True:
            for message in await connection.receive():
                if isinstance(message, q.Appended | w.AppendRefused) and message.client == self._client:
                    taken = isinstance(message, w.AppendRefused) and message.code == Code.LOST_LEADERSHIP
                    self.maybe = before or taken
                    return message

    def _refused(self, answer: w.AppendRefused) -> Exception:
        """The error to raise for a refusal: `Again`, or the error of its verdict."""
        if answer.code in UNSEEN or answer.code == Code.LOST_LEADERSHIP:
            return Again(reason_of(self._servers, answer))
        # The append was sent before, by the process whose append is retried. Its outcome is unknown after a drop, and
        # also as long as the log has not reached the LSN expected: it may still be appended.
        maybe = self.maybe or answer.code == Code.DROPPED
        if answer.code == Code.CONFLICT and self._expect_last is not None:
            maybe = answer.number < self._expect_last
        return verdict(answer, self._serial, self._epoch or 0, maybe)


def _not_known_yet(connection: Connection, answer: w.RequestRefused | w.AppendRefused) -> bool:
    """True if the leader has not heard of the epoch that was claimed: it refuses and names itself. No verdict (R22)."""
    return answer.code == Code.NOT_LEADER and answer.leader == connection.hello.id != 0


def _unknown_epoch(client: str, epoch: int) -> Unavailable:
    return Unavailable(f"no server knows an epoch {epoch} of {client} yet (mistyped?)")


class CursorInfo(NamedTuple):
    """A cursor at ``lsn``, the next payload that its reader needs.

    ``lag_bytes``: about how much of the log it keeps on disk; ``lag_s``: the age of payload ``lsn``.
    """

    name: str
    lsn: int
    lag_bytes: int
    lag_s: float


class CursorCalls(Asking):
    """The calls of a `Log` about cursors, which hold cleaning back for readers, and trims, which let it go on. Asking
    again for what was done does no harm."""

    async def set_cursor(self, name: str, lsn: int, timeout_s: float | None = None) -> None:
        """Keep payload ``lsn`` and all after it for the reader ``name``: no cleaning or trim takes them.

        Raises ValueError, `OutOfRange` for what is gone or beyond one past the end, `Refused` when there are too many
        cursors, `Unavailable`.
        """
        _check_cursor(name)
        need_int(lsn=lsn)
        if lsn < 1:
            raise ValueError(f"an LSN is 1 or more, not {lsn}")
        await self._ask(lambda number: q.SetCursor(number, name, lsn), w.Done, timeout_s, _not_there(lsn))

    async def cursors(self, timeout_s: float | None = None) -> list[CursorInfo]:
        """All cursors, by name. Raises `Unavailable`."""
        table = await self._ask(q.ListCursors, w.CursorTable, timeout_s)
        return [CursorInfo(name, lsn, lag_bytes, lag_ms / 1000) for name, lsn, lag_bytes, lag_ms in table.rows]

    async def drop_cursor(self, name: str, timeout_s: float | None = None) -> int:
        """Forget a cursor; returns the LSN where it stood (0 if a try whose answer was lost had dropped it already).

        Raises ValueError, `Refused` when there is none of that name, `Unavailable`.
        """
        _check_cursor(name)
        tries = 0

        async def attempt(connection: Connection) -> int:
            nonlocal tries
            tries += 1
            answer = await connection.ask(lambda number: q.DropCursor(number, name))
            if isinstance(answer, w.RequestRefused) and answer.code == Code.NO_CURSOR and tries > 1:
                return 0  # an earlier try was taken, and its answer was lost
            if isinstance(answer, w.Done):
                return answer.number
            raise unwelcome(self._servers, answer)

        return await at_leader(self._servers, attempt, self._seconds(timeout_s))

    async def trim(self, before: int, timeout_s: float | None = None, *, force: bool = False) -> int:
        """Let nothing below LSN ``before`` be read any more; returns the first LSN that is served from now on.

        ``force``: also what a cursor's reader needs; such cursors are dropped. Repeating is safe. Raises ValueError,
        `OutOfRange` for an LSN beyond one past the end, `Refused` when a cursor needs what would go, `Unavailable` when
        no answer came (the trim may have been made).
        """
        need_int(before=before)
        if before < 1:
            raise ValueError(f"before must be positive, not {before}")

        async def attempt(connection: Connection) -> int:
            ask = partial(
                answered, self._servers, connection, lambda number: q.Trim(number, before, force), q.Trimmed,
                _not_there(before),
            )
            try:
                return (await ask()).first_lsn
            except OutOfRange:
                # A leader that was deposed without noticing may be behind: only one that still leads answers a read.
                await answered(self._servers, connection, probe_read, w.Page)
                return (await ask()).first_lsn

        return await at_leader(self._servers, attempt, self._seconds(timeout_s))


def _check_cursor(name: str) -> None:
    need_str(name=name)
    if not valid_cursor(name):
        raise ValueError(NAME_WANTED)


def _not_there(lsn: int) -> Refusals:
    """The error for a server's word that payload ``lsn`` is gone, or not there yet."""
    return {Code.OUT_OF_RANGE: lambda refused: out_of_range(f"LSN {lsn} is", refused.detail)}
