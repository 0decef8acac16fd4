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


def entries_with_runs() -> list[Entry]:
    """Two reigns and two clients, whose appends are runs (R32) of one payload each, of batches, and none; 1 … 16."""
    log = LogBuilder()

    def special(kind: Kind, term: int, client: str = "", **fields: Any) -> Entry:
        return log._next(seal(log.id, term, kind, log.time_ms, log.lsn, json_body(**fields), client), 1)

    def run(term: int, client: str, epoch: int, serial: int, *appends: tuple[bytes, ...]) -> Entry:
        return log.run(serial, *appends, term=term, client=client, epoch=epoch)

    def many(first: int, last: int) -> list[tuple[bytes, ...]]:
        return [(b"payload %d" % serial,) for serial in range(first, last + 1)]

    return [
        special(Kind.LEADER, 2, leader=SERVER),
        special(Kind.SESSION, 2, "web", op="open", nonce="aa" * 16, replaces=0),
        special(Kind.SESSION, 2, "app", op="open", nonce="cc" * 16, replaces=0),
        run(2, "web", 2, 1, *many(1, 1)),
        run(2, "web", 2, 2, *many(2, 6)),
        run(2, "app", 3, 1, (b"one",), (b"two", b"three"), (b"four",)),
        run(2, "web", 2, 7, (b"a", b"b")),
        run(2, "web", 2, 8, *many(8, 18)),  # more than the window
        run(2, "app", 3, 4, *many(4, 5)),
        special(Kind.LEADER, 4, leader=5),
        special(Kind.SESSION, 4, "web", op="open", nonce="bb" * 16, replaces=2),
        run(4, "web", 11, 19, (b"", b"x"), (b"",), (b"y", b"", b"z")),
        run(4, "web", 11, 22, *many(22, 22)),
        run(4, "app", 3, 6, *many(6, 9)),
        run(4, "web", 11, 23, (b"",), (b"",)),
        run(4, "web", 11, 25, (b"e", b"f")),
    ]


def table_at(entries: list[Entry], id: int) -> TableSave:
    """The saved state as of entry ``id``."""
    state = SessionState(SETTINGS)
    state.apply_all(entries[:id])
    changed, ended, horizon_ms = state.rows_at(id)
    members_id = max([e.id for e in entries[:id] if e.kind == Kind.MEMBERS], default=0)
    return TableSave(id, horizon_ms, changed, ended, MEMBERS.to_plain(), members_id, SETTINGS.to_plain())


def fill(
    bench: SqliteBench, entries: list[Entry] | None = None, /, *, applied_id: int = 30, guaranteed_id: int = 35,
    base_id: int = 0,
) -> list[Entry]:
    """Bring ``entries``, or `sound_entries`, about in a new store; returns all, those below the base too."""
    entries = sound_entries() if entries is None else entries
    marks: dict[str, Any] = {
        "guaranteed_id": guaranteed_id, "fully_replicated_id": min(28, guaranteed_id), "term": 5, "vote": 6,
    }
    table = table_at(entries, applied_id) if applied_id else None
    bench.store.commit([write(entries, runs=runs_of(entries), start=START, table=table, **marks)])
    if base_id:
        bench.store.commit([write([], base=base_of(entries[base_id - 1]), **marks)])
    return entries
