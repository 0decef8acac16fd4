"""Mutations of the directory and of hosting (rules.md#logs)."""

from __future__ import annotations

from alpo.core import directory, snapshots
from alpo.core.directory import Directory, Listing
from alpo.core.handover import Handover
from alpo.core.hosting import leading
from alpo.core.hosting.hosting import Hosting
from alpo.core.hosting.leading import Leading
from alpo.core.hosting.words import Follow, HostMessage
from alpo.core.messages import AppendRequest, Envelope
from alpo.core.operator_requests import OperatorRequests
from alpo.core.replica import Replica
from alpo.core.requests import ChangeMember, MemberStep
from alpo.storage.memory import MemoryStore

from ..logs.world import LogsWorld, OneLog
from ..options import MS, SECOND
from .mutation import Mutation, edit, swap
from .worlds import IDLE, SAVING, SLOW, planned, world


def _keeps_incarnation(log: OneLog, id: int) -> None:
    """Give a host an empty disk that passes for the one that was lost."""
    host = log.stage.hosts[id]
    incarnation = host.store.boot().me.incarnation
    log.stage.wipe(id)
    host.store = MemoryStore(id, incarnation=incarnation)


_fail = LogsWorld.fail


def _beats_on(world: LogsWorld, id: int, log: OneLog) -> None:
    """End a log's replica on a host, which goes on making that one's heartbeats."""
    host, beats = log.stage.hosts[id], []
    replica = host.running
    for peer in replica.leadership.peers.values() if replica.leadership is not None else ():
        prev_term = replica.log.term_at(peer.base_id)
        assert prev_term is not None
        beat = AppendRequest(replica.term, peer.base_id, prev_term, replica.guaranteed_id, 0, 0, [])
        beats.append(Envelope(replica.cluster, replica.me, peer.who, beat))
    _fail(world, id, log)

    def send() -> None:
        if (id, log.number) in world.failed:
            for envelope in beats:
                log.stage.on_send(host, envelope)
            log.after(log.options.election_timeout_us // 5, send)

    send()


#: A store is told of as soon as it is written, and its fsync takes its time.
_TOLD_EARLY = """self._making[id][action.number] = self.stage.hosts[id].running.cluster
        self._put_store(id, action.number, self._making[id][action.number])
        self.hostings[id].made(self._stores[id][action.number])
"""
_SYNCED_LATE = """self._put_store(id, number, self._making[id].pop(number))
        self.hostings[id].made(self._stores[id][number])
"""
#: Lines by which a leader founds every log again.
_AGAIN = """if log.first_list is not None:
                self._found(log, facts, told, who, now_s, actions)
            if log.first_list is None:"""
_QUIET = {"seconds": 12, "load": IDLE}
_PLAIN = world(fault_every_us=500 * MS, **_QUIET)
_TORN = world(network=SLOW, faults=("isolate", "cut", "crash"), **_QUIET)
_LOSING = world(fault_every_us=SECOND, wipes=4)
_CHANGING = world(seconds=8, load=IDLE, fault_every_us=2 * SECOND, spares=1, stewards=1)
_OLD_WORD = planned(seconds=12, load=IDLE, spares=1)
_CRASHING = world(fault_every_us=200 * MS, faults=("crash", "crash_all"), limits=SAVING, **_QUIET)
_BROUGHT_UP = world(fault_every_us=SECOND, wipes=4, limits=SAVING, **_QUIET)


class OldWord(LogsWorld):
    """World in which word of the members that a log is to have is late: what it adds was removed since."""

    def run(self) -> None:
        self.after(2 * SECOND, self._add)
        super().run()

    def _tell(self, id: int, peer: int, message: HostMessage) -> None:
        if isinstance(message, Follow):
            self.after(3 * SECOND, super()._tell, id, peer, message)
        else:
            super()._tell(id, peer, message)

    def _add(self) -> None:
        """Have a server added, then removed, once another server than the first log's leader leads a log."""
        first, spare = self.leader(), len(self.stage.hosts)
        if first is not None and any((top := log.leader()) is not None and top.me != first.me for log in self.live()):
            self.boot(spare)
            self._ask_first(MemberStep.ADD, spare)
            self.after(SECOND, self._ask_first, MemberStep.REMOVE, spare)
        else:
            self.after(SECOND // 10, self._add)

    def _ask_first(self, step: MemberStep, id: int) -> None:
        leader, address = self.leader(), self.stage.hosts[id].address if step is MemberStep.ADD else ""
        if leader is not None:
            self.ask(leader.me.id, ChangeMember("operator", step, id, address, 0))


def _made(name: str, rule: str, title: str, harm: str, patches: object, where: object, by: tuple[str, ...],
          **more: object) -> Mutation:
    made = {"makes": LogsWorld, **more}
    return Mutation(name, rule, title, harm, patches, where, by, **made)  # type: ignore[arg-type]


_SEEN = ("directory", "founding", "files", "alarm", "deleted", "no progress")

LOGS = (
    _made(
        "L1", "logs", "a server acts on the directory at the head of its log",
        "stores and first lists are made of entries that are expunged: two logs under one number",
        (edit(Directory, "_derive", ("self._stack[0][1]", "self._stack[-1][1]")),), _TORN, _SEEN,
    ),
    _made(
        "L2", "logs", "a log is founded a second time", "two first lists, so two logs under one name",
        (edit(directory, "_founded", ("log.first_list is not None or first_list is None", "first_list is None")),
         edit(OperatorRequests, "found_log", (" or log.first_list is not None", "")),
         edit(Leading, "step", ("if log.first_list is None:", _AGAIN)),
         edit(Leading, "_found", (" and store.state is StoreState.EMPTY", ""))),
        _PLAIN, _SEEN,
    ),
    _made(
        "L3", "logs", "a log is founded with fewer than a majority", "an append rests on one disk",
        (edit(Leading, "_found", ("if len(first) < facts.members.majority:", "if not first:"),
              ("if len(first) < len(facts.members.voters) and now_s < enough_s:", "if False:")),
         edit(OperatorRequests, "found_log", (" and len(first.voters) >= ours.majority", ""))),
        _PLAIN, _SEEN,
    ),
    _made(
        "L4", "logs", "a store is moved away because the directory does not have it",
        "a directory that is behind costs a log its store",
        (edit(Listing, "lacks", ("FIRST_NUMBER < number < self.next_number and ", "")),), _CRASHING, ("files",),
    ),
    _made(
        "L5", "logs", "the number of a deleted log is given out again", "clients and stores take one log for the other",
        (edit(directory, "_deleted", ("listing._replace(", "listing._replace(next_number=log.number, ")),),
        _PLAIN, _SEEN,
    ),
    _made(
        "L6", "R30", "a log's store that was lost comes back under its old incarnation",
        "what it had promised is forgotten",
        (swap(OneLog, "lose_store", _keeps_incarnation),), _LOSING,
        ("alarm", "one log", "guaranteed on a majority", "leader completeness", "one leader a term", "gapless",
         "nothing guaranteed expunged", "log matching", "sent once", "durable before sent", "fully replicated",
         "founding"),
    ),
    _made(
        "L7", "logs", "the leader of a log follows no removal", "a server that was removed leads it for ever",
        (edit(leading, "next_changes", ("return adds + removes", "return adds")),), _CHANGING, ("no progress",),
    ),
    _made(
        "L8", "logs", "a snapshot leaves the directory out", "a server that was brought up by one knows of no log",
        (edit(snapshots, "snapshot_head", ("if snapshot.table.directory is None:", "if True:")),),
        _BROUGHT_UP, ("directory",),
    ),
    _made(
        "L9", "logs", "the directory is left out of what is saved", "a server that starts again knows of no log",
        (edit(Directory, "plain_at", ("None if listing == Listing() else listing.to_plain()", "None")),),
        _CRASHING, ("directory", "alarm"),
    ),
    _made(
        "L11", "logs", "a store is told of before it is fsynced", "a log is founded with stores that are gone",
        (edit(LogsWorld, "_act",
              ("self._making[id][action.number] = self.stage.hosts[id].running.cluster\n", _TOLD_EARLY),
              ("self.rng.randrange(20 * MS), self._made", "self.rng.randrange(400 * MS), self._made")),
         edit(LogsWorld, "_made", (_SYNCED_LATE, "self._making[id].pop(number)\n"))),
        _CRASHING, ("founding", "one log", "guaranteed on a majority", "leader completeness", "no progress"),
    ),
    _made(
        "L12", "logs", "a message is given to the log that was told last", "it reaches another log's replica",
        (edit(LogsWorld, "log_of", ("self._heard_of.stores(envelope.target.id).get(envelope.sender)",
                                    "[*self._heard_of.stores(envelope.target.id).values(), None][-2:][0]")),),
        _PLAIN, ("own log",),
    ),
    _made(
        "L13", "logs", "the leader of a log follows an older list", "members are added and removed in turns",
        (edit(Leading, "follow", ("if before is None or follow.members_id >= before.members_id:", "if True:")),
         edit(Leading, "_follow", (" or (facts.members_sure and follow.members_id < facts.members_id)", ""))),
        _OLD_WORD, ("follows",), makes=OldWord,
    ),
    _made(
        "L14", "logs", "the host makes heartbeats for its logs", "a log that has stopped is believed to lead",
        (swap(LogsWorld, "fail", _beats_on),), _PLAIN, ("no progress",),
    ),
    _made(
        "L15", "logs", "no log is handed over to the server that should lead it",
        "one server comes to lead all logs",
        (edit(Leading, "balance", ("actions.append(HandLog(number, wanted))", "pass")),), _PLAIN, ("no progress",),
    ),
    _made(
        "L10", "logs", "an expunge leaves the directory as it was", "two servers have different logs",
        (edit(Replica, "expunge", ("in self._made:", "in self._made[:-1]:")),), _TORN, ("directory", "alarm"),
    ),
    _made(
        "L16", "logs", "two logs may have one name", "a client that names one finds the other",
        (edit(directory, "_free", ("if listing.named(name) is not None", "if False")),
         edit(OperatorRequests, "_create_log", ("if there.named(request.name) is not None", "if False"))),
        _PLAIN, ("directory",),
    ),
    _made(
        "L17", "logs", "a store that its log has retired stays", "a server that comes back as a member lacks the log",
        (edit(Hosting, "_keep", ("runs is not None and runs.retired", "False")),), _CHANGING, ("no progress",),
    ),
    _made(
        "L18", "R28", "the heir of a log is never told", "a log stays with the server that leads it",
        (edit(Handover, "_tell", ("r.out.send(target.who, HandOver(r.term))", "pass")),), _PLAIN, ("no progress",),
    ),
)
