"""A process that leads a registry with 1,000 callers, and notes in a file what it was told: to be killed.

    python registrar.py SERVERS FILE NAME

A line is flushed to the kernel before the next call, so that it outlives the process: "A id" (told: admitted), "r id"
(about to remove), "R id" (told: removed).
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import anyio

import alpo
import alpo.state
from alpo.registry import Admit, Deposed, Readmit, Registry, Remove

CALLERS = 1000


async def main(servers: str, path: str, name: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    removed, admitted = told_before(path)
    async with alpo.state.connect(servers, timeout_s=5) as state:
        async with Registry(state, "agents", info=name) as registry:
            for id in removed[-50:]:
                assert await registry.apply(Readmit(id)) is False, f"{id} was removed, and is admitted"
            for id in admitted[-50:]:
                assert await registry.apply(Readmit(id)) is True, f"{id} was admitted, and is not"
            print(f"{name} leads since LSN {registry.token} with {len(registry.rows)} agents", flush=True)
            async with anyio.create_task_group() as tasks:
                for number in range(CALLERS):
                    tasks.start_soon(caller, registry, file, f"{name}-{number}")


async def caller(registry: Registry, file: int, name: str) -> None:
    """Admit agents, and remove most of them again, until this is over."""
    number = 0
    while True:
        id = f"{name}-{number}"
        number += 1
        try:
            await registry.apply(Admit(id, {"cpus": 24}))
            os.write(file, f"A {id}\n".encode())
            if random.random() < 0.95:
                os.write(file, f"r {id}\n".encode())
                await registry.apply(Remove(id))
                os.write(file, f"R {id}\n".encode())
        except (alpo.NotGuaranteed, alpo.Closed, Deposed):
            return
        except alpo.Unavailable:
            pass  # not done: another agent, then
        await anyio.sleep(random.random() * 0.2)


def told_before(path: str) -> tuple[list[str], list[str]]:
    """Agents that were removed, and those that were admitted and never about to be removed, by all lines so far."""
    admitted: dict[str, None] = {}
    removed: list[str] = []
    with Path(path).open(encoding="ascii") as file:
        for line in file:
            kind, id = line.split()
            if kind == "A":
                admitted[id] = None
            else:
                admitted.pop(id, None)
            if kind == "R":
                removed.append(id)
    return removed, list(admitted)


if __name__ == "__main__":
    _, given_servers, given_path, given_name = sys.argv
    anyio.run(main, given_servers, given_path, given_name)
