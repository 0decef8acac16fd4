"""The operators' half of `SyncLog`: every call is that of the same name of `operating.Operations`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from .compacting import FileSpace
from .log import Log
from .operator.admin import ByHand, SessionInfo
from .operator.cursors import CursorInfo
from .operator.events import Events
from .operator.members import Leadership, MemberInfo
from .operator.outcome import Outcome
from .operator.settings import Settings
from .operator.status import MemberStatus
from .payloads import Payload

T = TypeVar("T")


class SyncOperations:
    """Calls that go to ``_log``, in its loop."""

    _log: Log

    def _call(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What ``function()`` gives in the loop. Raises `Closed`."""
        raise NotImplementedError

    def append_by_hand(
        self, payloads: Iterable[Payload], *, client: str, serial: int, epoch: int | None = None,
        timeout_s: float | None = None,
    ) -> ByHand:
        return self._call(partial(
            self._log.append_by_hand, payloads, client=client, serial=serial, epoch=epoch, timeout_s=timeout_s
        ))

    def status(self, timeout_s: float | None = None) -> list[MemberStatus]:
        return self._call(partial(self._log.status, timeout_s))

    def events(self, since: datetime | None = None, timeout_s: float | None = None) -> Events:
        return self._call(partial(self._log.events, since, timeout_s))

    def sessions(self, timeout_s: float | None = None) -> list[SessionInfo]:
        return self._call(partial(self._log.sessions, timeout_s))

    def drop_session(self, name: str, epoch: int | None = None, timeout_s: float | None = None) -> int:
        return self._call(partial(self._log.drop_session, name, epoch, timeout_s))

    def outcome(
        self, client: str, serial: int, timeout_s: float | None = None, *, epoch: int | None = None
    ) -> Outcome:
        return self._call(partial(self._log.outcome, client, serial, timeout_s, epoch=epoch))

    def wait_everyone(self, lsn: int, timeout_s: float | None = None) -> None:
        self._call(partial(self._log.wait_everyone, lsn, timeout_s))

    def settings(self, timeout_s: float | None = None) -> Settings:
        return self._call(partial(self._log.settings, timeout_s))

    def change_settings(
        self, wanted: Settings | Mapping[str, float], *, expected: Settings | Mapping[str, float] | None = None,
        timeout_s: float | None = None,
    ) -> Settings:
        return self._call(partial(self._log.change_settings, wanted, expected=expected, timeout_s=timeout_s))

    def set_cursor(self, name: str, lsn: int, timeout_s: float | None = None) -> None:
        self._call(partial(self._log.set_cursor, name, lsn, timeout_s))

    def cursors(self, timeout_s: float | None = None) -> list[CursorInfo]:
        return self._call(partial(self._log.cursors, timeout_s))

    def drop_cursor(self, name: str, timeout_s: float | None = None) -> int:
        return self._call(partial(self._log.drop_cursor, name, timeout_s))

    def trim(self, before: int, timeout_s: float | None = None, *, force: bool = False) -> int:
        return self._call(partial(self._log.trim, before, timeout_s, force=force))

    def add_member(
        self, id: int, address: str, *, priority: int = 0, timeout_s: float | None = None
    ) -> list[MemberInfo]:
        return self._call(partial(self._log.add_member, id, address, priority=priority, timeout_s=timeout_s))

    def remove_member(self, id: int, timeout_s: float | None = None) -> list[MemberInfo]:
        return self._call(partial(self._log.remove_member, id, timeout_s))

    def replace_member(self, id: int, address: str, timeout_s: float | None = None) -> list[MemberInfo]:
        return self._call(partial(self._log.replace_member, id, address, timeout_s))

    def transfer(self, target: int, timeout_s: float | None = None) -> Leadership:
        return self._call(partial(self._log.transfer, target, timeout_s))

    def compact(self, server: int, timeout_s: float | None = None) -> FileSpace:
        return self._call(partial(self._log.compact, server, timeout_s))

    def init(self, timeout_s: float | None = None) -> None:
        self._call(partial(self._log.init, timeout_s))
