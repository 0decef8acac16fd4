"""Mutations of what happens to members: they come, go, and lose their disks (R27, R28, R30)."""

from __future__ import annotations

from dataclasses import replace

from alpo.core import replica
from alpo.core.changes import Changes
from alpo.core.handover import Handover
from alpo.core.members import Members
from alpo.core.outbox import Outbox
from alpo.core.parts import Reign
from alpo.core.replica import Replica
from alpo.core.replication import Replication
from alpo.core.snapshots import Installing, Newcomers

from ..options import MS
from .fault_plans import handed_over, handed_over_with_one_down, lost_disk
from .log import LOST
from .member_plans import (
    cleaned_meanwhile,
    expunged_list,
    late_base_to_a_learner,
    late_base_to_a_voter,
    list_of_another_reign,
    lost_twice,
    newcomer_dies,
    one_more,
    remaining_majority,
    removed_in_vain,
    restarted_in_vain,
    taken_out_behind,
    takes_itself_out_and_crashes,
    takes_out_the_leader,
    two_at_once,
)
from .mutation import Mutation, edit, swap
from .planned import once, repeated
from .worlds import BUSY, ONE_BY_ONE, ORDERED, SAVING, SOUND, planned, world

_CALM = planned(network=SOUND, load=BUSY, seconds=6)
_GROWING = planned(network=SOUND, load=BUSY, seconds=8, spares=1)
#: Options of worlds with cleaning. As ``wipes`` is set, all servers must be members in the end.
_CLEANING = planned(
    network=SOUND, load=BUSY, limits=SAVING, seconds=6, spares=1, wipes=1, clean_every_us=20 * MS,
)

_HELD = "if self._first_start.started and (base.id < r.log.base_id or r.log.term_at(base.id) == base.term):"

