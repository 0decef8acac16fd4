"""Accounts of clients, for the space of sessions: their requests and answers so far, and the requests possible next.

Laws:

* The checks are those of every simulation (`checks.history.History`); their account is part of the state.
* Every request that a client may have sent may arrive at any time, any number of times: retries and late duplicates
  are the same request again.
* A client uses what it was told: it names an epoch that it knows, and serials from the last one on.
* A client may send an append again together with the next one: as a run, where neither is in the log (R32).
* A person retries an append by hand, with another text.
"""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

from alpo.core.entries import Entry
from alpo.core.ready import Input
from alpo.core.requests import AppendRun, Code, DropSession, Opened, OpenSession, Refused, Reply

from ..checks.history import History
from .search import Numbered
from .state import digest, tree

NAME = "w"
PROCESSES = ("p", "q")  # processes of the client that writes as NAME
RANDOMS = tuple(f"~018bcfe5-68{n:02x}-7000-8000-000000000000" for n in (1, 2))


class OneLog:
    """The parts of the one log that `History` uses."""

    def __init__(self) -> None:
        self.guaranteed: list[Entry] = []


class Account:
    """Account of all requests and answers so far.

    ``known_epochs``: client process -> the epochs that it was told to be current, 0 at first. ``opened``: process ->
    the sessions that it opened, (epoch, last serial then).
    """

    def __init__(self) -> None:
        self.log = OneLog()
        self.history = History(self.log)
        self.known_epochs: dict[str, list[int]] = {process: [0] for process in PROCESSES}
        self.opened: dict[str, list[tuple[int, int]]] = {process: [] for process in PROCESSES}

    # -- what may be asked ------------------------------------------------------------------------------

    def requests(self, serials: int) -> list[Input]:
        """All requests that may arrive at a server now, with ``serials`` serials for each session."""
        found: list[Input] = []
        for process in PROCESSES:
            for epoch in self.known_epochs[process]:
                found.append(OpenSession(("open", process, epoch), NAME, epoch, nonce(process, epoch)))
            for epoch, last in self.opened[process]:
                for serial in range(last + 1, last + 1 + serials):
                    origin = ("append", process, epoch, serial)
                    found.append(AppendRun(origin, NAME, epoch, serial, [(1, f"{process}{serial}".encode())]))
        for client in RANDOMS:
            found.append(AppendRun(("append", client), client, 0, 1, [(1, b"r")]))
        bodies = [(1, b"r"), (1, b"s")]
        found.append(AppendRun(("append both", RANDOMS[0]), RANDOMS[0], 0, 1, bodies))
        by_hand = AppendRun(("by hand", RANDOMS[0]), RANDOMS[0], 0, 1, [(1, b"other text")], by_hand=True)
        found.append(by_hand)
        if self.history.epochs:
            found.append(DropSession("drop", NAME, 0))
        return found

    # -- what happens -----------------------------------------------------------------------------------

    def guaranteed(self, entry: Entry) -> None:
        """Take an entry into the one log. Raises `Broken`."""
        self.log.guaranteed.append(entry)
        self.history.guaranteed(entry)

    def replied(self, reply: Reply) -> None:
        """Let the client that asked hear ``reply``. Raises `Broken`."""
        self.history.replied(reply)
        origin: Any = reply.origin
        if origin[0] != "open":
            return
        known = self.known_epochs[origin[1]]
        if isinstance(reply, Opened):
            told = (reply.epoch, reply.last_serial)
            if told not in self.opened[origin[1]]:
                self.opened[origin[1]] = sorted([*self.opened[origin[1]], told])
        elif isinstance(reply, Refused) and reply.code is Code.EPOCH and reply.number not in known:
            self.known_epochs[origin[1]] = sorted([*known, reply.number])


def nonce(process: str, epoch: int) -> bytes:
    """The nonce with which ``process`` opens a session in the place of ``epoch``: another for each epoch (R22)."""
    return f"{process}{epoch:015d}".encode()


class Event(NamedTuple):
    """Events of one action: requests that arrive, entries that become guaranteed, replies."""

    asked: tuple[Input, ...]
    guaranteed: tuple[Entry, ...]
    replies: tuple[Reply, ...]


class Accounts:
    """All accounts found so far, by number."""

    def __init__(self) -> None:
        self._accounts: Numbered[bytes] = Numbered()
        self.first = self._keep(Account())

    def _keep(self, account: Account) -> int:
        number = self._accounts.number(b"", key=digest(tree(account)))
        if not self._accounts.known[number]:
            self._accounts.known[number] = pickle.dumps(account)
        return number

    def take(self, number: int) -> Account:
        account: Account = pickle.loads(self._accounts.known[number])
        return account

    def after(self, number: int, event: Event) -> int:
        """The number of the account after ``event``. Raises `Broken`."""
        account = self.take(number)
        for request in event.asked:
            account.history.asked(request)
        # Entries are guaranteed before the replies leave that rest on them.
        for entry in event.guaranteed:
            account.guaranteed(entry)
        for reply in event.replies:
            account.replied(reply)
        return self._keep(account)
