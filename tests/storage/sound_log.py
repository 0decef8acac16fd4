"""Stores that are sound throughout, as a server leaves them: sessions that the log makes, a saved table."""

from __future__ import annotations

from typing import Any

from store_kit import INCARNATION, SERVER, LogBuilder, SqliteBench, base_of, runs_of, write

from alpo.core.disk import StartState, TableSave
from alpo.core.entries import Entry, Kind, join_payloads, json_body, seal
from alpo.core.machine.table import SessionState
from alpo.core.members import Member, MemberList, Role, StartStatus, members_body
from alpo.core.settings import Settings

SETTINGS = Settings(window=8)
MEMBERS = MemberList.of([
    Member(SERVER, "127.0.0.1:7103", 0, INCARNATION, Role.VOTER),
    Member(5, "127.0.0.1:7105", 0, b"5" * 16, Role.VOTER),
    Member(6, "127.0.0.1:7106", 0, b"6" * 16, Role.VOTER),
])
START = StartState(StartStatus.STARTED, (), b"d" * 16, MEMBERS.digest(), MEMBERS.to_plain(), SETTINGS.to_plain())


def sound_entries() -> list[Entry]:
    """Two reigns, a named client that opens twice, batches, a new member list; 1 … 41."""
    log = LogBuilder()

    def special(kind: Kind, term: int, body: bytes, client: str = "") -> Entry:
        return log._next(seal(log.id, term, kind, log.time_ms, log.lsn, body, client), 1)

    def data(term: int, serial: int, epoch: int, *payloads: bytes) -> Entry:
        body, count = join_payloads(payloads), len(payloads)
        return log._next(seal(log.id, term, Kind.DATA, log.time_ms, log.lsn, body, "web", serial, epoch, count), 1)

    entries = [special(Kind.LEADER, 2, json_body(leader=SERVER))]
    entries.append(special(Kind.SESSION, 2, json_body(op="open", nonce="aa" * 16, replaces=0), "web"))
    entries += [data(2, serial, 2, b"payload %d" % serial) for serial in range(1, 19)]
    entries.append(special(Kind.LEADER, 4, json_body(leader=5)))
    entries.append(special(Kind.MEMBERS, 4, members_body(MEMBERS)))
    entries.append(special(Kind.SESSION, 4, json_body(op="open", nonce="bb" * 16, replaces=2), "web"))
    entries += [data(4, serial, 23, b"a" * serial, b"b") for serial in range(19, 37)]
    return entries


def table_at(entries: list[Entry], id: int) -> TableSave:
    """The saved state as of entry ``id``."""
    state = SessionState(SETTINGS)
    state.apply_all(entries[:id])
    changed, ended, horizon_ms = state.rows_at(id)
    members_id = max([e.id for e in entries[:id] if e.kind == Kind.MEMBERS], default=0)
    return TableSave(id, horizon_ms, changed, ended, MEMBERS.to_plain(), members_id, SETTINGS.to_plain())


def fill(bench: SqliteBench, *, applied_id: int = 30, guaranteed_id: int = 35, base_id: int = 0) -> list[Entry]:
    """Bring it about in a new store; all entries, those below the base too."""
    entries = sound_entries()
    marks: dict[str, Any] = {
        "guaranteed_id": guaranteed_id, "fully_replicated_id": min(28, guaranteed_id), "term": 5, "vote": 6,
    }
    table = table_at(entries, applied_id) if applied_id else None
    bench.store.commit([write(entries, runs=runs_of(entries), start=START, table=table, **marks)])
    if base_id:
        bench.store.commit([write([], base=base_of(entries[base_id - 1]), **marks)])
    return entries
