"""Real servers under random faults, then every promise checked against what is on their disks.

    python tests/cluster/soak.py --seconds 300 [--seed N] [--servers 3,5] [--tls] [--logs N]

Eight named clients append numbered payloads, readers read, one follower reads all of the log and moves its cursor on,
every server keeps 2,000 entries and what the cursor keeps. Every 1 to 3 s something is killed, stopped, starved
(stopped in slices), cut off, slowed down, left half open, left with little bandwidth or with packets lost, leadership
is handed over, the log trimmed, a member replaced, a disk lost, filled up, made to fail, to hang or to be slow (with a
C compiler), damaged (bytes of alpo.db or of its WAL flip while the server is down) or put back to an older copy, or the
power of one host or of all is cut: what was not synced is gone (as root, where ext4 can be mounted from files). Exits 0
if nothing was lost, doubled, stale or otherwise wrong; else 1, and keeps the directories of the servers. The seed is
printed.

``--logs N``: as much again in each of N further logs, with fewer clients; `soak_logs` says what is done to them.

Its rules: the disks of a minority are harmed, one at a time, and the next one only once all vote again. What ALPO is
not made to survive is not done: `disk_faults` and `disks` say what that is.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).resolve().parent))

import checkers
import hanging_disks
import soak_logs
from checkers import Logged, Outcome
from disk_faults import LOW_WATER_BYTES
from disks import own_disks
from faults import TRIM_LEAVES, Injector
from harness import Cluster, cluster
from probe import until
from proxy import HOST
from workload import History, Writer, follow_on, keep_place, read_on

import alpo
from alpo.core.entries import Entry, Kind, parts, split_payloads
from alpo.tls import NAME_DEFAULT
from alpo_cli.certificates import client_leaf, make, server_leaf

CLIENTS, READERS = 8, 2
#: Clients and readers of each log besides the first.
OTHER_CLIENTS, OTHER_READERS = 2, 1
#: Seconds for everything after the faults: the clients' last answers, the servers level, the logs read.
AFTERWARDS_S = 90.0
SHOWN_MAX = 5
#: Size of the disks that fill up, a minority; size of the others.
DISK_MIB, LARGE_DISK_MIB = 192, 2_048
OPTIONS: dict[str, Any] = {
    "retention": {"max_entries": 2_000},
    "logs": {"keep_deleted_s": 20.0},
    "storage": {"low_water_bytes": LOW_WATER_BYTES, "scrub_bytes_per_s": 1 << 30, "scrub_pass_s": 10.0},
}


@dataclass(slots=True)
class Result:
    """Result of a soak. ``violations`` are by the checker that found them; checkers that found none are left out."""

    servers: int
    seed: int
    faults: dict[str, int] = field(default_factory=dict)
    #: True if some disks are parts of this machine's own, whose power cannot be cut.
    without_power_cuts: bool = False
    #: The reason why no disk could be made to hang; "" if some could.
    cannot_hang: str = ""
    #: Effects of the faults of disks, counted.
    disks: dict[str, int] = field(default_factory=dict)
    #: Histories of the logs, the first log's first; appends to logs that came and went.
    histories: list[History] = field(default_factory=lambda: [History()])
    passing: soak_logs.Passing | None = None
    violations: dict[str, list[str]] = field(default_factory=dict)
    #: Longest time in which nobody's append was acknowledged, while faults were made.
    stood_s: float = 0.0

    @property
    def history(self) -> History:
        """The history of the first log."""
        return self.histories[0]

    def lines(self) -> list[str]:
        """The report."""
        history, found = self.history, self.violations
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        disks = ", ".join(f"{what} {count}" for what, count in sorted(self.disks.items()))
        errors = ", ".join(f"{name} {count}" for name, count in sorted(history.errors.items()))
        told = {outcome: history.count(outcome) for outcome in Outcome}
        counted = {
            name: sum(len(told) for what, told in found.items() if what.partition(" in log")[0] == name)
            for name in ("lost", "doubled", "stale")
        }
        others = sum(map(len, found.values())) - sum(counted.values())
        lines = [
            f"{self.servers} servers, seed {self.seed}",
            f"  faults     {sum(self.faults.values())}: {faults}",
            f"  disks      {disks or 'nothing to see'}",
            f"  appends    acknowledged {told[Outcome.ACKNOWLEDGED]}, unknown {told[Outcome.UNKNOWN]}, refused"
            f" {told[Outcome.REFUSED]} (of them late ones of a fenced session: {history.fenced})",
            f"  reads      linearizable {len(history.reads)}, followed {len(history.followed)}"
            f" (trimmed below {history.trimmed_lsn} in the end)",
            f"  told       {errors or 'nothing but success'}",
            f"  stood      {self.stood_s:.1f} s were the longest time without an append",
            "  violations " + ", ".join(f"{name} {count}" for name, count in counted.items()) + f", others {others}",
        ]
        lines += [
            f"  log {each.number:<6} {each.log}: acknowledged {each.count(Outcome.ACKNOWLEDGED)}, unknown"
            f" {each.count(Outcome.UNKNOWN)}, refused {each.count(Outcome.REFUSED)}, linearizable reads"
            f" {len(each.reads)}, followed {len(each.followed)}"
            for each in self.histories[1:]
        ]
        if self.passing is not None:
            lines.append(f"  logs made  {self.passing}")
        if self.without_power_cuts:
            lines.append("  no power was cut: not all disks here are ext4, mounted from a file, which takes root")
        if self.cannot_hang:
            lines.append(f"  {self.cannot_hang}")
        for name, violations in found.items():
            lines += [f"    {name}: {violation}" for violation in violations[:SHOWN_MAX]]
            if len(violations) > SHOWN_MAX:
                lines.append(f"    {name}: … {len(violations) - SHOWN_MAX} more")
        return lines


async def soak(home: Path, servers: int, seconds: float, seed: int, tls: bool = False, logs: int = 0) -> Result:
    """Run a soak and check it. Raises AssertionError if the cluster does not come back after the faults."""
    result = Result(servers, seed)
    def homes(ids: range) -> list[Path]:
        return [home / where / f"server-{id}" for where in ("", "newcomers") for id in ids]

    minority = servers // 2
    options = OPTIONS | ({"tls": _certificates(home, servers)} if tls else {})
    with (
        own_disks(homes(range(1, minority + 1)), DISK_MIB) as small,
        own_disks(homes(range(minority + 1, servers + 1)), LARGE_DISK_MIB) as large,
    ):
        library = hanging_disks.compiled(home)
        result.cannot_hang = library if isinstance(library, str) else ""
        async with cluster(home, servers, start=False, **options) as running:
            if isinstance(library, Path):
                for server in running.servers.values():
                    hanging_disks.under(library, server)
            running.start()
            await running.leader(within_s=AFTERWARDS_S)
            result.histories += await soak_logs.create(running, logs)
            injector = Injector(running, seed, result.histories, small, small | large)
            if logs:
                result.passing = soak_logs.Passing(running, seed, injector.disks)
            result.stood_s = await _run(running, injector, result, seconds)
            result.without_power_cuts = not all(map(injector.disks.can_cut_power, running.servers))
            result.faults, result.disks = dict(injector.by_kind), dict(injector.disks.became)
            await _check(running, result, injector)
    return result


def _certificates(home: Path, servers: int) -> dict[str, str]:
    """Make certificates; every client of this process shows an admin's. Returns the servers' ``tls`` table."""
    at = home / "certs"
    leaves = [server_leaf(f"{id}={HOST}") for id in range(1, servers + 1)]
    make(at, NAME_DEFAULT, [*leaves, client_leaf("admin:all")], 1)
    os.environ |= {"ALPO_CA": f"{at}/ca.pem", "ALPO_CERT": f"{at}/all.pem", "ALPO_KEY": f"{at}/all.key"}
    return {"ca": f"{at}/ca.pem", "cert": f"{at}/server-{{id}}.pem", "key": f"{at}/server-{{id}}.key"}


async def _run(running: Cluster, injector: Injector, result: Result, seconds: float) -> float:
    """Run clients and faults for ``seconds``; then end the faults and have all clients finish. Returns the longest
    time without an append to the first log."""
    over, seed, servers = trio.Event(), result.seed, running.addresses
    histories, others = result.histories, result.histories[1:]
    writers = [
        Writer(servers, f"writer-{number}", seed, history)
        for history in histories for number in range(1, 1 + (CLIENTS if history.number == 1 else OTHER_CLIENTS))
    ]
    files = soak_logs.open_files(running)
    async with trio.open_nursery() as background:
        for history in histories:
            background.start_soon(follow_on, servers, history)
            with trio.fail_after(AFTERWARDS_S):  # no trim passes the follower from here on
                await background.start(keep_place, servers, history, over.is_set)
        with trio.move_on_after(seconds + AFTERWARDS_S) as deadline:
            async with trio.open_nursery() as nursery:
                for history in histories:
                    for number in range(READERS if history.number == 1 else OTHER_READERS):
                        nursery.start_soon(read_on, servers, history, over.is_set, seed + number)
                for writer in writers:
                    nursery.start_soon(writer.run)
                if others and result.passing is not None:
                    nursery.start_soon(soak_logs.rename_on, running, others[0], over.is_set, seed)
                    nursery.start_soon(result.passing.run, over.is_set)
                began_s = trio.current_time()
                with trio.move_on_after(seconds):
                    await injector.run()
                ended_s = trio.current_time()
                for writer in writers:
                    writer.finish()
                over.set()
        assert not deadline.cancelled_caught, f"the clients did not end within {AFTERWARDS_S:g} s after the faults"
        for history in histories:
            await _settle(running, history)
        background.cancel_scope.cancel()
    injector.unmended += await soak_logs.left_over(running, others, files)
    acknowledged = [append.ended_s for append in result.history.appends if append.outcome is Outcome.ACKNOWLEDGED]
    times_s = [began_s, *sorted(at_s for at_s in acknowledged if began_s < at_s < ended_s), ended_s]
    return max(later - earlier for earlier, later in pairwise(times_s))


async def _settle(running: Cluster, history: History) -> None:
    """Trim a log, and wait until all servers vote in it, level, and the follower has read all."""
    async with alpo.connect(running.addresses, timeout_s=AFTERWARDS_S, log=history.log) as log:
        history.trimmed_lsn = max(1, min(history.cursor_lsn, len(history.followed) - TRIM_LEAVES))
        await log.trim(history.trimmed_lsn)
    last_lsn = await running.level(AFTERWARDS_S, history.log)
    await running.until(
        "all vote", lambda all_: all(fields["status"] == "VOTING" for fields in all_.values()), AFTERWARDS_S,
        history.log,
    )
    await until(lambda: len(history.followed) >= last_lsn, AFTERWARDS_S)


async def _check(running: Cluster, result: Result, injector: Injector) -> None:
    """Read every server's copy of each log through the library, stop them, read their files, and compare it all."""
    by_log: dict[int, dict[int, list[Logged]]] = {}
    for history in result.histories:
        async with alpo.connect(running.addresses, log=history.log) as log:
            by_log[history.number] = {id: await _left(log, id, history) for id in running.servers}
    codes = await running.stop()
    found: dict[str, list[str]] = {
        "not mended": injector.unmended,
        "server died": injector.died + [f"server {id}: exit {code}" for id, code in codes.items() if code],
        "passing logs": result.passing.problems if result.passing is not None else [],
        "unsound": soak_logs.unsound(running, result.histories),
    }
    for history in result.histories:
        where = f" in log {history.number}" if history.number > 1 else ""
        found |= {f"{what}{where}": told for what, told in _of_log(running, history, by_log[history.number]).items()}
    result.violations = {name: violations for name, violations in found.items() if violations}


