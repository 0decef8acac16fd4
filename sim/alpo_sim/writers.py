"""Clients that append: what the client library does, and what a careless or unlucky one does.

Laws of a right client (R21, R22): serials in order, an unresolved serial is sent again before anything later, a
serial never bears two payloads. `Hand` is the one that breaks the last on purpose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from alpo.core.client_ids import created_ms
from alpo.core.entries import join_payloads
from alpo.core.inputs import AppendRun, OpenSession
from alpo.core.ready import Appended, Code, Opened, Refused, Reply

from .broken import Broken
from .host import WALL_ZERO_MS
from .options import MS, SECOND

if TYPE_CHECKING:
    from .clients import Clients

RUN_MAX = 16


class Op(NamedTuple):
    """One append, not yet resolved."""

    serial: int
    body: tuple[int, bytes]


def uuid7(ms: int, number: int) -> str:
    """"~" and a UUIDv7 of that time, whose random part is ``number``."""
    digits = f"{ms:012x}7{number >> 60 & 0xFFF:03x}8{number & (1 << 60) - 1:015x}"
    return f"~{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


class Writer:
    """What named and random writers have in common."""

    def __init__(self, clients: Clients, client: str, *, sparse: bool) -> None:
        self.clients = clients
        self.index = clients.join(self)  # type: ignore[arg-type]
        self.client = client
        self.sparse = sparse
        self.epoch = 0
        self.open = False
        self.dead = False
        self.next_serial = 1
        self.queue: list[Op] = []
        self.server = clients.some_server()
        self._asked = 0
        self._sent_at_us = 0
        self._resends = 0
        self.after(clients.pause_us(), self._work)
        self.after(clients.load.retry_us, self._watch)

    def __str__(self) -> str:
        return f"{self.client} epoch {self.epoch}: {[op.serial for op in self.queue][:3]}"

    @property
    def settled(self) -> bool:
        return self.dead or not self.queue

    def after(self, delay_us: int, call: object) -> None:
        self.clients.after(delay_us, call)

    def origin(self) -> tuple[int, int]:
        self._asked += 1
        return self.index, self._asked

    # -- asking -----------------------------------------------------------------------------------------

    def _work(self) -> None:
        """One more append, if there is room."""
        clients, rng = self.clients, self.clients.rng
        if clients.closing or self.dead:
            return
        if rng.random() < clients.load.quits:
            self._quit()
            return
        if self.open and len(self.queue) < (1 if self.sparse else clients.load.depth):
            if self.sparse and rng.random() < 0.2:
                self.next_serial += rng.randint(1, 3)
            count = 1 if rng.random() < 0.8 else rng.randint(2, 4)
            op = Op(self.next_serial, (count, join_payloads([clients.payload() for _ in range(count)])))
            self.next_serial += 1
            self.queue.append(op)
            self._send([op])
        self.after(clients.pause_us(), self._work)

    def _send(self, ops: list[Op]) -> None:
        self._sent_at_us = self.clients.world.now_us
        run = AppendRun(self.origin(), self.client, self.epoch, ops[0].serial, [op.body for op in ops], self.sparse)
        self.clients.send(self.server, run)

    def resend(self) -> None:
        """What is unresolved, in order, before anything later."""
        if not self.dead and self.open and self.queue:
            ops = self.queue[:RUN_MAX]
            self._send(ops if ops[-1].serial - ops[0].serial == len(ops) - 1 else ops[:1])

    def _watch(self) -> None:
        """No answer for long: another server, perhaps; a sparse client sometimes just goes on."""
        if self.dead:
            return
        clients = self.clients
        if clients.world.now_us - self._sent_at_us >= clients.load.retry_us:
            if self.sparse and self.queue and clients.rng.random() < 0.1 and not clients.closing:
                self.queue.clear()
            if self.queue or not self.open:
                self.server = clients.some_server()
                self.try_again()
        self.after(clients.load.retry_us, self._watch)

    def try_again(self) -> None:
        if self.open:
            self.resend()

    def _soon(self) -> None:
        """Again, but not at once, and only once however many were refused."""
        self._resends += 1
        number = self._resends
        self.after(
            5 * MS + self.clients.rng.randrange(50 * MS),
            lambda: self.try_again() if number == self._resends else None,
        )

    def _quit(self) -> None:
        """The process dies; somebody may retry its oldest unresolved append by hand, and another takes its place."""
        self.dead = True
        clients = self.clients
        if clients.rng.random() < 0.5:
            self.after(clients.rng.randrange(5 * SECOND), lambda: clients.retry_by_hand(self))
        self.after(clients.rng.randrange(2 * SECOND), lambda: None if clients.closing else clients.new_writer())

    # -- answers ----------------------------------------------------------------------------------------

    def heard(self, server: int, reply: Reply) -> None:
        if self.dead:
            return
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
        if code in (Code.NOT_LEADER, Code.LOST_LEADERSHIP):
            self.server = reply.leader or self.clients.some_server()
            self._soon()
        elif code is Code.SERIAL_EXPECTED:
            if reply.number < 1:  # a lower one than we know of may be a deposed leader's, who does not know it
                raise Broken("ready", f"{self} is asked for serial {reply.number}")
            self._soon()
        elif code in (Code.SKIPPED, Code.TOO_OLD, Code.SERIAL_REUSED):
            self._given_up(reply)
        elif code in (Code.FENCED, Code.DROPPED):
            self.fenced(reply)
        elif code is Code.SESSION_EXPIRED:
            self.expired(reply)
        elif code is Code.NO_SPACE:
            self._soon()
        elif code is not Code.OVERLOADED:
            raise Broken("ready", f"{self} was refused {code.name}")

    def _given_up(self, reply: Refused) -> None:
        if not self.sparse and reply.code is not Code.TOO_OLD and reply.serial >= self._first_serial():
            raise Broken("refused for good", f"{self} was refused {reply.code.name} for serial {reply.serial}")
        self._resolve(range(reply.serial, reply.serial + reply.count))

    def _first_serial(self) -> int:
        return self.queue[0].serial if self.queue else self.next_serial

    def fenced(self, reply: Refused) -> None:
        raise Broken("refused for good", f"{self} was refused {reply.code.name}")

    def expired(self, reply: Refused) -> None:
        raise Broken("refused for good", f"{self} was refused {reply.code.name}")


class Random(Writer):
    """A client under an id of its own making (R22)."""

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
        """From max(time, horizon + 1 ms), as the hello of the server that it spoke to told them."""
        clients.created += 1
        host = clients.world.stage.hosts[clients.some_server()]
        horizon_ms = host.replica.horizon_ms if host.replica is not None else 0
        now_ms = max(WALL_ZERO_MS, host.wall_ms(clients.world.now_us))
        return uuid7(max(now_ms, horizon_ms + 1), clients.created)

    def _resolve(self, serials: range) -> None:
        super()._resolve(serials)
        if self._only_one and not self.queue:
            self.done = self.dead = True

    def expired(self, reply: Refused) -> None:
        """What was in flight is unknown to it; it goes on under another id."""
        if created_ms(self.client) > reply.number:
            raise Broken("refused for good", f"{self} was told that it has ended by a horizon of {reply.number}")
        self.client = self._new_id(self.clients)
        self.client = uuid7(max(created_ms(self.client), reply.number + 1), self.clients.created)
        self.queue = [Op(1, (1, self.clients.payload()))] if self._only_one else []
        self.next_serial = 1 + len(self.queue)
        self._soon()


class Named(Writer):
    """A client of a name: opens its session, goes on where it ended, is fenced by the next of that name (R22)."""

    def __init__(self, clients: Clients, name: str, *, sparse: bool) -> None:
        self._nonce = b""
        self._replaces = clients.epoch_of.get(name, 0)
        super().__init__(clients, name, sparse=sparse)
        self._open(fresh=True)

    @property
    def settled(self) -> bool:
        return self.dead or (self.open and not self.queue) or (self.clients.closing and not self.queue)

    def _open(self, *, fresh: bool) -> None:
        """The nonce is fresh for each epoch named."""
        if self.clients.closing or self.dead:
            return
        if fresh:
            self._nonce = self.clients.rng.randbytes(16)
        self._opening = self.origin()
        self._sent_at_us = self.clients.world.now_us
        self.clients.send(self.server, OpenSession(self._opening, self.client, self._replaces, self._nonce))

    def try_again(self) -> None:
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
                self.server = reply.leader or self.clients.some_server()
                self._soon()
            return
        if isinstance(reply, Refused) and reply.code in (Code.EPOCH, Code.TOO_MANY_NAMES):
            return  # the answer to a copy of an open that was answered long ago
        super().heard(server, reply)

    def _given_up(self, reply: Refused) -> None:
        """A fenced one's serial may be another one's by now (R21)."""
        if reply.code is Code.SERIAL_REUSED:
            self._quit()
        else:
            super()._given_up(reply)

    def fenced(self, reply: Refused) -> None:
        """Somebody else has the name now, or an operator dropped it: the process ends."""
        if reply.number == self.epoch:
            raise Broken("sessions", f"{self} was fenced by its own epoch")
        self._quit()


class Hand(Writer):
    """A person who retries an append of which nobody knows: same name, serial and epoch, sometimes another text."""

    def __init__(self, clients: Clients, of: Writer) -> None:
        super().__init__(clients, of.client, sparse=False)
        self.epoch, self.open = of.epoch, True
        op = of.queue[0]
        self._other_text = clients.rng.random() < 0.2
        self.queue = [Op(op.serial, (1, clients.payload())) if self._other_text else op]
        self._tries = 0
        self.resend()

    def _work(self) -> None:
        return

    def _send(self, ops: list[Op]) -> None:
        self._sent_at_us = self.clients.world.now_us
        self._tries += 1
        if self._tries > 20 or self.clients.closing:
            self.dead = True  # a person gives up
            return
        body = [op.body for op in ops]
        run = AppendRun(self.origin(), self.client, self.epoch, ops[0].serial, body, by_hand=True)
        self.clients.send(self.server, run)

    def _refused(self, reply: Refused) -> None:
        if reply.code in (Code.NOT_LEADER, Code.LOST_LEADERSHIP):
            super()._refused(reply)
        else:
            self.dead = True
