"""Logs of a cluster besides its first one: created, listed, changed, renamed, deleted (docs/rules.md, "Several logs").

Laws:

* The first log keeps the directory of the others: these are calls of a `Log` of the first one, and any other refuses.
* A creation and a deletion carry a nonce of this call: a repeated try is told what became of the first one. A deletion
  that another call began is waited for by the nonce of that one: no other log of the name is deleted instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import anyio

from alpo.client.arguments import need_int, need_str
from alpo.core import requests as q
from alpo.core.directory import LOG_NAME_WANTED, NONCE_BYTES, LogOptions, NamedLog, valid_log
from alpo.core.entries import INT_MAX
from alpo.core.requests import Code
from alpo.core.settings import Settings as CoreSettings
from alpo.errors import LogExists, NoSuchLog, Unavailable

from .asking import Make, Refusals
from .status import StatusCalls

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


class LogCalls(StatusCalls):
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
            create = partial(q.CreateLog, name=name, nonce=nonce, options=LogOptions(**given), settings=settings)
            made = await self._log_told(create, seconds, name)
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

    async def _log_told(self, make: Make, timeout_s: float, name: str, new: str = "") -> NamedLog:
        return (await self._ask(make, q.LogIs, timeout_s, _refusals(name, new))).log

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
        return _info(await self._log_told(partial(q.SetLog, name=name, changes=changes), seconds, name))

    async def rename_log(self, name: str, new: str, timeout_s: float | None = None) -> LogInfo:
        """Give a log another name; its id, its sessions and its readers stay. Raises `NoSuchLog`, `LogExists`,
        `Unavailable`."""
        seconds = self._seconds(timeout_s)
        _need_name(name)
        _need_name(new)
        return _info(await self._log_told(partial(q.RenameLog, name=name, new=new), seconds, name, new))

    async def delete_log(self, name: str, timeout_s: float | None = None) -> int:
        """Delete a log, for good; done once no append that is made from then on can be acknowledged. Its servers move
        its files to ``deleted/`` in their data directories. Returns its number.

        If a log of this name is being deleted already, this waits for the end of that. Raises `NoSuchLog`,
        `Unavailable`: the log may be deleted all the same, and the same call again is safe.
        """
        give_up_s = self._seconds(timeout_s) + anyio.current_time()
        _need_name(name)

        def left_s() -> float:
            return max(0.0, give_up_s - anyio.current_time())

        async def deleted(nonce: bytes) -> int:
            ask = partial(q.DeleteLog, name=name, nonce=nonce)
            return (await self._ask(ask, q.LogDeleted, left_s(), _refusals(name))).log.number

        try:
            return await deleted(self._servers.rng.randbytes(NONCE_BYTES))
        except NoSuchLog:
            listing = (await self._ask(q.ListLogs, q.LogsAre, left_s())).listing
            kept = {log["number"] for row in await self.status(left_s()) for log in row.get("logs", ())}
            for gone in listing.deleted:
                if gone.name == name and gone.number in kept:
                    return await deleted(gone.ended)
            raise


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
    return {
        Code.NO_SUCH_LOG: lambda refused: NoSuchLog(refused.detail, log=name),
        Code.LOG_EXISTS: lambda refused: LogExists(refused.detail, log=new or name),
    }
