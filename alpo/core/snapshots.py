"""Snapshots: the replicated state as it is saved, and as it is sent to a newcomer (rules.md#replicated-state)."""

from __future__ import annotations

import json
from typing import Any

from .disk import Base, SessionRow, Snapshot, StartState, TableSave
from .entries import serials_of
from .members import MemberList, StartStatus
from .settings import Settings
from .shared import Shared


def table_save(r: Shared, base: Base | None) -> TableSave | None:
    """The save of the replicated state for this step's write, as of the guaranteed mark; None if none is due.

    A save is due, if the step writes at all, after ``table_save_entries`` entries or serials, or when the write cleans
    up to ``base`` entries that no save covers; and once `Shared.save_upto_id` is guaranteed.
    """
    wanted = r.applied_id < r.save_upto_id <= r.guaranteed_id
    if not wanted and not (r.out.has_write or base is not None):
        return None
    lag = r.guaranteed_id - r.applied_id
    if lag > 0:  # the mark may be behind the last save after a start
        lag = max(lag, r.sessions.unsaved_serials)
    if not wanted and lag < r.cfg.table_save_entries and (base is None or base.id <= r.applied_id):
        return None
    changed, ended, horizon_ms = r.sessions.rows_at(r.guaranteed_id)
    r.sessions.saved(r.guaranteed_id)
    members_id, members = r.members.at(r.guaranteed_id)
    return TableSave(
        r.guaranteed_id, horizon_ms, changed, ended, members.to_plain(), members_id,
        r.sessions.settings_at(r.guaranteed_id).to_plain(), r.trims.trim_lsn, r.cursors.rows_at(r.guaranteed_id),
    )


def split_rows(rows: list[SessionRow], serials_max: int) -> list[tuple[SessionRow, ...]]:
    """Split sessions into parts of at most ``serials_max`` remembered serials (each session counts as four more; a
    larger session is a part alone). At least one part, empty if there are no sessions."""
    parts: list[list[SessionRow]] = [[]]
    size = 0
    for row in rows:
        cost = 4 + sum(serials_of(slot[4]) for slot in row.slots)
        if parts[-1] and size + cost > serials_max:
            parts.append([])
            size = 0
        parts[-1].append(row)
        size += cost
    return [tuple(part) for part in parts]


def snapshot_head(snapshot: Snapshot, first_list: object, settings: object) -> str:
    """The JSON text of a snapshot without its sessions, with the cluster's first list and first settings, plain."""
    table = snapshot.table._asdict()
    for name in ("changed", "ended", "ahead"):
        del table[name]
    fields = {"base": list(snapshot.base), "table": table, "first_list": first_list, "first_settings": settings}
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def parse_head(text: str, rows: list[SessionRow], digest: bytes) -> tuple[Base, TableSave, StartState]:
    """The parts of the snapshot whose `snapshot_head` is ``text``, with sessions ``rows``; ``digest``: the
    `configured_digest` to keep in its start state. Raises ValueError, TypeError or KeyError for a text of another
    shape."""
    fields: dict[str, Any] = json.loads(text)
    base = Base(*(int(number) for number in fields["base"]))
    first = MemberList.from_plain(fields["first_list"])
    table = TableSave(changed=rows, ended=[], ahead=True, **fields["table"])
    if type(table.applied_id) is not int or table.applied_id < base.id:
        raise ValueError("the state is older than the base")
    settings = Settings.from_plain(fields["first_settings"])
    Settings.from_plain(table.settings)
    start = StartState(
        StartStatus.STARTED, (), digest, first.digest(), first.to_plain(), settings.to_plain()
    )
    return base, table, start
