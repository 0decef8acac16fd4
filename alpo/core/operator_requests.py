"""What is asked of a leader that a read round has just confirmed: outcomes, sessions, settings, cursors, and whether
what an operator wants is so already (R21, R25, rules.md#settings, rules.md#cursors).

Laws:

* Nothing here is judged before a majority has answered a round that began after the question (R25): no deposed leader
  tells what was true before its time, or refuses what a newer one would grant.
* It is judged at the head of the log, and leaves only once what it rests on is guaranteed (R21).
* A change names what the asker believes to be there now; if that is no longer so nothing is changed (of two operators
  the second is told of the first). One that is in force already is done: to ask again does no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import settings as setting_rules
from .cursors import CURSORS_MAX, drop_body, set_body, valid_cursor
from .entries import Kind, json_body
from .inputs import (
    ChangeMember,
    ChangeSettings,
    DropCursor,
    ListCursors,
    ListSessions,
    Origin,
    Outcome,
    SetCursor,
    ShowSettings,
    Transfer,
    Trim,
)
from .machine.verdicts import Refuse
from .ready import Code, CursorIs, CursorsAre, HandedOver, Refused, Sessions, SettingsAre, Told

if TYPE_CHECKING:
    from .replica import Replica


class Keeping:
    """Judges, for one replica, what has waited for a read round."""

    def __init__(self, replica: Replica) -> None:
        self._r = replica

    def judge(self, request: Any) -> None:
        """A round that began after ``request`` came has been answered: we lead."""
        if self._r.serving.serves:
            _JUDGES[type(request)](self, request)
        else:  # handing over: what is appended now would be the next leader's to tell
            self._r.serving.not_leader(request.origin)

    def _refuse(self, origin: Origin, code: Code, detail: str) -> None:
        """Resting on the head: on all that was looked at."""
        r = self._r
        r.serving.answer(Refused(origin, "", 0, 0, code, detail=detail), r.log.last_id, taken=False)

    # -- outcomes (R21) ---------------------------------------------------------------------------------

    def _outcome(self, request: Outcome) -> None:
        """"Not appended" rests on the head, as every verdict on what is not there."""
        r = self._r
        verdict = r.sessions.judge_outcome(request, r.log.last_id + 1)
        if isinstance(verdict, Refuse):
            r.serving.refuse(request.origin, verdict)
        else:
            told = Told(request.origin, verdict.fate, verdict.lsn, verdict.birth)
            r.serving.answer(told, verdict.rests_on, taken=False)

    def _list_sessions(self, request: ListSessions) -> None:
        r = self._r
        reply = Sessions(request.origin, r.sessions.snapshot_rows(), r.sessions.horizon_ms)
        r.serving.answer(reply, r.log.last_id, taken=False)

    # -- members (R27, R28) -----------------------------------------------------------------------------

    def _change_member(self, request: ChangeMember) -> None:
        """One that was found to be done already."""
        changes = self._r.changes
        assert changes is not None
        changes.request(request, confirmed=True)

    def _transfer(self, request: Transfer) -> None:
        """To ourselves, and we lead."""
        self._r.out.reply(HandedOver(request.origin, self._r.me.id, self._r.term))

    # -- settings (rules.md#settings) -------------------------------------------------------------------

    def _show_settings(self, request: ShowSettings) -> None:
        r = self._r
        r.serving.answer(SettingsAre(request.origin, r.settings.to_plain()), r.log.last_id, taken=False)

    def _change_settings(self, request: ChangeSettings) -> None:
        r, now = self._r, self._r.settings.to_plain()
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
        entry = r.append_special(Kind.SETTINGS, json_body(**wanted.to_plain()))
        r.serving.answer_once_guaranteed(SettingsAre(request.origin, wanted.to_plain()), entry.id)

    # -- cursors ----------------------------------------------------------------------------------------

    def _set_cursor(self, request: SetCursor) -> None:
        r, cursors = self._r, self._r.cursors.now
        first_lsn = r.cleaning.head_first_lsn
        if not valid_cursor(request.name):
            return self._refuse(request.origin, Code.INVALID, "a cursor's name is 1 to 128 bytes of UTF-8")
        if not first_lsn <= request.lsn <= r.log.next_lsn:
            return self._refuse(request.origin, Code.OUT_OF_RANGE, f"{first_lsn},{r.log.next_lsn - 1}")
        if request.name not in cursors and len(cursors) >= CURSORS_MAX:
            return self._refuse(request.origin, Code.TOO_MANY_CURSORS, f"there are {len(cursors)} cursors already")
        reply = CursorIs(request.origin, request.name, request.lsn)
        if cursors.get(request.name) == request.lsn:
            return r.serving.answer(reply, r.log.last_id, taken=True)
        entry = r.append_special(Kind.CURSOR, set_body(request.name, request.lsn))
        r.serving.answer_once_guaranteed(reply, entry.id)

    def _drop_cursor(self, request: DropCursor) -> None:
        r, lsn = self._r, self._r.cursors.now.get(request.name)
        if lsn is None or request.lsn not in (0, lsn):
            there = f"the cursor {request.name} is at LSN {lsn}" if lsn else f"there is no cursor {request.name}"
            return self._refuse(request.origin, Code.NO_CURSOR, there)
        entry = r.append_special(Kind.CURSOR, drop_body(request.name, request.why))
        r.serving.answer_once_guaranteed(CursorIs(request.origin, request.name, lsn), entry.id)

    def _list_cursors(self, request: ListCursors) -> None:
        r = self._r
        rows = tuple(sorted(r.cursors.now.items()))
        r.serving.answer(CursorsAre(request.origin, rows), r.log.last_id, taken=False)

    def _trim(self, request: Trim) -> None:
        """One that was found to take what a cursor needs; perhaps the cursor has moved on."""
        r, behind = self._r, self._r.cursors.behind(request.before_lsn)
        if not behind:
            return r.cleaning.trim(request)
        lsn, name = behind[0]
        others = f" (and {len(behind) - 1} more)" if len(behind) > 1 else ""
        self._refuse(request.origin, Code.CURSOR_HOLDS, f"the cursor {name} needs LSN {lsn} and what follows{others}")


_JUDGES: dict[type, Callable[[Keeping, Any], None]] = {
    Outcome: lambda keeping, each: keeping._outcome(each),
    ListSessions: lambda keeping, each: keeping._list_sessions(each),
    ChangeMember: lambda keeping, each: keeping._change_member(each),
    Transfer: lambda keeping, each: keeping._transfer(each),
    ShowSettings: lambda keeping, each: keeping._show_settings(each),
    ChangeSettings: lambda keeping, each: keeping._change_settings(each),
    SetCursor: lambda keeping, each: keeping._set_cursor(each),
    DropCursor: lambda keeping, each: keeping._drop_cursor(each),
    ListCursors: lambda keeping, each: keeping._list_cursors(each),
    Trim: lambda keeping, each: keeping._trim(each),
}
