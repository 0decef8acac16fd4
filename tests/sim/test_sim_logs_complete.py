"""Complete search of creating, founding and deleting a log, within bounds; and rules broken in it."""

from __future__ import annotations

import pytest

from alpo.core.directory import Listing
from alpo.core.hosting import hosting
from alpo.core.hosting.hosting import Hosting
from alpo.core.hosting.leading import Leading
from alpo_sim.checks import Broken
from alpo_sim.logs.complete import ALL, NONE, Bounds, Deleting, Search
from alpo_sim.mutations.mutation import Patch, edit

NOTHING = Bounds(crashes=NONE, losses=NONE, leaders=0, waits=0, deletes=False)
ONE, TWO = frozenset((1,)), frozenset((2,))
PAIRS = frozenset((1, 2)), frozenset((2, 3))
BOTH = [NOTHING._replace(crashes=one, losses=one) for one in (ONE, TWO)]
#: Bounds -> how many states there are. A change of what hostings do changes these numbers. While server 1 leads the
#: first log, 2 and 3 stand for each other.
STATES = {NOTHING._replace(waits=1): 2234, BOTH[0]: 4123, BOTH[1]: 3774}
#: Bounds within which a search takes up to minutes. All servers crash once and lose their store once while a log is
#: created; any two do, if it may be founded without the third.
WIDER = [
    NOTHING._replace(crashes=ALL, losses=ALL), *(NOTHING._replace(crashes=two, losses=two, waits=1) for two in PAIRS),
    NOTHING._replace(leaders=1), NOTHING._replace(crashes=ONE, losses=ONE, leaders=1),
    NOTHING._replace(deletes=True), NOTHING._replace(waits=1, deletes=True),
    *(NOTHING._replace(crashes=one, deletes=True) for one in (ONE, TWO)),
]


@pytest.mark.parametrize("bounds", [*STATES, *(pytest.param(bounds, marks=pytest.mark.soak) for bounds in WIDER)])
def test_whatever_happens_within_bounds_every_demand_holds(bounds: Bounds) -> None:
    search = Search(3, bounds)
    search.run()
    assert search.founded and search.states == STATES.get(bounds, search.states)
    assert bool(search.deleted) is bounds.deletes


@pytest.mark.pure
@pytest.mark.parametrize(("bounds", "patch", "broken"), [
    (NOTHING, edit(Leading, "_found", ("if len(first) < facts.members.majority:", "if not first:"),
                   ("if len(first) < len(facts.members.voters) and now_s < enough_s:", "if False:")), "founding"),
    (BOTH[1],
     edit(Hosting, "_keep", ("first.is_voter(Identity(self.me, store.incarnation))", "first.get(self.me) is not None")),
     "founding"),
    (NOTHING._replace(crashes=TWO), edit(Listing, "lacks", ("FIRST_NUMBER < number < self.next_number and ", "")),
     "files"),
    pytest.param(
        NOTHING._replace(deletes=True), edit(hosting, "over", ("count > len(voters) // 2", "count")), "deleted",
        marks=pytest.mark.soak,
    ),
    pytest.param(  # a log that is stopped, and not moved away, may run again
        NOTHING._replace(crashes=TWO, deletes=True),
        edit(Hosting, "_tell", ("store = self._moved.get(gone.number)",
                                "store = self._moved.get(gone.number, self._stores.get(gone.number))\n"
                                "        store = None if gone.number in self._running else store")),
        "deleted", marks=pytest.mark.soak,
    ),
])
def test_a_rule_that_is_broken_is_caught(bounds: Bounds, patch: Patch, broken: str) -> None:
    with patch(), pytest.raises(Broken) as found:
        Search(3, bounds).run()
    assert found.value.invariant == broken


DELETES = NOTHING._replace(deletes=True)


@pytest.mark.parametrize(("bounds", "terms"), [
    (DELETES, 1), pytest.param(DELETES, 2, marks=pytest.mark.soak),
    *(pytest.param(DELETES._replace(crashes=frozenset((id,))), 1, marks=pytest.mark.soak) for id in ALL),
])
def test_a_log_that_is_deleted_acknowledges_nothing_that_came_afterwards(bounds: Bounds, terms: int) -> None:
    search = Deleting(3, bounds, terms)
    search.run()
    assert search.deleted and search.late, "a late answer ends what was under way"


@pytest.mark.pure
@pytest.mark.parametrize(("bounds", "terms", "patch"), [
    (DELETES, 1, edit(hosting, "over", ("count > len(voters) // 2", "count"))),
    pytest.param(DELETES, 2, edit(hosting, "over", ("count > len(voters) // 2", "count")), marks=pytest.mark.soak),
])
def test_a_deletion_that_is_done_too_early_is_caught(bounds: Bounds, terms: int, patch: Patch) -> None:
    with patch(), pytest.raises(Broken, match="came after the deletion"):
        Deleting(3, bounds, terms).run()
