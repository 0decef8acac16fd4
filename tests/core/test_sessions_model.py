"""The session table against a model that forgets nothing and rebuilds everything from the log each time.

Besides the model there are truths that need none: what is said to be in the log is there, what is said not to be is
not and never comes, no serial is there twice, and a verdict is the same with everything above ``rests_on`` gone. All of
them are about serials; runs (R32) group these in any way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from session_leader import random_id

from alpo.core import entries
from alpo.core.disk import SessionRow
from alpo.core.entries import (
    Entry,
    Kind,
    Part,
    body_digest,
    join_payloads,
    json_body,
    parts,
    seal,
    seal_appends,
    serials_of,
    verify,
)
from alpo.core.machine.verdicts import (
    Accept,
    DropNow,
    Duplicate,
    OpenAgain,
    OpenNew,
    Refuse,
    SessionTable,
)
from alpo.core.requests import AppendRun, Code, DropSession, OpenSession
from alpo.core.settings import Settings
from alpo_sim.checks.session_tables import ModelSession, ModelTable, serials

TINY = Settings(session_ttl_ms=100, window=3, window_total=5, sessions_max=2, names_max=2)
NAMES = ["alice", "bob", "carol"]
RANDOM = [random_id(ms << 16) for ms in (1, 2, 3, 4, 5)]
CREATED = {client: ms << 16 for ms, client in enumerate(RANDOM, 1)}
#: Most of it about one name and one random id: so their windows fill.
CLIENTS = ["alice"] * 4 + RANDOM[:1] * 4 + ["bob", "carol", *RANDOM[1:]]
BATCH = (2, join_payloads([b"a", b"b"]))
BODIES = st.lists(st.sampled_from([(1, b"a"), (1, b"b"), BATCH]), min_size=1, max_size=4)
GOOD = [Code.FENCED, Code.DROPPED, Code.SERIAL_REUSED, Code.SKIPPED, Code.TOO_OLD, Code.SESSION_EXPIRED]
NOT_IN_LOG = [Code.FENCED, Code.SERIAL_REUSED, Code.SKIPPED]


class Model(ModelTable):
    """The table that ``log`` makes, one entry after the other. ``ids``: the entry of each append by client, remembered
    or not; ``all_ids``: of all clients, dropped or not; ``appends``: by entry and serial."""

    def __init__(self, log: list[Entry], settings: Settings) -> None:
        super().__init__(settings)
        self.ids: dict[str, list[int]] = {}
        self.all_ids: list[int] = []
        self.appends: dict[tuple[int, int], Part] = {}
        for entry in log:
            self.apply(entry)

    def apply(self, entry: Entry) -> None:
        super().apply(entry)
        if entry.kind == Kind.DATA:
            found = parts(entry)
            self.ids.setdefault(entry.client, []).extend([entry.id] * len(found))
            self.all_ids += [entry.id] * len(found)
            self.appends |= {(entry.id, part.serial): part for part in found}
        elif entry.kind == Kind.SETTINGS:  # a smaller window may forget what is in flight, nothing else may
            self.ids = {
                client: [slot[1] for slot in session.slots for _ in serials(slot)]
                for client, session in self.sessions.items()
            }
        self.ids = {client: ids for client, ids in self.ids.items() if client in self.sessions}

    def verdicts(self, run: AppendRun, guaranteed: int) -> list[tuple[Any, ...]]:
        """(serial, what …) of each serial of the run."""
        session, taken, out = self.sessions.get(run.client, ModelSession()), 0, list[tuple[Any, ...]]()
        last = session.last[0]
        for n, body in enumerate(run.bodies):
            flying = sum(id > guaranteed for id in self.ids.get(run.client, ())) + taken
            total = sum(id > guaranteed for id in self.all_ids) + taken
            full = flying >= self.settings.window or total >= self.settings.window_total
            verdict = self.verdict(run, run.serial + n, body, last, full, guaranteed)
            if verdict == ("accept",):
                last, taken = run.serial + n, taken + 1
            out.append((run.serial + n, *verdict))
        return out

    def verdict(
        self, run: AppendRun, serial: int, body: tuple[int, bytes], last: int, full: bool, guaranteed: int
    ) -> tuple[Any, ...]:
        session = self.sessions.get(run.client)
        sparse = run.sparse and not run.by_hand and len(run.bodies) == 1
        if session is None and run.client[0] == "~":
            if CREATED[run.client] <= self.horizon_ms:
                return (Code.SESSION_EXPIRED, self.horizon_ms)
        elif session is None:
            return (Code.NOT_LEADER, 0) if run.epoch > guaranteed else (Code.DROPPED, 0)
        elif run.epoch > max(session.opened[0], guaranteed):
            return (Code.NOT_LEADER, 0)
        elif run.epoch < session.birth:
            return (Code.DROPPED, session.opened[0])
        slots = session.slots if session is not None else []
        for slot in slots:
            if serial in serials(slot):
                there = self.appends[slot[1], serial]
                same = (slot[3], there.count, there.body) == (run.epoch, *body)
                return ("done", there.lsn) if same else (Code.SERIAL_REUSED, 0)
        forgotten = serial <= last and (not slots or serial < slots[0][0])
        if session is not None and run.epoch != session.opened[0]:
            untold = forgotten and serial <= session.opened[2] and run.epoch < session.opened[0]
            return (Code.TOO_OLD, 0) if untold else (Code.FENCED, session.opened[0])
        if forgotten:
            return (Code.TOO_OLD, 0)
        if serial <= last:
            return (Code.SKIPPED, 0)
        if full or (serial != last + 1 and not sparse):
            return (Code.SERIAL_EXPECTED, serial if sparse else last + 1)
        return ("accept",)


def spread(parts: list[Any]) -> list[tuple[Any, ...]]:
    """Judgements as the model gives them, one a serial."""
    out: list[tuple[Any, ...]] = []
    for part in parts:
        if isinstance(part, Accept):
            out += [(part.serial + n, "accept") for n in range(len(part.bodies))]
        elif isinstance(part, Duplicate):
            out += [(part.serial + n, "done", lsn) for n, lsn in enumerate(part.lsns)]
        else:
            out += [(part.serial + n, part.code, part.number) for n in range(part.count)]
    return out


class Table(RuleBasedStateMachine):
    """A leader's table through appends, opens, drops, expunges, saves and restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Entry] = []
        self.table = SessionTable(TINY)
        self.time_ms, self.guaranteed, self.settled, self.saved_id, self.nonces = 1, 0, 0, 0, 0
        self.disk: dict[str, SessionRow] = {}
        self.disk_horizon, self.disk_settings = 0, TINY
        self.refused: list[tuple[str, int, int, bytes, int]] = []

    @initialize(bytes_max=st.sampled_from([3, entries.RUN_BYTES_MAX]))
    def begin(self, bytes_max: int) -> None:
        """Half of the time runs are so small that a frame makes several."""
        self.bytes_max, entries.RUN_BYTES_MAX = entries.RUN_BYTES_MAX, bytes_max

    def teardown(self) -> None:
        entries.RUN_BYTES_MAX = self.bytes_max

    @property
    def head(self) -> int:
        return len(self.log)

    def take(self, entries: list[Entry]) -> None:
        for entry in entries:
            assert self.table.inconsistency(entry) is None
        self.table.apply_all(entries)
        self.log += entries

    def other(self, kind: Kind, body: bytes = b"", client: str = "") -> None:
        self.take([seal(self.head + 1, 1, kind, self.time_ms, self.next_lsn, body, client)])

    @property
    def next_lsn(self) -> int:
        return self.log[-1].lsn + self.log[-1].count if self.log else 1

    def at(self, id: int) -> SessionTable:
        table = SessionTable(TINY)
        table.apply_all(self.log[:id])
        return table

    def epoch_of(self, client: str, pick: int) -> int:
        if client[0] == "~":
            return 0
        epochs = [e.id for e in self.log if e.kind == Kind.SESSION and e.client == client]
        if pick > 5 or not epochs:
            return epochs[-1] if epochs else 0
        return [0, self.head + 3, *reversed(epochs)][pick % (len(epochs) + 2)]

    @rule(
        client=st.sampled_from(CLIENTS), bodies=BODIES, skip=st.sampled_from([0, 0, 2, 3]), after=st.booleans(),
        together=st.booleans(),
    )  # fmt: skip
    def append(
        self, client: str, bodies: list[tuple[int, bytes]], skip: int, after: bool, together: bool
    ) -> None:
        """Append as a correct client does. ``after``: the entries before are guaranteed; ``together``: as runs."""
        if client[0] != "~" and client not in Model(self.log, TINY).sessions:
            self.open(client, 9, 1)
        self.guarantee(float(after), False)
        self.ask(client, 9, -skip, bodies[:1] if skip else bodies, skip > 0, False, together)

    @rule(
        client=st.sampled_from(CLIENTS), ago=st.integers(1, 5), pick=st.sampled_from([9, 9, 3, 3]), bodies=BODIES,
        together=st.booleans(),
    )  # fmt: skip
    def retry(self, client: str, ago: int, pick: int, bodies: list[tuple[int, bytes]], together: bool) -> None:
        """Append used serials again, of this epoch or an older one, mostly with their payloads of before."""
        last = Model(self.log, TINY).sessions.get(client, ModelSession()).last[0]
        mine = [part for e in self.log if e.kind == Kind.DATA and e.client == client for part in parts(e)]
        used = {part.serial: (part.count, part.body) for part in mine}
        again = [used.get(last + 1 - ago + n, body) for n, body in enumerate(bodies)]
        self.ask(client, pick, ago, again, False, True, together)

    @rule(
        client=st.sampled_from(CLIENTS), pick=st.integers(0, 9), ago=st.integers(-2, 5), bodies=BODIES,
        sparse=st.booleans(), by_hand=st.booleans(), together=st.booleans(),
    )  # fmt: skip
    def ask(
        self, client: str, pick: int, ago: int, bodies: list[tuple[int, bytes]], sparse: bool, by_hand: bool,
        together: bool,
    ) -> None:
        model = Model(self.log, TINY)
        serial = max(1, model.sessions.get(client, ModelSession()).last[0] + 1 - ago)
        run = AppendRun(None, client, self.epoch_of(client, pick), serial, bodies, sparse, by_hand)
        judged = self.table.judge(run, self.head + 1, self.guaranteed)
        assert spread(judged) == model.verdicts(run, self.guaranteed)
        assert sum(isinstance(part, Accept) for part in judged) <= 1
        for part in judged:
            self.check_part(run, part)
        for part in judged:
            if isinstance(part, Accept):
                self.accept(run, part, together)

    def accept(self, run: AppendRun, part: Accept, together: bool) -> None:
        """Append what was accepted."""
        sealed = seal_appends(
            part.bodies, run.client, part.serial, run.epoch, self.head + 1, 1, self.time_ms, self.next_lsn,
            together=together,
        )
        expected, lsn = [], self.next_lsn
        for n, (count, body) in enumerate(part.bodies):
            expected.append(Part(part.serial + n, lsn, count, body))
            lsn += count
        assert [part for entry in sealed for part in parts(entry)] == expected
        for entry in sealed:
            verify(entry)
            size = sum(len(part.body) for part in parts(entry))
            assert serials_of(entry.digest) == 1 or (together and size <= entries.RUN_BYTES_MAX)
        self.take(sealed)

    def check_part(self, run: AppendRun, part: Any) -> None:
        """The truths about one judgement."""
        first = part.serial - run.serial
        if isinstance(part, Accept):
            for n, (count, body) in enumerate(part.bodies):
                key = (run.client, part.serial + n, run.epoch, body_digest(count, body))
                assert not [r for r in self.refused if r[:4] == key and r[4] <= self.guaranteed], "refused for good"
            return
        length = len(part.lsns) if isinstance(part, Duplicate) else part.count
        if isinstance(part, Refuse) and part.code not in GOOD:
            assert part.rests_on == 0
            return
        assert 0 < part.rests_on <= self.head or self.head == 0
        alone = run._replace(serial=part.serial, bodies=run.bodies[first : first + length])
        before = self.at(part.rests_on).judge(alone, part.rests_on + 1, part.rests_on)
        assert spread(before) == spread([part]), "the verdict rests on more than it says"
        there = {
            (e.client, each.serial, e.epoch, body_digest(each.count, each.body)): each.lsn
            for e in self.log if e.kind == Kind.DATA for each in parts(e)
        }
        for n, (count, body) in enumerate(alone.bodies):
            key = (run.client, part.serial + n, run.epoch, body_digest(count, body))
            if isinstance(part, Duplicate):
                assert there[key] == part.lsns[n]
            else:
                self.refused.append((*key, part.rests_on))
                assert part.code not in NOT_IN_LOG or key not in there

    @rule(name=st.sampled_from(NAMES[:1] + NAMES), pick=st.integers(0, 9), again=st.integers(0, 3))
    def open(self, name: str, pick: int, again: int) -> None:
        session = Model(self.log, TINY).sessions.get(name)
        epoch = session.opened[0] if session else 0
        self.nonces += 1
        nonce = session.opened[1] if session and again == 0 else self.nonces.to_bytes(16, "big")
        replaces = epoch if pick > 4 else self.epoch_of(name, pick)
        request = OpenSession(None, name, replaces, nonce)
        got = self.table.judge_open(request, self.head + 1, self.guaranteed)
        if session and nonce == session.opened[1]:
            assert got == OpenAgain(epoch, session.opened[2], epoch)
        elif replaces == epoch and not session and self.table.names == TINY.names_max:
            assert got == Refuse(0, 0, Code.TOO_MANY_NAMES, 0, self.head)
        elif replaces == epoch:
            assert isinstance(got, OpenNew)
            self.other(Kind.SESSION, got.body, name)
            return
        elif replaces > max(epoch, self.guaranteed):
            assert got == Refuse(0, 0, Code.NOT_LEADER, 0, 0)
            return
        else:
            assert isinstance(got, Refuse) and got[:4] == (0, 0, Code.EPOCH, epoch)
        assert self.at(got.rests_on).judge_open(request, got.rests_on + 1, got.rests_on) == got

    @rule(name=st.sampled_from(NAMES), right=st.integers(0, 2))
    def drop(self, name: str, right: int) -> None:
        session = Model(self.log, TINY).sessions.get(name)
        claim = [0, session.opened[0] if session else 1, 1][right]
        got = self.table.judge_drop(DropSession(None, name, claim), self.head + 1, self.guaranteed)
        if session and claim in (0, session.opened[0]):
            assert isinstance(got, DropNow) and got.epoch == session.opened[0]
            self.other(Kind.SESSION, got.body, name)
        elif claim > max(self.guaranteed, session.opened[0] if session else 0):
            assert got == Refuse(0, 0, Code.NOT_LEADER, 0, 0)
        else:
            epoch = session.opened[0] if session else 0
            assert got == Refuse(0, 0, Code.EPOCH, epoch, max(epoch, claim) if epoch else self.head)

    @rule(more_ms=st.sampled_from([1, 30, 60, 101]))
    def later(self, more_ms: int) -> None:
        self.time_ms += more_ms

    @rule()
    def leader(self) -> None:
        self.other(Kind.LEADER)

    @rule(window=st.integers(1, 4), total=st.integers(4, 9))
    def change_settings(self, window: int, total: int) -> None:
        changed = replace(self.table.settings, window=window, window_total=total)
        self.other(Kind.SETTINGS, json_body(**changed.to_plain()))

    @rule(share=st.floats(0, 1), settle=st.booleans())
    def guarantee(self, share: float, settle: bool) -> None:
        self.guaranteed += int(share * (self.head - self.guaranteed))
        if settle:
            self.settled = self.guaranteed
            self.table.settle(self.settled)

    @precondition(lambda self: self.head > self.guaranteed)
    @rule(share=st.floats(0, 1))
    def expunge(self, share: float) -> None:
        keep = self.guaranteed + int(share * (self.head - self.guaranteed))
        del self.log[keep:]
        self.table.expunge(keep + 1)
        self.refused = [r for r in self.refused if r[4] <= keep]

    @rule(share=st.floats(0, 1), confirm=st.booleans())
    def save(self, share: float, confirm: bool) -> None:
        floor = max(self.settled, self.saved_id)
        at = floor + int(share * (self.guaranteed - floor))
        changed, ended, self.disk_horizon = self.table.rows_at(at)
        self.disk |= {row.client: row for row in changed}
        for client in ended:
            self.disk.pop(client, None)
        if confirm:
            self.table.saved(at)
        self.saved_id, self.disk_settings = at, Model(self.log[:at], TINY).settings
        expected = Model(self.log[:at], TINY).state()
        assert (self.disk_settings, self.disk_horizon, sorted(self.disk.values())) == expected

    @rule()
    def restart(self) -> None:
        self.table = SessionTable(TINY)
        self.table.load(self.disk.values(), self.disk_horizon, self.disk_settings, self.saved_id)
        self.table.apply_all(self.log[self.saved_id :])
        self.settled = self.saved_id

    @invariant()
    def as_the_model(self) -> None:
        state = Model(self.log, TINY).state()
        assert self.table.state() == state
        assert self.table.horizon_ms == state[1]
        assert self.table.names == sum(row.client[0] != "~" for row in state[2])
        assert self.table.randoms == sum(row.client[0] == "~" for row in state[2])

    @invariant()
    def no_serial_twice(self) -> None:
        """R23 and exactly once, from the log alone."""
        last: dict[str, int] = {}
        for entry in self.log:
            if entry.kind == Kind.SESSION and b'"drop"' in entry.body:
                last.pop(entry.client, None)
            elif entry.kind == Kind.DATA:
                for part in parts(entry):
                    assert part.serial > last.get(entry.client, 0)
                    last[entry.client] = part.serial


Table.TestCase.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTable = Table.TestCase
