"""The handle of one append, which `Log.append_nowait` returns; and many appends in order, as `Log.append_many` makes.

Laws:

* A handle is done once: with an LSN or with an error, and stays so. An error says what was known then;
  `Log.settle` says what became of an unknown outcome later.
* Nothing is created for a handle that nobody waits on: no task, no event.
* Awaiting a handle, looking at `error` and giving a callback count as being told; closing the log raises only an
  error that nobody was told.

Laws of `Many`:

* At most `IN_FLIGHT_MAX` appends are under way, and no payload beyond `CHUNK` is taken from the source before there is
  room: memory is bounded, however long the source.
* After an append's error no more is sent, and what is under way is waited for, so the number reported is final.
* After any other error (of the source, of the caller, a cancellation) the caller withdraws what was not sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, cast

import anyio

from alpo.errors import AlpoError, NotGuaranteed

from .arguments import After, Parcel, Payload, single
from .tasks import Event

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    #: Result of awaiting: int, or int | None for an append that may have been done before the session was opened.
    L_co = TypeVar("L_co", bound=int | None, covariant=True, default=int | None)
else:
    from typing import TypeVar

    L_co = TypeVar("L_co", covariant=True)

logger = logging.getLogger("alpo")

#: Exceptions that a user's callback may raise without ending the connection. `CancelledError` comes from looking at a
#: cancelled future.
_BROKE = (Exception, asyncio.CancelledError)

#: Flags of `Handle.state`; written by the `Session` alone, on rare paths.
MAYBE = 1  # an earlier transmission may have been taken; its outcome is not known (R24)
REFUSED = 2  # the latest transmission was answered, and not with a success
RESOLVED = 4  # the cluster's last word is known: the append need not be sent again
REPORTED = 8  # the append got NotGuaranteed at its deadline; the request stays in line


class Handle(Generic[L_co]):
    """One append under way. Await it for the LSN (of the first payload), or give it a callback.

    A handle belongs to the event loop that its `Log` runs in: other threads must not use it.
    """

    # Fields that few handles ever change have their values in the class: making a handle is on the hot path.
    state = 0
    #: The client id, serial and epoch that it was sent with; serial 0 until it is first sent.
    client = ""
    serial = 0
    epoch = 0
    done = False
    #: LSN of the first payload. None until done, after an error, and when the request had been appended
    #: before this session was opened, where the LSN cannot be told (`Log.append`).
    lsn: int | None = None
    duplicate = False
    #: Outcome, in a tuple, of an append that has raised `NotGuaranteed`; None until it is known. For the library.
    last_word: tuple[int | None | AlpoError] | None = None
    _error: AlpoError | None = None
    _told = False
    _event: Event | None = None
    _callback: Callable[[Handle[Any]], object] | None = None
    _more_callbacks: list[Callable[[Handle[Any]], object]] | None = None

    def __init__(
        self, parcel: Parcel, wanted: int | After, sparse: bool, deadline_s: float, begin_wait: Callable[[], Event]
    ) -> None:
        self.parcel = parcel
        #: The serial asked for by the caller (0: the next), or its condition, and whether it may skip some (R21).
        self.wanted = wanted
        self.sparse = sparse
        self.deadline_s = deadline_s
        #: Called by the first wait: sees to it that the append is sent, and returns the event to wait for.
        self._begin_wait = begin_wait

    def __repr__(self) -> str:
        which = f" of client {self.client!r}, serial {self.serial}" if self.serial else ""
        told = f"{type(self._error).__name__}: {self._error}" if self._error is not None else f"LSN {self.lsn}"
        return f"<Handle{which}: {told if self.done else 'under way'}>"

    @property
    def error(self) -> AlpoError | None:
        """The error of an append that failed; None before that and after success. Looking counts as being told."""
        self._told = True
        return self._error

    @property
    def lsns(self) -> range:
        """The LSNs of all payloads of this append; empty while `lsn` is None."""
        return range(0) if self.lsn is None else range(self.lsn, self.lsn + self.parcel.number)

    @property
    def failure(self) -> AlpoError | None:
        """The error, as `error`; but looking does not count as being told. For the library."""
        return self._error

    @property
    def unheard(self) -> AlpoError | None:
        """The error, if nobody was told of it yet; else None."""
        return None if self._told else self._error

    def add_done_callback(self, function: Callable[[Handle[L_co]], object]) -> None:
        """Call ``function(handle)`` in the event loop once done (at once if it is). It must not block."""
        self._told = True
        if self.done:
            _call(function, self)
        elif self._callback is None:
            self._callback = function
        elif self._more_callbacks is None:
            self._more_callbacks = [function]
        else:
            self._more_callbacks.append(function)

    def __await__(self) -> Generator[Any, Any, L_co]:
        self._told = True
        if not self.done:
            event = self._begin_wait()
            if not self.done:
                if self._event is None:
                    self._event = event
                yield from self._event.wait().__await__()
        if self._error is not None:
            raise self._error.with_traceback(None)
        return cast(L_co, self.lsn)

    def finish(self, lsn: int | None, duplicate: bool) -> None:
        """End with success. For the library."""
        self.lsn = lsn
        if duplicate:
            self.duplicate = True
        self._end()

    def fail(self, error: AlpoError) -> None:
        """End with an error. For the library."""
        self._error = error
        self._end()

    def leave(self, error: AlpoError) -> None:
        """End with an error in a forked child, without callbacks: they are the parent's. For the library."""
        if not self.done:
            self._error, self._told, self.done = error, True, True
        self._event = self._callback = self._more_callbacks = None

    def _end(self) -> None:
        self.done = True
        if self._event is not None:
            self._event.set()
        if self._callback is None:
            return
        try:
            self._callback(self)
        except _BROKE:
            logger.exception("a callback of an append failed")
        for function in self._more_callbacks or ():
            _call(function, self)


def _call(function: Callable[[Handle[Any]], object], handle: Handle[Any]) -> None:
    try:
        function(handle)
    except _BROKE:
        logger.exception("a callback of an append failed")


# -- many appends -------------------------------------------------------------------------------------------

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
                handle.add_done_callback(heard)
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


def heard(handle: Handle) -> None:
    """Count an outcome as told: the call reports the errors of its appends, and closing the log does not."""
