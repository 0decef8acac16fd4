"""The replicated state that a command works on: opened, caught up, and closed again; values as they are given and
printed.

Laws:

* A command that only reads never founds a state, and no command takes a snapshot by itself.
* It waits for as long as the fold moves on: `--timeout` ends it only where nothing comes any more.
* An unknown outcome names client, serial and epoch (exit 3), at the deadline and at Ctrl-C.
"""

from __future__ import annotations

import base64
import io
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Set
from contextlib import asynccontextmanager, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from shlex import quote
from typing import Any, Self, TypeVar

import alpo
from alpo.client.reading import Batches
from alpo.client.servers import Servers, given_log, given_servers, given_tls
from alpo.errors import NotGuaranteed, TooLarge, Unavailable
from alpo.state import Add, Changed, Expunge, If, Keep, NotFounded, Put, State, Unsettled, Variable
from alpo.state.variable import VALUE_BYTES_MAX, Operation, need_name
from alpo.threads import in_thread

from .appending import hint_on_terminal
from .exits import Failed, Unknown, UsageProblem, reason
from .options import Target
from .output import escape, json_value, print_json, rfc3339
from .running import telling, unless_interrupted

T = TypeVar("T")
_CHUNK_BYTES = 1 << 18
_ABSENT = "this log holds no state: the first write to one makes it (alpo state set, alpo registry init, a program)"


class LocalLog(alpo.Log):
    """A log that is read from the server that has most of it, and ends where that one stood at `choose`."""

    _server: int | None = None
    _end_lsn = 0

    @classmethod
    def of(cls, servers: str, timeout_s: float) -> Self:
        """The log of these servers, as `alpo.connect` gives one."""
        return cls(Servers(given_servers(servers), tls=given_tls(None), log=given_log(None)), None, timeout_s, 1, 1)

    async def choose(self) -> None:
        """Find the server that has most of the log, of those that answer. Raises `Unavailable`."""
        ends = [(row["last_lsn"] or 0, row["id"]) for row in await self.status() if row["reachable"]]
        if not ends:
            raise Unavailable("no server answers")
        self._end_lsn, self._server = max(ends, key=lambda end: end[0])

    async def end(self, timeout_s: float | None = None) -> int:
        """The LSN after the last one that the server had."""
        return self._end_lsn + 1

    async def cursors(self, timeout_s: float | None = None) -> list[alpo.CursorInfo]:
        """No cursors: the leader alone knows them."""
        return []

    def read_batches(self, *args: Any, **options: Any) -> Batches:
        """Read as `alpo.Log` does, from that server."""
        return super().read_batches(*args, **{**options, "local": True, "server": self._server})

    def follow_batches(self, *args: Any, **options: Any) -> Batches:
        """Follow as `alpo.Log` does, from that server."""
        return super().follow_batches(*args, **{**options, "local": True, "server": self._server})


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
    try:
        name.encode()
        need_name(name)
        if "\0" in name:
            raise ValueError(f"{escape(name)} is the name of a row")
    except UnicodeEncodeError as error:
        raise UsageProblem(f"{where}: a name is UTF-8") from error
    except ValueError as error:
        raise UsageProblem(f"{where}: {error}") from error


def variable_fields(variable: Variable) -> dict[str, Any]:
    """JSON keys of a variable."""
    time = None if variable.time is None else rfc3339(variable.time)
    return {
        "name": variable.name, "version": variable.version, "created": variable.created, "time": time,
        "lease_s": variable.lease_s, **value_fields(variable.value),
    }


def value_fields(value: bytes | None) -> dict[str, Any]:
    """JSON keys of a value: ``value`` if it is UTF-8 text, or None, and ``value_json`` beside it if that text is JSON;
    else ``value_base64``."""
    if value is None:
        return {"value": None}
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode("ascii")}
    with suppress(ValueError):
        return {"value": text, "value_json": json_value(text)}
    return {"value": text}


