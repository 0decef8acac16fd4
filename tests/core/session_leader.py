"""A session table with its log, as a leader keeps them, and the shapes that its verdicts are compared with."""

from __future__ import annotations

from typing import Any

from alpo.core.entries import Entry, Kind, random_client, seal, seal_appends
from alpo.core.machine.verdicts import (
    Accept,
    Refuse,
    SessionTable,
    drop_body,
    open_body,
)
from alpo.core.requests import AppendRun, Code, DropSession, OpenSession
from alpo.core.settings import Settings


def random_id(made_ms: int, number: int = 0) -> str:
    """A random client's id (R22) of that time; equal ones for equal numbers."""
    return random_client(made_ms, number)


def nonce(n: int) -> bytes:
    return n.to_bytes(16, "big")


RANDOM = random_id(1000)
#: A client for tests in which it does not matter which client appends.
CLIENT = random_id(1_700_000_200_000)
A, B, C = (1, b"a"), (1, b"b"), (1, b"c")


class Leader:
    """A table with its log; everything is guaranteed unless a test says otherwise. ``together``: appends are runs."""

    def __init__(self, *, together: bool = False, **settings: int) -> None:
        self.together = together
        self.table = SessionTable(Settings(**{"window": 4, "window_total": 100, **settings}))
        self.log: list[Entry] = []
        self.guaranteed: int | None = None

    @property
    def head(self) -> int:
        return len(self.log)

    def marks(self) -> tuple[int, int]:
        return self.head + 1, self.head if self.guaranteed is None else self.guaranteed

    def special(self, kind: Kind, body: bytes = b"", client: str = "", time_ms: int = 0) -> int:
        lsn = self.log[-1].lsn + self.log[-1].count if self.log else 1
        self.log.append(seal(self.head + 1, 1, kind, time_ms, lsn, body, client))
        self.table.apply(self.log[-1])
        return self.head

    def open(self, name: str = "alice", n: int = 1) -> int:
        return self.special(Kind.SESSION, open_body(nonce(n), 0), name)

    def reopen(self, name: str, epoch: int, n: int = 2) -> int:
        return self.special(Kind.SESSION, open_body(nonce(n), epoch), name)

    def drop(self, name: str, epoch: int) -> int:
        return self.special(Kind.SESSION, drop_body(epoch), name)

    def ask(self, client: str, epoch: int, serial: int, *bodies: tuple[int, bytes], **flags: bool) -> list[Any]:
        return self.table.judge(AppendRun(None, client, epoch, serial, list(bodies), **flags), *self.marks())

    def append(self, client: str, epoch: int, serial: int, *bodies: tuple[int, bytes], **flags: bool) -> None:
        assert self.ask(client, epoch, serial, *bodies, **flags) == [Accept(serial, list(bodies))]
        lsn = self.log[-1].lsn + self.log[-1].count if self.log else 1
        sealed = seal_appends(bodies, client, serial, epoch, self.head + 1, 1, 0, lsn, together=self.together)
        self.table.apply_all(sealed)
        self.log += sealed

    def ask_open(self, name: str, replaces: int, n: int) -> Any:
        return self.table.judge_open(OpenSession(None, name, replaces, nonce(n)), *self.marks())

    def ask_drop(self, name: str, epoch: int) -> Any:
        return self.table.judge_drop(DropSession(None, name, epoch), *self.marks())


def refused(serial: int, count: int, code: Code, number: int, rests_on: int) -> list[Refuse]:
    return [Refuse(serial, count, code, number, rests_on)]
