"""The replicated state that a command works on: opened, caught up, and closed again.

Laws:

* A command that only reads never founds a state, and no command takes a snapshot by itself.
* It waits for as long as the fold moves on: `--timeout` ends it only where nothing comes any more.
* An unknown outcome names client, serial and epoch (exit 3), at the deadline and at Ctrl-C.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from hashlib import blake2b
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

import alpo
from alpo.errors import NotGuaranteed, Unavailable
from alpo.state import NotFounded, State, Unsettled

from .connecting import telling
from .exits import Failed, Unknown, UsageProblem
from .options import Target
from .output import escape, print_json
from .running import unless_interrupted
from .state_local import LocalLog

T = TypeVar("T")
_ABSENT = "this log holds no state: the first write to one makes it (alpo state set, alpo registry init, a program)"


@asynccontextmanager
async def opened(target: Target, *, create: bool = False, local: bool = False) -> AsyncIterator[State]:
    """Open the state, as it is now; ``local``: as one server has it, without asking the leader.

    Raises Failed if the log holds none, unless ``create``; and the library's errors.
    """
    log = _log(target, local)
    state = State(
        log, create=create, timeout_s=target.timeout_s, snapshots="off", cache=_cache_of(target.servers)
    )
    loading = True

    def why() -> object:
        return log.reason or (f"the state is folded up to LSN {state.lsn:,}" if loading else None)

    async with log, telling(why):
        if isinstance(log, LocalLog):
            await log.choose()
        async with state:
            await _catch_up(state)
            loading = False
            yield state


def _log(target: Target, local: bool) -> alpo.Log:
    servers = ",".join(target.servers)
    return LocalLog.of(servers, target.timeout_s) if local else alpo.connect(servers, timeout_s=target.timeout_s)


def _cache_of(servers: Iterable[str]) -> Path | None:
    """The file that saves the next command to read the log; None if there is no place for it."""
    named = blake2b(",".join(sorted(servers)).encode(), digest_size=8).hexdigest()
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "alpo"
        folder.mkdir(0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder / f"state-{named}"


async def _catch_up(state: State) -> None:
    """Fold what there is now, however long it takes. Raises `Unavailable` if nothing comes any more."""
    while True:
        before_lsn = state.lsn
        try:
            await state.status()
            return
        except NotFounded as error:
            raise Failed(_ABSENT) from error
        except Unavailable:
            loading = state.lsn == 0 and state.log.reason is None
            if state.lsn == before_lsn and not loading:
                raise


def write(
    target: Target, fields: dict[str, Any], step: Callable[[State], Awaitable[T]], *, create: bool = True
) -> Callable[[], Awaitable[T]]:
    """A coroutine function that returns what ``step(state)`` returns, for `running.run`.

    ``fields``: what `--json` prints if the outcome is unknown, besides client, serial and epoch. Raises Unknown;
    KeyboardInterrupt if nothing is in doubt after Ctrl-C.
    """
    results: list[T] = []
    states: list[State] = []

    async def body() -> None:
        async with opened(target, create=create) as state:
            states.append(state)
            with unknown_told(target, fields):
                results.append(await step(state))

    async def written() -> T:
        interrupted = await unless_interrupted(body)
        if results:
            return results[0]
        assert interrupted
        if states:
            need_settled(target, states[0], fields)
        raise KeyboardInterrupt

    return written


def need_settled(target: Target, state: State, fields: dict[str, Any] | None = None) -> None:
    """Raise Unknown, after Ctrl-C, if the outcome of a write is not known."""
    with unknown_told(target, fields):
        for handle in state.in_doubt():
            raise NotGuaranteed("interrupted", client=handle.client, serial=handle.serial, epoch=handle.epoch)


@contextmanager
def unknown_told(target: Target, fields: dict[str, Any] | None = None) -> Iterator[None]:
    """Raise Unknown, with what to ask about, for an error that leaves the outcome open; print ``fields`` with `--json`,
    and who asks."""
    try:
        yield
    except NotGuaranteed as error:
        if target.json and fields is not None:
            print_json({**fields, "client": error.client, "serial": error.serial, "epoch": error.epoch})
        who = f"client {error.client}, serial {error.serial}, epoch {error.epoch}"
        ask = f"alpo outcome {quote(error.client)} {error.serial}"
        raise Unknown(f"{error}\noutcome unknown ({who}); whether it is in the log: {ask}") from error
    except Unsettled as error:
        raise Unknown(f"{error}\noutcome unknown") from error


def check_name(name: str, where: str = "NAME") -> None:
    """Raise UsageProblem unless ``name`` may name a variable."""
    from alpo.state.variable import need_name

    try:
        name.encode()
        need_name(name)
        if "\0" in name:
            raise ValueError(f"{escape(name)} is the name of a row")
    except UnicodeEncodeError as error:
        raise UsageProblem(f"{where}: a name is UTF-8") from error
    except ValueError as error:
        raise UsageProblem(f"{where}: {error}") from error
