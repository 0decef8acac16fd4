"""What clients were told, held against the one log.

Laws:

* Every request is noted before it is sent, every reply as it leaves the server: what gets lost on the way counts.
* The order of the log is the order of everything, so real time is checked by one number: an operation that begins
  must come after all that had been answered by then.
"""

from __future__ import annotations

from typing import NamedTuple

from alpo.core.entries import Entry, Kind, body_digest, parse_body
from alpo.core.inputs import (
    AppendRun,
    ChangeSettings,
    Input,
    ListCursors,
    OpenSession,
    Origin,
    Outcome,
    ReadIndex,
    ShowSettings,
)
from alpo.core.ready import (
    Appended,
    Code,
    CursorIs,
    CursorsAre,
    Dropped,
    Opened,
    ReadAt,
    Refused,
    Reply,
    Sessions,
    SettingsAre,
    Told,
)

from ..broken import Broken
from .kept import Kept
from .outcomes import Outcomes
from .plain import PlainTable
from .safety import Safety

_DATA, _SESSION = int(Kind.DATA), int(Kind.SESSION)
#: Verdicts after which that very append never enters the log (R21).
_FOR_GOOD = (Code.FENCED, Code.SERIAL_REUSED, Code.SKIPPED)


class Sent(NamedTuple):
    """One transmission of one append is this: (client, epoch, serial, digest)."""

    client: str
    epoch: int
    serial: int
    digest: bytes


