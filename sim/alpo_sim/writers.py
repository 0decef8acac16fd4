"""Clients that append: as the client library does, and as people do who retry by hand.

Laws of a correct client (R21, R22): serials are in order; an unresolved serial is sent again before any later one; a
serial never has two payloads. `HandRetry` breaks the last law on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from alpo.core.entries import created_ms, join_payloads, random_client
from alpo.core.requests import Appended, AppendRun, Code, Opened, OpenSession, Refused, Reply

from .checks import Broken
from .clients import NOT_LEADER, Actor, Clients
from .host import WALL_ZERO_MS
from .options import MS, SECOND


class Op(NamedTuple):
    """Append that is not yet resolved; ``body``: (count, joined payloads); ``expect``: the LSN that is to be the last,
    None if any will do."""

    serial: int
    body: tuple[int, bytes]
    expect: int | None = None


def consecutive(ops: list[Op]) -> bool:
    """True if the serials of ``ops`` leave none out."""
    return not ops or ops[-1].serial - ops[0].serial == len(ops) - 1


RUN_MAX = 16


class Writer(Actor):
    """Actor that appends as ``client``. ``sparse``: one append in flight, serials may have gaps.

    ``queue``: appends not yet resolved. ``dead``: the process has ended.
    """

    def __init__(self, clients: Clients, client: str, *, sparse: bool) -> None:
        super().__init__(clients)
        self.client = client
        self.sparse = sparse
        self.epoch = 0
        self.open = False
        self.dead = False
        self.next_serial = 1
        self.queue: list[Op] = []
        self._sent_at_us = 0
        self._resends = 0
        self._conflicted = 0  # number of the latest request when a serial was last given back
        self.after(clients.pause_us(), self._work)
        self.after(clients.load.retry_us, self._watch)

    def __str__(self) -> str:
        return f"{self.client} epoch {self.epoch}: {[op.serial for op in self.queue][:3]}"

    @property
    def settled(self) -> bool:
        return self.dead or not self.queue

    def after(self, delay_us: int, call: Callable[[], None]) -> None:
        self.clients.after(delay_us, call)

    # -- asking -----------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Make another append if the client may have one more in flight; schedule the next."""
        clients, rng = self.clients, self.clients.rng
        if clients.closing or self.dead:
            return
        if rng.random() < clients.load.quits:
            self._quit()
            return
        if self._appends_after():
            self.queue.append(self._make(False)._replace(expect=clients.some_last_lsn()))
            self._send(self.queue)
        elif self.open and not self._alone and len(self.queue) < (1 if self.sparse else clients.load.depth):
            if self.sparse and rng.random() < 0.2:
                self.next_serial += rng.randint(1, 3)
            several = clients.load.frame > 1 and not self.sparse and rng.random() < 0.5
            large = several and clients.load.large > 0 and rng.random() < clients.load.large
            ops = [self._make(large) for _ in range(rng.randint(1, clients.load.frame) if several else 1)]
            waiting = self.queue[-RUN_MAX:]
            self.queue += ops
            # Appends that wait for an answer and new ones share a frame: parts of it may be in runs already (R32).
            again = several and rng.random() < 0.3 and consecutive(waiting + ops)
            self._send(waiting + ops if again else ops)
        self.after(clients.pause_us(), self._work)

    @property
    def _alone(self) -> bool:
        """True if a conditional append is unresolved: nothing follows it before it is."""
        return bool(self.queue) and self.queue[0].expect is not None

    def _appends_after(self) -> bool:
        """True if the next append is to be conditional."""
        part = self.clients.load.conditional
        free = self.open and not self.queue and not self.sparse
        return free and part > 0 and self.clients.rng.random() < part

    def _make(self, large: bool) -> Op:
        """The next append."""
        clients, rng, serial = self.clients, self.clients.rng, self.next_serial
        count = 1 if rng.random() < 0.8 else rng.randint(2, 4)
        self.next_serial += 1
        return Op(serial, (count, join_payloads([clients.payload(large=large) for _ in range(count)])))

    def _send(self, ops: list[Op]) -> None:
        self._sent_at_us = self.clients.cluster.now_us
        bodies = [op.body for op in ops]
        run = AppendRun(
            self.origin(), self.client, self.epoch, ops[0].serial, bodies, self.sparse, expect_last=ops[0].expect
        )
        self.clients.send(self.server, run)

    def resend(self) -> None:
        """Send the unresolved appends again, if their serials are consecutive, else the first alone: in one frame or,
        where clients send several at once, in frames grouped anew."""
        if not self.dead and self.open and self.queue:
            ops = self.queue[:RUN_MAX]
            ops = ops if consecutive(ops) else ops[:1]
            rng, regroups = self.clients.rng, self.clients.load.frame > 1
            while ops:
                size = rng.randint(1, len(ops)) if regroups and rng.random() < 0.5 else len(ops)
                self._send(ops[:size])
                ops = ops[size:]

    def _watch(self) -> None:
        """Ask a random server after `Load.retry_us` without an answer; a sparse client may give up instead."""
        if self.dead:
            return
        clients = self.clients
        if clients.cluster.now_us - self._sent_at_us >= clients.load.retry_us:
            if self.sparse and self.queue and clients.rng.random() < 0.1 and not clients.closing:
                self.queue.clear()
            if self.queue or not self.open:
                self.server = clients.some_server()
                self.try_again()
        self.after(clients.load.retry_us, self._watch)

    def try_again(self) -> None:
        """Send again what has no answer."""
        if self.open:
            self.resend()

    def _soon(self) -> None:
        """Schedule one `try_again` in a few milliseconds, in the place of any that is scheduled."""
        self._resends += 1
        number = self._resends
        self.after(
            5 * MS + self.clients.rng.randrange(50 * MS),
            lambda: self.try_again() if number == self._resends else None,
        )

    def _quit(self) -> None:
        """End the process. A new writer takes its place; sometimes a person retries the oldest unresolved append."""
        self.dead = True
        clients = self.clients
        if clients.rng.random() < 0.5:
            self.after(clients.rng.randrange(5 * SECOND), lambda: _retry_by_hand(self))
        self.after(clients.rng.randrange(2 * SECOND), lambda: None if clients.closing else new_writer(clients))

    # -- answers ----------------------------------------------------------------------------------------

    def heard(self, server: int, reply: Reply) -> None:
        if self.dead or reply.origin[1] <= self._conflicted:  # type: ignore[index]
            return  # the serial went to another append after a conflict: a late answer to the former one says nothing
        if isinstance(reply, Appended):
            done = range(reply.serial, reply.serial + len(reply.lsns))
            self._resolve(done)
            self.server = server
        elif isinstance(reply, Refused) and reply.client in ("", self.client):
            self._refused(reply)

    def _resolve(self, serials: range) -> None:
        self.queue = [op for op in self.queue if op.serial not in serials]

    def _refused(self, reply: Refused) -> None:
        code = reply.code
        if code in NOT_LEADER:
            self.follow(reply)
            self._soon()
        elif code is Code.SERIAL_EXPECTED:
            if reply.number < 1:  # a number that is merely low may be an old leader's
                raise Broken("ready", f"{self} is asked for serial {reply.number}")
            self._soon()
        elif code in (Code.SKIPPED, Code.TOO_OLD, Code.SERIAL_REUSED):
            self._given_up(reply)
        elif code in (Code.FENCED, Code.DROPPED):
            self.fenced(reply)
        elif code is Code.SESSION_EXPIRED:
            self.expired(reply)
        elif code is Code.CONFLICT:
            self._conflict(reply)
        elif code is Code.NO_SPACE:
            self._soon()
        elif code is not Code.OVERLOADED:
            raise Broken("ready", f"{self} was refused {code.name}")

    def _conflict(self, reply: Refused) -> None:
        """Give back the serial of a conditional append. Where a copy of it may be taken yet, the process ends."""
        op = next((op for op in self.queue if op.serial == reply.serial), None)
        if op is None or op.expect is None:
            return
        self.queue.clear()
        self.next_serial = op.serial
        self._conflicted = self._asked
        if reply.number < op.expect:
            self._quit()

    def _given_up(self, reply: Refused) -> None:
        if not self.sparse and reply.code is not Code.TOO_OLD and reply.serial >= self._first_serial():
            raise Broken("refused for good", f"{self} was refused {reply.code.name} for serial {reply.serial}")
        self._resolve(range(reply.serial, reply.serial + reply.count))

    def _first_serial(self) -> int:
        return self.queue[0].serial if self.queue else self.next_serial

    def fenced(self, reply: Refused) -> None:
        """Take a refusal FENCED or DROPPED, which a random client must never get. Raises `Broken`."""
        raise Broken("refused for good", f"{self} was refused {reply.code.name}")

    def expired(self, reply: Refused) -> None:
        """Take a refusal SESSION_EXPIRED, which a named client must never get. Raises `Broken`."""
        raise Broken("refused for good", f"{self} was refused {reply.code.name}")