def _of_log(running: Cluster, history: History, by_server: dict[int, list[Logged]]) -> dict[str, list[str]]:
    """Violations in one log, by the checker that found them."""
    log_now = history.followed
    files = {id: server.entries(history.number) for id, server in running.servers.items()}
    return {
        **checkers.everything(history.appends, history.reads, log_now),
        "copies differ": _unlike(log_now, by_server),
        "files differ": _unequal_where_both(files),
        "file and log differ": _unlike(log_now, {id: _payloads(entries) for id, entries in files.items()}),
        "told": history.problems,
    }


async def _left(log: alpo.Log, id: int, history: History) -> list[Logged]:
    """Server ``id``'s copy of what was not trimmed."""
    if history.trimmed_lsn > 1:
        try:
            trimmed = [record.lsn async for record in log.read(1, history.trimmed_lsn - 1, local=True, server=id)]
            history.problems.append(f"server {id} serves LSN {trimmed}, trimmed below {history.trimmed_lsn}")
        except alpo.OutOfRange as error:
            if error.first_lsn < history.trimmed_lsn:
                history.problems.append(f"server {id}: {error}, trimmed below {history.trimmed_lsn}")
    while True:
        try:
            records = [record async for record in log.read(local=True, server=id)]
        except alpo.OutOfRange:  # cleaned meanwhile
            continue
        return [Logged(r.lsn, r.client, r.serial, r.payload) for r in records]


