"""Everybody outside the cluster: writers, readers, operators, and the network between them and the servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from alpo.core.entries import split_payloads
from alpo.core.inputs import AppendRun, DropSession, Initialise, Input, ListSessions, OpenSession, ReadIndex, Trim
from alpo.core.ready import Code, Initialised, ReadAt, Refused, Reply

from .broken import Broken
from .keepers import Keeper
from .options import MS, SECOND
from .party import Party
from .stewards import Steward
from .writers import Hand, Named, Random, Writer, uuid7

if TYPE_CHECKING:
    from .world import World


#: So much less is asked while servers catch up: narrow worlds carry less than is asked of them otherwise.
_RESTING = 20


class Reader(Party):
    """Asks for linearizable reads, one after the other."""

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients)
        self._waiting: tuple[int, int] | None = None
        clients.after(clients.pause_us(), self._ask)

    def _ask(self) -> None:
        if not self.clients.closing:
            self._waiting = self.origin()
            self.clients.send(self.server, ReadIndex(self._waiting))
            self.clients.after(self.clients.load.retry_us + self.clients.pause_us(), self._ask)

    def heard(self, server: int, reply: Reply) -> None:
        if reply.origin != self._waiting:
            return
        self._waiting = None
        if isinstance(reply, Refused):
            self.follow(reply)
        elif isinstance(reply, ReadAt):
            self._read(server, reply.id)

    def _read(self, server: int, upto_id: int) -> None:
        """What the server's disk has, against the one log."""
        host, world = self.clients.world.stage.hosts[server], self.clients.world
        if host.replica is None or host.replica.log.stable_id < upto_id:
            return  # it has started again since
        first_id = max(host.replica.log.base_id + 1, upto_id - 10)
        for entry in host.store.read_entries(first_id, upto_id, 1 << 20):
            if entry != world.safety.guaranteed[entry.id - 1]:
                raise Broken("one log", f"server {server} serves another entry {entry.id} than was guaranteed")
            if entry.count and len(split_payloads(entry.count, entry.body)) != entry.count:
                raise Broken("ready", f"entry {entry.id} is not {entry.count} payloads")


class Probe(Party):
    """Asks one thing until it has an answer: is there progress for what is no append, too?"""

    EVERY_US = 50 * MS

    def __init__(self, clients: Clients, make: Callable[[tuple[int, int]], Input]) -> None:
        super().__init__(clients)
        self.done = False
        self._make = make
        self._waiting: tuple[int, int] | None = None
        self._asked_us = 0
        self._look()

    def __str__(self) -> str:
        return type(self._make((0, 0))).__name__

    def _look(self) -> None:
        clients = self.clients
        now_us = clients.world.now_us
        if self.done:
            return
        if self._waiting is None or now_us - self._asked_us >= clients.load.retry_us:
            self._waiting, self._asked_us = self.origin(), now_us
            clients.send(self.server, self._make(self._waiting))
        clients.after(self.EVERY_US, self._look)

    def heard(self, server: int, reply: Reply) -> None:
        if reply.origin != self._waiting:
            return
        self._waiting = None
        if isinstance(reply, Refused) and reply.code in (Code.NOT_LEADER, Code.LOST_LEADERSHIP):
            self.follow(reply)
        else:
            self.done = True


class Careless(Party):
    """Asks for what can never be right. Every server answers so, and goes on."""

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients)
        clients.after(clients.rng.randrange(5 * SECOND), self._ask)

    def _ask(self) -> None:
        if self.clients.closing:
            return
        origin, body = self.origin(), [(1, self.clients.payload())]
        wrong: list[Input] = [
            AppendRun(origin, "", 0, 1, body), AppendRun(origin, "~no-uuid", 0, 1, body),
            AppendRun(origin, "someone", 0, 0, body), AppendRun(origin, "someone", -1, 1, body),
            AppendRun(origin, "someone", 0, 1 << 62, body), AppendRun(origin, "\udc80", 0, 1, body),
            OpenSession(origin, "", 0, bytes(16)), OpenSession(origin, "someone", 0, b"short"),
            OpenSession(origin, "someone", 1 << 40, bytes(16)), DropSession(origin, "x" * 200, 0),
            DropSession(origin, "someone", 1 << 40), AppendRun(origin, "someone", 1 << 40, 1, body),
            AppendRun(origin, uuid7(1, 1).replace("-", "x"), 0, 1, body),
            AppendRun(origin, uuid7(1, 1)[:15] + "4" + uuid7(1, 1)[16:], 0, 1, body),
        ]
        for writer in self.clients.parties:
            if isinstance(writer, Random):
                wrong.append(AppendRun(origin, writer.client, 3, writer.next_serial, body))
            elif isinstance(writer, Named):
                wrong.append(AppendRun(origin, writer.client, 1 << 40, writer.next_serial, body))
        # A list of one is founded by command alone: told so on a new disk it would found another cluster.
        if self.clients.world.leader() is not None and self.clients.world.options.servers > 1:
            wrong.append(Initialise(origin))
        self.clients.send(self.server, self.clients.rng.choice(wrong))
        self.clients.after(self.clients.rng.randrange(5 * SECOND), self._ask)

    def heard(self, server: int, reply: Reply) -> None:
        if not isinstance(reply, Refused | Initialised):
            raise Broken("ready", f"a request that can never be right was answered: {reply}")
        if isinstance(reply, Refused):
            self.follow(reply)


