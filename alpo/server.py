"""The server that a configuration describes: its logs, its store, its port, and what ends it.

`run` is what `alpod` does once its command line is read (`alpo.daemon`, which imports this module only then).
"""

from __future__ import annotations

import argparse
import functools
import gc
import os
import resource
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import structlog
import trio

from alpo.addresses import parse_address
from alpo.config import Config, ConfigError
from alpo.config_sources import Loaded, as_toml, differences, load_config, read_file, unknown_variables
from alpo.core.config import ReplicaConfig
from alpo.core.ready import Alarm, StoreLost
from alpo.errors import TlsError
from alpo.node.admission import LIVE_LIMITS, DiskCare, Limits, fitted
from alpo.node.driver import wall_ms
from alpo.node.event_log import is_console, set_up_logs
from alpo.node.host import CannotReload, Fresh, Host
from alpo.node.hosted import LogsCare, Shelf
from alpo.node.listener import ListenError, open_listener
from alpo.node.log_sink import reason, told_on_stdout
from alpo.node.retention import Retention
from alpo.node.security import Security, TlsConfig
from alpo.node.signals import Signals
from alpo.storage import schema
from alpo.storage.boot import has_lost, set_aside
from alpo.storage.events import event_row
from alpo.storage.hosted import find_stores
from alpo.storage.interface import DamagedStore, StoreError
from alpo.storage.scrub import ScrubMark
from alpo.storage.sqlite import SqliteStore
from alpo.storage.writer import Writer
from alpo.tls import Tls

log = structlog.get_logger()

#: Files that a server may have open if the system sets no limit of its own.
_FILES_MAX = 65_536
#: Garbage collection thresholds: entries are tens of thousands of tuples, which the collector must not traverse all the
#: time. Nothing in the hot path makes cycles.
_GC_THRESHOLDS = (50_000, 20, 50)
#: Longest time that the writer's thread waits for the GIL while the Trio thread computes.
_SWITCH_INTERVAL_S = 0.0005

def run(words: Sequence[str], flags: dict[str, Any]) -> NoReturn:
    """Run the server that the flags and the environment describe; ``words``: the command line. Always ends with
    SystemExit, but for a bug."""
    check, path = flags.pop("check_config"), flags.pop("config")
    try:
        loaded = load_config(path, flags, os.environ)
    except ConfigError as error:
        refuse(words, error)
    config = loaded.config
    try:
        security = security_of(config)
    except TlsError as error:
        _end("console" if check else config.log_format, "cannot_run", error, 2)
    if check:
        with told_on_stdout():
            _show(loaded)
    set_up_logs(config.log_format, config.log_level, config.id)
    if unknown := unknown_variables(os.environ):
        log.warning("unknown_environment", variables=unknown)
    if config.remark:
        log.warning("loopback_among_others", why=config.remark)
    try:
        _run_through_losses(config, Reloader(path, flags, config), security)
    except Alarm as error:
        _end(config.log_format, "invariant_broken", error, 1)
    except (StoreError, ListenError, OSError, BaseExceptionGroup) as raised:
        planned = _planned(raised)
        if planned is None:
            raise
        _end(config.log_format, "cannot_run", planned, 1)
    sys.exit(0)


def refuse(words: Sequence[str], error: Exception) -> NoReturn:
    """Say what is wrong with the configuration, in the form that it asks for, and exit."""
    _end("console" if "--check-config" in words else _format_wanted(words), "cannot_run", error, 2)


def _planned(raised: BaseException) -> Exception | None:
    """The first error if all errors in ``raised`` are refusals by the disk or the system, for the operator; None if
    there is a bug, whose traceback is wanted."""
    if isinstance(raised, BaseExceptionGroup):
        inner = [_planned(one) for one in raised.exceptions]
        return None if None in inner else inner[0]
    return raised if isinstance(raised, StoreError | ListenError | OSError) else None


