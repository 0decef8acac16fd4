"""Verdicts on clients' requests, taken at the head of the log, and the sealing of accepted appends (R21, R22).

Laws:

* A run of serials is split into `Accept`, `Duplicate` and `Refuse`, in serial order, no serial twice. At most one
  part is an `Accept`; it is to be sealed and applied before the next request is judged.
* Every verdict has ``rests_on``: the highest entry id without which the verdict could have been another. The answer may
  leave only once that entry is guaranteed. ``rests_on`` 0: no verdict, the answer may leave at once.
* No verdict is on a run as a whole: every serial is judged by itself, however runs and earlier requests grouped them.
* "Not in the log" is said only when it is certain: where the table has forgotten too much, the answer is TOO_OLD, and
  DROPPED where an operator had the name dropped.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from alpo.core.entries import created_ms, json_body, offset, same, serials_of, valid_name
from alpo.core.requests import AppendRun, Code, DropSession, Fate, OpenSession, Outcome

from .journal import Session, Slot
from .table import SessionState

#: Highest serial, whatever a sparse client asks for: what SQLite and the entry's header can hold.
SERIAL_MAX = 1 << 62
NONCE_BYTES = 16


class Accept(NamedTuple):
    """Verdict: append ``bodies``, (count, body) each, with serials ``serial``, ``serial + 1``, …"""

    serial: int
    bodies: list[tuple[int, bytes]]


class Duplicate(NamedTuple):
    """Verdict: serials ``serial``, ``serial + 1``, … are in the log already; ``lsns``: of their first payloads."""

    serial: int
    lsns: list[int]
    rests_on: int


class Refuse(NamedTuple):
    """Verdict: ``count`` serials from ``serial`` on are refused (both 0 for an open or a drop); ``number`` as `Code`
    says."""

    serial: int
    count: int  # type: ignore[assignment]
    code: Code
    number: int
    rests_on: int


class OpenNew(NamedTuple):
    """Verdict: append a SESSION entry with this body; its id is the epoch."""

    body: bytes


class OpenAgain(NamedTuple):
    """Verdict: this very open was taken before, as ``epoch``; ``last_serial``: the session's when it was opened."""

    epoch: int
    last_serial: int
    rests_on: int


class DropNow(NamedTuple):
    """Verdict: append a SESSION entry with this body, which ends ``epoch``."""

    epoch: int
    body: bytes


class Found(NamedTuple):
    """Verdict on an outcome: the ``fate`` of the append; ``lsn``: 0 unless APPENDED; ``birth``: see `requests.Told`."""

    fate: Fate
    lsn: int
    birth: int
    rests_on: int


Judgement: TypeAlias = Accept | Duplicate | Refuse


def open_body(nonce: bytes, replaces: int) -> bytes:
    """The body of the SESSION entry that opens a name."""
    return json_body(op="open", nonce=nonce.hex(), replaces=replaces)


def drop_body(epoch: int) -> bytes:
    """The body of the SESSION entry that drops a name."""
    return json_body(op="drop", epoch=epoch)


