"""Mutations of what happens to members: they come, go, and lose their disks (R27, R28, R30)."""

from __future__ import annotations

from alpo.core import replica
from alpo.core.changes import Changes
from alpo.core.installing import Installing
from alpo.core.newcomers import Newcomers
from alpo.core.outbox import Outbox
from alpo.core.replication import Replication

from ..options import MS, SECOND, Network
from . import changing as plans
from .changing import changing
from .directed import directed, lost_disk
from .log import LOST
from .mutation import Mutation, edit, swap
from .worlds import BUSY, ONE_BY_ONE, SAVING, planned, world

_SOUND = Network((100, 3000), 0.0, SECOND, 0.0, 0.0, False)
_CALM = planned(network=_SOUND, load=BUSY, seconds=6)
_GROWING = planned(network=_SOUND, load=BUSY, seconds=8, spares=1)
#: That there is a lost disk to be waited for has everybody's membership looked at in the end.
_CLEANING = planned(
    network=_SOUND, load=BUSY, limits=SAVING, seconds=6, spares=1, wipes=1, clean_every_us=20 * MS,
)

_HELD = "if r.first_start.started and (base.id < r.log.base_id or r.log.term_at(base.id) == base.term):"

MEMBERS = (
    Mutation(
        "M16", "R27", "a member list is appended before the one before it is guaranteed",
        "two disjoint majorities: two servers hold different entries guaranteed at one id",
        (edit(Changes, "may_change", (" >= r.members.latest_id", "")),),
        planned(network=_SOUND, servers=5, load=BUSY, seconds=6), (*LOST, "one leader a term", "linearizable"),
        ("members",), makes=changing(plans.two_at_once),
    ),
    Mutation(
        "N1", "R30", "a new disk is made a voter in the same entry that retires the lost one",
        "a late vote of the lost disk completes a majority",
        (edit(Changes, "_replace_lost", ("role=Role.LEARNER", "role=Role.VOTER")),),
        planned(network=_SOUND, load=BUSY, seconds=6, wipes=1), ("members",), makes=directed(lost_disk),
    ),
    Mutation(
        "P85", "R30", "a server that was replaced before is said to be replaced whatever its disk is now",
        "an operator believes that a lost disk is made good",
        (edit(Changes, "_advance_pending", ("listed.identity == self._heard", "True")),),
        planned(network=_SOUND, load=BUSY, seconds=6, wipes=2), ("members",), makes=changing(plans.lost_twice),
    ),
    Mutation(
        "N2", "R27", "a newcomer is promoted without the fresh round",
        "it dies, is promoted, and half of four are no majority: no leader for ever",
        (edit(Changes, "_promote", (
            "if peer.accepted_round < now.round:", "if False:"), (
            "if len(latest.voters) == 1 or self._answered(now.round, latest) >= need:", "if True:",
        )),),
        _GROWING, ("no progress",), makes=changing(plans.newcomer_dies),
    ),
    Mutation(
        "N3", "R27", "a member list is appended before an entry of the leader's own term is guaranteed",
        "two disjoint majorities: a leader that lacks what was guaranteed",
        (edit(Changes, "may_change", ("r.leadership.first_id <= ", "")),),
        planned(network=_SOUND, servers=4, spares=1, load=BUSY, seconds=8), LOST, ("members",),
        makes=changing(plans.list_of_another_reign),
    ),
    Mutation(
        "N6", "R18", "the fully replicated mark moves while a member list is not guaranteed",
        "a member that was to be taken out, and was not, can never be caught up",
        (edit(Replication, "count", ("if r.members.latest_id <= r.guaranteed_id:", "if True:")),),
        planned(network=_SOUND, load=BUSY, seconds=6, clean_every_us=10 * MS), ("no progress", "alarm"),
        ("fully replicated", "cleaned too early"), makes=changing(plans.removed_in_vain),
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
        planned(network=_SOUND, load=BUSY, limits=ONE_BY_ONE, seconds=6, spares=1), ("members",),
        makes=changing(plans.one_more),
    ),
    Mutation(
        "P61", "R22", "a base comes without its sessions",
        "what was remembered of clients is forgotten: their retries are appended twice",
        (edit(Newcomers, "on_image", ("image.table.changed, r", "[], r")),),
        planned(network=_SOUND, load=BUSY, limits=SAVING, seconds=6, spares=1), ("equal tables", "alarm"),
        makes=changing(plans.one_more),
    ),
    Mutation(
        "P62", "R27", "a base is taken by a voter",
        "what it had accepted, and what is guaranteed by that, is given up",
        (edit(Installing, "_install", (_HELD, "if False:"), (
            "if r.first_start.started and r.members.latest.is_voter(r.me):", "if False:",
        )),),
        _GROWING, ("nothing acknowledged given up", *LOST, "ready"), makes=changing(plans.late_base_to_a_voter),
    ),
    Mutation(
        "P63", "R27", "a base is taken though its last entry is held",
        "a learner gives up what it holds, and its marks go back",
        (edit(Installing, "_install", (_HELD, "if False:")),),
        _GROWING, ("nothing acknowledged given up", *LOST, "ready"), makes=changing(plans.late_base_to_a_learner),
    ),
    Mutation(
        "P81", "R27", "an id that comes back into the list has the priority that it had",
        "an operator's word is not heeded: another server leads than was wanted",
        (edit(Changes, "_advance_pending", (" and listed.role is not Role.GONE", "")),),
        world(network=_SOUND, faults=("crash",), stewards=2, spares=2, servers=2, seconds=20), ("members",),
    ),
    Mutation(
        "P64", "R28", "a leader that was taken out goes on leading",
        "the cluster is led by a server that is none of it",
        (swap(replica, "leave_if_removed", lambda r: None),),
        _CALM, ("steps down",), makes=changing(plans.takes_out_the_leader),
    ),
    Mutation(
        "P65", "R27", "a voter is taken out without asking those who remain",
        "one of them is down: no leader until it returns",
        (edit(Changes, "_may_take_out", ("return self._answered(self._round[1], remain) >= remain.majority",
                                         "return True")),),
        _CALM, ("no progress",), ("steps down",), makes=changing(plans.remaining_majority),
    ),
    Mutation(
        "P66", "R27", "a leader goes on from a base that it has cleaned beyond meanwhile",
        "it has nothing to send that follows on, and stops itself",
        (edit(Newcomers, "on_base_answer", ("if answer.base_id < r.log.base_id:", "if False:")),),
        _CLEANING, ("alarm",), makes=changing(plans.cleaned_meanwhile),
    ),
    Mutation(
        "P67", "R14", "what rests on a base leaves before the base is on disk",
        "an acceptance vanishes when the learner restarts",
        (edit(Outbox, "install", ("self._hard_dirty = True", "self._needed = True")),),
        _CLEANING, ("durable before sent",), makes=changing(plans.cleaned_meanwhile),
    ),
    Mutation(
        "P68", "R27", "a base that is held already is not answered",
        "its transfer never ends, and no other begins: the newcomer is never caught up",
        (
            edit(Installing, "_install", ("r.out.send_after_write(sender, answer)  # we", "pass  # we")),
            edit(Installing, "on_part", ("if self._base_id is not None:", "if False:")),
        ),
        _CLEANING, ("no progress",), makes=changing(plans.cleaned_meanwhile),
    ),
    Mutation(
        "P69", "R18, R31", "a server that was taken out is told the fully replicated mark, which counts it no more",
        "it takes its disk for one that has forgotten, and sets it aside",
        (edit(Replication, "_send", ("if peer.parting_until_s is None else 0", "")),),
        _CALM, ("alarm",), makes=changing(plans.taken_out_behind),
    ),
)
