"""alpod: one ALPO server. Exit codes: 0 stopped by a signal; 1 it cannot run, or had to stop; 2 wrong configuration."""

from __future__ import annotations

import argparse
import functools
import gc
import resource
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
import trio

from alpo import __version__
from alpo.config import Config, ConfigError, load_config
from alpo.core.config import ReplicaConfig
from alpo.node.driver import Alarm, StoreLost
from alpo.node.lifecycle import Node
from alpo.node.limits import DiskCare, Limits
from alpo.node.listener import ListenError, open_listener
from alpo.node.logs import set_up_logs
from alpo.node.retention import Retention
from alpo.storage import schema
from alpo.storage.interface import DamagedStore, StoreError
from alpo.storage.lost import has_lost, set_aside
from alpo.storage.scrub import ScrubMark
from alpo.storage.sqlite import SqliteStore
from alpo.storage.writer import Writer

log = structlog.get_logger()

#: Files that a server may have open when the system sets no limit of its own.
_FILES_MAX = 65_536
#: Entries are tuples by the ten thousands: the collector must not go through them all the time. Nothing in the
#: hot path makes cycles.
_GC_THRESHOLDS = (50_000, 20, 50)
#: Longest time that the writer's thread waits for the interpreter while the Trio thread computes.
_SWITCH_INTERVAL_S = 0.0005

_EXAMPLES = """
examples:
  alpod --config config/alpod.toml
  alpod --id 1 --data /var/lib/alpo --listen 127.0.0.1:7100 \\
        --member 1=127.0.0.1:7100 --member 2=127.0.0.1:7101 --member 3=127.0.0.1:7102
  alpod --config config/alpod.toml --log-format json --no-auto-init
  alpod --id 4 --data /var/lib/alpo --listen 127.0.0.1:7103 --join 127.0.0.1:7100,127.0.0.1:7101

exit codes: 0 stopped by SIGTERM or SIGINT; 1 it cannot run (the reason is on stderr); 2 wrong configuration
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="alpod", description="One server of an ALPO cluster. Flags win over the file.", epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file; see config/alpod.example.toml")
    parser.add_argument("--id", type=int, metavar="N", help="this server's id, one of the members'")
    parser.add_argument("--data", metavar="DIR", help="where alpo.db is kept; made if missing")
    parser.add_argument("--listen", metavar="HOST:PORT", help="for clients and the other servers alike")
    parser.add_argument(
        "--advertise", metavar="HOST:PORT", help="where the others reach it, if not at --listen: behind NAT or a proxy"
    )
    parser.add_argument(
        "--member", action="append", metavar="ID=HOST:PORT",
        help="one for each server, this one too; only seeds the first start, then the list in the log wins",
    )
    parser.add_argument(
        "--join", metavar="HOST:PORT,…",
        help="instead of --member: a newcomer to the cluster there; it waits for `alpo member add`",
    )
    parser.add_argument(
        "--cluster", metavar="ID", help="refuse a data directory of any other cluster, and to join any other"
    )
    parser.add_argument(
        "--no-auto-init", dest="auto_init", action="store_const", const=False,
        help="wait for `alpo cluster init` at the first start",
    )
    parser.add_argument(
        "--insecure", action="store_const", const=True, help="listen on a non-loopback address without TLS"
    )
    parser.add_argument("--log-format", choices=("auto", "console", "json"), help="auto: console on a terminal")
    parser.add_argument("--version", action="version", version=f"alpod {__version__}")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """The entry point; always leaves by SystemExit."""
    flags: dict[str, Any] = vars(_parser().parse_args(argv))
    try:
        config = load_config(flags.pop("config"), flags)
    except ConfigError as error:
        _say(error)
        sys.exit(2)
    set_up_logs(config.log_format, server_id=config.id)
    try:
        _run_through_losses(config)
    except (StoreError, ListenError) as error:
        _say(error)
        sys.exit(1)
    except Alarm as error:
        log.critical("invariant_broken", why=str(error))
        _say(f"an invariant is broken, the server has stopped itself: {error}")
        sys.exit(1)
    sys.exit(0)


def _say(what: object) -> None:
    print(f"alpod: {what}", file=sys.stderr, flush=True)


def _run_through_losses(config: Config) -> None:
    """Run; a store that is lost is set aside, once a process, and the server comes back as another member (R30, R31).

    Not where no other member could bring it back: there the store stays as it is, and the server ends.
    """
    raise_file_limit()
    try:
        _run(config)
    except (DamagedStore, StoreLost) as error:
        if len(config.configured) == 1 and config.join is None:
            raise
        aside = set_aside(config.data, datetime.now(UTC))
        log.critical("store_set_aside", why=str(error), where=str(aside))
        _run(config)


def _run(config: Config) -> None:
    with _claimed(config) as (store, listening):
        me = store.boot().me
        node = Node(
            replica_config(config, me), limits_of(config), store,
            lambda done, failed: Writer(store, done, failed),
            Retention(**config.retention.model_dump()), disk_care(config),
        )
        gc.set_threshold(*_GC_THRESHOLDS)
        gc.freeze()
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        trio.run(functools.partial(node.run, listening, heed_signals=True))


@contextmanager
def _claimed(config: Config) -> Iterator[tuple[SqliteStore, socket.socket]]:
    """The store and the port. Raises `StoreError`, `ListenError`.

    No store is made for a server that cannot listen. Where there is one it comes first: a server that is started
    twice is told who holds its directory, and that says more than that its port is in use.
    """
    with ExitStack() as stack:
        listening = None
        if not _has_store(config.data):
            listening = stack.enter_context(open_listener(*config.listen_address))
        store = SqliteStore.open(config.data, config.id, cluster=config.cluster_id or None)
        stack.callback(store.close)
        yield store, listening or stack.enter_context(open_listener(*config.listen_address))


def _has_store(directory: Path) -> bool:
    try:
        return schema.exists(directory)
    except OSError:  # nobody may look: to open it will say so
        return False


def raise_file_limit() -> None:
    """Every connection is a file: take as many as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_MAX if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def replica_config(config: Config, me: Any) -> ReplicaConfig:
    """The core's part of the configuration; ``me`` is from the store."""
    return ReplicaConfig(
        me=me,
        address=config.advertised,
        configured=config.configured,
        settings=config.settings_core,
        auto_init=config.auto_init,
        joining=config.join is not None or has_lost(config.data),
        cluster_wanted=config.cluster_id,
        priority=config.own_line.priority,
        heartbeat_s=config.timers.heartbeat_s,
        election_timeout_s=config.timers.election_timeout_s,
        stagger_s=config.stagger_s,
        tail_bytes_max=config.limits.tail_bytes_max,
        peer_inflight_bytes_max=config.limits.peer_inflight_bytes_max,
    )


def disk_care(config: Config) -> DiskCare:
    """What is watched of the data directory."""
    given = config.storage
    return DiskCare(given.low_water_bytes, given.scrub_bytes_per_s, ScrubMark(config.data))


def limits_of(config: Config) -> Limits:
    """The shell's part of the configuration."""
    given = config.limits
    return Limits(
        client_connections_max=given.client_connections_max,
        hello_timeout_s=given.hello_timeout_s,
        inflight_bytes_max=given.inflight_bytes_max,
        connection_inflight_max=given.connection_inflight_max,
        catch_up_bytes_per_s=given.catch_up_bytes_per_s,
        bulk_read_bytes_per_s=given.bulk_read_bytes_per_s,
    )


if __name__ == "__main__":
    main()
