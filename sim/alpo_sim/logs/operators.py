"""Operators that create, change, rename, delete and list logs."""

from __future__ import annotations

from alpo.core.directory import LogOptions, NamedLog
from alpo.core.ready import Input
from alpo.core.requests import (
    CreateLog,
    DeleteLog,
    ListLogs,
    LogDeleted,
    LogIs,
    LogsAre,
    Refused,
    RenameLog,
    Reply,
    SetLog,
)

from ..checks import Broken
from ..clients import Clients, Periodic
from ..options import SECOND
from .checks import DirectoryChecks

#: Names that operators draw from, and most logs that they let there be at once.
_NAMES = ("audit", "billing", "plan", "registry")
_LOGS_MAX = 3


class LogOperator(Periodic):
    """Operator of logs. Requests are sent twice now and then, and arrive late: their nonces make that harmless."""

    def __init__(self, clients: Clients, directory: DirectoryChecks) -> None:
        self._directory = directory
        self.closing = False
        self._again: Input | None = None
        super().__init__(clients)

    def first_us(self) -> int:
        return self.clients.rng.randrange(2 * SECOND)

    def next_us(self) -> int:
        return self.clients.rng.randrange(2 * SECOND)

    def request(self) -> Input | None:
        if self.closing or not self.clients.faults.on:
            return None
        rng, origin = self.clients.rng, self.origin()
        if self._again is not None and rng.random() < 0.2:
            return self._again._replace(origin=origin)  # type: ignore[call-arg]
        there = [log.name for log in self._directory.now.logs]
        chance, name = rng.random(), rng.choice(_NAMES)
        if chance < 0.5 and len(there) < _LOGS_MAX:
            lead = rng.choice((0, 0, *self.clients.cluster.stage.hosts))
            settings = self.clients.cluster.options.settings.to_plain()
            self._again = CreateLog(origin, name, rng.randbytes(16), LogOptions(lead=lead), settings)
        elif chance < 0.6:
            return ListLogs(origin)
        elif chance < 0.7:
            return SetLog(origin, name, (("keep_ms", rng.randrange(1000)),))
        elif chance < 0.8:
            return RenameLog(origin, name, rng.choice(_NAMES))
        elif chance < 0.9 and there:
            self._again = DeleteLog(origin, rng.choice(there), rng.randbytes(16))
        else:
            return None
        return self._again

    def heard(self, server: int, reply: Reply) -> None:
        super().heard(server, reply)
        directory = self._directory
        if isinstance(reply, LogsAre):
            if reply.listing not in [listing for _, listing in directory.listings]:
                raise Broken("directory", f"{reply.listing} was told, and never was")
        elif isinstance(reply, LogIs):
            there = [log for _, listing in directory.listings for log in listing.logs]
            if _unfounded(reply.log) not in map(_unfounded, there):
                raise Broken("directory", f"{reply.log} was told, and never was")
        elif isinstance(reply, LogDeleted):
            if not any(reply.log in listing.deleted for _, listing in directory.listings):
                raise Broken("directory", f"{reply.log} was told to be deleted, and is not")
        else:
            assert isinstance(reply, Refused)


def _unfounded(log: NamedLog) -> NamedLog:
    """A log as it is told when it is created or changed: whether it is founded yet does not matter."""
    return log._replace(first_list=None, id=b"")