class RandomWriter(Writer):
    """Client with a random id that it makes itself (R22). ``only_one``: it makes one append, and is ``done`` then."""

    def __init__(self, clients: Clients, *, sparse: bool, only_one: bool = False) -> None:
        self.done = False
        self._only_one = only_one
        super().__init__(clients, self._new_id(clients), sparse=sparse)
        self.open = True
        if only_one:
            self.next_serial = 2
            self.queue.append(Op(1, (1, clients.payload())))
            self.resend()

    def _work(self) -> None:
        if not self._only_one:
            super()._work()

    def _new_id(self, clients: Clients) -> str:
        """Make a random id whose time is max(now, horizon + 1 ms), by the hello of a random server."""
        clients.ids_created += 1
        host = clients.cluster.stage.hosts[clients.some_server()]
        horizon_ms = host.replica.horizon_ms if host.replica is not None else 0
        now_ms = max(WALL_ZERO_MS, host.wall_ms(clients.cluster.now_us))
        return random_client(max(now_ms, horizon_ms + 1), clients.ids_created)

    def _resolve(self, serials: range) -> None:
        super()._resolve(serials)
        if self._only_one and not self.queue:
            self.done = self.dead = True

    def expired(self, reply: Refused) -> None:
        """Go on under another id, and forget the appends in flight."""
        if created_ms(self.client) > reply.number:
            raise Broken("refused for good", f"{self} was told that it has ended by a horizon of {reply.number}")
        self.client = self._new_id(self.clients)
        self.client = random_client(max(created_ms(self.client), reply.number + 1), self.clients.ids_created)
        self.queue = [Op(1, (1, self.clients.payload()))] if self._only_one else []
        self.next_serial = 1 + len(self.queue)
        self._soon()


