"""`Replica`: a machine of the user's own that all processes of a program share, folded from the commands in the log.

Laws:

* A command is applied once, at its place in the log, by every process alike, and the answer is what it gave there.
* A read sees every command that was answered to anybody before it began.
* A process whose machine is not that of the log stops with `Diverged`: none of its snapshots is taken. Before it stops,
  it keeps the log from the last snapshot on that it agreed with; which side is right, an operator decides.
* Newer code waits with its version until no command of older code came for a minute; older code stops there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from inspect import iscoroutinefunction, signature
from os import PathLike
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import anyio.lowlevel

from alpo.client.arguments import need_seconds
from alpo.client.log import Log
from alpo.client.log import connect as connect_log
from alpo.client.reasons import PASSING
from alpo.client.retry import AGAIN_S
from alpo.errors import AlpoError, OutOfRange, Refused, TooLarge
from alpo.tls import Tls

from .contract import At, Machine
from .errors import Behind, Diverged, NewerVersion, NotFounded, Unsettled, WrongMachine
from .folder import Disputed, Folder, Sent, Watcher
from .hosted import (
    COMMAND_ROOM,
    PAYLOADS,
    SETTLED_MS,
    Copied,
    Hosted,
    Made,
    Outdated,
    Raised,
    commands_head,
    found,
    judgement,
    judgement_in,
    newer_version,
    valid_name,
    valid_version,
)
from .items import AGREED, kind_of
from .loading import Cache, cursor_lsn, digest_at, digest_in, find, first_lsn, take_digest
from .machine import Outcome, Result, time_ms_of, time_of
from .payloads import Begin, End
from .replicated import Replicated, owning

M = TypeVar("M", bound=Machine)
T = TypeVar("T")
#: Most seconds that a process waits for another one to ask for a newer version.
_WAIT_S = 5.0
_CALLED = ("apply", "items", "load", "freeze")


class ReplicaStatus(NamedTuple):
    """A machine as this process has folded it, at ``lsn``.

    ``id``: hex, "" before it is founded. ``version``: the one in force. ``invalid``: payloads that look like the
    machine's and are none. ``foreign_lsn``: the last payload of others. ``snapshot`` and ``previous``: (first, last)
    LSN of the last two accepted, None without. ``bytes_since``: bytes of commands since the last one began.
    """

    id: str
    name: str
    version: int
    lsn: int
    time: datetime
    invalid: int
    foreign_lsn: int
    snapshot: tuple[int, int] | None
    previous: tuple[int, int] | None
    bytes_since: int


class Replica(Replicated[Hosted[M], Watcher[Hosted[M]]], Generic[M]):
    """The machine of the class ``made_by`` in ``log``, which stays the caller's, for one event loop: in another, every
    call raises RuntimeError.

    Use it in ``async with``; or as it is, and await `close` at the end: then its tasks begin with the first call, and
    end with the loop at the latest. It may be entered, used and left by different tasks.

    ``name``: of the machine, told by the log; `WrongMachine` is raised where that holds another. ``version``: the one
    that the code of ``made_by`` is made for: all before it must be folded by it as well (`At.version`). ``create``:
    the first command founds the machine if the log holds none; else it raises `NotFounded`. ``timeout_s``: seconds
    until each call ends (None: the log's). ``snapshots``: "auto" keeps the log short, "off" is for programs that only
    read, or live shortly. ``cache``: a file that saves the next process of this kind to read the log; whatever is wrong
    with it is ignored. Its calls may come from any number of tasks.
    """

    def __init__(
        self, log: Log, made_by: type[M], *, name: str, version: int = 1, create: bool = True,
        timeout_s: float | None = None, snapshots: Literal["auto", "off"] = "auto",
        cache: str | PathLike[str] | None = None,
    ) -> None:
        made = made_of(made_by, name, version)
        if snapshots not in ("auto", "off"):
            raise ValueError(f'snapshots is "auto" or "off", not {snapshots!r}')
        if timeout_s is None:
            timeout_s = log.timeout_s
        need_seconds(timeout_s)
        self._made = made
        self._kind = kind_of(made)
        self._head = commands_head(version)
        folder: Folder[Hosted[M], Watcher[Hosted[M]]] = Folder(
            self._kind, log, timeout_s, cache=None if cache is None else Cache(self._kind, cache)
        )
        super().__init__(folder, _judged, create=create, auto=snapshots == "auto")
        self._keep, folder.on_result = folder.on_result, self._notice
        #: LSN of the ends of snapshots that this process has found to be of another machine than its own, or of it.
        self._differs: set[int] = set()
        self._agrees: set[int] = set()
        folder.on_dispute = self._settle_dispute
        if snapshots == "auto":
            folder.tasks.start_soon(self._change_version)

    def __repr__(self) -> str:
        return f"<Replica {self._made.name!r} as of LSN {self.lsn}, in {self._log!r}>"

    # -- reading --------------------------------------------------------------------------------------------

    @property
    def machine(self) -> M:
        """The machine as this process has folded it, not to be changed. Raises `Behind` before anything was folded:
        await a `read` first; and what ended the folding."""
        self._folder.require()
        machine = self._folder.machine
        if machine is None:
            raise Behind("nothing is folded yet: await a read() first")
        return machine.user

    async def read(self, function: Callable[[M], T]) -> T:
        """Call ``function`` with the machine, as new as every command that was answered before, and return what it
        returns. It must not change the machine, nor keep it.

        Raises what it raises; `Unavailable`, and what ended the folding (`Unrecoverable`, `NewerFormat`,
        `NewerVersion`, `Diverged`, `WrongMachine`, `Closed`).
        """
        return function((await self.folded()).user)

    async def status(self, *, local: bool = False) -> ReplicaStatus:
        """Tell what the fold has; ``local``: without a message. Raises as `read`."""
        m = await self.folded(local=local)
        last, previous = (None if each is None else (each.begin, each.end) for each in (m.snapshot, m.previous))
        return ReplicaStatus(
            m.state_id.hex(), m.name, m.version, m.lsn, time_of(m.time_ms), m.invalid, m.foreign_lsn, last, previous,
            m.bytes_since,
        )

    async def answers(self, start: int | None = None) -> AsyncGenerator[tuple[At, Any], None]:
        """Iterate over all commands from LSN ``start`` on (None: from now on), each with its answer, as they come; an
        exception that ``apply`` raised is given as an answer. A machine of its own is folded for it.

        Ends when the log is closed. Raises as `read`; `OutOfRange` if the log does not hold any more what tells the
        machine before ``start``, `Behind` if it was trimmed ahead of the iteration.
        """
        if start is not None and (type(start) is not int or start < 1):
            raise ValueError(f"start is an LSN, not {start!r}")
        now = (await self.folded()).lsn + 1
        start = now if start is None else start
        machine = await self._folder.patiently(lambda: self._before(start))
        while not self._log.closed:
            try:
                async with self._log.follow_batches(machine.lsn + 1) as batches:
                    async for records in batches:
                        for record in records:
                            result = machine.apply(
                                record.lsn, time_ms_of(record.time), record.payload, record.term
                            )
                            if result.outcome is Outcome.NEWER:
                                raise machine.newer(result)
                            if result.outcome is Outcome.FOUNDED:
                                machine.need(b"")
                            if result.outcome in (Outcome.DIVERGED, Outcome.JUDGED):  # told as in the fold itself
                                await self._folder.patiently(partial(self._folder.reach, record.lsn))
                            if result.outcome is Outcome.DONE and record.lsn >= start:
                                answer = result.cell
                                if isinstance(answer, Raised):
                                    answer = answer.error
                                if not isinstance(answer, Outdated):
                                    yield At(record.lsn, record.term, record.time, machine.version), answer
                        await anyio.lowlevel.checkpoint()
            except PASSING:
                await self._log.clock.sleep(AGAIN_S)
            except OutOfRange as error:
                if error.first_lsn > machine.lsn + 1:
                    raise Behind("answers were missed: the log was trimmed ahead of them") from error
                await self._log.clock.sleep(AGAIN_S)

    async def _before(self, start: int) -> Hosted[M]:
        """A machine as of an LSN before ``start``. Raises `OutOfRange`, and as `Log.read`."""
        log, kind = self._log, self._kind
        first = await first_lsn(log)
        cursor = await cursor_lsn(log, kind.agreed) or await cursor_lsn(log, kind.cursor)
        for begin in (cursor, first):
            if not first < begin < start and begin != first:
                continue
            machine = kind.machine() if begin == 1 else await find(kind, log, begin)
            if machine is not None and machine.lsn < start:
                machine.need(b"")
                return machine
        last = await log.end() - 1
        raise OutOfRange(
            f"the log holds LSN {first} to {last}, and no snapshot of the machine before LSN {start}", first_lsn=first,
            last_lsn=last,
        )

    # -- writing --------------------------------------------------------------------------------------------

    async def run(self, command: bytes) -> Any:
        """Append a command, fold the log up to it, and return what ``apply`` returned for it; raise what it raised.

        Raises `TooLarge`, `NotFounded` and as `Log.append` (not applied); `NewerVersion` (not applied: the machine went
        on to a version of newer code); `NotGuaranteed` (unknown; it stays first in line: `settle`), `Unsettled`;
        TypeError.
        """
        if type(command) is not bytes and not isinstance(command, bytes | bytearray | memoryview):
            raise TypeError(f"a command is bytes, not {type(command).__name__}")
        payload, until_s = self._head + command, None
        if not self._ready:
            until_s = self._folder.until_s()
            await self._make_ready(until_s, _may_be_first)
        if len(payload) > self._payload_bytes_max:
            most = self._payload_bytes_max - COMMAND_ROOM
            raise TooLarge(f"a command of {len(payload) - COMMAND_ROOM} bytes: {most} is the most")
        result = await self._settling.result_of(await self._send([payload], None, until_s))
        answer = result.cell
        if isinstance(answer, Raised):
            raise answer.error
        return answer

    def _founding_payload(self, id: bytes) -> bytes:
        return found(id, self._made.name, self._made.version)

    # -- tasks ----------------------------------------------------------------------------------------------

    def _notice(self, result: Result) -> None:
        """Take the effect of a payload that is no plain command, as it is folded."""
        machine = self._folder.machine
        if machine is None:
            return
        upload = machine.upload
        if result.outcome is Outcome.GRANTED and upload is not None and isinstance(upload.digest, Copied):
            copied = upload.digest
            if not copied.encoded:
                self._folder.tasks.start_soon(lambda: self._take_digest(copied))
        if result.outcome is Outcome.DIVERGED:
            self._differs.add(result.lsn)
            self._folder.dispute(result.lsn, agrees=False, begin_lsn=result.have)
        if result.outcome is Outcome.JUDGED:
            end_lsn, wrong = result.have, bool(result.wanted)
            ours = (machine.snapshot, machine.previous)
            agrees = end_lsn in self._agrees or any(each is not None and each.end == end_lsn for each in ours)
            if agrees if wrong else end_lsn in self._differs:
                self._folder.dispute(end_lsn, agrees)
            return
        if result.outcome is Outcome.ACCEPTED:
            self._agrees.add(result.lsn)
        self._keep(result)

    async def _settle_dispute(self, dispute: Disputed, machine: Hosted[M]) -> None:
        """Let the folding go on, if the last decision in the log about the snapshot is for this machine. Else raises
        `Diverged`, and the log is kept from the last snapshot on that this machine agreed with."""
        folder, log, end_lsn = self._folder, self._log, dispute.end_lsn
        async def settled() -> bool:
            wrong = await folder.patiently(lambda: last_judgement(log, end_lsn, machine.lsn + 1))
            return wrong is (not dispute.agrees)

        if await settled():
            return
        if dispute.agrees:
            await folder.patiently(lambda: self._keep_log(0))  # begun where newcomers begin: the next one, before
            raise Diverged(
                f"the machine in this process is that of the snapshot that ended at LSN {end_lsn}, which was set aside"
                f" as wrong at LSN {machine.lsn}: look what differs in its code"
            )
        agreed = machine.snapshot.begin if machine.snapshot is not None else 0
        kept = await folder.patiently(lambda: self._keep_log(agreed))
        if await self._gives(dispute, agreed):
            if kept:
                await folder.patiently(lambda: log.drop_cursor(self._kind.agreed))
            where, then = "", "the log, folded anew, gives that snapshot: start this process again"
        elif await settled():  # meanwhile
            return
        else:
            there = await folder.patiently(lambda: cursor_lsn(log, self._kind.agreed))
            where = f", and the log is kept from there on by the cursor {self._kind.agreed}" if there else ""
            then = f"if the snapshot is the wrong one: await alpo.rsm.set_aside(log, {end_lsn})"
        raise Diverged(
            f"the machine in this process is not that of the snapshot that ended at LSN {end_lsn}; they agreed as of"
            f" LSN {agreed}{where}. alpo.rsm.check() finds machines that are not deterministic; {then}"
        )

    async def _gives(self, dispute: Disputed, agreed_lsn: int) -> bool:
        """Look whether the log, folded anew from the agreed snapshot on (0: all of it), gives the disputed one: then
        this process alone is damaged, or drew lots."""
        if not dispute.begin_lsn:
            return False
        try:
            digest = await digest_in(self._kind, self._log, dispute.end_lsn)
            return await digest_at(self._kind, self._log, dispute.begin_lsn, agreed_lsn) == digest
        except AlpoError:  # it cannot be told
            return False

    async def _keep_log(self, agreed_lsn: int) -> bool:
        """Keep the log from there on (0: all of it), so that either side can be folded again; True if it was not kept
        before. Raises what passes; this process may have no right to do so."""
        log, name = self._log, self._kind.agreed
        with suppress(Refused, OutOfRange):
            lsn = max(agreed_lsn, await first_lsn(log))
            if not 0 < await cursor_lsn(log, name) <= lsn:
                await log.set_cursor(name, lsn, self._folder.timeout_s)
                return True
        return False

    async def _take_digest(self, copied: Copied[M]) -> None:
        """Take the digest of a copy (a task)."""
        try:
            await take_digest(copied, anyio.lowlevel.checkpoint)
        except Diverged as error:
            self._folder.fail(error)

    async def _change_version(self) -> None:
        """Ask for the version of this process' code, once no command for an older one has come for long (a task)."""
        folder, log = self._folder, self._log
        while folder.failure is None:
            machine = folder.machine
            if machine is None or not machine.founded or machine.version >= self._made.version:
                await folder.moved()
                continue
            lately = self._older(machine)
            await log.clock.sleep(SETTLED_MS / 1000 + log.clock.rng.uniform(0, _WAIT_S))
            if folder.machine is not machine or self._older(machine) != lately:
                continue
            try:
                sent = folder.enter([newer_version(self._made.version)], timeout_s=folder.timeout_s)
                await folder.result_of(sent)
            except AlpoError:
                continue  # asked again after as long

    def _older(self, machine: Hosted[M]) -> list[tuple[int, int]]:
        """The times of the last commands for versions before this code's."""
        return [each for each in machine.wants.items() if each[0] < self._made.version]


async def last_judgement(log: Log, end_lsn: int, start: int) -> bool | None:
    """Look whether the snapshot that ended at ``end_lsn`` is wrong by the last decision at ``start`` or later in the
    log; None without one. Raises as `Log.read`."""
    wrong, last_lsn = None, await log.end() - 1
    if last_lsn >= start:
        with suppress(OutOfRange):  # trimmed meanwhile
            async with log.read_batches(start, last_lsn) as batches:
                async for records in batches:
                    for record in records:
                        decision = judgement_in(record.payload)
                        if decision is not None and decision.end_lsn == end_lsn:
                            wrong = decision.wrong
    return wrong


async def _ends(log: Log, first: int, last: int) -> list[int]:
    """LSN of the ends of the snapshots that lie in ``first`` … ``last`` wholly. Raises as `Log.read`."""
    begun, ends = set[bytes](), list[int]()
    async with log.read_batches(first, last) as batches:
        async for records in batches:
            for record in records:
                message = PAYLOADS.snapshot_message(record.payload)
                if isinstance(message, Begin):
                    begun.add(message.sid)
                elif isinstance(message, End) and message.sid in begun:
                    ends.append(record.lsn)
    return ends


async def set_aside(log: Log, end_lsn: int, *, undo: bool = False) -> int:
    """Tell all processes that the snapshot that ended at ``end_lsn`` is of a wrong machine: those that differ from it
    go on, and those that agree with it stop with `Diverged`. ``undo``: take that back. The last decision counts.

    Which side is right is for you to find out: nobody in the cluster can. Newcomers begin before that snapshot as long
    as the log is kept by the cursor ``machine-agreed``, which whoever stopped first has set, or else this call. Once
    all processes run the right code, and the cursor ``machine`` is behind the decision: ``alpo cursor drop
    machine-agreed``.

    Returns the LSN of the decision. Raises ValueError if no snapshot of a machine ended at that LSN, or if the log has
    nothing from before it; and as `Log.read`, `Log.set_cursor`, `Log.append`.
    """
    if type(end_lsn) is not int or end_lsn < 1:
        raise ValueError(f"a snapshot ends at an LSN, not at {end_lsn!r}")
    first = await first_lsn(log)
    ends = await _ends(log, first, end_lsn) if first <= end_lsn < await log.end() else []
    if end_lsn not in ends:
        raise ValueError(f"no snapshot of a machine ended at LSN {end_lsn} of the log, which begins at LSN {first}")
    if first > 1 and len(ends) == 1 and not undo:
        raise ValueError(f"without the snapshot that ended at LSN {end_lsn} nobody could tell the machine")
    if not undo and not await cursor_lsn(log, AGREED):  # one release was everywhere, and nobody has differed
        await log.set_cursor(AGREED, first)
    return await log.append(judgement(end_lsn, not undo))


def made_of(made_by: type[M], name: str, version: int) -> Made[M]:
    """The machine as a program names it, once checked. Raises TypeError, ValueError."""
    missing = [each for each in _CALLED if not callable(getattr(made_by, each, None))]
    if not isinstance(made_by, type) or missing:
        raise TypeError(f"a machine is a class with apply, items, load and freeze, not {made_by!r}: no {missing}")
    if waits := [each for each in _CALLED if iscoroutinefunction(getattr(made_by, each))]:
        raise TypeError(f"a machine waits for nothing: {waits} of {made_by.__name__} may not be async")
    try:
        signature(made_by).bind()
    except TypeError as error:
        raise TypeError(f"{made_by.__name__}() makes an empty machine, and needs no arguments: {error}") from error
    if not valid_name(name):
        raise ValueError(f"a machine's name is 1 to 128 bytes of UTF-8 without spaces, not {name!r}")
    if not valid_version(version):
        raise ValueError(f"a machine's version is an integer from 1 to 65535, not {version!r}")
    return Made(made_by, name, version)


def _may_be_first() -> None:
    """Let any command be the first of a machine."""


def _judged(sent: Sent, machine: Hosted[Any] | None, lsn: int) -> Result:
    """The result of a command that was done at ``lsn``. Raises why it was not; `Unsettled` if nobody can tell."""
    result = sent.result
    if result is None:
        raise Unsettled(f"the command at LSN {lsn} was applied: this process cannot tell its answer any more", lsn=lsn)
    if result.outcome is Outcome.NOT_FOUNDED:
        raise NotFounded("this log holds no machine")
    if result.outcome is not Outcome.DONE:
        raise WrongMachine(f"the command at LSN {lsn} was not understood as it was meant: {result.outcome.name}")
    if isinstance(result.cell, Outdated):
        version = result.cell.version
        raise NewerVersion(
            f"the command at LSN {lsn} was not applied: the machine is at version {version} there, and this program's"
            " code is made for an older one", lsn=lsn, version=version,
        )
    return result


def connect(
    made_by: type[M], servers: str | Sequence[str] | None = None, client: str | None = None, timeout_s: float = 10.0, *,
    name: str, version: int = 1, create: bool = True, snapshots: Literal["auto", "off"] = "auto",
    cache: str | PathLike[str] | None = None, tls: Tls | None = None, log: str | None = None,
) -> Replica[M]:
    """The machine of the class ``made_by`` in the log of a cluster: for ``async with``, under trio or asyncio.

    ``servers``, ``client``, ``timeout_s``, ``tls`` and ``log`` are as of `alpo.connect`, the others as of `Replica`.
    """
    made_of(made_by, name, version)
    made = connect_log(servers, client, timeout_s, tls=tls, log=log)
    return owning(Replica(
        made, made_by, name=name, version=version, create=create, timeout_s=timeout_s, snapshots=snapshots, cache=cache
    ))
