"""`alpo backup`, `alpo restore` and `alpo recover`: copy a log, and make a new cluster of what exists."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

import alpo
from alpo.core.settings import size_text as size

from ..exits import Failed, refuse, store_errors
from ..inputs import a_log, a_new_directory, a_new_file
from ..options import Target, check_dialled, with_target, without_servers
from ..output import Step, counted, say, says_yes, slow_progress
from ..running import complete_ids, connected, run

if TYPE_CHECKING:
    from alpo.storage.founding import Founded, Remains

#: Highest server id; alpod has the same limit.
ID_MAX = 2**31 - 1


@with_target
def backup(
    target: Target,
    file: Annotated[Path, typer.Argument(help="Where to; replaced if it exists.")],
    server: Annotated[int | None, typer.Option("--server", metavar="ID", min=1, show_default="the leader",
                                               autocompletion=complete_ids,
                                               help="Whose log; works without a leader too.")] = None,
) -> None:
    """Copy one server's log while it serves, as far as it is guaranteed.

    FILE appears when it is whole; until then there is only FILE.partial. It is an SQLite file: `alpo log`, sqlite3 and
    sqlite-utils read it, `alpo restore` makes a new cluster of it, and no server starts on it by mistake.

    Examples:
        alpo backup monday.alpo
        alpo backup --server 2 /backups/log.alpo --json
    """
    a_new_file(file, replaced=True, backup=True)
    with slow_progress() as step, store_errors():
        made = run(_copy, target, file, server, step)
    target.tell({"first_lsn": made.first_lsn, "last_lsn": made.last_lsn, "bytes": made.bytes},
                f"{file}: {_stretch(made.first_lsn, made.last_lsn)}, {size(made.bytes)}")


def _stretch(first_lsn: int, last_lsn: int) -> str:
    return f"LSN {first_lsn} to {last_lsn}" if last_lsn >= first_lsn else "no payloads"


async def _copy(target: Target, file: Path, server: int | None, step: Step) -> alpo.BackupInfo:
    async with connected(target) as log:
        return await log.backup(file, server=server, progress=partial(step, "copying"))


@without_servers
def restore(
    target: Target,
    file: Annotated[Path, typer.Argument(help="A file of `alpo backup`.")],
    data: Annotated[Path, typer.Option("--data", metavar="DIR",
                                       help="The new data directory: empty, or not there yet.")],
    id: Annotated[int, typer.Option("--id", min=1, max=ID_MAX, help="The id of the new cluster's first member.")],
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Where that member will listen.")],
) -> None:
    """Make a backup the data directory of a new cluster of one member.

    Payloads, LSNs and sessions are what they were; cluster id and incarnation are new. All of the backup is checked
    first. DIR holds all of it or is no data directory.

    Examples:
        alpo restore monday.alpo --data /var/lib/alpo --id 1 --listen 127.0.0.1:7100
    """
    from alpo.storage import founding

    check_dialled(listen, "--listen")
    a_log(file, backup=True)
    a_new_directory(data, "--data", of_server=True)
    with slow_progress() as step, store_errors():
        founded = founding.restore(file, data, id, listen, _now_ms(), step)
    _tell(target, founded, data)


def _tell(target: Target, founded: Founded, data: Path) -> None:
    address = founded.address or "HOST:PORT"
    target.tell(
        {"first_lsn": founded.first_lsn, "last_lsn": founded.last_lsn, "bytes": founded.bytes,
         "cluster": founded.cluster.hex()},
        f"{data}: {_stretch(founded.first_lsn, founded.last_lsn)}, the only member of the new cluster"
        f" {founded.cluster.hex()}\nstart it: alpod --id {founded.server_id} --data {quote(str(data))}"
        f" --listen {address} --member {founded.server_id}={address}",
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@without_servers
def recover(
    target: Target,
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="The directory of a server that is stopped.")],
    force: Annotated[bool, typer.Option("--force-new-cluster",
                                        help="Say that this is meant: it can lose acknowledged appends.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """The last resort when a majority of the members is lost for good: go on with what one server has.

    Says what may be lost, asks, and makes the directory that of the only member of a new cluster. Acknowledged appends
    that this server does not hold are gone. While a majority can be brought back, do that instead.

    Examples:
        alpo recover --data /var/lib/alpo --force-new-cluster
    """
    from alpo.storage.founding import recovery

    refuse(not force, "this can lose acknowledged appends; if that is meant, say --force-new-cluster")
    a_log(data, "--data")
    refuse(not yes and not sys.stdin.isatty(), "this asks before it does anything: answer on a terminal, or give --yes")
    with slow_progress() as step, store_errors(), recovery(data, step) as found:
        say(_warning(found.remains, data))
        if not yes and not says_yes():
            raise Failed("nothing was changed")
        name = f"before-recover-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.json"
        founded = found.go_on(_now_ms(), name)
        say(f"what the hard state was is kept in {data / name}")
    _tell(target, founded, data)


def _warning(remains: Remains, data: Path) -> str:
    """Text saying what is about to happen, and what may be lost."""
    boot = remains.boot
    others = [f"{id} ({address})" for id, address in remains.members if id != boot.me.id]
    mark = max(boot.guaranteed_id, boot.applied_id)
    beyond = (
        f"What follows entry {mark} ({counted(remains.unguaranteed, 'entry')}) may or may not have been acknowledged."
        " The new cluster keeps it." if remains.unguaranteed else "All of it was known here to be guaranteed."
    )
    return "\n".join([
        f"{data}: server {boot.me.id} of cluster {remains.cluster.hex()}",
        f"  its log ends at entry {boot.last_id} of term {boot.last_term} (term {boot.term});"
        f" {_stretch(remains.first_lsn, remains.last_lsn)}",
        f"  members of that cluster: itself{', ' if others else ''}{', '.join(others)}",
        "",
        "This makes it the only member of a new cluster, which begins with this log.",
        beyond,
        f"LOST for good: every append that the other servers acknowledged after entry {boot.last_id}.",
        "If the disk of another server can still be read, compare the two first: alpo log diff.",
        "Wipe the other servers' directories before they join the new cluster. If a majority of them starts as it is,",
        "the old cluster goes on beside the new one, and there are two logs.",
    ])
