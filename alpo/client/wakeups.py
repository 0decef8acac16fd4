"""Two ways to wait that cost nothing while nobody waits."""

from __future__ import annotations

import anyio


class Bell:
    """Wakes one task. A ring while nobody waits is kept, once."""

    __slots__ = ("_event", "_rung", "parked")

    def __init__(self) -> None:
        #: Does the task wait? Whoever rings often looks here first.
        self.parked = False
        self._rung = False
        self._event: anyio.Event | None = None

    def ring(self) -> None:
        self._rung = True
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        """Until the next ring, or at once after one that nobody waited for."""
        if not self._rung:
            self._event = anyio.Event()
            self.parked = True
            try:
                await self._event.wait()
            finally:
                self.parked = False
                self._event = None
        self._rung = False


class News:
    """Wakes everybody who waits: they look whether it concerns them."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    @property
    def awaited(self) -> bool:
        return self._event is not None

    def tell(self) -> None:
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        """Until the next `tell`."""
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()
