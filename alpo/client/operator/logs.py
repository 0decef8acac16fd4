"""Logs of a cluster besides its first one: created, listed, changed, renamed, deleted (docs/rules.md, "Several logs").

Laws:

* The first log keeps the directory of the others: these are calls of a `Log` of the first one, and any other refuses.
* A creation and a deletion carry a nonce of this call: a repeated try is told what became of the first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import anyio

from alpo.client.arguments import need_int, need_str
from alpo.core import requests as q
from alpo.core.directory import LOG_NAME_WANTED, NONCE_BYTES, LogOptions, NamedLog, valid_log
from alpo.core.entries import INT_MAX
from alpo.core.requests import Code
from alpo.core.settings import Settings as CoreSettings
from alpo.errors import LogExists, NoSuchLog, Unavailable
from alpo.wire import requests as w

from .asking import Asking, Refusals

#: The core's names of options -> those of arguments here.
_OPTIONS = {"keep_ms": "keep_s", "keep_bytes": "keep_bytes", "bytes_max": "bytes_max", "lead": "lead"}
#: Seconds between two looks whether a new log has begun.
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class LogInfo:
    """One log besides the first. ``id``: in hex, "" until it has begun. ``keep_s``, ``keep_bytes``: how much of it is
    kept; ``lead``: the server that should lead it; ``bytes_max``: what it may hold before appends are refused; None: as
    the servers are configured, any server, and no bound."""

    name: str
    number: int
    id: str
    keep_s: float | None
    keep_bytes: int | None
    lead: int | None
    bytes_max: int | None


class LogCalls(Asking):
    """The calls of a `Log` about the other logs of its cluster. They are made by a `Log` of the first one."""

    async def create_log(
        self, name: str, *, keep_s: float | None = None, keep_bytes: int | None = None, lead: int | None = None,
        bytes_max: int | None = None, if_missing: bool = False, timeout_s: float | None = None,
    ) -> LogInfo:
        """Create a log, and wait until it has begun. It begins with the default settings, at LSN 1.

        ``keep_s``, ``keep_bytes``: what is older or beyond may be cleaned, as by ``[retention]``; ``bytes_max``: while
        it holds more than that, appends raise `NoSpace`; ``lead``: id of the server that should lead it.
        ``if_missing``: a log of this name will do, if it has the options that are given. Raises ValueError for a name
        that no log can have, `LogExists`, `Refused` (one member is too old to know of logs, or there are too many),
        `Unavailable` at the deadline: the log may be created all the same, and the same call with ``if_missing`` is
        safe.
        """
        seconds = self._seconds(timeout_s)
        give_up_s = anyio.current_time() + seconds
        _need_name(name)
        given = _core_options(keep_s, keep_bytes, bytes_max, lead)
        nonce, settings = self._servers.rng.randbytes(NONCE_BYTES), CoreSettings().to_plain()
        try:
            made = (await self._ask(
                lambda number: q.CreateLog(number, name, nonce, LogOptions(**given), settings), q.LogIs, seconds,
                _refusals(name),
            )).log
        except LogExists:
            if not if_missing:
                raise
            made = await self._named(name, given, give_up_s - anyio.current_time())
        while not made.id:
            if (left_s := give_up_s - anyio.current_time()) <= 0:
                raise Unavailable(f"the log {name} is created, and has not begun: a majority of the servers must be up")
            await anyio.sleep(_LOOK_S)
            there = (await self._ask(q.ListLogs, q.LogsAre, left_s)).listing.get(made.number)
            if there is None:
                raise NoSuchLog(f"the log {name} was deleted since", log=name)
            made = there
        return _info(made)

    async def _named(self, name: str, given: Mapping[str, int], timeout_s: float) -> NamedLog:
        """The log of this name, which has the options that are given. Raises `LogExists` if it has others."""
        there = (await self._ask(q.ListLogs, q.LogsAre, timeout_s)).listing.named(name)
        if there is None:
            raise NoSuchLog(f"the log {name} was deleted since", log=name)
        other = [_OPTIONS[key] for key, value in given.items() if getattr(there.options, key) != value]
        if other:
            raise LogExists(f"there is a log {name} already, with another value of {' and '.join(other)}", log=name)
        return there

    async def logs(self, timeout_s: float | None = None) -> list[LogInfo]:
        """The logs besides the first, by number. Raises `Unavailable`."""
        return [_info(log) for log in (await self._ask(q.ListLogs, q.LogsAre, timeout_s)).listing.logs]

    async def set_log(
        self, name: str, *, keep_s: float | None = None, keep_bytes: int | None = None, lead: int | None = None,
        bytes_max: int | None = None, timeout_s: float | None = None,
    ) -> LogInfo:
        """Change what was given when the log was created; 0 takes a value back, None leaves it as it is. Raises
        `NoSuchLog`, `Refused`, `Unavailable`; ValueError if there is nothing to change."""
        seconds = self._seconds(timeout_s)
        changes = tuple(_core_options(keep_s, keep_bytes, bytes_max, lead).items())
        if not changes:
            raise ValueError("nothing to change: keep_s, keep_bytes, bytes_max or lead")
        _need_name(name)
        return _info((await self._ask(
            lambda number: q.SetLog(number, name, changes), q.LogIs, seconds, _refusals(name)
        )).log)

    async def rename_log(self, name: str, new: str, timeout_s: float | None = None) -> LogInfo:
        """Give a log another name; its id, its sessions and its readers stay. Raises `NoSuchLog`, `LogExists`,
        `Unavailable`."""
        seconds = self._seconds(timeout_s)
        _need_name(name)
        _need_name(new)
        return _info((await self._ask(
            lambda number: q.RenameLog(number, name, new), q.LogIs, seconds, _refusals(name, new)
        )).log)

    async def delete_log(self, name: str, timeout_s: float | None = None) -> None:
        """Delete a log, for good; done once no append that is made from then on can be acknowledged. Its servers move
        its files to ``deleted/`` in their data directories. Raises `NoSuchLog`, `Unavailable`: the log may be deleted
        all the same.
        """
        seconds = self._seconds(timeout_s)
        _need_name(name)
        nonce = self._servers.rng.randbytes(NONCE_BYTES)
        await self._ask(lambda number: q.DeleteLog(number, name, nonce), q.LogDeleted, seconds, _refusals(name))


def _need_name(name: str) -> None:
    need_str(name=name)
    if not valid_log(name):
        raise ValueError(f"{name!r}: {LOG_NAME_WANTED}")


def _core_options(
    keep_s: float | None, keep_bytes: int | None, bytes_max: int | None, lead: int | None
) -> dict[str, int]:
    """The core's names and units of the options that are given. Raises TypeError, ValueError."""
    found: dict[str, int] = {}
    if keep_s is not None:
        if isinstance(keep_s, bool) or not isinstance(keep_s, int | float):
            raise TypeError(f"keep_s is a number of seconds, not {type(keep_s).__name__}")
        if not 0 <= keep_s <= INT_MAX / 1000:
            raise ValueError(f"keep_s is 0 or more seconds, not {keep_s}")
        found["keep_ms"] = round(keep_s * 1000)
    for name, value in (("keep_bytes", keep_bytes), ("bytes_max", bytes_max), ("lead", lead)):
        if value is not None:
            need_int(**{name: value})
            if not 0 <= value <= INT_MAX:
                raise ValueError(f"{name} is 0 or more, not {value}")
            found[name] = value
    return found


def _info(log: NamedLog) -> LogInfo:
    options = log.options
    return LogInfo(
        log.name, log.number, log.id.hex(), options.keep_ms / 1000 if options.keep_ms else None,
        options.keep_bytes or None, options.lead or None, options.bytes_max or None,
    )


def _refusals(name: str, new: str = "") -> Refusals:
    def no_such_log(refused: w.RequestRefused) -> NoSuchLog:
        return NoSuchLog(refused.detail, log=name)

    def log_exists(refused: w.RequestRefused) -> LogExists:
        return LogExists(refused.detail, log=new or name)

    return {Code.NO_SUCH_LOG: no_such_log, Code.LOG_EXISTS: log_exists}
