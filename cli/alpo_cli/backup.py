"""Work of `alpo backup`, `alpo restore` and `alpo recover`: copy a log, and make a new cluster of what exists."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from shlex import quote

from alpo import BackupFailed, BackupInfo
from alpo.core.settings import size_text as size
from alpo.offline import StoreError
from alpo.storage.founding import Founded, Remains, recovery, restore

from .connecting import connected
from .exits import Failed, UsageProblem
from .options import Target
from .output import counted, print_json, say, says_yes
from .progress import Step, slow_progress
from .running import run


@contextmanager
def store_errors() -> Iterator[None]:
    """Turn a store's errors into Failed."""
    try:
        yield
    except (BackupFailed, StoreError) as error:
        raise Failed(str(error)) from error


def back_up(target: Target, file: Path, server: int | None) -> None:
    """Copy a server's log into FILE, which appears whole or not at all. Raises Failed, and the library's errors."""
    with slow_progress() as step, store_errors():
        made = run(_copy, target, file, server, step)
    if target.json:
        print_json({"first_lsn": made.first_lsn, "last_lsn": made.last_lsn, "bytes": made.bytes})
    else:
        say(f"{file}: {_stretch(made.first_lsn, made.last_lsn)}, {size(made.bytes)}")


def _stretch(first_lsn: int, last_lsn: int) -> str:
    return f"LSN {first_lsn} to {last_lsn}" if last_lsn >= first_lsn else "no payloads"


async def _copy(target: Target, file: Path, server: int | None, step: Step) -> BackupInfo:
    async with connected(target) as log:
        return await log.backup(file, server=server, progress=partial(step, "copying"))


def make_of(target: Target, file: Path, data: Path, id: int, listen: str) -> None:
    """Restore the backup ``file`` into ``data``, as the only member of a new cluster. Raises Failed."""
    with slow_progress() as step, store_errors():
        founded = restore(file, data, id, listen, _now_ms(), step)
    _tell(target, founded, data)


def _tell(target: Target, founded: Founded, data: Path) -> None:
    if target.json:
        print_json({"first_lsn": founded.first_lsn, "last_lsn": founded.last_lsn, "bytes": founded.bytes,
                    "cluster": founded.cluster.hex()})
        return
    address = founded.address or "HOST:PORT"
    say(f"{data}: {_stretch(founded.first_lsn, founded.last_lsn)}, the only member of the new cluster"
        f" {founded.cluster.hex()}\nstart it: alpod --id {founded.server_id} --data {quote(str(data))}"
        f" --listen {address} --member {founded.server_id}={address}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def recover(target: Target, data: Path, yes: bool) -> None:
    """Make one server's directory that of a new cluster's only member, once the operator has confirmed. Raises
    UsageProblem, Failed."""
    if not yes and not sys.stdin.isatty():
        raise UsageProblem("this asks before it does anything: answer on a terminal, or give --yes")
    with slow_progress() as step, store_errors(), recovery(data, step) as found:
        say(warning(found.remains, data))
        if not yes and not says_yes():
            raise Failed("nothing was changed")
        name = f"before-recover-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.json"
        founded = found.go_on(_now_ms(), name)
        say(f"what the hard state was is kept in {data / name}")
    _tell(target, founded, data)


def warning(remains: Remains, data: Path) -> str:
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