MEMBERS = (
    Mutation(
        "M16", "R27", "a member list is appended before the one before it is guaranteed",
        "two disjoint majorities: two servers hold different entries guaranteed at one id",
        (edit(Changes, "may_change", (" >= r.members.latest_id", "")),),
        planned(network=SOUND, servers=5, load=BUSY, seconds=6), (*LOST, "one leader a term", "linearizable"),
        ("members",), makes=once(two_at_once),
    ),
    Mutation(
        "N1", "R30", "a new disk is made a voter in the same entry that retires the lost one",
        "a late vote of the lost disk completes a majority",
        (edit(Changes, "_replace_lost", ("role=Role.LEARNER", "role=Role.VOTER")),),
        planned(network=SOUND, load=BUSY, seconds=6, wipes=1), ("members",), makes=repeated(lost_disk),
    ),
    Mutation(
        "P85", "R30", "a server that was replaced before is said to be replaced whatever its disk is now",
        "an operator believes that a lost disk is made good",
        (edit(Changes, "_advance_pending", ("listed.identity == self._heard", "True")),),
        planned(network=SOUND, load=BUSY, seconds=6, wipes=2), ("members",), makes=once(lost_twice),
    ),
    Mutation(
        "N2", "R27", "a newcomer is promoted without the fresh round",
        "it dies, is promoted, and half of four are no majority: no leader for ever",
        (edit(Changes, "_promote", (
            "if peer.accepted_round < now.round:", "if False:"), (
            "if len(latest.voters) == 1 or self._answered(now.round, latest) >= need:", "if True:",
        )),),
        _GROWING, ("no progress",), makes=once(newcomer_dies),
    ),
    Mutation(
        "N3", "R27", "a member list is appended before an entry of the leader's own term is guaranteed",
        "two disjoint majorities: a leader that lacks what was guaranteed",
        (edit(Changes, "may_change", ("self._replication.first_id <= ", "")),),
        planned(network=SOUND, servers=4, spares=1, load=BUSY, seconds=8), LOST, ("members",),
        makes=once(list_of_another_reign),
    ),
    Mutation(
        "N6", "R18", "the fully replicated mark moves while a member list is not guaranteed",
        "a member that was to be taken out, and was not, can never be caught up",
        (edit(Replication, "count", ("if r.members.latest_id <= r.guaranteed_id:", "if True:")),),
        planned(network=SOUND, load=BUSY, seconds=6, clean_every_us=10 * MS), ("no progress", "alarm"),
        ("fully replicated", "cleaned too early"), makes=once(removed_in_vain),
    ),
    Mutation(
        "P60", "R27", "a newcomer is promoted before it has caught up",
        "a voter that holds nothing: every other failure stops the cluster until it has",
        (
            edit(Changes, "_begin_catch_up", ("p.matched and p.match_id >= r.members.latest_id", "True")),
            edit(Changes, "_promote", (
                "peer.match_id < now.upto_id or not peer.matched or peer.doubted_round", "False",
            )),
        ),
        planned(network=SOUND, load=BUSY, limits=ONE_BY_ONE, seconds=6, spares=1), ("members",),
        makes=once(one_more),
    ),
    Mutation(
        "P61", "R22", "a snapshot comes without its sessions",
        "what was remembered of clients is forgotten: their retries are appended twice",
        (edit(Newcomers, "on_snapshot", ("snapshot.table.changed, r", "[], r")),),
        planned(network=SOUND, load=BUSY, limits=SAVING, seconds=6, spares=1), ("equal tables", "alarm"),
        makes=once(one_more),
    ),
    Mutation(
        "P62", "R27", "a snapshot is taken by a voter",
        "what it had accepted, and what is guaranteed by that, is given up",
        (edit(Installing, "_install", (_HELD, "if False:"), (
            "if self._first_start.started and r.members.latest.is_voter(r.me):", "if False:",
        )),),
        _GROWING, ("nothing acknowledged given up", *LOST, "ready"), makes=once(late_base_to_a_voter),
    ),
    Mutation(
        "P63", "R27", "a snapshot is taken though its last entry is held",
        "a learner gives up what it holds, and its marks go back",
        (edit(Installing, "_install", (_HELD, "if False:")),),
        _GROWING, ("nothing acknowledged given up", *LOST, "ready"), makes=once(late_base_to_a_learner),
    ),
    Mutation(
        "P81", "R27", "an id that comes back into the list has the priority that it had",
        "an operator's word is not heeded: another server leads than was wanted",
        (edit(Changes, "_advance_pending", (" and listed.role is not Role.GONE", "")),),
        world(network=SOUND, faults=("crash",), stewards=2, spares=2, servers=2, seconds=20), ("members",),
    ),
    Mutation(
        "P64", "R28", "a leader that was taken out goes on leading",
        "the cluster is led by a server that is none of it",
        (swap(Reign, "_leave_if_removed", lambda reign: None),),
        _CALM, ("steps down",), makes=once(takes_out_the_leader),
    ),
    Mutation(
        "P65", "R27", "a voter is taken out without asking those who remain",
        "one of them is down: no leader until it returns",
        (edit(Changes, "_may_take_out", ("return self._answered(now[1], remain) >= remain.majority",
                                         "return True")),),
        _CALM, ("no progress",), ("steps down",), makes=once(remaining_majority),
    ),
    Mutation(
        "P66", "R27", "a leader goes on from a snapshot that it has cleaned beyond meanwhile",
        "it has nothing to send that follows on, and stops itself",
        (edit(Newcomers, "on_snapshot_answer", ("if answer.base_id < r.log.base_id:", "if False:")),),
        _CLEANING, ("alarm",), makes=once(cleaned_meanwhile),
    ),
    Mutation(
        "P67", "R14", "what rests on a snapshot leaves before the snapshot is on disk",
        "an acceptance vanishes when the learner restarts",
        (edit(Outbox, "install", ("self._hard_dirty, self.hard_durable = True, False", "self._needed = True")),),
        _CLEANING, ("durable before sent",), makes=once(cleaned_meanwhile),
    ),
    Mutation(
        "P68", "R27", "a snapshot that is held already is not answered",
        "its transfer never ends, and no other begins: the newcomer is never caught up",
        (
            edit(Installing, "_install", (
                "self._base_id = base.id\n        r.out.send_after_write(sender, answer)", "self._base_id = base.id",
            )),
            edit(Installing, "on_part", ("if self._base_id is not None:", "if False:")),
        ),
        _CLEANING, ("no progress",), makes=once(cleaned_meanwhile),
    ),
    Mutation(
        "P69", "R18, R31", "a server that was taken out is told the fully replicated mark, which counts it no more",
        "it takes its disk for one that has forgotten, and sets it aside",
        (edit(Replication, "_send", ("if peer.parting_until_s is None else 0", "")),),
        _CALM, ("alarm",), makes=once(taken_out_behind),
    ),
    Mutation(
        "N7", "R27", "only the latest list says who may stand",
        "a leader of two that removed itself and crashed: no leader for ever",
        (edit(Members, "_derive", ("any(members.is_voter(self.me) for _, members in self._stack)", "self.i_vote")),),
        planned(network=ORDERED, servers=2, load=replace(BUSY, writers=2), seconds=6), ("no progress",),
        makes=once(takes_itself_out_and_crashes),
    ),
    Mutation(
        "P30", "R27", "a member list is not undone by an expunge",
        "a server goes by a list that is not in the log: its majority is not the others'",
        (edit(Replica, "expunge", ("in self._made", "in (self.trims, self.cursors)")),),
        planned(network=ORDERED, load=BUSY, seconds=6), ("equal tables", *LOST), makes=once(expunged_list),
    ),
    Mutation(
        "P31", "R27", "the member list is saved as of the head of the log, not of the guaranteed mark",
        "a list that is expunged after a restart stays in force",
        (edit(replica, "table_save", ("r.members.at(r.guaranteed_id)", "r.members.at(r.log.last_id)")),),
        planned(network=ORDERED, load=BUSY, limits=(("table_save_entries", 1),), seconds=6), ("equal tables", *LOST),
        makes=once(restarted_in_vain),
    ),
    Mutation(
        "P37", "R28", "the heir is never told",
        "every leader that is stopped leaves the cluster without one for an election timeout",
        (edit(Handover, "_tell", ("r.out.send(target.who, HandOver(r.term))", "pass")),),
        planned(network=ORDERED), ("no progress",), makes=repeated(handed_over),
    ),
    Mutation(
        "P38", "R28", "a leader that has handed over leaves at once",
        "with one server down its successor lacks its vote: no leader",
        (edit(Handover, "advance", (
            "return not self._led_term or (\n"
            "            r.guaranteed_id > 0 and (r.log.term_at(r.guaranteed_id) or 0) > self._led_term\n"
            "        )",
            "return True",
        )),),
        planned(network=ORDERED, load=replace(BUSY, writers=2)), ("no progress",),
        makes=repeated(handed_over_with_one_down),
    ),
)