def _show(loaded: Loaded) -> NoReturn:
    """Print the configuration in force, for --check-config, and exit."""
    print(as_toml(loaded), end="")
    unknown = unknown_variables(os.environ)
    if unknown:
        print(f"alpod: not heeded, no key of alpod's: {', '.join(unknown)}", file=sys.stderr)
    if loaded.config.remark:
        print(f"alpod: {loaded.config.remark}", file=sys.stderr)
    sys.exit(0)


def _format_wanted(words: Sequence[str]) -> str:
    """The log format that a wrong configuration asks for, as far as it can be read; else "auto"."""
    early = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    early.add_argument("--log-format", default="")
    early.add_argument("--config", type=Path)
    try:
        given, _ = early.parse_known_args(words)
        return given.log_format or os.environ.get("ALPOD_LOG_FORMAT") or str(read_file(given.config).get("log_format"))
    except (argparse.ArgumentError, ConfigError):
        return "auto"


def _end(log_format: str, event: str, error: Exception, exit_code: int) -> NoReturn:
    """Report the error in one line, as text or JSON like other lines, and exit."""
    why = reason(error)
    known = log_format if log_format in ("console", "json") else "auto"
    if is_console(known):
        broken = "an invariant is broken, the server has stopped itself: " if event == "invariant_broken" else ""
        print(f"alpod: {broken}{why}", file=sys.stderr, flush=True)
    else:
        set_up_logs(known)
        log.critical(event, why=why, exit_code=exit_code)
    sys.exit(exit_code)


class Reloader:
    """Reads the configuration again at SIGHUP: the same file, variables and flags."""

    def __init__(self, path: Path | None, flags: Mapping[str, Any], config: Config) -> None:
        self._path = path
        self._flags = flags
        self._started_with = self._in_force = config

    def __call__(self) -> Fresh:
        """Load the configuration and compare it with the one in force. Raises `CannotReload`."""
        try:
            config = load_config(self._path, self._flags, os.environ).config
            security = security_of(config)
        except (ConfigError, TlsError) as error:
            raise CannotReload(str(error)) from error
        changed = [key for key in differences(self._in_force, config) if _is_live(key)]
        needs_restart = [key for key in differences(self._started_with, config) if not _is_live(key)]
        self._in_force = config
        return Fresh(
            limits_of(config), retention_of(config), config.log_level, security, changed, needs_restart,
            logs_care(config),
        )


def _is_live(key: str) -> bool:
    """True if a reload puts this key into force."""
    table, _, name = key.partition(".")
    return key == "log_level" or table in ("retention", "logs", "tls") or (table == "limits" and name in LIVE_LIMITS)


def _run_through_losses(config: Config, reload: Reloader, security: Security) -> None:
    """Run the server. A lost store is set aside, once a process, and the server runs again as another member (R30,
    R31).

    Not if no other member could restore its log: then the store stays as it is, and the server ends.
    """
    raise_file_limit()
    signals = Signals()
    try:
        _run(config, reload, security, signals)
    except (DamagedStore, StoreLost) as error:
        if _is_alone(config):
            raise
        signals.goes_on()  # called first: what follows may take long on a slow disk
        aside = set_aside(config.data, datetime.now(UTC))
        log.critical("store_set_aside", why=str(error), where=str(aside))
        _run(config, reload, security, signals)


def _run(config: Config, reload: Reloader, security: Security, signals: Signals) -> None:
    with ExitStack() as stack:
        store, listening = stack.enter_context(_claimed(config))
        visitors = stack.enter_context(open_listener(*parse_address(config.http))) if config.http else None
        me = store.boot().me
        host = Host(
            replica_config(config, me), limits_of(config), store,
            lambda done, failed: Writer(store, done, failed), retention_of(config), disk_care(config, config.data),
            security, shelf_of(config),
        )
        gc.set_threshold(*_GC_THRESHOLDS)
        gc.freeze()
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        trio.run(functools.partial(
            host.run, listening, signals=signals, reload=reload, visitors=visitors, visitors_need=config.http_needs,
        ))


