"""The ledger of what the clients of a test were told, held against the log at the end.

Laws: an append told as done is at that LSN, once; one told as unknown is in the log once or not at all; one told as
refused, or as not sent, is not there. Appends are told apart by their payloads; equal ones of a client are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from alpo.client.appender import Appender
from alpo.client.arguments import After, Item, Parcel, Payload, Place
from alpo.client.handle import Handle
from alpo.client.loan import Maker
from alpo.client.log import Log
from alpo.client.operator.sessions import ByHand
from alpo.client.servers import Servers
from alpo.core.entries import Entry, Kind, parts
from alpo.errors import NotGuaranteed
from alpo.wire.requests import Append
from alpo_sim.checks import Broken

#: An append in the log: client, serial, payloads.
_Place: TypeAlias = tuple[str, int, Item]


class WatchedLog(Log):
    """The real client; all its handles are kept for the check."""

    def __init__(
        self, servers: Servers, client: str | None, timeout_s: float, queue_max: int, queue_bytes_max: int,
        ledger: Ledger,
    ) -> None:
        super().__init__(servers, client, timeout_s, queue_max, queue_bytes_max)
        self._ledger = ledger
        kept = ledger.account(client)
        self._appender = _WatchedAppender(kept.append, servers, client, timeout_s, queue_max, queue_bytes_max)

    async def append_by_hand(self, payloads: Iterable[Payload], *, client: str, **how: Any) -> ByHand:
        self._ledger.loose[client] = True
        return await super().append_by_hand(payloads, client=client, **how)

    async def drop_session(self, name: str, epoch: int | None = None, timeout_s: float | None = None) -> int:
        self._ledger.loose[name] = True
        return await super().drop_session(name, epoch, timeout_s)


class _WatchedAppender(Appender):
    """An appender that hands every handle to ``keep``."""
    def __init__(self, keep: Callable[[Handle], None], *args: Any) -> None:
        super().__init__(*args)
        self._keep = keep

    def append(
        self, parcel: Parcel, place: Place, sparse: bool, deadline_s: float, awaited: bool = False
    ) -> Handle:
        handle = super().append(parcel, place, sparse, deadline_s, awaited)
        self._keep(handle)
        return handle

    @property
    def maker(self) -> Maker:
        make = super().maker

        def kept(parcel: Parcel, serial: int, deadline_s: float) -> tuple[Handle, Append]:
            handle, message = make(parcel, serial, deadline_s)
            self._keep(handle)
            return handle, message

        return kept


@dataclass(slots=True)
class _Told:
    """Answers that one client got for one payload.

    ``sure`` and ``maybe``: the (client id, serial) of appends told as done, and of those told as unknown;
    ``unnumbered``: how many were told nothing.
    """

    sure: dict[tuple[str, int], int] = field(default_factory=dict)
    maybe: dict[tuple[str, int], int] = field(default_factory=dict)
    unnumbered: int = 0


class Ledger:
    """All handles, by client name; those of each `Log` without a name by themselves."""

    def __init__(self) -> None:
        self._named: dict[str, list[Handle]] = {}
        self._random: list[list[Handle]] = []
        #: Clients that may have sent more than the handles say: retried by hand, or dropped.
        self.loose: dict[str, bool] = {}

    def account(self, client: str | None) -> list[Handle]:
        """The list for the handles of one client; a new one for a client without a name."""
        if client is not None:
            return self._named.setdefault(client, [])
        self._random.append([])
        return self._random[-1]

    def check(self, log: list[Entry]) -> None:
        """Hold what all clients were told against the guaranteed entries. Raises `Broken`."""
        by_client: dict[str, Counter[Item]] = {}
        at: dict[int, _Place] = {}
        for entry in log:
            for serial, lsn, count, body in parts(entry) if entry.kind == Kind.DATA else ():
                at[lsn] = (entry.client, serial, body if count == 1 else (count, body))
                by_client.setdefault(entry.client, Counter())[at[lsn][2]] += 1
        for name, handles in self._named.items():
            self._check(name, handles, by_client.get(name, Counter()), at, name in self.loose)
        for handles in self._random:
            ids = dict.fromkeys(handle.client for handle in handles if handle.client)
            counts: Counter[Item] = Counter()
            for id in ids:
                counts.update(by_client.get(id, Counter()))
            self._check("a client without a name", handles, counts, at, any(id in self.loose for id in ids))

    def _check(
        self, who: str, handles: list[Handle], counts: Counter[Item], at: dict[int, _Place], loose: bool
    ) -> None:
        """Hold one client's handles against ``counts`` (of its payloads in the log) and ``at`` (LSN -> append)."""
        told: dict[Item, _Told] = {}
        for handle in handles:
            _note(handle, told.setdefault(handle.parcel.item, _Told()))
            if handle.done and handle.lsn is not None:
                self._check_place(who, handle, at.get(handle.lsn))
        for item, of in told.items():
            there, least = counts[item], len(of.sure)
            most = least + len([1 for key in of.maybe if key not in of.sure]) + of.unnumbered
            if there < least:
                raise Broken("acknowledged", f"{who} was told {least} times that {_show(item)} is in the log, where it "
                             f"is {there} times")
            if there > most and not loose:
                text = f"{_show(item)} of {who} is in the log {there} times, which was told of {least}"
                raise Broken("exactly once", f"{text}, and left in the dark of {most - least}")

    def _check_place(self, who: str, handle: Handle, there: _Place | None) -> None:
        """Hold one handle's LSN against the append there."""
        if there != (handle.client, handle.serial, handle.parcel.item):
            place = f"LSN {handle.lsn}, serial {handle.serial}"
            raise Broken("acknowledged", f"{who} was told {place} of {_show(handle.parcel.item)}; there is {there}")
        if isinstance(handle.wanted, After) and handle.lsn != handle.wanted.expect_last + 1:
            wanted = f"expected LSN {handle.wanted.expect_last} to be the last"
            raise Broken("acknowledged", f"an append of {who} that {wanted} was told LSN {handle.lsn}")


def _note(handle: Handle, told: _Told) -> None:
    key = (handle.client, handle.serial)
    if not handle.done:
        told.unnumbered += 1
    elif handle.lsn is not None:
        told.sure[key] = 1
    elif isinstance(handle.failure, NotGuaranteed):
        told.maybe[key] = 1


def _show(item: Item) -> str:
    body = item if isinstance(item, bytes) else item[1]
    return repr(body) if len(body) <= 60 else f"{body[:60]!r}…"