async def value_of(value: str | None, file: Path | None) -> bytes:
    """The value that the command line gives, else all of the file or of stdin. Raises UsageProblem, `TooLarge`."""
    if value is not None:
        data = os.fsencode(value)
    elif file is not None and str(file) != "-":
        try:
            with io.FileIO(file) as stream:
                data = await _all_of(stream)
        except OSError as error:
            raise UsageProblem(f"{file}: {reason(error)}") from error
    else:
        hint_on_terminal("the value")
        data = await _all_of(io.FileIO(sys.stdin.fileno(), closefd=False))
    if len(data) > VALUE_BYTES_MAX:
        raise TooLarge(f"a value of more than {VALUE_BYTES_MAX} bytes")
    return data


async def _all_of(stream: io.RawIOBase) -> bytes:
    """All of a stream, but no more than is too large."""
    parts, size = [], 0
    while size <= VALUE_BYTES_MAX and (chunk := await in_thread(stream.read, _CHUNK_BYTES)):
        parts.append(chunk)
        size += len(chunk)
    return b"".join(parts)


def changed(target: Target, error: Changed) -> Failed:
    """Print, with `--json`, what is there instead of what was expected; returns the error to raise."""
    if target.json:
        print_json({"name": error.name, "version": None, "changed": error.version})
    name = escape(error.name)
    if error.version == 0:
        return Failed(f"there is no variable {name}")
    return Failed(f"{name} is at {error.version}, {f'not at {error.expected}' if error.expected else 'not absent'}")


def transaction(text: bytes) -> tuple[list[If], list[Operation]]:
    """Conditions and operations of `alpo state txn`. Raises UsageProblem that names what is wrong."""
    where = "the transaction"
    guards: list[If] = []
    operations: list[Operation] = []
    try:
        given = _object(json_value(text.decode()), {"if", "do"})
        conditions, steps = given.get("if", []), given.get("do")
        if not isinstance(conditions, list) or not isinstance(steps, list) or not steps:
            raise ValueError('"if" is a list, and "do" a list that is not empty')
        for number, each in enumerate(conditions, 1):
            where = f'condition {number} of "if"'
            fields = _object(each, {"name", "version", "created"})
            guards.append(If(fields.get("name", ""), fields.get("version"), fields.get("created")))
            guards[-1].plain()
        for number, each in enumerate(steps, 1):
            where = f'operation {number} of "do"'
            operations.append(_operation(each))
            operations[-1].plain()
    except (TypeError, ValueError) as error:
        raise UsageProblem(f"{where}: {error}") from error
    return guards, operations


def _object(given: Any, keys: Set[str]) -> dict[str, Any]:
    """``given``, a JSON object with no other ``keys``. Raises TypeError."""
    if not isinstance(given, dict):
        raise TypeError("a JSON object is wanted")
    if unknown := sorted(given.keys() - keys):
        raise TypeError(f"there is no key {unknown[0]!r} here; there are {', '.join(sorted(keys))}")
    return given


#: Operation of a transaction -> the other keys that it takes.
_KEYS = {"put": {"value", "value_json", "value_base64", "lease_s"}, "expunge": set(), "add": {"number"},
         "keep": {"lease_s"}}


def _operation(each: Any) -> Operation:
    """One of "do". Raises TypeError, ValueError."""
    verbs = [verb for verb in _KEYS if isinstance(each, dict) and verb in each]
    if len(verbs) != 1:
        raise TypeError(f"a JSON object with one of the keys {', '.join(_KEYS)} is wanted")
    verb = verbs[0]
    given = _object(each, {verb, *_KEYS[verb]})
    name, lease_s = given[verb], given.get("lease_s")
    if verb == "add":
        return Add(name, given.get("number", 1))
    if verb == "keep":
        return Keep(name, lease_s)
    if verb == "expunge":
        return Expunge(name)
    values = [(key, given[key]) for key in ("value", "value_json", "value_base64") if key in given]
    if len(values) != 1:
        raise TypeError("put takes one of value, value_json and value_base64")
    key, value = values[0]
    if key == "value_json":
        return Put(name, json=value, lease_s=lease_s)
    if not isinstance(value, str):
        raise TypeError(f"{key} is text")
    return Put(name, base64.b64decode(value, validate=True) if key == "value_base64" else value, lease_s=lease_s)
