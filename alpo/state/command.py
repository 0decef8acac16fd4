"""`Command`: a write of a `State` on its way, for libraries built on one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from alpo.client.handle import Handle

from .folder import Sent
from .shapes import Result


class Command:
    """A write that was sent, made by `State.command`: ask for its `result`, once. ``handle``: of its append."""

    __slots__ = ("_sent", "_settled", "_told", "handle")

    def __init__(
        self, sent: Sent, told: Callable[[Sent], Awaitable[Result]], settled: Callable[[Sent], Awaitable[int]]
    ) -> None:
        self.handle: Handle = sent.handle
        self._sent = sent
        self._told = told
        self._settled = settled

    async def result(self) -> Result:
        """The result, once it is folded. Raises as `State.commit`."""
        return await self._told(self._sent)

    async def settled(self) -> int:
        """The LSN, waited for as long as it takes, also after `result` has raised `NotGuaranteed`. Raises why it was
        not done, `Unsettled`, and `Closed`."""
        return await self._settled(self._sent)
