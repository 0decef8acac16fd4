"""Outcomes of commands: done, refused at their LSN, or not known. `Command` is one on its way, and `Settling` keeps
those whose outcome their callers were not told, until it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic

from alpo.client.handle import Handle
from alpo.errors import AlpoError, NotGuaranteed, Unavailable

from .errors import Unsettled
from .folder import Folder, Sent
from .machine import Result
from .parts import M

#: Most outcomes that are kept for `Settling.settle`.
KEPT_MAX = 1024


class Settling(Generic[M]):
    """The writes over one fold that were told as `NotGuaranteed`, or whose callers were cancelled. The log keeps them
    first in line, and tells what became of each: a write is never sent again under another serial.

    ``judge``: gives the result of a command that was done at an LSN, of what the fold told, or of the machine as it is
    now, if the fold has jumped over it. It raises why the command was not done, and `Unsettled` if nobody can tell.
    """

    def __init__(self, folder: Folder[M, Any], judge: Callable[[Sent, M | None, int], Result]) -> None:
        self._folder = folder
        self._judge = judge
        self._unknown: list[Sent] = []
        #: Outcomes that were not asked for yet: the LSN, or why it was not done.
        self._outcomes: dict[int, int | AlpoError] = {}

    def note(self, sent: Sent) -> None:
        """Take up a write whose outcome is unknown."""
        waiting, self._unknown = [*self._unknown, sent], []
        for sent in waiting:
            if sent.result is None:
                self._unknown.append(sent)
            else:
                self._keep(sent, self._judged(sent, sent.last_lsn))

    async def result_of(self, sent: Sent) -> Result:
        """The result of a command that was sent, as the fold tells it. Raises why it was not done, and as
        `Folder.result_of`."""
        try:
            result = await self._folder.result_of(sent)
        except BaseException as error:
            if isinstance(error, NotGuaranteed) or not isinstance(error, Exception):  # or cancelled
                self.note(sent)
            raise
        return self._judge(sent, self._folder.machine, sent.last_lsn if result is None else result.lsn)

    async def settle(self) -> dict[int, int | AlpoError]:
        """Wait for all outcomes; returns those that came since the last call, by serial. Raises `Unavailable` at the
        deadline, and `Closed`."""
        folder = self._folder
        folder.open()
        with folder.log.clock.move_on_after(folder.timeout_s):
            while self._unknown:
                sent = self._unknown[0]
                outcome = await self._wait_for(sent)
                if sent in self._unknown:  # nobody else was quicker
                    self._unknown.remove(sent)
                    self._keep(sent, outcome)
        if self._unknown:
            why = folder.log.reason or "no answer"
            raise Unavailable(f"there are writes whose outcome is still unknown: {why}")
        told, self._outcomes = self._outcomes, {}
        return told

    async def outcome_of(self, sent: Sent) -> int:
        """The LSN of a write, waited for as long as it takes. Raises why it was not done, `Unsettled`, and `Closed`."""
        outcome = await self._wait_for(sent)
        if isinstance(outcome, AlpoError):
            raise outcome
        return outcome

    def _keep(self, sent: Sent, outcome: int | AlpoError) -> None:
        self._outcomes[sent.handle.serial] = outcome
        if len(self._outcomes) > KEPT_MAX:
            del self._outcomes[next(iter(self._outcomes))]

    async def _wait_for(self, sent: Sent) -> int | AlpoError:
        """The LSN of a write that was done, or why it was not."""
        handle = sent.handle
        told = None if sent.result is not None else await self._folder.log.settled(handle)
        if isinstance(told, AlpoError):
            return told
        last_lsn = sent.last_lsn or (0 if told is None else told + handle.parcel.number - 1)
        if not last_lsn:
            return Unsettled("the write was appended before this session was opened", lsn=0)
        await self._folder.patiently(partial(self._folder.reach, last_lsn))
        return self._judged(sent, last_lsn)

    def _judged(self, sent: Sent, last_lsn: int) -> int | AlpoError:
        try:
            return self._judge(sent, self._folder.machine, last_lsn).lsn
        except AlpoError as error:
            return error


class Command:
    """A write that was sent: ask for its `result`, once. ``handle``: of its append."""

    __slots__ = ("_sent", "_settling", "handle")

    def __init__(self, sent: Sent, settling: Settling[Any]) -> None:
        self.handle: Handle = sent.handle
        self._sent = sent
        self._settling = settling

    def result(self) -> Coroutine[Any, Any, Result]:
        """The result, once it is folded: await it. Raises why it was not done, and as `Settling.result_of`."""
        return self._settling.result_of(self._sent)

    async def settled(self) -> int:
        """The LSN, waited for as long as it takes, also after `result` has raised `NotGuaranteed`. Raises why it was
        not done, `Unsettled`, and `Closed`."""
        return await self._settling.outcome_of(self._sent)