@contextmanager
def _claimed(config: Config) -> Iterator[tuple[SqliteStore, socket.socket]]:
    """Open the store and the port. Raises `StoreError`, `ListenError`.

    No store is made for a server that cannot listen. An existing store is opened first: a server that is started twice
    is told which process holds its directory, and that says more than that its port is in use.
    """
    with ExitStack() as stack:
        listening = None
        if not _has_store(config.data):
            listening = stack.enter_context(open_listener(*config.listen_address))
        store = SqliteStore.open(config.data, config.id, cluster=config.cluster_id or None)
        stack.callback(store.close)
        store.grow_wal()
        try:
            yield store, listening or stack.enter_context(open_listener(*config.listen_address))
        except (ListenError, OSError) as error:
            _keep(store, reason(error))
            raise


def _keep(store: SqliteStore, why: str) -> None:
    """Have the store keep why the server cannot run, for `alpo explain`; once if that is so at one start after the
    other."""
    row = event_row(wall_ms(), "cannot_run", {"why": why, "exit_code": 1})
    with suppress(StoreError):
        last = store.read_events(0, 1)
        if not last or (last[-1].name, last[-1].fields) != (row.name, row.fields):
            store.note([row])


def _has_store(directory: Path) -> bool:
    try:
        return schema.exists(directory)
    except OSError:  # no permission to look: opening the store will say so
        return False


def raise_file_limit() -> None:
    """Raise the limit of open files as far as the system allows: every connection is a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_MAX if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def replica_config(config: Config, me: Any) -> ReplicaConfig:
    """The core's configuration; ``me`` (an `Identity`) is from the store."""
    return ReplicaConfig(
        me=me,
        address=config.advertised,
        configured=config.configured,
        settings=config.settings_core,
        auto_init=config.auto_init,
        refused_means_dead=config.refused_means_dead,
        joining=config.join is not None or has_lost(config.data),
        cluster_wanted=config.cluster_id,
        priority=config.own_line.priority,
        heartbeat_s=config.timers.heartbeat_s,
        election_timeout_s=config.timers.election_timeout_s,
        stagger_s=config.stagger_s,
        disk_timeout_s=config.disk_timeout_s,
        tail_bytes_max=config.limits.tail_bytes_max,
        peer_inflight_bytes_max=config.limits.peer_inflight_bytes_max,
    )


def disk_care(config: Config, folder: Path) -> DiskCare:
    """The checks to make of the store in ``folder``."""
    given = config.storage
    return DiskCare(given.low_water_bytes, given.scrub_bytes_per_s, ScrubMark(folder), given.scrub_pass_s)


def shelf_of(config: Config) -> Shelf:
    """The stores of the logs besides the first; the data directory's lock is held."""
    alone = _is_alone(config)
    found, troubles = find_stores(config.data, config.id, alone=alone)
    care = functools.partial(disk_care, config)
    return Shelf(config.data, config.id, found, troubles, care, logs_care(config), alone)


def logs_care(config: Config) -> LogsCare:
    """The part of the configuration about the logs besides the first."""
    return LogsCare(**config.logs.model_dump())


def _is_alone(config: Config) -> bool:
    """True if no other member could restore what this server holds."""
    return len(config.configured) == 1 and config.join is None


def limits_of(config: Config) -> Limits:
    """The node's bounds, lowered to what the limit of open files allows; a warning says so."""
    wanted = Limits(**{name: getattr(config.limits, name) for name in LIVE_LIMITS})
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return wanted
    limits = fitted(wanted, files, max(len(config.configured) - 1, 0))
    if limits is not wanted:
        log.warning(
            "few_files", files=files, clients=limits.client_connections_max, silent=limits.silent_connections_max,
            operators=limits.operator_connections_max, visitors=limits.visitor_connections_max,
        )
    return limits


def security_of(config: Config) -> Security:
    """The server's TLS. Raises `TlsError` if its files are wrong."""
    table = config.tls
    if table is None:
        return Security()
    tls = Tls(table.ca, table.cert, table.key, table.name, table.verify_hostname)
    return Security(TlsConfig(table.mode, tls, table.roles))


def retention_of(config: Config) -> Retention:
    """The retention policy."""
    return Retention(**config.retention.model_dump())
