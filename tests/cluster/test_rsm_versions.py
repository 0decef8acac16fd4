"""A machine of one's own goes to its next version while real processes run commands and are replaced one by one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
from counted import MACHINE, Counted
from harness import cluster
from probe import until

import alpo
import alpo.rsm
from alpo.client.record import Record
from alpo.rsm import hosted
from alpo.rsm.hosted import COMMAND, COMMAND_ROOM, PAYLOADS, Hosted, Made
from alpo.rsm.machine import Outcome, time_ms_of

PROGRAM = Path(__file__).with_name("counted.py")
WORKERS, ANSWERS = 2, 15


class Worker:
    """A process of the program, and its lines of JSON."""

    def __init__(self, name: str, directory: Path, servers: str, version: int, minute_ms: int, how: str) -> None:
        self._log = directory / f"{name}.out"
        with self._log.open("wb") as out:
            words = [name, servers, str(version), str(minute_ms), how]
            self.process = subprocess.Popen([sys.executable, str(PROGRAM), *words], stdout=out, stderr=out)

    def said(self) -> list[dict[str, Any]]:
        """Lines that it has said, without one that a kill cut off."""
        lines = self._log.read_text().splitlines(keepends=True)
        assert not any("Traceback" in line for line in lines), self._log.read_text()
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.mark.trio
@pytest.mark.timeout(240)
@pytest.mark.parametrize("minute_ms", [1_500, pytest.param(60_000, marks=pytest.mark.soak)])
async def test_a_rolling_change_under_load(minute_ms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted, "SETTLED_MS", minute_ms)
    workers: list[Worker] = []
    async with cluster(tmp_path) as running:
        def start(version: int, how: str = "run") -> Worker:
            number = len(workers)
            worker = Worker(f"w{number}", tmp_path, running.addresses, version, minute_ms, how)
            workers.append(worker)
            return worker

        async def answered(worker: Worker, **like: Any) -> None:
            def enough() -> bool:
                return sum(like.items() <= each.items() for each in worker.said() if "command" in each) >= ANSWERS

            await until(enough, within_s=150)

        try:
            older = [start(1) for _ in range(WORKERS)]
            stays = start(1, "read")
            for worker in older:
                await answered(worker)
            async with alpo.rsm.connect(Counted, running.addresses, name=MACHINE, snapshots="off") as late:
                await late.snapshot()
            newer = []
            for worker in older:
                newer.append(start(2))
                await answered(newer[-1])
                worker.kill()
            for worker in newer:
                await answered(worker, version=2)
            with trio.fail_after(60):
                await until(lambda: stays.process.poll() is not None, within_s=60)
            ended = stays.said()[-1]
        finally:
            for worker in workers:
                worker.kill()
        async with alpo.rsm.connect(Counted, running.addresses, name=MACHINE, version=2, snapshots="off") as late:
            count, lsn = await late.read(lambda machine: machine.count), late.lsn
        async with alpo.connect(running.addresses, timeout_s=60) as log:
            records = [record async for record in log.read(1, lsn)]  # appends on their way may land behind
    began, counted = _held(records, workers)
    assert ended["newer"] == 2 and ended["at"] == began and "use newer code" in ended["ended"]
    assert count == counted


def _held(records: list[Record], workers: list[Worker]) -> tuple[int, int]:
    """Hold what the processes were answered against the log; returns the LSN where version 2 began, and the count."""
    machine, answers, began = Hosted(Made(Counted, MACHINE, 2)), dict[int, Any](), 0
    for record in records:
        result = machine.apply(record.lsn, time_ms_of(record.time), record.payload, record.term)
        if result.outcome is Outcome.DONE:
            answers[record.lsn] = result.cell
        elif result.outcome is Outcome.VERSION:
            began = record.lsn
        assert result.outcome not in (Outcome.INVALID, Outcome.FOREIGN, Outcome.DIVERGED)
    head = PAYLOADS.head + bytes([COMMAND])
    commands = Counter(record.payload[COMMAND_ROOM:] for record in records if record.payload.startswith(head))
    assert set(commands.values()) == {1}, "a command is in the log twice"
    for said in (each for worker in workers for each in worker.said() if "command" in each):
        record = records[said["lsn"] - 1]
        assert record.payload[COMMAND_ROOM:] == said.pop("command").encode()
        assert answers[record.lsn] == said
    return began, machine.user.count
