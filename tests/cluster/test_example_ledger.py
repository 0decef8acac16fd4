"""The example in examples/ledger, as real processes that are killed: workers, and leaders of the log. What any of them
was answered is what the log gives, once and for all, also where it was trimmed meanwhile."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import Cluster, cluster
from ledger import NAME, VERSION, Ledger, Refused
from probe import until

import alpo
import alpo.rsm
from alpo.client.record import Record
from alpo.rsm.hosted import COMMAND_ROOM, Hosted, Made, Raised
from alpo.rsm.machine import Outcome, time_ms_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "ledger"
WORKERS, KILLS, ACCOUNTS = 3, 6, 10
#: Kills after which the leader of the log is killed, too, and those after which a snapshot is taken.
LEADERS, SNAPSHOTS = (2, 4), (0, 3, 5)
#: Answers of a worker before it is killed.
ANSWERS = 15


class Worker:
    """One process that makes transfers, and its lines of JSON."""

    def __init__(self, name: str, directory: Path, servers: str) -> None:
        self.name = name
        self._log = directory / f"{name}.out"
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, str(EXAMPLE / "ledger.py"), "work", name, "--servers", servers], stdout=out, stderr=out
            )

    def said(self) -> list[dict[str, Any]]:
        """Lines that it has said, without one that a kill cut off."""
        lines = self._log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def answered(self) -> int:
        """The number of transfers that it was told were done, or refused."""
        assert self._process.poll() is None, self._log.read_text()
        return sum("lsn" in each or "refused" in each for each in self.said() if each["command"][0] == "move")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class History:
    """All payloads of the log, taken before any of them was trimmed."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    @property
    def lsn(self) -> int:
        return len(self.records)

    async def follow(self, log: alpo.Log) -> None:
        async for record in log.follow(1, timeout_s=60):
            assert record.lsn == self.lsn + 1
            self.records.append(record)


@contextlib.contextmanager
def killed(workers: list[Worker]) -> Iterator[None]:
    try:
        yield
    finally:
        for worker in workers:
            worker.kill()


async def ran(*words: str) -> dict[str, Any]:
    """Run a program that ends by itself, in the folder of the example; returns what it says."""
    done = await trio.run_process(
        [sys.executable, *words], capture_stdout=True, capture_stderr=True, check=False, cwd=EXAMPLE
    )
    assert done.returncode == 0, done.stderr.decode()
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.trio
@pytest.mark.timeout(240)
async def test_the_example_survives(tmp_path: Path, nursery: trio.Nursery) -> None:
    async with cluster(tmp_path) as running:
        async with alpo.connect(running.addresses, timeout_s=60) as log:
            history, workers = History(), list[Worker]()
            nursery.start_soon(history.follow, log)
            with killed(workers):
                await _kill_this_and_that(running, history, workers, tmp_path)
            async with alpo.rsm.connect(Ledger, running.addresses, name=NAME, version=VERSION) as late:
                accounts = await late.read(lambda machine: machine.accounts.copy())
                lsn = late.lsn
            await until(lambda: history.lsn >= lsn)
            machine, answers = folded(history.records[:lsn])
            assert machine.user.accounts == accounts, "a replica that began with a snapshot"
            assert len(accounts) == ACCOUNTS and sum(accounts.values()) == 100 * ACCOUNTS
            assert check_answers(workers, history.records[:lsn], answers) > KILLS * ANSWERS
            await check_replays(running, tmp_path, history, lsn)


async def _kill_this_and_that(running: Cluster, history: History, workers: list[Worker], directory: Path) -> None:
    """kill -9 of workers in turn, in the middle of their work; of leaders, too. Each dead worker has a follower; those
    of the later ones begin with a snapshot."""
    def start(number: int) -> Worker:
        worker = Worker(f"w{number}", directory, running.addresses)
        workers.append(worker)
        return worker

    def works(worker: Worker, answers: int = ANSWERS) -> Any:
        return until(lambda: worker.answered() >= answers, within_s=90)

    living = [start(number) for number in range(WORKERS)]
    first_lsn = previous = 0
    for kill in range(KILLS):
        victim = living.pop(0)
        await works(victim)
        if kill in LEADERS:
            leader = await running.leader()
            running.servers[leader].kill()
        victim.kill()
        if kill in LEADERS:
            await running.leader()
            running.start(leader)
        living.append(start(WORKERS + kill))
        if kill in SNAPSHOTS:
            await works(living[0], living[0].answered() + 5)
            await until(lambda: history.lsn >= previous)  # a trim takes nothing that is not in the history
            told = await ran("ledger.py", "snapshot", "--servers", running.addresses)
            first_lsn, previous = told["first_lsn"], told["begin"]
    assert first_lsn > KILLS, "the log was not trimmed"
    for worker in living:
        await works(worker)


def folded(records: list[Record]) -> tuple[Hosted[Ledger], dict[int, Any]]:
    """The ledger, and the answer of each command by LSN."""
    machine, answers = Hosted(Made(Ledger, NAME, VERSION)), dict[int, Any]()
    for record in records:
        result = machine.apply(record.lsn, time_ms_of(record.time), record.payload, record.term)
        assert result.outcome not in (Outcome.INVALID, Outcome.FOREIGN, Outcome.NOT_FOUNDED, Outcome.DIVERGED)
        if result.outcome is Outcome.DONE:
            answers[record.lsn] = result.cell
    return machine, answers


def check_answers(workers: list[Worker], records: list[Record], answers: dict[int, Any]) -> int:
    """Hold what the workers were answered against the log; returns the number of transfers that were made."""
    commands = {lsn: json.loads(records[lsn - 1].payload[COMMAND_ROOM:]) for lsn in answers}
    references = Counter(command[4] for command in commands.values() if command[0] == "move")
    assert set(references.values()) == {1}, "a transfer is in the log twice"
    places = {command[4]: lsn for lsn, command in commands.items() if command[0] == "move"}
    made = refused = 0
    for said in (each for worker in workers for each in worker.said()):
        command = said.pop("command")
        if command[0] != "move":
            assert "lsn" not in said or commands[said["lsn"]] == command
            continue
        lsn = places.get(command[4], 0)
        if "lsn" in said:
            assert commands[lsn] == command and answers[lsn] == said
            made += 1
        elif "refused" in said:
            assert commands[lsn] == command and isinstance(answers[lsn], Raised)
            error = answers[lsn].error
            assert isinstance(error, Refused) and str(error) == said["refused"]
            refused += 1
        elif "undone" in said:
            assert not lsn, "what was told as not done was done"
        else:
            assert said == {"unknown": True}
    assert made and refused
    return made


async def check_replays(running: Cluster, directory: Path, history: History, lsn: int) -> None:
    """`alpo-pipeline replay` agrees: from the servers, as of ``lsn``; and from the data of one of them, which may not
    know yet that its last entries are guaranteed."""
    items = directory / "accounts.jsonl"
    for place in (("--servers", running.addresses, "--upto", str(lsn)), ("--path", str(running.servers[1].data))):
        told = await ran(
            "-m", "alpo_cli.pipeline.main", "replay", "--machine", "ledger:Ledger", "--name", NAME, *place,
            "--items", str(items), "--json",
        )
        await until(lambda: history.lsn >= told["lsn"])
        machine, _ = folded(history.records[:told["lsn"]])
        accounts = [json.loads(json.loads(line)["item"]) for line in items.read_text().splitlines()]
        assert dict(accounts) == machine.user.accounts and told["digest"] == machine.copied().digest().hex()
        assert told["from_lsn"] > 1 and told["items"] == ACCOUNTS
