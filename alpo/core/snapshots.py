"""The replicated state as it is saved, and as it is sent to a newcomer (rules.md#replicated-state)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .disk import Base, Image, SessionRow, StartState, TableSave
from .members import MemberList, StartStatus
from .settings import Settings

if TYPE_CHECKING:
    from .replica import Replica


def table_save(r: Replica, base: Base | None) -> TableSave | None:
    """Now and then the replicated state goes to disk, as of the guaranteed mark; before what it needs is cleaned
    (rules.md#replicated-state), and for a server that is to begin from it."""
    wanted = r.applied_id < r.save_upto_id <= r.guaranteed_id
    if not wanted and not (r.out.has_write or base is not None):
        return None
    lag = r.guaranteed_id - r.applied_id
    if not wanted and lag < r.cfg.table_save_entries and (base is None or base.id <= r.applied_id):
        return None
    changed, ended, horizon_ms = r.sessions.rows_at(r.guaranteed_id)
    r.sessions.saved(r.guaranteed_id)
    r.applied_id = r.guaranteed_id
    members_id, members = r.members.at(r.guaranteed_id)
    return TableSave(
        r.applied_id, horizon_ms, changed, ended, members.to_plain(), members_id,
        r.sessions.settings_at(r.guaranteed_id).to_plain(), r.cleaning.trim_lsn, r.cursors.at(r.guaranteed_id),
    )


def split_rows(rows: list[SessionRow], slots_max: int) -> list[tuple[SessionRow, ...]]:
    """Sessions in parts of so many remembered serials; one part at least, empty if there are none."""
    parts: list[list[SessionRow]] = [[]]
    size = 0
    for row in rows:
        cost = 4 + len(row.slots)
        if parts[-1] and size + cost > slots_max:
            parts.append([])
            size = 0
        parts[-1].append(row)
        size += cost
    return [tuple(part) for part in parts]


def image_head(image: Image, first_list: object, settings: object) -> str:
    """All of an image but its sessions, as JSON text; with the first list and first settings of the cluster."""
    table = image.table._asdict()
    for name in ("changed", "ended", "ahead"):
        del table[name]
    fields = {"base": list(image.base), "table": table, "first_list": first_list, "first_settings": settings}
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def parse_head(text: str, rows: list[SessionRow], digest: bytes) -> tuple[Base, TableSave, StartState]:
    """The inverse of `image_head`. Raises ValueError, TypeError or KeyError for anything of another shape."""
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