class NamedWriter(Writer):
    """Client with a name: opens its session, and goes on after the last serial, until another opens it too (R22)."""

    def __init__(self, clients: Clients, name: str, *, sparse: bool) -> None:
        self._nonce = b""
        self._replaces = clients.epoch_of.get(name, 0)
        super().__init__(clients, name, sparse=sparse)
        self._open(fresh=True)

    @property
    def settled(self) -> bool:
        return self.dead or (self.open and not self.queue) or (self.clients.closing and not self.queue)

    def _open(self, *, fresh: bool) -> None:
        """Ask to open the session. ``fresh``: with a new nonce, as the epoch to be replaced is another."""
        if self.clients.closing or self.dead:
            return
        if fresh:
            self._nonce = self.clients.rng.randbytes(16)
        self._opening = self.origin()
        self._sent_at_us = self.clients.cluster.now_us
        self.clients.send(self.server, OpenSession(self._opening, self.client, self._replaces, self._nonce))

    def try_again(self) -> None:
        """Send again what has no answer."""
        if self.open:
            self.resend()
        else:
            self._open(fresh=False)

    def heard(self, server: int, reply: Reply) -> None:
        if self.dead:
            return
        if isinstance(reply, Opened):
            if reply.origin == self._opening and not self.open:
                self.open, self.epoch = True, reply.epoch
                self.next_serial = reply.last_serial + 1
                self.clients.epoch_of[self.client] = max(reply.epoch, self.clients.epoch_of.get(self.client, 0))
                self.server = server
            return
        if isinstance(reply, Refused) and not self.open:
            if reply.origin != self._opening:
                return
            if reply.code is Code.EPOCH:
                self._replaces = reply.number
                self._open(fresh=True)
            elif reply.code is Code.TOO_MANY_NAMES:
                self._quit()
            else:
                self.follow(reply)
                self._soon()
            return
        if isinstance(reply, Refused) and reply.code in (Code.EPOCH, Code.TOO_MANY_NAMES):
            return  # the answer to a copy of an open that was answered long ago
        super().heard(server, reply)

    def _given_up(self, reply: Refused) -> None:
        """End the process if refused with SERIAL_REUSED: after a fencing the serial may be its successor's (R21)."""
        if reply.code is Code.SERIAL_REUSED:
            self._quit()
        else:
            super()._given_up(reply)

    def fenced(self, reply: Refused) -> None:
        """End the process: another process has the name now, or an operator dropped the session."""
        if reply.number == self.epoch:
            raise Broken("sessions", f"{self} was fenced by its own epoch")
        self._quit()


