"""The example in examples/scheduler, as real processes that are killed: schedulers, agents, the leader of the log."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import cluster
from probe import until

import alpo
import alpo.state
from alpo.rsm.machine import Outcome, time_ms_of
from alpo.state import State
from alpo.state.codec import Command, decode
from alpo.state.machine import Machine

EXAMPLE = Path(__file__).parents[2] / "examples" / "scheduler"
#: Jobs submitted at least, one every `EVERY_S` seconds; further ones, all through the test, every `LATER_S`: on a slow
#: machine the agents have to come to an end with them.
JOBS, EVERY_S, LATER_S = 40, 0.1, 0.5


class Program:
    """One process of the example, and what it has said: a JSON object a line."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen([sys.executable, *arguments], stdout=out, stderr=out)

    def said(self) -> list[dict[str, Any]]:
        lines = self._log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Programs:
    """All processes of the example."""

    def __init__(self, directory: Path, servers: str) -> None:
        self._directory = directory
        self._servers = servers
        self.running: dict[str, Program] = {}

    def scheduler(self, name: str) -> Program:
        return self._start(name, str(EXAMPLE / "scheduler.py"), name)

    def agent(self, name: str) -> Program:
        return self._start(name, str(EXAMPLE / "agent.py"), "--home", str(self._directory / f"home-{name}"))

    def replace_agents(self) -> None:
        """Start a new agent for each but a1 that was removed: on a machine that stalls, their leases lapse, too."""
        for name, program in list(self.running.items()):
            if name.startswith("a") and name != "a1" and program.process.poll() is not None:
                del self.running[name]
                self.agent(f"{name}+")

    def _start(self, name: str, *arguments: str) -> Program:
        program = Program(self._directory / f"{name}.out", *arguments, "--servers", self._servers)
        self.running[name] = program
        return program


@contextlib.contextmanager
def programs(directory: Path, servers: str) -> Iterator[Programs]:
    found = Programs(directory, servers)
    try:
        yield found
    finally:
        for name, program in found.running.items():
            print(name, "ended" if program.process.poll() is not None else "lives", *program.said()[-3:], sep="\n  ")
            program.kill()


async def leader_of(state: State) -> str:
    """The name of the scheduler that leads; "" while nobody does."""
    return (await state.fetch("scheduler")).text


async def done(state: State) -> int:
    names = await state.names("job/")
    return len([n for n in names if (await state.fetch(n, local=True)).json["status"] == "done"])


@pytest.mark.trio
@pytest.mark.timeout(480)
async def test_the_example_survives(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await running.leader()
        async with alpo.state.connect(running.addresses) as state:
            with programs(tmp_path, running.addresses) as all:
                for name in ("s1", "s2", "s3"):
                    all.scheduler(name)
                for name in ("a1", "a2", "a3", "a4"):
                    all.agent(name)
                submitted = await _submit_while(state, lambda: _kill_this_and_that(running, state, all, tmp_path))
                await until(lambda: _finished(state, all, submitted), within_s=300)
                a1 = all.running["a1"].process  # servers whose proxies run in this process tell it
                await until(lambda: a1.poll() is not None)
                assert a1.returncode == 1, "an agent that was removed does not come back"
                assert any(said.get("event") == "removed" for said in all.running["a1"].said())
        async with alpo.connect(running.addresses) as log:
            await _check_history(log, (tmp_path / "home-a1" / "id").read_text(), submitted)


async def _submit_while(state: State, step: Callable[[], Awaitable[None]]) -> int:
    """Submit a job every now and then until ``step()`` is done, and `JOBS` at least; returns their number."""
    number, over = 0, False
    async with trio.open_nursery() as nursery:

        async def go() -> None:
            nonlocal over
            await step()
            over = True

        nursery.start_soon(go)
        while not over or number < JOBS:
            await state.put(f"job/{number:04}", json={"status": "waiting"})
            number += 1
            await trio.sleep(EVERY_S if number < JOBS else LATER_S)
    return number


async def _finished(state: State, all: Programs, jobs: int) -> bool:
    await state.put("tick", "")  # leases lapse by the time of what is appended
    all.replace_agents()
    return await done(state) == jobs


async def _kill_this_and_that(running: Any, state: State, all: Programs, directory: Path) -> None:
    """kill -9 of the scheduler that leads, twice, of the log's leader, and of an agent, which tries to come back."""
    id_file = directory / "home-a1" / "id"

    async def a1_is_in() -> bool:
        return id_file.exists() and id_file.read_text() in await state.rows("agents").names()

    await until(a1_is_in, within_s=60)
    first = await leader_of(state)
    all.running[first].kill()
    all.running["a1"].kill()
    old = await running.leader()
    running.servers[old].kill()

    async def another_leads() -> bool:
        return await leader_of(state) not in ("", first)

    await until(another_leads, within_s=60)
    running.start(old)

    async def a1_is_out() -> bool:
        return not await a1_is_in()

    await until(a1_is_out, within_s=60)
    all.agent("a1")  # with the id that it had
    second = await leader_of(state)
    if second:
        all.running[second].kill()
    all.scheduler(first)


async def _check_history(log: alpo.Log, removed: str, jobs: int) -> None:
    """Hold every write of the whole log against what the example promises."""
    machine = Machine()
    out = False
    tokens: dict[str, int] = {}
    finished: dict[str, int] = {}
    async for record in log.read():
        result = machine.apply(record.lsn, time_ms_of(record.time), record.payload)
        command = decode(record.payload)
        if result.outcome is not Outcome.DONE or not isinstance(command, Command):
            continue
        for op in command.ops:
            if op[1] == f"agents\0{removed}":
                assert not (out and op[0] == 0), "an agent came back after it was removed"
                out = out or op[0] == 1
            if op[1].startswith("job/") and op[0] == 0:
                told = json.loads(op[2])
                if told["status"] == "waiting":
                    continue
                assert op[1] not in finished, "a job was touched after it was done"
                if told["status"] == "running":
                    assert told["token"] >= tokens.get(op[1], 0), "an older leader gave a job after a newer one"
                    tokens[op[1]] = told["token"]
                else:
                    assert told["token"] == tokens[op[1]], "a job was done under another token than it was given under"
                    finished[op[1]] = record.lsn
    assert out and len(finished) == jobs
    assert len(set(tokens.values())) >= 2, "all jobs were given by one leader"
