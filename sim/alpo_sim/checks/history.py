"""Checks of all that clients were told against the one log.

Laws:

* Every request is noted before it is sent, every reply as it leaves the server, so that lost ones count too.
* The log orders all operations, so one number checks real time, the *floor*: the last entry on which any answer so far
  rested. An operation that begins now must come after it in the log.
* Whatever is said of appends is checked serial by serial, however frames and runs group them (R32).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from alpo.core.entries import DamagedEntry, Entry, Kind, Part, body_digest, parse_body, parts, serials_of
from alpo.core.ready import Input
from alpo.core.requests import (
    Appended,
    AppendRun,
    ChangeMember,
    ChangeSettings,
    Code,
    CursorIs,
    CursorsAre,
    Dropped,
    ListCursors,
    ListSessions,
    Opened,
    OpenSession,
    Origin,
    Outcome,
    ReadAt,
    ReadIndex,
    Refused,
    Reply,
    Sessions,
    SettingsAre,
    ShowSettings,
    Told,
    Transfer,
)
from alpo.core.settings import Settings

from . import Broken
from .operators import OutcomeHistory, StateHistory
from .session_tables import ModelTable

_DATA, _SESSION = int(Kind.DATA), int(Kind.SESSION)
#: Refusals after which the refused append never enters the log (R21).
_FOR_GOOD = (Code.FENCED, Code.SERIAL_REUSED, Code.SKIPPED, Code.INVALID)


class OneLog(Protocol):
    """The one log, as `Safety` keeps it: entry id at index id - 1."""

    guaranteed: list[Entry]


class Sent(NamedTuple):
    """Append as a client sends it; when sent again, it is equal."""

    client: str
    epoch: int
    serial: int
    digest: bytes


class History:
    """Account of what was `asked`, `replied` and `guaranteed`; each of these methods raises `Broken`.

    ``log``: the one log; ``model``: its session table, None where an exhaustive search does without; ``settings``: of
    the first start. ``acknowledged``, ``reads``, ``conflicts``: how many appends and reads were answered, and how many
    conditional appends refused.
    """

    def __init__(self, log: OneLog, model: ModelTable | None = None, settings: Settings | None = None) -> None:
        self.log = log
        self.table = model
        self.acknowledged = 0
        self.conflicts = 0
        self.reads = 0
        self.outcomes = OutcomeHistory()
        self.state = StateHistory()
        if settings is not None:
            self.state.begin(settings)
        self._floor_id = 0  # the last entry that any answer rested on
        self._first_floor: dict[Sent, int] = {}  # -> the floor when first sent
        self._times_sent: dict[Sent, int] = {}
        self._runs: dict[Origin, list[Sent]] = {}
        #: Origin of a conditional append -> the LSN expected to be the last, and the floor when it was first asked.
        self._expected: dict[Origin, tuple[int, int]] = {}
        #: -> each LSN that a transmission expected to be the last (None: any), and if the log was told to be beyond it.
        self._conditions: dict[Sent, dict[int | None, bool]] = {}
        self._reading: dict[Origin, int] = {}
        #: Origin of an operator's request -> the floor when it was first asked.
        self.floors: dict[Origin, int] = {}
        self._nonces: dict[Origin, tuple[str, bytes]] = {}
        self._refused_for_good: dict[Sent, Code] = {}
        self._never_taken: dict[Sent, int] = {}  # -> transmissions refused as never taken
        self._owner: dict[int, object] = {}  # epoch -> the actor that was told that it opened it
        self._dropped: dict[str, bool] = {}
        self._expired: dict[str, int] = {}  # random clients told that they have ended -> the serial refused
        # Facts that the log itself states, found out here from its entries alone.
        self._place: dict[Sent, tuple[int, int]] = {}  # -> (entry id, LSN)
        self._last_serial: dict[str, int] = {}
        self.epochs: dict[str, int] = {}
        self._ended: dict[int, bool] = {}  # epochs that an operator dropped
        self._opened: dict[int, tuple[str, bytes, int]] = {}  # epoch -> (name, nonce, last serial then)

    # -- the log ----------------------------------------------------------------------------------------

    def guaranteed(self, entry: Entry) -> None:
        """Check the next entry of the one log."""
        if entry.kind == _DATA:
            self._guaranteed_data(entry)
        elif entry.kind == _SESSION:
            self._guaranteed_session(entry)
        else:
            self.state.guaranteed(entry)

    def _guaranteed_data(self, entry: Entry) -> None:
        try:
            appends = parts(entry)
        except DamagedEntry as error:
            raise Broken("nothing invented", f"entry {entry.id} holds no appends: {error}") from error
        lsn = entry.lsn
        for each in appends:
            self._guaranteed_append(entry, each, lsn)
            lsn += each.count
        if lsn != entry.lsn + entry.count:
            raise Broken("gapless", f"entry {entry.id} has {entry.count} payloads, its appends {lsn - entry.lsn}")

    def _guaranteed_append(self, entry: Entry, part: Part, lsn: int) -> None:
        """Check the append that entry ``entry`` of the one log holds at ``lsn``."""
        what = Sent(entry.client, entry.epoch, part.serial, body_digest(part.count, part.body))
        if what not in self._times_sent:
            raise Broken("nothing invented", f"entry {entry.id} was never sent: {what[:3]}")
        if self._never_taken.get(what, 0) >= self._times_sent[what]:
            raise Broken("never taken", f"entry {entry.id}: all that was sent of {what[:3]} was refused as never taken")
        if what in self._refused_for_good:
            code = self._refused_for_good[what]
            raise Broken("refused for good", f"entry {entry.id} was refused {code.name} before: {what[:3]}")
        beyond = self._conditions[what]
        if None not in beyond and lsn - 1 not in beyond:
            raise Broken("nothing invented", f"entry {entry.id} at LSN {lsn} was not sent to be there: {what[:3]}")
        if None not in beyond and beyond[lsn - 1]:
            raise Broken("refused for good", f"entry {entry.id} was refused CONFLICT before: {what[:3]}")
        if what.serial <= self._last_serial.get(what.client, 0):
            last = self._last_serial[what.client]
            raise Broken("exactly once", f"entry {entry.id}: {what.client} serial {what.serial} after {last}")
        if what.client in self._expired:
            raise Broken("refused for good", f"entry {entry.id} is of {what.client}, which was told that it has ended")
        if what.client[0] != "~" and what.epoch != self.epochs.get(what.client, 0):
            raise Broken("sessions", f"entry {entry.id} is of epoch {what.epoch}, which is not the current one")
        self._last_serial[what.client] = what.serial
        self.outcomes.guaranteed(what.client, what.serial, entry.id, lsn)
        self._place[what] = (entry.id, lsn)

    def _guaranteed_session(self, entry: Entry) -> None:
        body, name = parse_body(entry), entry.client
        current = self.epochs.get(name, 0)
        if body.get("op") == "drop":
            if body["epoch"] != current or not current:
                raise Broken("sessions", f"entry {entry.id} drops epoch {body['epoch']} of {name}; it is {current}")
            del self.epochs[name]
            self._ended[current] = True
            self._dropped[name] = True
            self._last_serial.pop(name, None)
            return
        nonce = bytes.fromhex(body["nonce"])
        if body["replaces"] != current:
            raise Broken("sessions", f"entry {entry.id} replaces epoch {body['replaces']} of {name}; it is {current}")
        self.epochs[name] = entry.id
        self._opened[entry.id] = (name, nonce, self._last_serial.get(name, 0))

    # -- requests ---------------------------------------------------------------------------------------

    def asked(self, request: Input) -> None:
        """Note a request that leaves a client, once for each copy of it."""
        if isinstance(request, AppendRun):
            run = [
                Sent(request.client, request.epoch, request.serial + at, body_digest(*body))
                for at, body in enumerate(request.bodies)
            ]
            self._runs[request.origin] = run
            if request.expect_last is not None:
                self._expected.setdefault(request.origin, (request.expect_last, self._floor_id))
            for what in run:
                self._times_sent[what] = self._times_sent.get(what, 0) + 1
                self._first_floor.setdefault(what, self._floor_id)
                self._conditions.setdefault(what, {}).setdefault(request.expect_last, False)
        elif isinstance(request, ReadIndex):
            self._reading[request.origin] = self._floor_id
        elif isinstance(request, Outcome):
            self.outcomes.asked(request, self._floor_id)
        elif isinstance(request, ShowSettings | ChangeSettings):
            self.state.asked(request, self._floor_id)
        elif isinstance(request, ListCursors):
            self.state.asked_cursors(request, self._floor_id)
        elif isinstance(request, ListSessions | ChangeMember | Transfer):
            self.floors.setdefault(request.origin, self._floor_id)
        elif isinstance(request, OpenSession):
            self._nonces[request.origin] = (request.name, request.nonce)

    # -- replies ----------------------------------------------------------------------------------------

    def replied(self, reply: Reply) -> None:
        """Check a reply that leaves a server."""
        if isinstance(reply, Appended):
            self._replied_appended(reply)
        elif isinstance(reply, ReadAt):
            if reply.id < self._reading[reply.origin]:
                floor = self._reading[reply.origin]
                raise Broken("linearizable", f"a read sees up to entry {reply.id}; {floor} was known before it began")
            if reply.id > len(self.log.guaranteed):
                raise Broken("acknowledged", f"a read may see entry {reply.id}, which is not guaranteed")
            self.reads += 1
            self._floor_id = max(self._floor_id, reply.id)
        elif isinstance(reply, Opened):
            self._replied_opened(reply)
        elif isinstance(reply, Told):
            told_id = self.outcomes.replied(reply, self.table, self._dropped)
            self._floor_id = max(self._floor_id, told_id)
        elif isinstance(reply, SettingsAre):
            self._floor_id = max(self._floor_id, self.state.replied(reply))
        elif isinstance(reply, CursorsAre):
            self.state.listed(reply)
        elif isinstance(reply, CursorIs):
            self.state.moved(reply)
        elif isinstance(reply, Refused):
            self._replied_refused(reply)
        elif isinstance(reply, Dropped):
            if reply.epoch not in self._ended:
                raise Broken("acknowledged", f"epoch {reply.epoch} was said to be dropped: not guaranteed")
        elif isinstance(reply, Sessions):
            for row in reply.rows:
                if row.epoch and row.epoch not in self._opened:
                    raise Broken("acknowledged", f"a list of sessions tells of epoch {row.epoch}: not guaranteed")
            self._check_listed(reply)

    def _check_listed(self, reply: Sessions) -> None:
        """Check that the list holds the client that was answered last before the question, with the answered entry or a
        later one, unless its session has ended since."""
        at = self.floors.get(reply.origin, 0)
        while at and self.log.guaranteed[at - 1].kind not in (_DATA, _SESSION):
            at -= 1
        client = self.log.guaranteed[at - 1].client if at else ""
        if self.table is None or client not in self.table.sessions or client in self._dropped:
            return
        if not any(row.client == client and row.last_id >= at for row in reply.rows):
            raise Broken("linearizable", f"a list of sessions lacks entry {at} of {client}, known before it was asked")

    def _replied_appended(self, reply: Appended) -> None:
        run = self._runs[reply.origin]
        first = reply.serial - run[0].serial
        told = run[first : first + len(reply.lsns)] if first >= 0 else []
        if len(told) < len(reply.lsns):
            raise Broken("acknowledged", f"{run[0][:3]} and what came with it was told of serial {reply.serial} on: "
                         f"LSN {list(reply.lsns)}")
        for what, lsn in zip(told, reply.lsns, strict=True):
            id, at = self._place.get(what, (0, 0))
            if not id or at != lsn:
                raise Broken("acknowledged", f"{what[:3]} was told LSN {lsn}; it is at LSN {at}, entry {id} (0: none)")
            if id <= self._first_floor[what]:
                raise Broken("linearizable", f"{what[:3]} is at entry {id}, before what was answered before it")
            self._floor_id = max(self._floor_id, id)
            self.acknowledged += 1
        ids = {self._place[what][0] for what in told}
        runs = [id for id in ids if serials_of(self.log.guaranteed[id - 1].digest) > 1]
        if runs and len(ids) > 1 and not reply.duplicate:
            raise Broken("acknowledged", f"{told[0][:3]} is answered with more than its own run: entries {sorted(ids)}")

    def _replied_opened(self, reply: Opened) -> None:
        name, nonce = self._nonces[reply.origin]
        known = self._opened.get(reply.epoch)
        if known != (name, nonce, reply.last_serial):
            raise Broken("acknowledged", f"{name} was told epoch {reply.epoch}, last serial {reply.last_serial}; the "
                         f"log says {known}")
        actor = _actor(reply.origin)
        if self._owner.setdefault(reply.epoch, actor) != actor:
            raise Broken("sessions", f"epoch {reply.epoch} of {name} was given to two processes")

    def _replied_refused(self, reply: Refused) -> None:
        self.state.refused(reply)
        if reply.code is Code.EPOCH and reply.number and reply.number not in self._opened:
            raise Broken("acknowledged", f"an open was refused for epoch {reply.number}: not guaranteed")
        if reply.code is Code.TOO_MANY_NAMES and self.table is not None and not self._dropped:
            if self.table.names < self.table.settings.names_max:
                raise Broken("sessions", f"there is no room for another name, and there are {self.table.names}")
        run = self._runs.get(reply.origin)
        if not reply.count or run is None:
            return
        first = reply.serial - run[0].serial
        for what in run[first : first + reply.count]:
            if self.table is not None:
                self._check_forgotten(what, reply.code, self.table)
            if reply.code is Code.SESSION_EXPIRED:
                self._expired.setdefault(what.client, what.serial)
            elif reply.code in (Code.NOT_LEADER, Code.NO_SPACE):
                self._never_taken[what] = self._never_taken.get(what, 0) + 1
            elif reply.code is Code.FENCED:
                self._check_fenced(what, reply)
            elif reply.code is Code.CONFLICT:
                self._replied_conflict(what, reply)
            if reply.code is Code.DROPPED and self.table is not None:
                session = self.table.sessions.get(what.client)
                if what.client not in self._dropped and what.client in self.epochs:
                    raise Broken("sessions", f"{what[:3]} was refused DROPPED, and nobody dropped its name")
                if session is not None and what.epoch >= session.birth:
                    raise Broken("sessions", f"{what[:3]} was refused DROPPED; the name lives since {session.birth}")
            if reply.code in _FOR_GOOD or (reply.code is Code.DROPPED and self._times_sent[what] == 1):
                # DROPPED says nothing of earlier transmissions.
                if what in self._place:
                    raise Broken("refused for good", f"{what[:3]} was refused {reply.code.name}, and is in the log")
                self._refused_for_good[what] = reply.code

    def _replied_conflict(self, what: Sent, reply: Refused) -> None:
        """Check a conflict, and note what it says of this and, if the log is beyond the LSN expected, of all
        transmissions."""
        expected, floor_id = self._expected[reply.origin]
        known_lsn, last_lsn = self._last_lsn(floor_id), self._last_lsn(len(self.log.guaranteed))
        self.conflicts += 1
        if reply.number > last_lsn or reply.number == expected:
            raise Broken("refused for good", f"{what[:3]}, which expects LSN {expected} to be the last, was told that "
                         f"{reply.number} is; guaranteed are LSNs up to {last_lsn}")
        if reply.number > expected:
            if self._place.get(what, (0, 0))[1] == expected + 1:
                raise Broken("refused for good", f"{what[:3]} was refused CONFLICT, and is in the log")
            self._conditions[what][expected] = True
            return
        self._never_taken[what] = self._never_taken.get(what, 0) + 1
        if reply.number < known_lsn:
            raise Broken("linearizable", f"{what[:3]}, which expects LSN {expected} to be the last, was told that "
                         f"{reply.number} is; LSN {known_lsn} was known before it was asked")

    def _last_lsn(self, id: int) -> int:
        """The last LSN of the one log as of entry ``id``."""
        return self.log.guaranteed[id - 1].lsn + self.log.guaranteed[id - 1].count - 1 if id else 0

    def _check_forgotten(self, what: Sent, code: Code, table: ModelTable) -> None:
        """Check a refusal that says that an append, or a session, is no longer remembered."""
        if code is Code.TOO_OLD and what.client not in self._dropped and table.remembers(what.client, what.serial):
            raise Broken("sessions", f"{what[:3]} was refused TOO_OLD, and is remembered")
        if code is Code.SESSION_EXPIRED and what.client in table.sessions:
            raise Broken("sessions", f"{what[:3]} was told that its session has ended, and it has not")

    def _check_fenced(self, what: Sent, reply: Refused) -> None:
        if self.epochs.get(what.client) == what.epoch:
            raise Broken("sessions", f"{what[:3]} was refused FENCED, and its epoch is the current one")
        # A dropped name may be opened again, for nobody, by a late copy of an open that named no epoch.
        if what.client not in self._dropped and reply.number and self._owner.get(reply.number) == _actor(reply.origin):
            raise Broken("sessions", f"{what[:3]} was fenced by epoch {reply.number}, which is its own")


def _actor(origin: Origin) -> object:
    """The actor that asked: origins are (actor, number)."""
    return origin[0]  # type: ignore[index]
