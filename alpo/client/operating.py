"""Operators' requests to a cluster: the half of `Log` that is not appending and reading.

Law: nothing here needs the tasks behind a `Log`; each call dials, asks and is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from os import PathLike
from pathlib import Path

from alpo.core.requests import MemberStep
from alpo.errors import AlpoError

from .arguments import need_seconds
from .operator import cursors, events, files, members, sessions, settings, status
from .operator.cursors import CursorInfo
from .operator.events import Events
from .operator.files import BackupInfo, FileSpace
from .operator.members import Leadership, MemberInfo
from .operator.sessions import ByHand, Outcome, SessionInfo
from .operator.settings import Settings
from .operator.status import MemberStatus
from .payloads import Payload
from .retry import Clock
from .servers import Servers


class Operations:
    """The operators' calls of a `Log`.

    Each is repeated until a server answers it, ``timeout_s`` seconds at most (None: what the log was given). Every one
    raises `Closed` once the log is closed.
    """

    def __init__(self, servers: Servers, timeout_s: float) -> None:
        need_seconds(timeout_s)
        self._servers = servers
        self._timeout_s = timeout_s
        #: The time in which this log lives: for libraries built on it.
        self.clock = Clock(servers.rng)

    @property
    def closed(self) -> bool:
        """True once closed, here or in the process that this one was forked from."""
        return self._servers.closed

    @property
    def forked(self) -> bool:
        """True in a process that was forked from the one that made this log. For libraries built on it."""
        return self._servers.inherited

    @property
    def timeout_s(self) -> float:
        """The seconds that a call waits for an answer, unless it is given others. For libraries built on this log."""
        return self._timeout_s

    @property
    def cluster(self) -> str:
        """The id of the cluster, in hex; "" until a server has named it. For libraries built on this log."""
        return self._servers.cluster.hex()

    @property
    def reason(self) -> AlpoError | None:
        """The reason why what is under way is not done yet, the most telling one first; None if nothing is the matter.
        For libraries built on this log."""
        return self._servers.reason

    def _seconds(self, timeout_s: float | None) -> float:
        """Seconds to wait, for every call that waits. Raises `Closed`, TypeError, ValueError."""
        self._servers.require_open()
        if timeout_s is None:
            return self._timeout_s
        need_seconds(timeout_s, zero=True)
        return timeout_s

    async def append_by_hand(
        self, payloads: Iterable[Payload], *, client: str, serial: int, epoch: int | None = None,
        expect_last: int | None = None, timeout_s: float | None = None,
    ) -> ByHand:
        """Send, once more, what another process may have sent as (``client``, ``serial``, ``epoch``).

        Several payloads are one batch. ``epoch`` None: the one on record; if none is, the name is opened first. Random
        client ids have no epoch. ``expect_last``: as it was sent with. Raises as `Log.append`; `NotGuaranteed` names
        the epoch to retry with.
        """
        return await sessions.append_by_hand(
            self._servers, payloads, client, serial, epoch, expect_last, self._seconds(timeout_s)
        )

    async def status(self, timeout_s: float | None = None) -> list[MemberStatus]:
        """Every member's own account of itself, ordered by id.

        A member that does not answer within 2 s has a row too: ``reachable`` is False, what is not known is None. If
        no server answers, the rows are those of the addresses given (``id`` None). Servers at those addresses that
        answer and are no members come last.
        """
        return await status.status(self._servers, self._seconds(timeout_s))

    async def events(self, since: datetime | None = None, timeout_s: float | None = None) -> Events:
        """Events of all servers, elections above all, in time order: all that they keep, or from ``since`` on.

        Servers that do not answer are listed in ``silent``.
        """
        return await events.gather(self._servers, since, self._seconds(timeout_s))

    async def sessions(self, timeout_s: float | None = None) -> list[SessionInfo]:
        """All sessions of the cluster. Raises `Unavailable`."""
        return await sessions.sessions(self._servers, self._seconds(timeout_s))

    async def drop_session(self, name: str, epoch: int | None = None, timeout_s: float | None = None) -> int:
        """Forget the named session, if ``epoch`` is its current one (None: whatever it is); returns that epoch.

        Raises `Refused` when there is no such session or its epoch is another, `Unavailable` when no answer came.
        """
        return await sessions.drop_session(self._servers, name, epoch, self._seconds(timeout_s))

    async def outcome(
        self, client: str, serial: int, timeout_s: float | None = None, *, epoch: int | None = None
    ) -> Outcome:
        """Tell what became of the append (``client``, ``serial``), as of now.

        With the ``epoch`` that it was sent under, what was appended under another does not count, and of what was sent
        before the session was dropped nobody can tell. "not_appended" is no promise for later: a transmission that is
        still on its way may arrive. Raises ValueError, `Unavailable`.
        """
        return await sessions.outcome(self._servers, client, serial, epoch, self._seconds(timeout_s))

    async def wait_everyone(self, lsn: int, timeout_s: float | None = None) -> None:
        """Wait until every member has payload ``lsn``, which was appended, on its disk.

        Raises ValueError, `OutOfRange` for an LSN that is not in the log yet, `NotEverywhere` at the deadline.
        """
        await members.wait_everyone(self._servers, lsn, self._seconds(timeout_s))

    async def settings(self, timeout_s: float | None = None) -> Settings:
        """The settings that all servers share, by name. Raises `Unavailable`."""
        return await settings.settings(self._servers, self._seconds(timeout_s))

    async def change_settings(
        self, wanted: Settings | Mapping[str, float], *, expected: Settings | Mapping[str, float] | None = None,
        timeout_s: float | None = None,
    ) -> Settings:
        """Change settings, all of ``wanted`` or none; returns all settings as they are then.

        ``expected``: the values that the caller believes the changed ones have (None: read now); if one has another by
        then, nothing is changed. Repeating is safe. Raises ValueError for what can never be, `Refused` when one was
        changed meanwhile or cannot be changed now, `Unavailable` when no answer came (the change may have been made).
        """
        return await settings.change_settings(self._servers, wanted, expected, self._seconds(timeout_s))

    async def set_cursor(self, name: str, lsn: int, timeout_s: float | None = None) -> None:
        """Keep payload ``lsn`` and all after it for the reader ``name``: no cleaning or trim takes them.

        Raises ValueError, `OutOfRange` for what is gone or beyond one past the end, `Refused` when there are too many
        cursors, `Unavailable`.
        """
        await cursors.set_cursor(self._servers, name, lsn, self._seconds(timeout_s))

    async def cursors(self, timeout_s: float | None = None) -> list[CursorInfo]:
        """All cursors, by name. Raises `Unavailable`."""
        return await cursors.cursors(self._servers, self._seconds(timeout_s))

    async def drop_cursor(self, name: str, timeout_s: float | None = None) -> int:
        """Forget a cursor; returns the LSN where it stood (0 if a try whose answer was lost had dropped it already).

        Raises ValueError, `Refused` when there is none of that name, `Unavailable`.
        """
        return await cursors.drop_cursor(self._servers, name, self._seconds(timeout_s))

    async def trim(self, before: int, timeout_s: float | None = None, *, force: bool = False) -> int:
        """Let nothing below LSN ``before`` be read any more; returns the first LSN that is served from now on.

        ``force``: also what a cursor's reader needs; such cursors are dropped. Repeating is safe. Raises ValueError,
        `OutOfRange` for an LSN beyond one past the end, `Refused` when a cursor needs what would go, `Unavailable` when
        no answer came (the trim may have been made).
        """
        return await cursors.trim(self._servers, before, force, self._seconds(timeout_s))

    async def add_member(
        self, id: int, address: str, *, priority: int = 0, timeout_s: float | None = None
    ) -> list[MemberInfo]:
        """Take the server that waits at ``address`` into the cluster; returns the new member list, guaranteed.

        The server is a LEARNER at first, and becomes a VOTER by itself once it has caught up. Raises `Refused` (why it
        cannot be), `Unavailable` when no answer came: the change may still be made.
        """
        return await self._change_member(MemberStep.ADD, id, address, priority, timeout_s)

    async def remove_member(self, id: int, timeout_s: float | None = None) -> list[MemberInfo]:
        """Take a server out of the cluster; returns the new member list, guaranteed. Raises as `add_member`."""
        return await self._change_member(MemberStep.REMOVE, id, "", 0, timeout_s)

    async def replace_member(self, id: int, address: str, timeout_s: float | None = None) -> list[MemberInfo]:
        """Have the server that waits at ``address``, with an empty disk, take member ``id``'s place.

        Returns the new member list, guaranteed. Raises as `add_member`.
        """
        return await self._change_member(MemberStep.REPLACE, id, address, 0, timeout_s)

    async def _change_member(
        self, step: MemberStep, id: int, address: str, priority: int, timeout_s: float | None
    ) -> list[MemberInfo]:
        return await members.change(self._servers, step, id, address, priority, self._seconds(timeout_s))

    async def transfer(self, target: int, timeout_s: float | None = None) -> Leadership:
        """Have server ``target`` lead. Raises `Refused` (why it cannot), `Unavailable`."""
        return await members.transfer(self._servers, target, self._seconds(timeout_s))

    async def compact(self, server: int, timeout_s: float | None = None) -> FileSpace:
        """Have a server give the free space of its data file back to the file system, while it serves.

        Waits until all is given back, and returns how the file is then; ``timeout_s`` bounds how long nothing may come
        of it. Raises `Refused`, `Unavailable`, `ProtocolError`.
        """
        return await files.compact(self._servers, server, self._seconds(timeout_s))

    async def backup(
        self, file: str | PathLike[str], *, server: int | None = None,
        progress: Callable[[int, int], object] | None = None, timeout_s: float | None = None,
    ) -> BackupInfo:
        """Copy the log of server ``server`` (None: the leader) into ``file``, while it serves: all that was
        acknowledged when this was called. The file appears whole, and synced, or not at all.

        ``progress(done, about)`` is called now and then, with bytes. ``timeout_s`` bounds how long nothing may come.
        Raises `BackupFailed`, `Refused`, `Unavailable`, `ProtocolError`.
        """
        seconds = self._seconds(timeout_s)
        from alpo.backup import back_up  # with all of a store

        return await back_up(self._servers, Path(file), server, seconds, progress)

    async def init(self, timeout_s: float | None = None) -> None:
        """Found the cluster, by any one of its servers. Raises `Refused` (why it cannot be), `Unavailable`."""
        await members.init(self._servers, self._seconds(timeout_s))


def servers_of(log: Operations) -> Servers:
    """The servers that a log knows of, and its connections to them. For the library."""
    return log._servers
