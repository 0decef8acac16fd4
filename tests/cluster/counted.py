"""A program that counts, by a machine of its own in the log, in one of two versions: from version 2 on each command
counts twice.

    python counted.py NAME SERVERS VERSION MINUTE_MS (run|read)

It says every answer, as a JSON line; what ended it at last. ``MINUTE_MS``: the time without an older command after
which a newer version begins, instead of a minute.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Self

import trio

import alpo.rsm
from alpo.rsm import At, NewerVersion, Replica, hosted, replica

MACHINE = "counted"


class Counted:
    """A number of commands. ``loaded``: machines of this process that were made of a snapshot."""

    loaded = 0

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def apply(self, command: bytes, at: At) -> object:
        self.count += 2 if at.version >= 2 else 1
        return {"lsn": at.lsn, "version": at.version, "count": self.count}

    def items(self) -> Iterator[bytes]:
        yield b"%d" % self.count

    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        Counted.loaded += 1
        return cls(*map(int, items))

    def freeze(self) -> Self:
        return type(self)(self.count)


def shorten(minute_ms: int) -> None:
    """Let versions change after so long; all processes must have the same."""
    for module in (hosted, replica):
        module.__dict__["SETTLED_MS"] = minute_ms
    replica._WAIT_S = minute_ms / 12_000


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


async def _run(counted: Replica[Counted], name: str) -> None:
    number = 0
    while True:
        number += 1
        command = f"{name}/{number}"
        answer: Any = await counted.run(command.encode())
        say(command=command, **answer)
        if number == 1:
            say(loaded=Counted.loaded)


async def _read(counted: Replica[Counted]) -> None:
    say(read=await counted.read(lambda machine: machine.count))
    with suppress(NewerVersion):  # raised by the iteration; so does the machine that all calls share
        async for _ in counted.answers():
            pass
    await counted.read(lambda machine: machine.count)


async def _main(name: str, servers: str, version: int, how: str) -> None:
    async with alpo.rsm.connect(Counted, servers, name=MACHINE, version=version, timeout_s=60) as counted:
        try:
            await (_run(counted, name) if how == "run" else _read(counted))
        except NewerVersion as error:
            say(ended=str(error), at=error.lsn, newer=error.version)


if __name__ == "__main__":
    shorten(int(sys.argv[4]))
    trio.run(_main, sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[5])
