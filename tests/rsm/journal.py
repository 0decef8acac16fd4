"""A journal, whose answers show order, place and number of every command; and what the log says of it, told by a
reading of its own (`Truth`), which stands on nothing of `alpo.rsm`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Self

from rsm_kit import first_of, new_log, run

from alpo.client.log import Log
from alpo.client.record import Record
from alpo.rsm import At, Replica
from alpo.rsm.hosted import Hosted, Made
from alpo.rsm.machine import time_ms_of
from alpo.testing import Cluster
from alpo.wire.framing import unpack_message

#: Time without a command for an older version after which a newer one may begin; set by tests.
SETTLED_MS = 60_000
#: Commands that begin so are refused.
NO = b"no "


class Refused(Exception):
    """A command that the journal does not take."""


class Journal:
    """A list of commands, each with its `At`; the answer is (number of commands before, that entry). A refused one
    changes nothing, and its error tells the same."""

    def __init__(self, entries: list[bytes] | None = None) -> None:
        self.entries: list[bytes] = [] if entries is None else entries

    def apply(self, command: bytes, at: At) -> object:
        entry = entry_of(command, at.lsn, at.term, time_ms_of(at.time), at.version)
        if command.startswith(NO):
            raise Refused(len(self.entries), entry)
        self.entries.append(entry)
        return len(self.entries) - 1, entry

    def items(self) -> Iterator[bytes]:
        yield from self.entries

    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        return cls(list(items))

    def freeze(self) -> Self:
        return type(self)([*self.entries])


def entry_of(command: bytes, lsn: int, term: int, time_ms: int, version: int) -> bytes:
    return b"%d %d %d %d %s" % (lsn, term, time_ms, version, command)


class Told(NamedTuple):
    """The truth of a command: ``answer``, what it was answered (None: it was outdated), and the version in force."""

    lsn: int
    answer: tuple[int, bytes] | None
    version: int


class Truth:
    """The word of the log on a journal. ``places``: of each command, all of its LSNs, applied or not."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.entries: list[bytes] = []
        self.places: dict[bytes, list[int]] = {}
        self.told: dict[int, Told] = {}
        self.version = 0
        self._last_ms: dict[int, int] = {}
        for record in records:
            self._take(record, time_ms_of(record.time))

    def _take(self, record: Record, time_ms: int) -> None:
        payload = record.payload
        if payload[:3] != b"\xc1\x52\x01":
            return
        if payload[3] != 1:
            with suppress(ValueError):  # damaged
                number, *fields = unpack_message(payload[3:])
                if number == 0 and not self.version:
                    self.version = fields[2]
                if number == 6 and self._may_go_on(fields[0], time_ms):
                    self.version = fields[0]
            return
        wanted, command = int.from_bytes(payload[4:6], "big"), payload[6:]
        self.places.setdefault(command, []).append(record.lsn)
        answer = None
        if wanted >= self.version:
            self._last_ms[wanted] = time_ms
            answer = len(self.entries), entry_of(command, record.lsn, record.term, time_ms, self.version)
            if not command.startswith(NO):
                self.entries.append(answer[1])
        self.told[record.lsn] = Told(record.lsn, answer, self.version)

    def _may_go_on(self, version: int, time_ms: int) -> bool:
        older = [ms for each, ms in self._last_ms.items() if self.version <= each < version]
        return version > self.version and not any(ms > time_ms - SETTLED_MS for ms in older)


def truth(cluster: Cluster) -> Truth:
    return Truth(cluster.log())


MADE = Made(Journal, "journal", 9)


def folded(records: Sequence[Record]) -> Hosted[Journal]:
    """The fold of these records, from LSN 1."""
    machine = Hosted(MADE)
    for record in records:
        machine.apply(record.lsn, time_ms_of(record.time), record.payload, record.term)
    return machine


def plain(machine: Hosted[Journal]) -> tuple[Any, ...]:
    """All on which the effect of a later payload depends."""
    return machine.user.entries, machine.all_registers()


def journal(log: Log, **how: Any) -> Replica[Journal]:
    """A replica of the journal. Snapshots are made by hand, unless ``how`` differs."""
    return Replica(log, Journal, **{"name": "journal", "snapshots": "off", **how})


def fresh(cluster: Cluster, **how: Any) -> Hosted[Journal]:
    """The fold of a process that starts now. It is compared with that of the whole history, and with the truth."""
    async def look() -> Hosted[Journal]:
        async with new_log(cluster) as log, journal(log, **{"version": 9, **how}) as replica:
            return await replica.folded()

    machine: Hosted[Journal] = run(cluster, look)
    records = cluster.log()[: machine.lsn]
    assert plain(machine) == plain(folded(records)), f"a fresh start at LSN {machine.lsn} is wrong"
    assert machine.user.entries == Truth(records).entries, "a fresh start is not what the log says"
    return machine


def check_trims(cluster: Cluster) -> None:
    """Check that no trim removed what a start from the last but one snapshot needs, nor a payload of others."""
    right, first = folded(cluster.log()), first_of(cluster)
    assert first <= (1 if right.previous is None else right.previous.begin), "trimmed too far"
    gone = cluster.log()[: first - 1]
    assert all(record.payload[:2] == b"\xc1\x52" for record in gone), "a foreign payload was trimmed"
