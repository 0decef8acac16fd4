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
from .directory import (
    LOG_NAME_WANTED,
    LOGS_MAX,
    NONCE_BYTES,
    LogOptions,
    NamedLog,
    create_body,
    delete_body,
    found_body,
    options_body,
    rename_body,
    valid_log,
)
from .entries import INT_MAX, Kind, json_body
from .machine.cursors import CURSORS_MAX, NAME_WANTED, drop_body, set_body, trim_body, valid_cursor
from .machine.verdicts import Refuse
from .members import MemberList
from .replication import Replication
from .requests import (
    ChangeMember,
    ChangeSettings,
    Code,
    CreateLog,
    CursorIs,
    CursorsAre,
    DeleteLog,
    DropCursor,
    FoundLog,
    HandedOver,
    ListCursors,
    ListLogs,
    ListSessions,
    LogDeleted,
    LogIs,
    LogsAre,
    Origin,
    Outcome,
    RenameLog,
    Sessions,
    SetCursor,
    SetLog,
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

    # -- logs (rules.md#logs) ---------------------------------------------------------------------------

    def _create_log(self, request: CreateLog) -> None:
        r, there = self._r, self._r.directory.head
        made = next((log for log in there.logs if log.nonce == request.nonce), None)
        if made is not None:
            return self._serving.answer(LogIs(request.origin, made), r.log.last_id, taken=True)
        if any(log.nonce == request.nonce for log in there.deleted):
            return self._refuse(request.origin, Code.NO_SUCH_LOG, f"the log {request.name} was deleted since")
        why = self._no_log(request)
        if why:
            return self._refuse(request.origin, Code.INVALID, why)
        if there.named(request.name) is not None:
            return self._refuse(request.origin, Code.LOG_EXISTS, f"there is a log {request.name} already")
        if len(there.logs) >= LOGS_MAX:
            return self._refuse(request.origin, Code.TOO_MANY_LOGS, f"there are {LOGS_MAX} logs already")
        settings = setting_rules.Settings.from_plain(request.settings).to_plain()
        log = NamedLog(there.next_number, request.name, request.nonce, request.options, settings)
        entry = self._replication.append_special(Kind.LOGS, create_body(log))
        self._serving.answer_once_guaranteed(LogIs(request.origin, log), entry.id)

    def _no_log(self, request: CreateLog) -> str:
        """The reason why a log can never be as it is asked for, in words; "" if it can."""
        if not self._r.cfg.first_log:
            return "logs are created in the cluster's first log"
        if not valid_log(request.name):
            return LOG_NAME_WANTED
        if len(request.nonce) != NONCE_BYTES:
            return f"a nonce is {NONCE_BYTES} bytes"
        try:
            settings = setting_rules.Settings.from_plain(request.settings)
        except ValueError as error:
            return str(error)
        return setting_rules.problem(settings) or self._no_options(request.options)

    def _no_options(self, options: LogOptions) -> str:
        if any(not 0 <= value <= INT_MAX for value in options):
            return "an option of a log is an integer from 0 on"
        lead = self._r.members.latest.get(options.lead)
        if options.lead and (lead is None or not self._r.members.latest.is_voter(lead.identity)):
            return f"server {options.lead} is not a voting member, and cannot lead a log"
        return ""

    def found_log(self, request: FoundLog) -> None:
        """Found a log, if it waits for that and this server may decide it."""
        r, log = self._r, self._r.directory.head.get(request.number)
        if not r.serves or log is None or log.first_list is not None or r.members.latest_id > r.guaranteed_id:
            return
        first, ours = MemberList.from_plain(request.members), r.members.latest
        if {m.id for m in first.members} <= {m.id for m in ours.voters} and len(first.voters) >= ours.majority:
            self._replication.append_special(Kind.LOGS, found_body(log.number, first))

    def _named_log(self, request: SetLog | RenameLog | DeleteLog) -> NamedLog | None:
        """The log that a request names; None if there is none, which is refused."""
        log = self._r.directory.head.named(request.name)
        if log is None:
            self._refuse(request.origin, Code.NO_SUCH_LOG, f"there is no log {request.name}")
        return log

    def _set_log(self, request: SetLog) -> None:
        log = self._named_log(request)
        if log is None:
            return
        unknown = [name for name, _ in request.changes if name not in LogOptions._fields]
        options = log.options if unknown else log.options._replace(**dict(request.changes))
        judged = options if any(name == "lead" for name, _ in request.changes) else options._replace(lead=0)
        why = f"no option {', '.join(unknown)} of a log" if unknown else self._no_options(judged)
        if why:
            return self._refuse(request.origin, Code.INVALID, why)
        self._change_log(request.origin, log, log._replace(options=options), options_body(log.number, options))

    def _rename_log(self, request: RenameLog) -> None:
        log = self._named_log(request)
        if log is None:
            return
        if not valid_log(request.new):
            return self._refuse(request.origin, Code.INVALID, LOG_NAME_WANTED)
        if self._r.directory.head.named(request.new) not in (None, log):
            return self._refuse(request.origin, Code.LOG_EXISTS, f"there is a log {request.new} already")
        self._change_log(request.origin, log, log._replace(name=request.new), rename_body(log.number, request.new))

    def _change_log(self, origin: Origin, log: NamedLog, wanted: NamedLog, body: bytes) -> None:
        """Make ``wanted`` of a log by a LOGS entry of this body; answer at once if it is so already."""
        if wanted == log:
            return self._serving.answer(LogIs(origin, log), self._r.log.last_id, taken=True)
        entry = self._replication.append_special(Kind.LOGS, body)
        self._serving.answer_once_guaranteed(LogIs(origin, wanted), entry.id)

    def _delete_log(self, request: DeleteLog) -> None:
        r = self._r
        gone = next((log for log in r.directory.head.deleted if log.ended == request.nonce), None)
        if gone is not None:
            return self._serving.answer(LogDeleted(request.origin, gone), r.log.last_id, taken=True)
        log = self._named_log(request)
        if log is None:
            return
        if len(request.nonce) != NONCE_BYTES:
            return self._refuse(request.origin, Code.INVALID, f"a nonce is {NONCE_BYTES} bytes")
        entry = self._replication.append_special(Kind.LOGS, delete_body(log.number, request.nonce))
        self._serving.answer_once_guaranteed(LogDeleted(request.origin, r.directory.head.deleted[-1]), entry.id)

    def _list_logs(self, request: ListLogs) -> None:
        r = self._r
        self._serving.answer(LogsAre(request.origin, r.directory.head), r.log.last_id, taken=False)


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
    CreateLog: lambda r, each: r._create_log(each),
    SetLog: lambda r, each: r._set_log(each),
    RenameLog: lambda r, each: r._rename_log(each),
    DeleteLog: lambda r, each: r._delete_log(each),
    ListLogs: lambda r, each: r._list_logs(each),
}