def _unlike(log_now: list[Logged], by_server: dict[int, list[Logged]]) -> list[str]:
    """Violations of the rule that the entries which a server has left are the end of the log."""
    return [
        violation for id, left in by_server.items()
        for violation in checkers.unequal({0: log_now[len(log_now) - len(left) :], id: left})
    ]


def _unequal_where_both(files: dict[int, list[Entry]]) -> list[str]:
    first_id = max(entries[0].id for entries in files.values())
    return checkers.unequal({id: entries[first_id - entries[0].id :] for id, entries in files.items()})


def _payloads(entries: list[Entry]) -> list[Logged]:
    found: list[Logged] = []
    for entry in entries:
        if entry.kind == Kind.DATA:
            for part in parts(entry):
                for at, payload in enumerate(split_payloads(part.count, part.body), part.lsn):
                    found.append(Logged(at, entry.client, part.serial, payload))
    return found


def run(
    servers: int, seconds: float, seed: int, say: Callable[[str], None], tls: bool = False, logs: int = 0
) -> Result:
    """A soak in a directory of its own, which is kept if anything is wrong."""
    home = Path(tempfile.mkdtemp(prefix="alpo-soak-"))
    say(f"soak: {servers} servers for {seconds:g} s, seed {seed}, in {home}")
    result = trio.run(partial(soak, home, servers, seconds, seed, tls, logs))
    for line in result.lines():
        say(line)
    if result.violations:
        again = f"--servers {servers} --seconds {seconds:g} --seed {seed} --logs {logs}{' --tls' * tls}"
        say(f"kept: {home}; the same faults again: {again}")
    else:
        shutil.rmtree(home)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="of faults, all cluster sizes together")
    parser.add_argument("--seed", type=int, default=None, help="all choices are drawn from it")
    parser.add_argument("--servers", default="3,5", help="cluster sizes, one after another")
    parser.add_argument("--tls", action="store_true", help="servers and clients speak TLS alone")
    parser.add_argument("--logs", type=int, default=0, help="besides the first one")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.servers.split(",")]
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    say = partial(print, flush=True)
    results = [
        run(size, arguments.seconds / len(sizes), seed, say, arguments.tls, arguments.logs) for size in sizes
    ]
    sys.exit(1 if any(result.violations for result in results) else 0)


if __name__ == "__main__":
    main()
