"""Mutations of member lists (R27) and of handing over (R28)."""

from __future__ import annotations

from dataclasses import replace

from alpo.core import replica
from alpo.core.handover import Handing
from alpo.core.members import Members
from alpo.core.replica import Replica

from ..options import SECOND, Network
from . import directed as plans
from .changing import changing, expunged_list, restarted_in_vain, takes_itself_out_and_crashes
from .directed import directed
from .log import LOST
from .mutation import Mutation, edit
from .worlds import BUSY, planned

_SOUND = Network((100, 3000), 0.0, SECOND, 0.0, 0.0, True, 0.0)

LEAVING = (
    Mutation(
        "N7", "R27", "only the latest list says who may stand",
        "a leader of two that removed itself and crashed: no leader for ever",
        (edit(Members, "_derive", ("any(members.is_voter(self.me) for _, members in self._stack)", "self.i_vote")),),
        planned(network=_SOUND, servers=2, load=replace(BUSY, writers=2), seconds=6), ("no progress",),
        makes=changing(takes_itself_out_and_crashes),
    ),
    Mutation(
        "P30", "R27", "a member list is not undone by an expunge",
        "a server goes by a list that is not in the log: its majority is not the others'",
        (edit(Replica, "expunge", ("self.members.expunge(from_id)", "pass")),),
        planned(network=_SOUND, load=BUSY, seconds=6), ("equal tables", *LOST), makes=changing(expunged_list),
    ),
    Mutation(
        "P31", "R27", "the member list is saved as of the head of the log, not of the guaranteed mark",
        "a list that is expunged after a restart stays in force",
        (edit(replica, "table_save", ("r.members.at(r.guaranteed_id)", "r.members.at(r.log.last_id)")),),
        planned(network=_SOUND, load=BUSY, limits=(("table_save_entries", 1),), seconds=6), ("equal tables", *LOST),
        makes=changing(restarted_in_vain),
    ),
    Mutation(
        "P37", "R28", "the heir is never told",
        "every leader that is stopped leaves the cluster without one for an election timeout",
        (edit(Handing, "_tell", ("r.out.send(target.who, HandOver(r.term))", "pass")),),
        planned(network=_SOUND), ("no progress",), makes=directed(plans.handed_over),
    ),
    Mutation(
        "P38", "R28", "a leader that has handed over leaves at once",
        "with one server down its successor lacks its vote: no leader",
        (edit(Handing, "advance", (
            "return not self._led_term or (\n"
            "            r.guaranteed_id > 0 and (r.log.term_at(r.guaranteed_id) or 0) > self._led_term\n"
            "        )",
            "return True",
        )),),
        planned(network=_SOUND, load=replace(BUSY, writers=2)), ("no progress",),
        makes=directed(plans.handed_over_with_one_down),
    ),
)
