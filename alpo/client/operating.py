"""What operators ask of a cluster: the half of `Log` that is not appending and reading.

Law: nothing here needs the tasks behind a `Log`; each call dials, asks and is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from alpo.core.inputs import MemberStep
from alpo.errors import AlpoError

from . import compacting
from .arguments import need_seconds
from .compacting import FileSpace
from .operator import (
    admin,
    cursors,
    events,
    members,
    settings,
    status,
)
from .operator import (
    outcome as keeping,
)
from .operator.admin import ByHand, SessionInfo
from .operator.cursors import CursorInfo
from .operator.events import Events
from .operator.members import Leadership, MemberInfo
from .operator.outcome import Outcome
from .operator.settings import Settings
from .operator.status import MemberStatus
from .payloads import Payload
from .servers import Servers


class Operations:
    """The operators' calls of a `Log`. Every one raises `Closed` once the log is closed."""

    def __init__(self, servers: Servers, timeout_s: float) -> None:
        need_seconds(timeout_s)
        self._servers = servers
        self._timeout_s = timeout_s

    @property
    def closed(self) -> bool:
        """Was it closed, here or in the process that this one was forked from?"""
        return self._servers.closed

    def _seconds(self, timeout_s: float | None) -> float:
        """How long to wait. Raises `Closed`, TypeError, ValueError: every call that waits comes by here first."""
        self._servers.require_open()
        if timeout_s is None:
            return self._timeout_s
        need_seconds(timeout_s, zero=True)
        return timeout_s

    async def append_by_hand(
        self, payloads: Iterable[Payload], *, client: str, serial: int, epoch: int | None = None,
        timeout_s: float | None = None,
    ) -> ByHand:
        """Retry across processes what was sent as (client, serial, epoch): see `admin.append_by_hand`."""
        return await admin.append_by_hand(
            self._servers, payloads, client, serial, epoch, self._seconds(timeout_s)
        )

    async def status(self, timeout_s: float | None = None) -> list[MemberStatus]:
        """Every member's own account of itself: see `status.status`."""
        return await status.status(self._servers, self._seconds(timeout_s))

    async def events(self, since: datetime | None = None, timeout_s: float | None = None) -> Events:
        """What happened to the servers, elections above all: see `events.gather`."""
        return await events.gather(self._servers, since, self._seconds(timeout_s))

    async def sessions(self, timeout_s: float | None = None) -> list[SessionInfo]:
        """All sessions of the cluster. Raises `Unavailable`."""
        return await admin.sessions(self._servers, self._seconds(timeout_s))

    async def drop_session(self, name: str, epoch: int | None = None, timeout_s: float | None = None) -> int:
        """Forget the named session (R22): see `admin.drop_session`."""
        return await admin.drop_session(
            self._servers, name, epoch, self._seconds(timeout_s)
        )

    async def outcome(
        self, client: str, serial: int, timeout_s: float | None = None, *, epoch: int | None = None
    ) -> Outcome:
        """What became of the append (``client``, ``serial``), as of now: see `Outcome`. With the ``epoch`` that it was
        sent under, what was appended under another does not count, and from before a drop nobody can tell.

        "not_appended" is no promise for later: a transmission that is still on its way may arrive. Raises ValueError,
        `Unavailable`; `Refused` for an ``epoch`` while a server of release 0.1 leads, which cannot tell by epoch.
        """
        return await keeping.outcome(self._servers, client, serial, epoch, self._seconds(timeout_s))

    async def wait_everyone(self, lsn: int, timeout_s: float | None = None) -> None:
        """Wait until every member has payload ``lsn``, which was appended, on its disk: see `keeping.wait_everyone`."""
        await keeping.wait_everyone(self._servers, lsn, self._seconds(timeout_s))

    async def settings(self, timeout_s: float | None = None) -> Settings:
        """The settings that all servers share, by name. Raises `Unavailable`."""
        return await settings.settings(self._servers, self._seconds(timeout_s))

    async def change_settings(
        self, wanted: Settings | Mapping[str, float], *, expected: Settings | Mapping[str, float] | None = None,
        timeout_s: float | None = None,
    ) -> Settings:
        """Change settings, all of ``wanted`` or none: see `settings.change_settings`."""
        return await settings.change_settings(self._servers, wanted, expected, self._seconds(timeout_s))

    async def set_cursor(self, name: str, lsn: int, timeout_s: float | None = None) -> None:
        """Keep payload ``lsn`` and all after it for the reader of that name: see `cursors.set_cursor`."""
        await cursors.set_cursor(self._servers, name, lsn, self._seconds(timeout_s))

    async def cursors(self, timeout_s: float | None = None) -> list[CursorInfo]:
        """All cursors, by name. Raises `Unavailable`."""
        return await cursors.cursors(self._servers, self._seconds(timeout_s))

    async def drop_cursor(self, name: str, timeout_s: float | None = None) -> int:
        """Forget a cursor: see `cursors.drop_cursor`."""
        return await cursors.drop_cursor(self._servers, name, self._seconds(timeout_s))

    async def trim(self, before: int, timeout_s: float | None = None, *, force: bool = False) -> int:
        """Let nothing below LSN ``before`` be read any more; returns the first LSN that is served: see `admin.trim`."""
        return await admin.trim(self._servers, before, force, self._seconds(timeout_s))

    async def add_member(
        self, id: int, address: str, *, priority: int = 0, timeout_s: float | None = None
    ) -> list[MemberInfo]:
        """Take the server that waits at ``address`` into the cluster (R27): see `members.change`."""
        return await self._change_member(MemberStep.ADD, id, address, priority, timeout_s)

    async def remove_member(self, id: int, timeout_s: float | None = None) -> list[MemberInfo]:
        """Take a server out of the cluster (R27): see `members.change`."""
        return await self._change_member(MemberStep.REMOVE, id, "", 0, timeout_s)

    async def replace_member(self, id: int, address: str, timeout_s: float | None = None) -> list[MemberInfo]:
        """Have the server that waits at ``address``, with an empty disk, take member ``id``'s place: see
        `members.change`."""
        return await self._change_member(MemberStep.REPLACE, id, address, 0, timeout_s)

    async def _change_member(
        self, step: MemberStep, id: int, address: str, priority: int, timeout_s: float | None
    ) -> list[MemberInfo]:
        return await members.change(self._servers, step, id, address, priority, self._seconds(timeout_s))

    async def transfer(self, target: int, timeout_s: float | None = None) -> Leadership:
        """Have server ``target`` lead (R28): see `members.transfer`."""
        return await members.transfer(self._servers, target, self._seconds(timeout_s))

    async def compact(self, server: int, timeout_s: float | None = None) -> FileSpace:
        """Have a server give the free space of its data file back to the file system, while it serves, and wait until
        it has; how the file is then: see `compacting.watch`."""
        return await compacting.compact(self._servers, server, self._seconds(timeout_s))

    async def init(self, timeout_s: float | None = None) -> None:
        """Found the cluster (R29): see `admin.init`."""
        await admin.init(self._servers, self._seconds(timeout_s))


def why_waiting(log: Operations) -> AlpoError | None:
    """Why what is under way is not done, the most telling first; None if nothing is the matter. For the commands."""
    return log._servers.reason
