"""Appending many payloads, each by itself, in order, with many in flight: `Log.append_many`.

Laws:

* At most `IN_FLIGHT_MAX` appends are under way, and no payload beyond `CHUNK` is taken from the source before there is
  room: memory is bounded, however long the source.
* After an append's error no more is sent, and what is under way is waited for, so the number reported is final.
* After any other error (of the source, of the caller, a cancellation) the caller withdraws what was not sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import islice

import anyio

from alpo.errors import AlpoError, NotGuaranteed

from .handle import Handle
from .payloads import Parcel, Payload, single

#: Appends under way, sent or waiting: twice the default number that one client may have in flight.
IN_FLIGHT_MAX = 2_048
#: Payloads that are taken from the source at a time.
CHUNK = 512

#: Queues one payload with a serial (None: the next), as soon as there is room.
Enter = Callable[[Parcel, int | None], Awaitable[Handle]]


def chunks(payloads: Iterable[Payload]) -> Iterator[list[Payload]]:
    """Yield the payloads in lists of at most `CHUNK`."""
    source = iter(payloads)
    while chunk := list(islice(source, CHUNK)):
        yield chunk


class Many:
    """One call of `Log.append_many`. ``under_way``: appends that were queued and not looked at since; ``done``: how
    many payloads, from the first on, are known to be in the log."""

    def __init__(self, enter: Enter, serial: int | None) -> None:
        self._enter = enter
        self._serial = serial
        self.under_way: deque[Handle] = deque()
        self._failed: AlpoError | None = None
        self.done = 0

    async def feed(self, chunk: list[Payload]) -> int:
        """Append a chunk; returns ``done`` once there is room for another. Raises as `finish`, and TypeError."""
        parcels = list(map(single, chunk))
        await anyio.lowlevel.checkpoint()  # payloads that were appended before wait for nothing
        try:
            for parcel in parcels:
                handle = await self._enter(parcel, self._serial)
                handle.add_done_callback(_heard)
                self.under_way.append(handle)
                if self._serial is not None:
                    self._serial += 1
            await self._take(IN_FLIGHT_MAX - CHUNK)
        except AlpoError as error:
            self._note(error)
        return self.done if self._failed is None else await self.finish()

    async def finish(self) -> int:
        """Wait for all that is under way; returns the number of payloads. Raises the error of an append whose outcome
        is unknown, if there is one, else that of the first that is not in the log."""
        await self._take(0)
        if self._failed is not None:
            raise self._failed.with_traceback(None)
        return self.done

    async def _take(self, left: int) -> None:
        """Take finished appends from the front, and wait until only ``left`` are under way."""
        while self.under_way and (self.under_way[0].done or len(self.under_way) > left):
            try:
                await self.under_way[0]
                self.done += self._failed is None
            except AlpoError as error:
                self._note(error)
            self.under_way.popleft()

    def _note(self, error: AlpoError) -> None:
        if self._failed is None or (isinstance(error, NotGuaranteed) and not isinstance(self._failed, NotGuaranteed)):
            self._failed = error


def _heard(handle: Handle) -> None:
    """Count an outcome as told: the call reports the errors of its appends, and closing the log does not."""