class HandRetry(Writer):
    """Person who retries a dead writer's oldest append: same name, serial and epoch, sometimes another payload."""

    def __init__(self, clients: Clients, of: Writer) -> None:
        super().__init__(clients, of.client, sparse=False)
        self.epoch, self.open = of.epoch, True
        op = of.queue[0]
        other_text = clients.rng.random() < 0.2
        self.queue = [Op(op.serial, (1, clients.payload())) if other_text else op]
        if clients.load.frame > 1 and consecutive(of.queue[:RUN_MAX]):
            self._retry_more(of.queue[: clients.rng.randint(1, RUN_MAX)], other_text)
        self._tries = 0
        self.resend()

    def _retry_more(self, ops: list[Op], other_text: bool) -> None:
        """Retry ``ops`` in one frame; with another text for one of them, often just as long."""
        rng, at = self.clients.rng, self.clients.rng.randrange(len(ops))
        self.queue = list(ops)
        if other_text:
            serial, (count, body), _ = ops[at]
            other = (count, body[:-1] + bytes([body[-1] ^ 1])) if rng.random() < 0.5 else (1, self.clients.payload())
            self.queue[at] = Op(serial, other)

    def _work(self) -> None:
        return

    def _send(self, ops: list[Op]) -> None:
        self._sent_at_us = self.clients.cluster.now_us
        self._tries += 1
        if self._tries > 20 or self.clients.closing:
            self.dead = True  # a person gives up
            return
        bodies, expect = [op.body for op in ops], ops[0].expect
        run = AppendRun(
            self.origin(), self.client, self.epoch, ops[0].serial, bodies, by_hand=True, expect_last=expect
        )
        self.clients.send(self.server, run)

    def _refused(self, reply: Refused) -> None:
        if reply.code in NOT_LEADER:
            super()._refused(reply)
        else:
            self.dead = True


def names(clients: Clients) -> list[str]:
    """All names that writers ever had, sorted."""
    return sorted({actor.client for actor in clients.actors if isinstance(actor, NamedWriter)})


def new_writer(clients: Clients) -> None:
    """Start a named or a random client, dense or sparse. A name is sometimes one that another writer has."""
    rng = clients.rng
    if rng.random() < 0.5:
        taken = names(clients)
        fresh = not taken or rng.random() >= clients.load.same_name
        name = f"writer-{len(clients.actors)}" if fresh else rng.choice(taken)
        NamedWriter(clients, name, sparse=rng.random() < 0.3)
    else:
        RandomWriter(clients, sparse=rng.random() < 0.3)


def _retry_by_hand(writer: Writer) -> None:
    if not writer.clients.closing and writer.queue:
        HandRetry(writer.clients, writer)
