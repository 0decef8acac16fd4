"""What a step's write saves besides entries: the replicated state (rules.md#replicated-state), and the base of a
cleaning (rules.md#hard-state, R19)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ready import Base, TableSave

if TYPE_CHECKING:
    from .replica import Replica


def take_base(r: Replica) -> Base | None:
    """What this step's write cleans, if anything."""
    base = r.cleaning.take_base()
    if base is not None:
        r.log.clean(base)
        if r.leadership is not None:
            r.leadership.cleaned(base.id)
        r.out.event("clean", upto_id=base.id, first_lsn=r.cleaning.first_lsn)
    return base


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