class SessionTable(SessionState):
    """The session table with its verdicts, which a leader asks for before it appends."""

    def judge(self, run: AppendRun, next_id: int, guaranteed_id: int) -> list[Judgement]:
        """The verdicts on ``run`` (R21), in serial order. The next entry of the log has id ``next_id`` (so below)."""
        session = self._sessions.get(run.client)
        serial, count = run.serial, len(run.bodies)
        if (
            session is not None
            and serial == session.last[0] + 1
            and run.epoch == session.opened[0]
            and serial + count <= SERIAL_MAX + 1
            and self._room(session, count, guaranteed_id) >= count > 0
        ):
            return [Accept(serial, run.bodies)]
        if not 0 < serial <= SERIAL_MAX or not count or run.epoch < 0:
            return [Refuse(serial, count, Code.INVALID, 0, 0)]
        fit = SERIAL_MAX + 1 - serial
        if count > fit:  # payloads beyond the last serial have no effect on the rest
            within = self.judge(run._replace(bodies=run.bodies[:fit], sparse=False), next_id, guaranteed_id)
            return [*within, Refuse(SERIAL_MAX + 1, count - fit, Code.INVALID, 0, 0)]
        if session is None:
            return self._judge_unknown(run, next_id, guaranteed_id)
        return self._judge_known(session, run, next_id, guaranteed_id)

    def group(self, runs: Sequence[AppendRun], at: int, guaranteed_id: int) -> int:
        """The number of ``runs``, from place ``at`` on, that are single new appends of different clients with room for
        all: `judge` would accept each of them as it is, after those before it, unless those end its session."""
        sessions, clients = self._sessions, set[str]()
        room = min(self.settings.window, self.settings.window_total) - self._flying_above(guaranteed_id)
        for place in range(at, min(len(runs), at + room)):
            run = runs[place]
            session = sessions.get(run.client)
            if (
                session is None or run.serial != session.last[0] + 1 or run.epoch != session.opened[0]
                or run.serial > SERIAL_MAX or len(run.bodies) != 1 or run.expect_last is not None
                or run.client in clients
            ):
                break
            clients.add(run.client)
        return len(clients)

    def _room(self, session: Session | None, wanted: int, guaranteed_id: int) -> int:
        """The number of the ``wanted`` new serials that may be appended now: all that are not guaranteed must stay
        remembered."""
        flying = self._flying_above(guaranteed_id)
        room = self.settings.window_total - flying
        window = self.settings.window
        # The window bounds the session's own serials in flight; `flying` counts those of all clients.
        if session is not None and session.held + wanted > window < flying + wanted:
            slots = session.slots
            recent = slots[bisect_left(slots, guaranteed_id + 1, key=_id_of) :]
            room = min(room, window - sum(serials_of(slot[4]) for slot in recent))
        return max(0, min(room, wanted, window))

    def _judge_unknown(self, run: AppendRun, next_id: int, guaranteed_id: int) -> list[Judgement]:
        serial, count, head_id = run.serial, len(run.bodies), next_id - 1
        if valid_name(run.client):
            if run.epoch > guaranteed_id:
                return [Refuse(serial, count, Code.NOT_LEADER, 0, 0)]
            return [Refuse(serial, count, Code.DROPPED, 0, head_id)]
        made_ms = created_ms(run.client)
        if made_ms < 0 or run.epoch:
            return [Refuse(serial, count, Code.INVALID, 0, 0)]
        if made_ms <= self.horizon_ms:
            return [Refuse(serial, count, Code.SESSION_EXPIRED, self.horizon_ms, head_id)]
        return self._judge_new(None, run, 0, guaranteed_id)

    def _judge_known(self, session: Session, run: AppendRun, next_id: int, guaranteed_id: int) -> list[Judgement]:
        epoch, count = session.opened[0], len(run.bodies)
        if run.epoch != epoch and session.random:
            return [Refuse(run.serial, count, Code.INVALID, 0, 0)]
        if run.epoch > epoch and run.epoch > guaranteed_id:
            return [Refuse(run.serial, count, Code.NOT_LEADER, 0, 0)]
        if run.epoch < session.birth:
            return [Refuse(run.serial, count, Code.DROPPED, epoch, epoch)]
        known = min(count, max(0, session.last[0] + 1 - run.serial))
        parts = _joined((self._judge_old(session, run, at, next_id - 1) for at in range(known)), guaranteed_id)
        if known == count:
            return parts
        if run.epoch != epoch:
            fenced = Refuse(run.serial + known, count - known, Code.FENCED, epoch, max(epoch, run.epoch))
            return _joined([*parts, fenced], guaranteed_id)
        return parts + self._judge_new(session, run, known, guaranteed_id)

    def _judge_old(self, session: Session, run: AppendRun, at: int, head_id: int) -> Judgement:
        """The verdict on the serial of ``run.bodies[at]``, which is not above the session's last serial."""
        serial, slots = run.serial + at, session.slots
        after = _after(slots, serial)
        if after and (nth := serial - slots[after - 1][0]) < serials_of(slots[after - 1][4]):
            _, id, lsn, epoch, digest = slots[after - 1]
            if epoch == run.epoch and same(digest, nth, *run.bodies[at]):
                return Duplicate(serial, [lsn + offset(digest, nth)], id)
            return Refuse(serial, 1, Code.SERIAL_REUSED, 0, max(id, run.epoch))
        current, _, opened_last_serial = session.opened
        # A forgotten serial may be in the log under an older epoch, but only up to where this epoch began.
        if run.epoch != current and (after > 0 or serial > opened_last_serial or run.epoch > current):
            return Refuse(serial, 1, Code.FENCED, current, max(current, run.epoch))
        if after == 0:
            return Refuse(serial, 1, Code.TOO_OLD, 0, head_id)
        return Refuse(serial, 1, Code.SKIPPED, 0, max(slots[after][1], run.epoch))

    def _judge_new(
        self, session: Session | None, run: AppendRun, done: int, guaranteed_id: int
    ) -> list[Judgement]:
        """The verdicts on all but the first ``done`` appends of a run: serials above the last, of the current epoch."""
        serial, bodies = run.serial + done, run.bodies[done:]
        expected = session.last[0] + 1 if session is not None else 1
        sparse = run.sparse and not run.by_hand and len(run.bodies) == 1
        if serial != expected and not sparse:
            return [Refuse(serial, len(bodies), Code.SERIAL_EXPECTED, expected, 0)]
        room = self._room(session, len(bodies), guaranteed_id)
        parts: list[Judgement] = [Accept(serial, bodies[:room])] if room else []
        if room < len(bodies):
            parts.append(Refuse(serial + room, len(bodies) - room, Code.SERIAL_EXPECTED, serial + room, 0))
        return parts

    def judge_open(self, request: OpenSession, next_id: int, guaranteed_id: int) -> OpenNew | OpenAgain | Refuse:
        """The verdict on an open: taken if it replaces the current epoch, answered again if its nonce is the current
        epoch's, else refused (R22)."""
        if not valid_name(request.name) or len(request.nonce) != NONCE_BYTES or request.replaces < 0:
            return Refuse(0, 0, Code.INVALID, 0, 0)
        session = self._sessions.get(request.name)
        epoch, nonce, last_serial = session.opened if session is not None else (0, b"", 0)
        if nonce == request.nonce:
            return OpenAgain(epoch, last_serial, epoch)
        if request.replaces != epoch:
            return self._other_epoch(request.replaces, epoch, next_id, guaranteed_id)
        if session is None and self.names >= self.settings.names_max:
            return Refuse(0, 0, Code.TOO_MANY_NAMES, 0, next_id - 1)
        return OpenNew(open_body(request.nonce, request.replaces))

    def judge_drop(self, request: DropSession, next_id: int, guaranteed_id: int) -> DropNow | Refuse:
        """The verdict on a drop: done if the operator names the current epoch (0: any), else refused (R22)."""
        if not valid_name(request.name) or request.epoch < 0:
            return Refuse(0, 0, Code.INVALID, 0, 0)
        session = self._sessions.get(request.name)
        epoch = session.opened[0] if session is not None else 0
        if session is None or request.epoch not in (0, epoch):
            return self._other_epoch(request.epoch, epoch, next_id, guaranteed_id)
        return DropNow(epoch, drop_body(epoch))

    def judge_outcome(self, request: Outcome, next_id: int) -> Found | Refuse:
        """The verdict on the outcome of an append (R21). Of a name that was dropped, only appends since then are known;
        of a name that is not open, none are."""
        client, serial, wanted, head_id = request.client, request.serial, request.epoch, next_id - 1
        made_ms = created_ms(client)
        if not 0 < serial <= SERIAL_MAX or (made_ms < 0 and not valid_name(client)) or (wanted and made_ms >= 0):
            return Refuse(0, 0, Code.INVALID, 0, 0)
        session = self._sessions.get(client)
        if session is None:
            return Found(Fate.NOT_APPENDED if made_ms > self.horizon_ms else Fate.TOO_OLD, 0, 0, head_id)
        slots, birth = session.slots, session.birth
        after = _after(slots, serial)
        if 0 < wanted < birth:
            return Found(Fate.TOO_OLD, 0, birth, head_id)
        if after and (nth := serial - slots[after - 1][0]) < serials_of(slots[after - 1][4]):
            _, id, lsn, epoch, digest = slots[after - 1]
            if wanted in (0, epoch):
                return Found(Fate.APPENDED, lsn + offset(digest, nth), birth, id)
            return Found(Fate.NOT_APPENDED, 0, birth, head_id)
        forgotten = after == 0 and serial <= session.last[0]
        return Found(Fate.TOO_OLD if forgotten else Fate.NOT_APPENDED, 0, birth, head_id)

    @staticmethod
    def _other_epoch(claimed: int, epoch: int, next_id: int, guaranteed_id: int) -> Refuse:
        """The refusal of an open or drop whose ``claimed`` epoch is not the current ``epoch`` (0: the name is not
        open)."""
        if claimed > epoch and claimed > guaranteed_id:
            return Refuse(0, 0, Code.NOT_LEADER, 0, 0)
        return Refuse(0, 0, Code.EPOCH, epoch, max(epoch, claimed) if epoch else next_id - 1)


def _id_of(slot: Slot) -> int:
    return slot[1]


def _first_serial(slot: Slot) -> int:
    return slot[0]


def _after(slots: Sequence[Slot], serial: int) -> int:
    """The place of the first slot that begins above ``serial``."""
    return bisect_right(slots, serial, key=_first_serial)


def _joined(parts: Iterable[Judgement], guaranteed_id: int) -> list[Judgement]:
    """Join neighbouring verdicts of one kind into one for all their serials. What was appended before is joined only
    where no part would wait for the entry of another (R32)."""
    joined: list[Judgement] = []
    for part in parts:
        before = joined[-1] if joined else None
        if (
            isinstance(part, Duplicate) and isinstance(before, Duplicate)
            and (part.rests_on == before.rests_on or part.rests_on <= guaranteed_id)
        ):
            before.lsns.extend(part.lsns)
            joined[-1] = before._replace(rests_on=max(before.rests_on, part.rests_on))
        elif isinstance(part, Refuse) and isinstance(before, Refuse) and before[2:4] == part[2:4]:
            count, rests_on = before.count + part.count, max(before.rests_on, part.rests_on)
            joined[-1] = Refuse(before.serial, count, before.code, before.number, rests_on)
        else:
            joined.append(part)
    return joined
