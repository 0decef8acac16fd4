"""Real servers under random faults, then every promise checked against what is on their disks.

    python tests/cluster/soak.py --seconds 300 [--seed N] [--servers 3,5]

Eight named clients append numbered payloads, readers read, and every 1 to 3 s something is killed, stopped, cut off,
slowed down or left half open. Exits 0 if nothing was lost, doubled, stale or otherwise wrong; else 1, and keeps the
directories of the servers; the seed is printed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parent))

import checkers
from checkers import Logged, Outcome
from faults import Injector
from harness import Cluster, cluster
from workload import History, Writer, follow_on, read_on

import alpo
from alpo.core.entries import Entry, Kind, split_payloads

CLIENTS = 8
READERS = 2
#: For everything after the faults: the clients' last answers, the servers level, the logs read.
AFTERWARDS_S = 90.0
SHOWN_MAX = 5


@dataclass(slots=True)
class Result:
    """What a soak came to. ``violations`` by the checker that found them; only those that found any."""

    servers: int
    seed: int
    faults: dict[str, int] = field(default_factory=dict)
    history: History = field(default_factory=History)
    violations: dict[str, list[str]] = field(default_factory=dict)
    last_lsn: int = 0

    def lines(self) -> list[str]:
        """The report."""
        history, found = self.history, self.violations
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        errors = ", ".join(f"{name} {count}" for name, count in sorted(history.errors.items()))
        told = {outcome: history.count(outcome) for outcome in Outcome}
        counted = {name: len(found.get(name, ())) for name in ("lost", "doubled", "stale")}
        others = sum(map(len, found.values())) - sum(counted.values())
        lines = [
            f"{self.servers} servers, seed {self.seed}",
            f"  faults     {sum(self.faults.values())}: {faults}",
            f"  appends    acknowledged {told[Outcome.ACKNOWLEDGED]}, unknown {told[Outcome.UNKNOWN]}, refused"
            f" {told[Outcome.REFUSED]} (of them late ones of a fenced session: {history.fenced})",
            f"  reads      linearizable {len(history.reads)}, followed {len(history.followed)} of {self.last_lsn}",
            f"  told       {errors or 'nothing but success'}",
            "  violations " + ", ".join(f"{name} {count}" for name, count in counted.items()) + f", others {others}",
        ]
        for name, violations in found.items():
            lines += [f"    {name}: {violation}" for violation in violations[:SHOWN_MAX]]
            if len(violations) > SHOWN_MAX:
                lines.append(f"    {name}: … {len(violations) - SHOWN_MAX} more")
        return lines


async def soak(home: Path, servers: int, seconds: float, seed: int) -> Result:
    """Run one and check it. Raises AssertionError if the cluster does not come back after the faults."""
    result = Result(servers, seed)
    async with cluster(home, servers) as running:
        await running.leader()
        injector = Injector(running, seed)
        await _run(running, injector, result.history, seconds, seed)
        result.faults = dict(injector.by_kind)
        await _check(running, result, injector)
    return result


async def _run(running: Cluster, injector: Injector, history: History, seconds: float, seed: int) -> None:
    """Everything at once for ``seconds``; then faults end, and everybody finishes."""
    writers = [Writer(running.addresses, f"writer-{number}", seed, history) for number in range(1, CLIENTS + 1)]
    over = trio.Event()
    async with trio.open_nursery() as background:
        background.start_soon(follow_on, running.addresses, history)
        with trio.move_on_after(seconds + AFTERWARDS_S) as deadline:
            async with trio.open_nursery() as nursery:
                for number in range(READERS):
                    nursery.start_soon(read_on, running.addresses, history, over.is_set, seed + number)
                for writer in writers:
                    nursery.start_soon(writer.run)
                with trio.move_on_after(seconds):
                    await injector.run()
                for writer in writers:
                    writer.finish()
                over.set()
        assert not deadline.cancelled_caught, f"the clients did not end within {AFTERWARDS_S:g} s after the faults"
        last_lsn = await running.level(AFTERWARDS_S)
        with trio.fail_after(AFTERWARDS_S):
            while len(history.followed) < last_lsn:
                await trio.sleep(0.05)
        background.cancel_scope.cancel()


async def _check(running: Cluster, result: Result, injector: Injector) -> None:
    """Read every server's copy through the library, stop them, read their files, and compare it all."""
    history = result.history
    by_server: dict[int, list[Logged]] = {}
    async with alpo.connect(running.addresses) as log:
        for id in running.servers:
            records = [record async for record in log.read(local=True, server=id)]
            by_server[id] = [Logged(r.lsn, r.client, r.serial, r.payload) for r in records]
    codes = await running.stop()
    files = {id: server.entries() for id, server in running.servers.items()}
    log_now = by_server[1]
    result.last_lsn = len(log_now)
    found: dict[str, list[str]] = {
        **checkers.everything(history.appends, history.reads, log_now),
        "copies differ": checkers.unequal(by_server),
        "files differ": checkers.unequal(files),
        "file and copy differ": checkers.unequal({1: log_now, 2: _payloads(files[1])}),
        "follow": checkers.unequal({1: [logged.payload for logged in log_now], 2: history.followed}),
        "told": history.problems,
        "server died": injector.died + [f"server {id}: exit {code}" for id, code in codes.items() if code],
    }
    result.violations = {name: violations for name, violations in found.items() if violations}


def _payloads(entries: list[Entry]) -> list[Logged]:
    found: list[Logged] = []
    for entry in entries:
        if entry.kind == Kind.DATA:
            for at, payload in enumerate(split_payloads(entry.count, entry.body), entry.lsn):
                found.append(Logged(at, entry.client, entry.serial, payload))
    return found


def run(servers: int, seconds: float, seed: int, say: Callable[[str], None]) -> Result:
    """A soak in a directory of its own, which is kept if anything is wrong."""
    home = Path(tempfile.mkdtemp(prefix="alpo-soak-"))
    say(f"soak: {servers} servers for {seconds:g} s, seed {seed}, in {home}")
    result = trio.run(partial(soak, home, servers, seconds, seed))
    for line in result.lines():
        say(line)
    if result.violations:
        say(f"kept: {home}; the same faults again: --servers {servers} --seconds {seconds:g} --seed {seed}")
    else:
        shutil.rmtree(home)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="of faults, all cluster sizes together")
    parser.add_argument("--seed", type=int, default=None, help="all choices are drawn from it")
    parser.add_argument("--servers", default="3,5", help="cluster sizes, one after another")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.servers.split(",")]
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    results = [run(size, arguments.seconds / len(sizes), seed, partial(print, flush=True)) for size in sizes]
    sys.exit(1 if any(result.violations for result in results) else 0)


if __name__ == "__main__":
    main()