class Operator(Party):
    """Lists sessions, drops one now and then."""

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients)
        clients.after(clients.rng.randrange(5 * SECOND), self._ask)

    def _ask(self) -> None:
        clients, rng = self.clients, self.clients.rng
        if clients.closing:
            return
        self._look_at_status()
        names = clients.names()
        if rng.random() < 0.3:
            upto = len(clients.world.safety.id_of_lsn) + 3
            clients.send(self.server, Trim(self.origin(), rng.randrange(upto)))
        elif rng.random() < 0.5 or not names:
            clients.send(self.server, ListSessions(self.origin()))
        else:
            name = rng.choice(names)
            epoch = rng.choice((0, clients.epoch_of.get(name, 0)))
            clients.send(self.server, DropSession(self.origin(), name, epoch))
        clients.after((SECOND + rng.randrange(10 * SECOND)) * clients.load.operator_every_us // (6 * SECOND), self._ask)

    def _look_at_status(self) -> None:
        """What `alpo status` shows: no server is a member of anything before it has started, none is gone."""
        world = self.clients.world
        for replica in world.replicas():
            known = all(replica.address_of(each.id) for each in replica.cfg.configured)
            text, latest = replica.status_text, replica.members.latest
            if (text in ("EMPTY", "STARTING")) == replica.first_start.started or not known or (
                text == "VOTING" and not latest.is_voter(replica.me)
            ):
                raise Broken("ready", f"server {replica.me.id} shows {replica.status_text}")

    def heard(self, server: int, reply: Reply) -> None:
        if isinstance(reply, Refused):
            self.follow(reply)


class Clients:
    """All of them, their network, and what they have in common."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng
        self.load = world.options.load
        self.parties: list[Party] = []
        self.closing = False
        self.resting = False  # they ask for little, as long as servers catch up
        self.calm = False  # nothing is lost, copied or late any more
        self.payloads = 0
        self.created = 0
        #: Names in use and the epochs that somebody was told.
        self.epoch_of: dict[str, int] = {}

    def begin(self) -> None:
        for _ in range(self.load.writers):
            self.new_writer()
        for _ in range(self.load.readers):
            Reader(self)
        if self.load.operators:
            Operator(self)
            Careless(self)
        for _ in range(self.load.keepers):
            Keeper(self)
        for _ in range(self.world.options.stewards):
            Steward(self)

    def new_writer(self) -> None:
        """A named or a random client, dense or sparse; a name is sometimes that of another one."""
        rng = self.rng
        if rng.random() < 0.5:
            taken = self.names()
            name = rng.choice(taken) if taken and rng.random() < self.load.same_name else f"writer-{len(self.parties)}"
            Named(self, name, sparse=rng.random() < 0.3)
        else:
            Random(self, sparse=rng.random() < 0.3)

    def retry_by_hand(self, writer: Writer) -> None:
        """Somebody retries the oldest unresolved append of a writer that is gone."""
        if not self.closing and writer.queue:
            Hand(self, writer)

    def wind_down(self) -> None:
        """Nothing new is asked; what is under way is settled."""
        self.closing = True
        self.calm = True

    def probes(self) -> list[Random | Probe]:
        """A fresh writer of one append, and whoever asks for something else, to see whether there is progress."""
        self.calm = True
        name, nonce = f"probe-{len(self.parties)}", self.rng.randbytes(16)
        return [
            Random(self, sparse=False, only_one=True),
            Probe(self, ReadIndex),
            Probe(self, ListSessions),
            Probe(self, lambda origin: OpenSession(origin, name, 0, nonce)),
            Probe(self, lambda origin: DropSession(origin, f"{name}, unknown", 0)),
        ]

    def unsettled(self) -> list[str]:
        return [str(p) for p in self.parties if not p.settled]

    # -- what they share --------------------------------------------------------------------------------

    def join(self, party: Party) -> int:
        self.parties.append(party)
        return len(self.parties) - 1

    def names(self) -> list[str]:
        return sorted({p.client: None for p in self.parties if isinstance(p, Named)})

    def some_server(self) -> int:
        return self.rng.choice(self.world.links.ids)

    def pause_us(self) -> int:
        pace_us = self.load.pace_us * (_RESTING if self.resting else 1)
        return 1 + int(self.rng.expovariate(1 / pace_us))

    def after(self, delay_us: int, call: object, *args: object) -> None:
        self.world.after(delay_us, call, *args)  # type: ignore[arg-type]

    def payload(self) -> bytes:
        """Never the same twice, unless all are alike."""
        if self.load.alike:
            return b"as ever"
        self.payloads += 1
        head = b"%d " % self.payloads
        return head + b"x" * int(self.rng.random() ** 4 * self.load.payload_bytes_max)

    # -- the network ------------------------------------------------------------------------------------

    def send(self, server: int, request: Input) -> None:
        """It may get lost, arrive twice, or very late."""
        chance = 1.0 if self.calm else self.rng.random()
        delays = [] if chance < 0.01 else [200 + self.rng.randrange(2 * MS)]
        if 0.01 <= chance < 0.01 + self.load.copied:
            delays.append(self.rng.randrange(8 * SECOND))
        for delay_us in delays:
            self.world.history.asked(request)
            self.after(delay_us, self._arrive, server, request)

    def _arrive(self, server: int, request: Input) -> None:
        replica = self.world.stage.hosts[server].replica
        if replica is not None and replica.inflight_bytes > self.load.inflight_bytes_max:
            self.after(5 * MS, self._arrive, server, request)
        elif replica is not None:
            self.world.ask(server, request)
        else:
            index = request.origin[0]  # type: ignore[union-attr, index]
            refusal = Refused(request.origin, "", 0, 0, Code.NOT_LEADER)  # type: ignore[union-attr]
            self.after(MS, self.parties[index].heard, server, refusal)  # the connection is refused

    def replied(self, server: int, reply: Reply) -> None:
        if not self.calm and self.rng.random() < 0.01:
            return
        index = reply.origin[0]  # type: ignore[index]
        self.after(200 + self.rng.randrange(2 * MS), self.parties[index].heard, server, reply)
