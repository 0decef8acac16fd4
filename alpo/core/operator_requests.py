"""Operators' requests to a leader: outcomes, sessions, settings, cursors, trims, members, handovers (R20, R21, R25,
rules.md#settings, rules.md#cursors).

Laws:

* A request that reads state is judged only after a majority has answered a read round that began after the request
  (R25). So a deposed leader neither reports outdated state, nor refuses a request that a newer leader would grant.
* Such a request is judged at the head of the log, and its answer leaves only once the entries that the answer rests on
  are guaranteed (R21).
* A change of settings names the values that the asker believes are in force, a drop of a cursor may name its LSN. If
  other values are in force, nothing is changed: so the second of two operators learns of the first one's change. A
  change of settings, or a cursor's new LSN, that is in force already is answered as done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from . import settings as setting_rules
from .changes import Changes
from .cleaning import Cleaning
from .entries import Kind, json_body
from .machine.cursors import CURSORS_MAX, NAME_WANTED, drop_body, set_body, trim_body, valid_cursor
from .machine.verdicts import Refuse
from .replication import Replication
from .requests import (
    ChangeMember,
    ChangeSettings,
    Code,
    CursorIs,
    CursorsAre,
    DropCursor,
    HandedOver,
    ListCursors,
    ListSessions,
    Origin,
    Outcome,
    Sessions,
    SetCursor,
    SettingsAre,
    ShowSettings,
    Told,
    Transfer,
    Trim,
    Trimmed,
)
from .serving import Asking, Reads, Serving
from .shared import Shared


class OperatorRequests:
    """Operators' requests in one reign: those that need no read round, and those that `Reads` hands back after one."""

    def __init__(
        self, shared: Shared, replication: Replication, serving: Serving, reads: Reads, changes: Changes,
        cleaning: Cleaning,
    ) -> None:
        self._r = shared
        self._replication = replication
        self._serving = serving
        self._reads = reads
        self._changes = changes
        self._cleaning = cleaning

    def judge(self, request: Asking) -> None:
        """Answer ``request``, for which a read round has confirmed this leader."""
        if self._r.serves:
            _JUDGES[type(request)](self, request)
        else:  # handing over: the next leader decides
            self._r.not_leader(request)

    def _refuse(self, origin: Origin, code: Code, detail: str) -> None:
        """Refuse a request, once the log up to its head, by which it was judged, is guaranteed."""
        self._serving.refuse(origin, Refuse(0, 0, code, 0, self._r.log.last_id), detail)

    # -- outcomes (R21) ---------------------------------------------------------------------------------

    def _outcome(self, request: Outcome) -> None:
        """Answer with the fate of an append, once the entries that it follows from are guaranteed."""
        r = self._r
        verdict = r.sessions.judge_outcome(request, r.log.last_id + 1)
        if isinstance(verdict, Refuse):
            self._serving.refuse(request.origin, verdict)
        else:
            told = Told(request.origin, verdict.fate, verdict.lsn, verdict.birth)
            self._serving.answer(told, verdict.rests_on, taken=False)

    def _list_sessions(self, request: ListSessions) -> None:
        r = self._r
        reply = Sessions(request.origin, r.sessions.snapshot_rows(), r.sessions.horizon_ms)
        self._serving.answer(reply, r.log.last_id, taken=False)

    # -- members (R27, R28) -----------------------------------------------------------------------------

    def change_member(self, request: ChangeMember) -> None:
        """Take an operator's change of the member list; `Changes` answers it."""
        if self._r.serves:
            self._changes.request(request)
        else:
            self._r.not_leader(request)

    def _change_member(self, request: ChangeMember) -> None:
        """Answer a member change that was found in force already before the read round."""
        self._changes.request(request, confirmed=True)

    def transfer(self, request: Transfer) -> None:
        """Begin a handover that an operator asks for, or refuse it and say what is wrong."""
        r = self._r
        member = r.members.latest.get(request.target)
        if not r.serves:
            r.not_leader(request)
        elif request.target == r.me.id:
            self._reads.ask(request)  # a leader may say that it leads once a read round has confirmed it (R25)
        elif member is None or not r.members.latest.is_voter(member.identity):
            r.out.refuse(request.origin, Code.CANNOT_CHANGE, detail=f"server {request.target} is not a voting member")
        else:
            r.hand_over(request.target, request.origin)

    def _transfer(self, request: Transfer) -> None:
        """Answer a transfer to this server, which leads already."""
        self._r.out.reply(HandedOver(request.origin, self._r.me.id, self._r.term))

    # -- settings (rules.md#settings) -------------------------------------------------------------------

    def _show_settings(self, request: ShowSettings) -> None:
        r = self._r
        self._serving.answer(SettingsAre(request.origin, r.settings.values()), r.log.last_id, taken=False)

    def _change_settings(self, request: ChangeSettings) -> None:
        r, now = self._r, self._r.settings.values()
        unknown = [name for name, _, _ in request.changes if name not in now]
        if unknown or not request.changes:
            names = f"no setting {', '.join(unknown)}" if unknown else "no setting is named"
            return self._refuse(request.origin, Code.INVALID, f"{names}; there are {', '.join(now)}")
        if all(now[name] == wanted for name, _, wanted in request.changes):
            return self._show_settings(ShowSettings(request.origin))
        others = [(name, old) for name, old, wanted in request.changes if now[name] not in (old, wanted)]
        if others:
            said = ", ".join(f"{name} is {now[name]} by now, not {old}" for name, old in others)
            return self._refuse(request.origin, Code.CHANGED, said)
        wanted = replace(r.settings, **{name: value for name, _, value in request.changes})
        why = setting_rules.problem(wanted)
        if not why and wanted.names_max < min(now["names_max"], r.sessions.names):
            why = f"names_max = {wanted.names_max}: {r.sessions.names} names are open; drop some first"
        if why:
            return self._refuse(request.origin, Code.INVALID, why)
        entry = self._replication.append_special(Kind.SETTINGS, json_body(**wanted.to_plain()))
        self._serving.answer_once_guaranteed(SettingsAre(request.origin, wanted.values()), entry.id)

    # -- cursors ----------------------------------------------------------------------------------------

    def _set_cursor(self, request: SetCursor) -> None:
        r, cursors = self._r, self._r.cursors.now
        first_lsn = self._cleaning.head_first_lsn
        if not valid_cursor(request.name):
            return self._refuse(request.origin, Code.INVALID, NAME_WANTED)
        if not first_lsn <= request.lsn <= r.log.next_lsn:
            return self._refuse(request.origin, Code.OUT_OF_RANGE, f"{first_lsn},{r.log.next_lsn - 1}")
        if request.name not in cursors and len(cursors) >= CURSORS_MAX:
            return self._refuse(request.origin, Code.TOO_MANY_CURSORS, f"there are {len(cursors)} cursors already")
        reply = CursorIs(request.origin, request.name, request.lsn)
        if cursors.get(request.name) == request.lsn:
            return self._serving.answer(reply, r.log.last_id, taken=True)
        entry = self._replication.append_special(Kind.CURSOR, set_body(request.name, request.lsn))
        self._serving.answer_once_guaranteed(reply, entry.id)

    def _drop_cursor(self, request: DropCursor) -> None:
        lsn = self._r.cursors.now.get(request.name)
        if lsn is None or request.lsn not in (0, lsn):
            there = f"the cursor {request.name} is at LSN {lsn}" if lsn else f"there is no cursor {request.name}"
            return self._refuse(request.origin, Code.NO_CURSOR, there)
        entry = self._replication.append_special(Kind.CURSOR, drop_body(request.name, request.why))
        self._serving.answer_once_guaranteed(CursorIs(request.origin, request.name, lsn), entry.id)

    def _list_cursors(self, request: ListCursors) -> None:
        r = self._r
        rows = tuple(sorted(r.cursors.now.items()))
        self._serving.answer(CursorsAre(request.origin, rows), r.log.last_id, taken=False)

    # -- trims (R20) ------------------------------------------------------------------------------------

    def trim(self, request: Trim) -> None:
        """Answer a request to trim: append a TRIM entry, or refuse."""
        r = self._r
        if not r.serves:
            r.not_leader(request)
        elif not 0 < request.before_lsn <= r.log.next_lsn:
            detail = f"{self._cleaning.first_lsn},{r.log.next_lsn - 1}"
            r.out.refuse(request.origin, Code.OUT_OF_RANGE, detail=detail)
        elif not request.force and r.cursors.behind(request.before_lsn):
            self._reads.ask(request)  # judged after a read round: a deposed leader may hold a cursor that is gone
        else:
            entry = self._replication.append_special(Kind.TRIM, trim_body(request.before_lsn))
            first_lsn = self._cleaning.head_first_lsn  # an earlier trim may have gone further
            self._serving.answer_once_guaranteed(Trimmed(request.origin, first_lsn), entry.id)

    def _trim(self, request: Trim) -> None:
        """Check once more a trim that a cursor blocked when it was asked for."""
        behind = self._r.cursors.behind(request.before_lsn)
        if not behind:
            return self.trim(request)
        lsn, name = behind[0]
        others = f" (and {len(behind) - 1} more)" if len(behind) > 1 else ""
        self._refuse(request.origin, Code.CURSOR_HOLDS, f"the cursor {name} needs LSN {lsn} and what follows{others}")


_JUDGES: dict[type, Callable[[OperatorRequests, Any], None]] = {
    Outcome: lambda r, each: r._outcome(each),
    ListSessions: lambda r, each: r._list_sessions(each),
    ChangeMember: lambda r, each: r._change_member(each),
    Transfer: lambda r, each: r._transfer(each),
    ShowSettings: lambda r, each: r._show_settings(each),
    ChangeSettings: lambda r, each: r._change_settings(each),
    SetCursor: lambda r, each: r._set_cursor(each),
    DropCursor: lambda r, each: r._drop_cursor(each),
    ListCursors: lambda r, each: r._list_cursors(each),
    Trim: lambda r, each: r._trim(each),
}