class History:
    """Feed it `asked`, `replied` and, from the checks of safety, `guaranteed`."""

    def __init__(self) -> None:
        self.safety: Safety | None = None  # set by whoever makes both
        self.table: PlainTable | None = None
        self.acknowledged = 0
        self.reads = 0
        self.outcomes = Outcomes()
        self.kept = Kept()
        self._floor_id = 0  # everything that was answered lies at or below
        self._first_floor: dict[Sent, int] = {}  # floor when first sent
        self._times_sent: dict[Sent, int] = {}
        self._runs: dict[Origin, list[Sent]] = {}
        self._reading: dict[Origin, int] = {}
        self._nonces: dict[Origin, tuple[str, bytes]] = {}
        self._refused_for_good: dict[Sent, Code] = {}
        self._never_taken: dict[Sent, int] = {}  # -> transmissions that were refused so
        self._owner: dict[int, object] = {}  # epoch -> the party that was told that it opened it
        self._dropped: dict[str, bool] = {}
        self._expired: dict[str, int] = {}  # random client -> entries guaranteed when told that it had ended
        # What the log itself says, by an account of its own.
        self._place: dict[Sent, int] = {}  # -> entry id
        self._last_serial: dict[str, int] = {}
        self._epochs: dict[str, int] = {}
        self._ended: dict[int, bool] = {}  # epochs that an operator dropped
        self._opened: dict[int, tuple[str, bytes, int]] = {}  # epoch -> (name, nonce, last serial then)

    # -- the log ----------------------------------------------------------------------------------------

    def guaranteed(self, entry: Entry) -> None:
        """The next entry of the one log."""
        if entry.kind == _DATA:
            self._guaranteed_data(entry)
        elif entry.kind == _SESSION:
            self._guaranteed_session(entry)
        else:
            self.kept.guaranteed(entry)

    def _guaranteed_data(self, entry: Entry) -> None:
        what = Sent(entry.client, entry.epoch, entry.serial, entry.digest)
        if what not in self._times_sent:
            raise Broken("nothing invented", f"entry {entry.id} was never sent: {what[:3]}")
        if self._never_taken.get(what, 0) >= self._times_sent[what]:
            raise Broken("never taken", f"entry {entry.id}: all that was sent of {what[:3]} was refused as never taken")
        if what in self._refused_for_good:
            code = self._refused_for_good[what]
            raise Broken("refused for good", f"entry {entry.id} was refused {code.name} before: {what[:3]}")
        if entry.serial <= self._last_serial.get(entry.client, 0):
            last = self._last_serial[entry.client]
            raise Broken("exactly once", f"entry {entry.id}: {entry.client} serial {entry.serial} after {last}")
        if entry.client in self._expired:
            raise Broken("refused for good", f"entry {entry.id} is of {entry.client}, which was told that it has ended")
        if entry.client[0] != "~" and entry.epoch != self._epochs.get(entry.client, 0):
            raise Broken("sessions", f"entry {entry.id} is of epoch {entry.epoch}, which is not the current one")
        self._last_serial[entry.client] = entry.serial
        self.outcomes.guaranteed(entry)
        self._place[what] = entry.id

    def _guaranteed_session(self, entry: Entry) -> None:
        body, name = parse_body(entry), entry.client
        current = self._epochs.get(name, 0)
        if body.get("op") == "drop":
            if body["epoch"] != current or not current:
                raise Broken("sessions", f"entry {entry.id} drops epoch {body['epoch']} of {name}; it is {current}")
            del self._epochs[name]
            self._ended[current] = True
            self._dropped[name] = True
            self._last_serial.pop(name, None)
            return
        nonce = bytes.fromhex(body["nonce"])
        if body["replaces"] != current:
            raise Broken("sessions", f"entry {entry.id} replaces epoch {body['replaces']} of {name}; it is {current}")
        self._epochs[name] = entry.id
        self._opened[entry.id] = (name, nonce, self._last_serial.get(name, 0))

    # -- requests ---------------------------------------------------------------------------------------

    def asked(self, request: Input) -> None:
        """A transmission leaves a client; to be called for each copy of it."""
        if isinstance(request, AppendRun):
            run = [
                Sent(request.client, request.epoch, request.serial + at, body_digest(*body))
                for at, body in enumerate(request.bodies)
            ]
            self._runs[request.origin] = run
            for what in run:
                self._times_sent[what] = self._times_sent.get(what, 0) + 1
                self._first_floor.setdefault(what, self._floor_id)
        elif isinstance(request, ReadIndex):
            self._reading[request.origin] = self._floor_id
        elif isinstance(request, Outcome):
            self.outcomes.asked(request, self._floor_id)
        elif isinstance(request, ShowSettings | ChangeSettings):
            self.kept.asked(request, self._floor_id)
        elif isinstance(request, ListCursors):
            self.kept.asked_cursors(request, self._floor_id)
        elif isinstance(request, OpenSession):
            self._nonces[request.origin] = (request.name, request.nonce)

    # -- replies ----------------------------------------------------------------------------------------

    def replied(self, reply: Reply) -> None:
        """A reply leaves a server."""
        if isinstance(reply, Appended):
            self._replied_appended(reply)
        elif isinstance(reply, ReadAt):
            if reply.id < self._reading[reply.origin]:
                floor = self._reading[reply.origin]
                raise Broken("linearizable", f"a read sees up to entry {reply.id}; {floor} was known before it began")
            assert self.safety is not None
            if reply.id > len(self.safety.guaranteed):
                raise Broken("acknowledged", f"a read may see entry {reply.id}, which is not guaranteed")
            self.reads += 1
            self._floor_id = max(self._floor_id, reply.id)
        elif isinstance(reply, Opened):
            self._replied_opened(reply)
        elif isinstance(reply, Told):
            told_id = self.outcomes.replied(reply, self.table, self._dropped)
            self._floor_id = max(self._floor_id, told_id)
        elif isinstance(reply, SettingsAre):
            self._floor_id = max(self._floor_id, self.kept.replied(reply))
        elif isinstance(reply, CursorsAre):
            self.kept.listed(reply)
        elif isinstance(reply, CursorIs):
            self.kept.moved(reply)
        elif isinstance(reply, Refused):
            self._replied_refused(reply)
        elif isinstance(reply, Dropped):
            if reply.epoch not in self._ended:
                raise Broken("acknowledged", f"epoch {reply.epoch} was said to be dropped: not guaranteed")
        elif isinstance(reply, Sessions):
            for row in reply.rows:
                if row.epoch and row.epoch not in self._opened:
                    raise Broken("acknowledged", f"a list of sessions tells of epoch {row.epoch}: not guaranteed")

    def _replied_appended(self, reply: Appended) -> None:
        assert self.safety is not None
        run = self._runs[reply.origin]
        for what, lsn in zip(run[reply.serial - run[0].serial :], reply.lsns, strict=False):
            known = self.safety.id_of_lsn
            id = known[lsn - 1] if 0 < lsn <= len(known) else 0
            if not id or self._place.get(what) != id or self.safety.guaranteed[id - 1].lsn != lsn:
                raise Broken("acknowledged", f"{what[:3]} was told LSN {lsn}; it is at entry {self._place.get(what)}")
            if id <= self._first_floor[what]:
                raise Broken("linearizable", f"{what[:3]} is at entry {id}, before what was answered before it")
            self._floor_id = max(self._floor_id, id)
            self.acknowledged += 1

    def _replied_opened(self, reply: Opened) -> None:
        name, nonce = self._nonces[reply.origin]
        known = self._opened.get(reply.epoch)
        if known != (name, nonce, reply.last_serial):
            raise Broken("acknowledged", f"{name} was told epoch {reply.epoch}, last serial {reply.last_serial}; the "
                         f"log says {known}")
        party = _party(reply.origin)
        if self._owner.setdefault(reply.epoch, party) != party:
            raise Broken("sessions", f"epoch {reply.epoch} of {name} was given to two processes")

    def _replied_refused(self, reply: Refused) -> None:
        self.kept.refused(reply)
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
            if reply.code is Code.DROPPED and self.table is not None:
                session = self.table.sessions.get(what.client)
                if what.client not in self._dropped and what.client in self._epochs:
                    raise Broken("sessions", f"{what[:3]} was refused DROPPED, and nobody dropped its name")
                if session is not None and what.epoch >= session.birth:
                    raise Broken("sessions", f"{what[:3]} was refused DROPPED; the name lives since {session.birth}")
            if reply.code in _FOR_GOOD or (reply.code is Code.DROPPED and self._times_sent[what] == 1):
                # Of an earlier transmission DROPPED says nothing.
                if what in self._place:
                    raise Broken("refused for good", f"{what[:3]} was refused {reply.code.name}, and is in the log")
                self._refused_for_good[what] = reply.code

    def _check_forgotten(self, what: Sent, code: Code, table: PlainTable) -> None:
        """A verdict that says "I do not know any more" must be true."""
        if code is Code.TOO_OLD and what.client not in self._dropped and table.remembers(what.client, what.serial):
            raise Broken("sessions", f"{what[:3]} was refused TOO_OLD, and is remembered")
        if code is Code.SESSION_EXPIRED and what.client in table.sessions:
            raise Broken("sessions", f"{what[:3]} was told that its session has ended, and it has not")

    def _check_fenced(self, what: Sent, reply: Refused) -> None:
        if self._epochs.get(what.client) == what.epoch:
            raise Broken("sessions", f"{what[:3]} was refused FENCED, and its epoch is the current one")
        # Once an operator has dropped a name, a late copy of an open that named no epoch may open it again: to nobody.
        if what.client not in self._dropped and reply.number and self._owner.get(reply.number) == _party(reply.origin):
            raise Broken("sessions", f"{what[:3]} was fenced by epoch {reply.number}, which is its own")


def _party(origin: Origin) -> object:
    """Who asked: origins are (party, number)."""
    return origin[0]  # type: ignore[index]
