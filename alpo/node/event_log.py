"""Reports of a server about itself: log lines, events kept on disk, and its state for systemd.

`EVENTS` lists all events with level and meaning; docs/generated/events.md prints it. Log lines go to stderr (in alpod a
`LogSink`): readable on a terminal, JSON otherwise, times in UTC (RFC 3339, with ms). Laws of the events kept on disk,
so that a server that repeats itself does not push out its history:

* Of equal events (same name and `_KEY` fields) a few a minute are kept, always including the first.
* Of one name at most `_NAME_MAX` a minute are kept, however they differ: clients choose the names of cursors.
* The next event kept says in ``times`` how many were left out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections import OrderedDict
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any

import structlog
import trio

from .log_sink import LEVELS, LogSink

#: Event -> (level, meaning). debug: many in an ordinary hour; info: the ordinary course; warning: look when there is
#: time; error: something is broken and the server continues; critical: the server ends, or has lost its store.
EVENTS: dict[str, tuple[str, str]] = {
    # -- starting and stopping
    "cannot_run": ("critical", "it ends at once with `exit_code`: `why`"),
    "serving": ("info", "it listens, and has read its log; `status` as in `alpo status`, `build` as in `alpo version`"),
    "stopping": ("info", "it was told to stop"),
    "stopped": ("info", "it has stopped; `in_time` false: something in flight was given up after 5 s"),
    "disk_left": ("warning", "it ends without waiting any longer for its disk; nothing that was acknowledged is lost"),
    "stopping_itself": ("critical", "it cannot go on, and ends: `why`"),
    "invariant_broken": ("critical", "it has stopped itself rather than carry on: keep its data directory"),
    "store_set_aside": ("critical", "its store is damaged or was put back: moved to `where`, and it begins anew"),
    # -- logs besides the first, by their `number`
    "log_runs": ("info", "a log has begun to run here: its `name` at the time, `last_id` in its store"),
    "log_failed": ("error", "a log cannot run here, or its store can be neither made nor moved: `why`"),
    "log_store_set_aside": ("critical", "a log's store is damaged (`why`): moved to `where`; another takes its place"),
    "log_store_moved": ("info", "a log was deleted, or its store is none any more: the store was moved to `to`"),
    "deleted_log_removed": ("info", "the store of a deleted log was kept for `keep_deleted_s`: `folder` is removed"),
    "log_store_ignored": ("warning", "a store lies there that cannot be this cluster's log: `why`; it is left alone"),
    "reloaded": ("info", "SIGHUP: `changed` is in force, `needs_restart` is not"),
    "reload_failed": ("error", "SIGHUP: the configuration is wrong (`why`), and the one before stays in force"),
    "unknown_environment": ("warning", "environment variables that begin with ALPOD_ and are no key of alpod's"),
    "few_files": (
        "warning", "the limit of open `files` is too low for the bounds on connections, which are lowered: `clients`, "
        "`silent` ones, `operators`' and other servers', `visitors` of HTTP; raise it (LimitNOFILE, ulimit -n)"
    ),
    "no_threads": (
        "warning", "the system lets it start no thread (`why`; see TasksMax, pids.max): what needs one waits"
    ),
    "loopback_among_others": ("warning", "the servers' addresses in the configuration do not fit together: `why`"),
    "log_lines_dropped": ("warning", "so many `lines` of this log are missing here: its reader did not take them"),
    # -- the first start and membership
    "first_start_waits": ("warning", "it takes no part yet: `why`, and of which `member`"),
    "starting": ("info", "all configured servers have answered, and agree"),
    "start_map_dropped": ("info", "the configured list was changed before the first start was done; it begins anew"),
    "started": ("info", "it belongs to `cluster` from now on"),
    "member_change": ("info", "the leader writes a change of the member list: `member`, `role`, `before`"),
    "address_change": ("info", "the leader writes down the new address of `member`"),
    "gone": ("warning", "it was removed from the cluster: stop it once no log has it any more"),
    "retired": ("warning", "it was removed, or another disk has taken its place: stop it once no log has it any more"),
    "lost_disk": ("warning", "the leader finds `member` with another disk than the one listed, and takes it in anew"),
    "wrong_incarnation": ("warning", "`member` answers with another disk than the one listed"),
    "base_sent": ("info", "the leader sends `member` a snapshot, up to entry `base_id`"),
    "base_installed": ("info", "the log begins anew with a snapshot from the leader"),
    "base_refused": ("warning", "a snapshot was not taken: `why`"),
    # -- connections
    "peer_connected": ("info", "there is a full connection to `peer`"),
    "peer_lost": ("info", "the connection to `peer` has ended: `why`"),
    "peer_unreachable": (
        "warning", "no full connection to `peer` for ten election timeouts (a minute if it said that it was stopping):"
        " `why`; once an outage, and again when the reason is another; `peer_connected` ends it",
    ),
    "turned_away": (
        "warning", "`remote` was turned away: `why`, as another cluster or version, a wrong certificate, no words of"
        " this protocol, the same server id twice",
    ),
    "twice": (
        "error", "two processes run as `member`, at `addresses`: a copy of a directory, volume or machine was started;"
        " stop one of them",
    ),
    "handshake_left": ("debug", "the other side went away during the handshake of TLS: no harm, if it is seldom"),
    "operator": ("info", "`who` (a certificate's subject, or an address) asked for `what`, with `how`"),
    "no_right": ("warning", "a client's certificate does not allow what it asked for: `why`"),
    "tls_reloaded": ("info", "the certificates were read anew; `mode` is in force for new connections"),
    "tls_reload_failed": ("error", "the certificates are wrong (`why`), and those before stay in force"),
    "timers_differ": ("warning", "`peer` has other timers: make them equal"),
    "cannot_accept": ("error", "the system is out of files or memory: connections wait"),
    "page_failed": ("error", "a page over HTTP (`path`) cannot be made: `why`; nothing else is affected"),
    # -- elections
    "canvass": ("info", "it asks who would vote for it, having heard no leader for `silent_ms`"),
    "election_cycle_ended": ("info", "nobody won in time; it tries again"),
    "candidate": ("info", "it stands for election in `term`"),
    "vote": ("info", "it votes for `to` in `term`"),
    "leader_gone": ("info", "the process of `leader` is gone: its connections have ended, its host refuses new ones"),
    "deferred": ("info", "it makes way for `to`, which has the better claim"),
    "leader": ("info", "it leads `term`"),
    "following": ("info", "it follows `leader` in `term`"),
    "passive": ("info", "it leads no more"),
    "handing_over": ("info", "it hands leadership to `to`"),
    "leader_gives_up": ("warning", "it led, and its disk hangs (`why`), or an entry that others need is damaged there"),
    "leader_lost_majority": ("warning", "it led, and no majority answers it any more"),
    "second_leader": ("critical", "two servers claim to lead the same `term`: never to be seen; report it"),
    "expunge": ("info", "entries that were never guaranteed give way to the leader's"),
    # -- disk and store
    "log_ahead": (
        "warning", "entries are dated `by_ms` later than the members' clocks, which were ahead before: the log's clock"
        " goes on at half speed",
    ),
    "log_ahead_no_more": ("info", "the members' clocks have caught up with the log"),
    "clocks_leapt": (
        "error", "the members' clocks have leapt ahead by `by_ms`, and are not believed: set them right, or"
        " `alpo clock accept`",
    ),
    "clocks_leapt_no_more": ("info", "the members' clocks are believed again"),
    "slow_fsync": ("warning", "a commit or checkpoint took longer than a quarter of the election timeout"),
    "disk_hangs": (
        "warning", "a write has been under way for a quarter of the election timeout, and still is: `under_way_ms`",
    ),
    "disk_moves_again": ("info", "no write is under way for so long any more; the oldest took `took_ms`"),
    "low_on_space": ("warning", "the disk is about full: it takes no appends (`room` low) or nothing at all (none)"),
    "space_is_back": ("info", "there is room again"),
    "cannot_see_space": ("error", "the system does not say how full the disk is"),
    "read_failed": ("error", "the store cannot be read (of a damaged entry, `damage_found` tells): `why`"),
    "backup_failed": ("error", "a backup was broken off: `why`"),
    "damage_found": ("error", "entries on this disk are not what was written: `ids`"),
    "damage_mended": ("info", "entry `id` was written anew from the copy of another server"),
    "damage_gone": ("info", "no entry is known to be damaged any more"),
    "damage_cleaned_elsewhere": ("info", "a damaged entry was cleaned by the others: nobody needs it"),
    "cannot_send": ("error", "`peer` needs an entry that is damaged here"),
    "cannot_scrub": ("error", "the store cannot be read while it is checked: `why`"),
    "cannot_remember_scrub": ("warning", "how far the scrub has come cannot be written down: `why`"),
    "store_went_back": ("error", "the disk of `member` has forgotten what it had acknowledged"),
    "learner_went_back": ("warning", "the disk of `member`, still catching up, has forgotten some of it"),
    "diverged": ("error", "entries differ between servers though their checksums are right"),
    "diverged_no_more": ("info", "they do not differ any more, or were cleaned"),
    "cannot_compare": ("warning", "what is here cannot be compared with what `peer` holds: `why`"),
    "cannot_settle": ("info", "a third server could not be asked which of two copies is right: `why`"),
    # -- cleaning, cursors, settings
    "clean": ("debug", "entries up to `upto_id` were deleted"),
    "cannot_clean": ("error", "the store cannot be read while looking for what to clean: `why`"),
    "cleaning_waits": ("warning", "something that nobody needs to keep cannot be deleted: `why`"),
    "cleaning_goes_on": ("info", "nothing holds cleaning back any more"),
    "cursor_dropped": ("warning", "a cursor was dropped: `why` is `lag`, `operator` or `trim`"),
    "settings": ("info", "the replicated settings are these from now on"),
}

_threshold = logging.INFO


def level_of(event: str) -> int:
    """The level (a `logging` number) at which ``event`` is logged."""
    return logging.getLevelNamesMapping()[EVENTS.get(event, ("info", ""))[0].upper()]


def set_level(name: str) -> None:
    """Set the lowest level that is logged, one of `LEVELS`."""
    global _threshold
    _threshold = LEVELS[name]


def _at_least(_logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if logging.getLevelNamesMapping()[method.upper()] < _threshold:
        raise structlog.DropEvent
    return event


def _utc(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    event["time"] = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return event


def _bytes_as_hex(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, bytes):
            event[key] = value.hex()
    return event


def is_console(log_format: str) -> bool:
    """True if lines are for people. ``log_format``: "console", "json", or "auto" (console if stderr is a terminal)."""
    return log_format == "console" or (log_format == "auto" and sys.stderr.isatty())


def set_up_logs(log_format: str, level: str = "info", server_id: int | None = None) -> None:
    """Configure logging. ``log_format``: see `is_console`. Every line has ``server_id`` if it is given."""
    console = is_console(log_format)
    renderer: Any = (
        structlog.dev.ConsoleRenderer(timestamp_key="time", colors=sys.stderr.isatty())
        if console else structlog.processors.JSONRenderer(default=str)
    )
    set_level(level)
    processors = [
        _at_least,
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _utc,
        _bytes_as_hex,
        structlog.processors.dict_tracebacks if not console else _keep,
        renderer,
    ]
    wrapper = structlog.make_filtering_bound_logger(logging.DEBUG)
    structlog.configure(
        processors=processors,
        wrapper_class=wrapper,
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    of_server: dict[str, Any] = {} if server_id is None else {"server": server_id}
    structlog.contextvars.bind_contextvars(**of_server)
    if isinstance(sys.stderr, LogSink):
        # The sink asks for a line, which it writes itself, in its own thread, which has no context.
        log = structlog.wrap_logger(structlog.ReturnLogger(), processors, wrapper, **of_server)
        sys.stderr.notice = lambda lines: log.warning("log_lines_dropped", lines=lines)


def _keep(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return event


#: Fields that distinguish two events of one name.
_KEY = ("term", "member", "peer", "remote", "what", "cursor", "ids")
#: (number of equal events, ms): the default, and those for events that come with every bit of work.
_BUDGET = (3, 60_000)
_BUDGETS = {
    "clean": (1, 3_600_000), "slow_fsync": (1, 60_000), "address_change": (3, 600_000), "reloaded": (20, 60_000),
    "tls_reloaded": (20, 60_000), "peer_unreachable": (8, 60_000),  # one for each reason
}
_NAME_MAX = 30
#: Events that no crowd of others may keep out: the record of who did what.
_ALWAYS = frozenset({"operator"})
_KNOWN_MAX = 256


class _Kind:
    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.kept = 0
        self.left_out = 0


class Recorder:
    """Rate limiter of events. All times are ms of one clock."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[tuple[Any, ...], _Kind] = OrderedDict()

    def judge(self, name: str, fields: Mapping[str, Any], now_ms: int) -> Mapping[str, Any] | None:
        """The fields to keep; None to leave this event out."""
        if name in _ALWAYS:
            return fields
        most, span_ms = _BUDGETS.get(name, _BUDGET)
        same_name = self._kind((name,), now_ms, _BUDGET[1])
        if same_name.kept >= _NAME_MAX:
            same_name.left_out += 1
            return None
        same = self._kind((name, *(str(fields.get(part)) for part in _KEY)), now_ms, span_ms)
        if same.kept >= most:
            same.left_out += 1
            return None
        left_out = same_name.left_out + same.left_out
        for kind in (same_name, same):
            kind.kept += 1
            kind.left_out = 0
        return {**fields, "times": left_out + 1} if left_out else fields

    def _kind(self, key: tuple[Any, ...], now_ms: int, span_ms: int) -> _Kind:
        kind = self._kinds.setdefault(key, _Kind(now_ms))
        self._kinds.move_to_end(key)
        if len(self._kinds) > _KNOWN_MAX:
            self._kinds.popitem(last=False)
        if now_ms - kind.since_ms >= span_ms or now_ms < kind.since_ms:
            kind.since_ms, kind.kept = now_ms, 0
        return kind


def notify(*lines: str) -> None:
    """Send these assignments ("READY=1") as one message. Never blocks; no error if nobody listens."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.sendto("\n".join(lines).encode(), "\0" + path[1:] if path[0] == "@" else path)


async def feed_watchdog() -> None:
    """Tell systemd that the event loop turns, three times in the time after which it ends a server that does not; until
    cancelled. Without a watchdog, do nothing. The state of the writer does not matter: a restart does not mend a disk
    that hangs."""
    text, wanted_pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if text.isdecimal() and int(text) > 0 and wanted_pid in ("", str(os.getpid())):
        while True:
            notify("WATCHDOG=1")
            await trio.sleep(int(text) / 3e6)
