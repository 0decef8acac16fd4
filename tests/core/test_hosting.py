"""Hosting: what one server does by the directory, and by what the others tell."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_kit import Cluster

from alpo.core.directory import DeletedLog, Listing, LogOptions, NamedLog
from alpo.core.hosting.facts import facts as seen
from alpo.core.hosting.facts import facts_of
from alpo.core.hosting.hosting import Hosting
from alpo.core.hosting.leading import BETWEEN_S, FIT_S, next_changes, over, preferred
from alpo.core.hosting.words import (
    NO_LIST,
    Change,
    Deleted,
    Facts,
    Follow,
    Found,
    FoundStore,
    HandLog,
    HostEvent,
    LogFacts,
    LogHello,
    MakeStore,
    MoveStore,
    RunLog,
    StopLog,
    StoreState,
    Tell,
    ToldLog,
    standing_of,
)
from alpo.core.members import Identity, Member, MemberList, Role
from alpo.core.messages import Room
from alpo.core.ready import Space
from alpo.core.settings import Settings

CLUSTER = b"c" * 16
T_S = 0.5
EMPTY, STARTED, STOPPED = StoreState


def members(*ids: int, gone: tuple[int, ...] = ()) -> MemberList:
    listed = [Member(id, f"h{id}:7100", 0, bytes([id]) * 16, Role.VOTER) for id in ids]
    return MemberList.of([*listed, *(Member(id, "", 0, bytes([id]) * 16, Role.GONE) for id in gone)])


def log(number: int = 2, first: MemberList | None = None, lead: int = 0) -> NamedLog:
    made = NamedLog(number, f"log-{number}", b"n" * 16, LogOptions(lead=lead), Settings().to_plain())
    return made if first is None else made._replace(first_list=first.to_plain(), id=first.digest())


def facts(*logs: NamedLog, **more: Any) -> Facts:
    deleted = more.pop("deleted", ())
    listing = Listing(logs, deleted, more.pop("next_number", 9))
    return Facts(**{
        "cluster": CLUSTER, "listing": listing, "head": listing, "members": members(1, 2, 3), "members_id": 0,
        "members_sure": True, "leads": False, "logs": {}, **more,
    })


def store(number: int = 2, incarnation: bytes = b"s" * 16, cluster: bytes = CLUSTER) -> FoundStore:
    return FoundStore(number, incarnation, EMPTY, cluster)


def told(*peers: int, state: StoreState = EMPTY, **more: Any) -> dict[int, LogHello]:
    return {id: LogHello((ToldLog(2, bytes([id]) * 16, state, **more),)) for id in peers}


def runs(leads: bool, leader: int, listed: MemberList, members_id: int = 0, **more: Any) -> LogFacts:
    return LogFacts(STARTED, leads, leader, members_id, listed, **more)


def hosting(*stores: FoundStore, peers: dict[int, LogHello] | None = None) -> Hosting:
    made = Hosting(1, stores, T_S)
    for id, hello in (peers or {}).items():
        made.connected(Identity(id, bytes([id]) * 16))
        made.heard(Identity(id, bytes([id]) * 16), hello)
    return made


def done(actions: list[Any]) -> list[Any]:
    return [action for action in actions if not isinstance(action, Tell)]


# -- stores -------------------------------------------------------------------------------------------------


def test_a_store_is_made_told_and_run_once_the_log_is_founded() -> None:
    host = hosting(peers={2: LogHello(())})
    assert host.step(facts(log()), 0.0) == [MakeStore(2, "log-2"), Tell(None, LogHello(()))]
    assert done(host.step(facts(log()), 0.1)) == []
    host.made(store())
    assert host.step(facts(log()), 0.2) == [Tell(None, LogHello((ToldLog(2, b"s" * 16, EMPTY),)))]
    own = MemberList.of([Member(1, "h1:7100", 0, b"s" * 16, Role.VOTER), *members(2).members])
    founded = log(first=own)
    assert host.step(facts(founded), 0.3) == [RunLog(founded, own)]
    says = LogHello((ToldLog(2, b"s" * 16, STARTED, 2, standing_of(0, own)),))
    assert host.step(facts(founded, logs={2: runs(False, 2, own)}), 0.4) == [Tell(None, says)]


def test_a_store_that_has_begun_runs_before_its_founding_is_known_to_be_guaranteed_again() -> None:
    founded = log(first=MemberList.of([Member(1, "h1:7100", 0, b"s" * 16, Role.VOTER)]))
    begun, ahead = store()._replace(state=STARTED), Listing((founded,), (), 3)
    late = facts()._replace(listing=Listing(), head=ahead)
    host = hosting(begun)
    assert host.step(late, 0.0) == [RunLog(founded, None), Tell(None, LogHello((ToldLog(2, b"s" * 16, STARTED),)))]
    assert done(host.step(late._replace(listing=ahead), 0.0)) == [], "it runs already"
    created = Listing((log(),), (), 3)
    assert done(hosting(begun).step(late._replace(listing=created), 0.0)) == [RunLog(founded, None)]
    gone = Listing((), (DeletedLog(2, "log-2", b"n" * 16, b"e" * 16, founded.first_list, founded.id),), 3)
    assert done(host.step(late._replace(listing=gone), 0.0)) == [StopLog(2)]
    assert done(hosting(store()).step(late, 0.0)) == [], "only a store that has begun proves it"
    assert [type(each) for each in done(hosting(begun._replace(cluster=b"x" * 16)).step(late, 0.0))] == [HostEvent]
    assert done(hosting(begun).step(late._replace(head=gone), 0.0)) == []


def test_another_store_than_the_listed_one_begins_nothing() -> None:
    host = hosting(store(incarnation=b"x" * 16))
    founded = log(first=members(1, 2))
    assert done(host.step(facts(founded), 0.0)) == [RunLog(founded, None)]


def test_nothing_is_done_before_the_first_log_has_started() -> None:
    host = hosting(store())
    assert host.step(facts(log(3), cluster=b""), 0.0) == [Tell(None, LogHello(()))]


@pytest.mark.parametrize(("number", "next_number", "cluster", "moves"), [
    (2, 3, CLUSTER, True), (2, 2, CLUSTER, False), (2, 3, b"d" * 16, False), (5, 3, CLUSTER, False),
])
def test_files_go_by_proof_only(number: int, next_number: int, cluster: bytes, moves: bool) -> None:
    host = hosting(store(number, cluster=cluster))
    found = done(host.step(facts(next_number=next_number), 0.0))
    if moves:
        assert found == [MoveStore(number)]
        assert done(host.step(facts(next_number=next_number), 0.1)) == []
        host.moved(number)
        assert done(host.step(facts(next_number=next_number), 0.2)) == []
    else:
        assert [type(each) for each in found] == [HostEvent] * (cluster != CLUSTER)
        assert done(host.step(facts(next_number=next_number), 0.1)) == []  # said once


def test_a_store_of_another_cluster_under_a_number_in_use_is_left_alone() -> None:
    host = hosting(store(cluster=b"d" * 16))
    found = done(host.step(facts(log(first=members(1, 2))), 0.0))
    assert [type(each) for each in found] == [HostEvent]
    assert host.step(facts(log(first=members(1, 2))), 0.1) == []


def deleted(first: MemberList | None) -> DeletedLog:
    made = DeletedLog(2, "log-2", b"n" * 16, b"e" * 16)
    return made if first is None else made._replace(first_list=first.to_plain(), id=first.digest())


def test_a_deleted_log_is_stopped_then_moved_and_told_so_only_then() -> None:
    """A log that was stopped alone runs again after a crash, if the directory is behind by then."""
    first = MemberList.of([Member(1, "h1:7100", 0, b"s" * 16, Role.VOTER), *members(2, 3).members])
    gone, stood = deleted(first), standing_of(0, first)
    host = hosting(store(), peers={2: LogHello(())})
    host.step(facts(log(first=first)), 0.0)
    assert done(host.step(facts(deleted=(gone,), logs={2: runs(False, 2, first)}), 0.1)) == [StopLog(2)]
    host.stopped(2, stood)
    assert host.step(facts(deleted=(gone,)), 0.2) == [MoveStore(2)]
    host.moved(2)
    says = ToldLog(2, b"s" * 16, STOPPED, 0, stood)
    assert host.step(facts(deleted=(gone,)), 0.3) == [Tell(None, LogHello((says,)))]
    assert host.deleting(gone)
    host.heard(Identity(2, b"\2" * 16), LogHello((ToldLog(2, b"\2" * 16, STOPPED, 0, stood),)))
    host.gone(Identity(2, b"\2" * 16))
    assert not host.deleting(gone)  # a store that was moved away stays so
    again = Hosting(1, [FoundStore(2, b"s" * 16, STOPPED, CLUSTER, stood)], T_S)
    assert again.step(facts(deleted=(gone,)), 0.0) == [Tell(None, LogHello((says,)))]


def test_a_server_that_has_left_is_told_which_of_its_logs_are_deleted() -> None:
    """Each time that it tells of them, as its stores may be others by then. Members hear it from the first log."""
    gone, left = deleted(members(1, 2)), facts(members=members(1, gone=(2,)))
    later = left._replace(listing=Listing((), (gone,), 3))
    host = hosting(peers=told(2, state=STARTED))
    says = Tell(2, Deleted(CLUSTER, (2,)))
    assert says not in host.step(left._replace(listing=Listing((), (), 2)), 0.0), "it may be behind"
    assert says in host.step(later, 0.1) and says not in host.step(later, 0.2)
    host.heard(Identity(2, b"\2" * 16), told(2, state=EMPTY)[2])
    assert says in host.step(later, 0.3)
    host.heard(Identity(2, b"\2" * 16), told(2, state=STOPPED)[2])
    assert says not in host.step(later, 0.4)
    assert says not in hosting(peers=told(2, state=STARTED)).step(later._replace(members=members(1, 2)), 0.0)


def test_a_server_that_has_left_acts_on_the_directory_of_others() -> None:
    first = MemberList.of([Member(1, "h1:7100", 0, b"s" * 16, Role.VOTER), *members(2).members])
    behind, stood = facts(log(first=first), logs={2: runs(False, 2, first)}), standing_of(0, first)
    peer, host = Identity(2, b"\2" * 16), hosting(store()._replace(state=STARTED), peers={2: LogHello(())})
    assert done(host.step(behind, 0.0)) == [RunLog(log(first=first), first)]
    host.heard(peer, Deleted(b"d" * 16, (2,)))
    host.heard(peer, Deleted(CLUSTER, (3, 4)))
    assert done(host.step(behind, 0.1)) == [], "another cluster's word, and of logs that have no store here"
    host.heard(peer, Deleted(CLUSTER, (2, 3)))
    assert done(host.step(behind, 0.2)) == [StopLog(2)]
    host.stopped(2, stood)
    behind = behind._replace(logs={})
    assert done(host.step(behind, 0.3)) == [MoveStore(2)]
    host.moved(2)
    assert host.step(behind, 0.4) == [Tell(None, LogHello((ToldLog(2, b"s" * 16, STOPPED, 0, stood),)))]
    assert host.has_moved(2, CLUSTER) and not host.has_moved(2, b"d" * 16) and not host.has_moved(3, CLUSTER)
    host.heard(peer, Deleted(CLUSTER, (2,)))
    assert host.step(behind, 0.5) == []


def test_another_store_than_the_one_that_was_told_of_is_made_though_that_was_lost() -> None:
    founded = facts(log(first=members(1, 2)))
    host = hosting(store(), peers={2: LogHello(())})
    host.heard(Identity(2, b"\2" * 16), Deleted(CLUSTER, (2,)))
    host.lost(2)
    assert done(host.step(founded, 0.0)) == [MakeStore(2, "log-2")]


def test_a_retired_store_that_is_on_its_way_is_moved_as_that_though_its_log_is_deleted() -> None:
    first = members(1, 2, 3)
    host = hosting(store())
    host.step(facts(log(first=first)), 0.0)
    retired = facts(log(first=first), logs={2: runs(False, 2, first, retired=True)})
    assert done(host.step(retired, 0.1)) == [StopLog(2)]
    host.stopped(2, standing_of(0, first))
    assert done(host.step(facts(log(first=first)), 0.2)) == [MoveStore(2, True)]
    assert done(host.step(facts(deleted=(deleted(first),)), 0.3)) == []
    host.moved(2)
    assert host.step(facts(deleted=(deleted(first),)), 0.4) == [], "it was moved as no deleted one"


def test_a_store_is_told_of_before_the_directory_is_known_to_be_guaranteed() -> None:
    """Else a server that has left would never be told what to do with it."""
    behind = facts()._replace(listing=Listing())
    says = LogHello((ToldLog(2, b"s" * 16, EMPTY),))
    assert hosting(store()).step(behind, 0.0) == [Tell(None, says)]


def test_a_store_that_another_cluster_has_deleted_holds_up_no_log() -> None:
    """The first log's store was lost, and the server is in a new cluster, which counts from 2 again."""
    away = FoundStore(2, b"s" * 16, STOPPED, b"d" * 16, standing_of(0, members(1, 2, 3)))
    host = hosting(away)
    assert host.step(facts(log()), 0.0) == [MakeStore(2, "log-2"), Tell(None, LogHello(()))]
    host = hosting(away)
    assert host.step(facts(deleted=(deleted(members(1, 2, 3)),)), 0.0) == [Tell(None, LogHello(()))]
    host = hosting(away._replace(cluster=CLUSTER))  # the directory is behind
    assert done(host.step(facts(log()), 0.0)) == []


def test_a_store_that_could_not_be_made_is_asked_for_again() -> None:
    host = hosting()
    assert done(host.step(facts(log()), 0.0)) == [MakeStore(2, "log-2")]
    host.not_made(2)
    assert done(host.step(facts(log()), 0.1)) == [MakeStore(2, "log-2")]


def test_a_retired_store_makes_room_if_the_server_is_a_member_again() -> None:
    first = members(1, 2, 3)
    host = hosting(store())
    host.step(facts(log(first=first)), 0.0)
    out = {2: runs(False, 2, first, retired=True)}
    assert done(host.step(facts(log(first=first), logs=out, members=members(2, 3, gone=(1,))), 0.1)) == []
    assert done(host.step(facts(log(first=first), logs=out, members_sure=False), 0.2)) == []
    assert done(host.step(facts(log(first=first), logs=out), 0.3)) == [StopLog(2)]
    host.stopped(2, standing_of(0, first))
    assert done(host.step(facts(log(first=first)), 0.4)) == [MoveStore(2, retired=True)]
    host.moved(2)
    assert done(host.step(facts(log(first=first)), 0.5)) == [MakeStore(2, "log-2")]
    host.made(store(incarnation=b"new store......."))
    assert done(host.step(facts(log(first=first)), 0.6)) == [RunLog(log(first=first), None)]


def test_a_new_connection_is_told_and_what_an_old_one_told_is_forgotten() -> None:
    host = hosting(store(), peers=told(2, 3))
    first = host.step(facts(log(), leads=True), 0.0)
    assert [type(each) for each in done(first)] == [Found]
    host = hosting(store(), peers=told(2, 3))
    host.gone(Identity(2, b"?" * 16))  # the end of an older connection
    assert [type(each) for each in done(host.step(facts(log(), leads=True), 0.0))] == [Found]
    host = hosting(store(), peers=told(2, 3))
    host.gone(Identity(2, b"\2" * 16))
    host.connected(Identity(3, b"\3" * 16))
    assert done(host.step(facts(log(), leads=True), 0.0)) == []
    host = hosting(store(), peers=told(2))
    host.step(facts(log()), 0.0)
    host.connected(Identity(3, b"\3" * 16))
    assert host.step(facts(log()), 0.1) == [Tell(3, LogHello((ToldLog(2, b"s" * 16, EMPTY),)))]
    host.heard(Identity(3, b"?" * 16), told(3)[3])  # an identity that is not connected
    assert done(host.step(facts(log(), leads=True), 9.0)) == []


# -- founding -----------------------------------------------------------------------------------------------


def test_a_log_is_founded_by_all_or_by_a_majority_after_two_timeouts() -> None:
    host = hosting(store(), peers=told(2))
    waits = facts(log(), leads=True)
    assert done(host.step(waits, 10.0)) == [] and host.deadline_s() == 10.0 + 2 * T_S
    found, = done(host.step(waits, 11.0))
    assert isinstance(found, Found)
    assert [(m.id, m.incarnation) for m in found.first_list.members] == [(1, b"s" * 16), (2, b"\2" * 16)]
    assert done(host.step(waits, 11.1)) == [] and done(host.step(waits, 11.5)) == [found]


@pytest.mark.parametrize("more", [
    {"leads": False}, {"members_sure": False}, {"members": members(1, 4, 5)}, {"cluster": b""},
])
def test_nothing_is_founded_that_is_not_for_this_server_to_found(more: dict[str, Any]) -> None:
    host = hosting(store(), peers=told(2))
    for now_s in (0.0, 5.0, 10.0):
        assert not [each for each in host.step(facts(log(), **{"leads": True, **more}), now_s) if type(each) is Found]


def test_a_store_that_has_started_founds_nothing() -> None:
    host = hosting(store(), peers=told(2, 3, state=STARTED))
    assert done(host.step(facts(log(), leads=True), 9.0)) == []


# -- members ------------------------------------------------------------------------------------------------


def test_the_leader_of_a_log_is_told_of_other_members() -> None:
    first = members(1, 2)
    host = hosting(store(), peers=told(2, state=STARTED, leader=2, standing=standing_of(0, first)))
    leads = facts(log(first=first), leads=True, members_id=7, logs={2: runs(False, 2, first)})
    assert Tell(2, Follow(2, 7, members(1, 2, 3))) in host.step(leads, 0.0)
    assert not [each for each in host.step(leads, 0.1) if isinstance(each, Tell) and isinstance(each.message, Follow)]
    assert Tell(2, Follow(2, 7, members(1, 2, 3))) in host.step(leads, T_S)


def changes(host: Hosting, now: MemberList, now_s: float, members_id: int = 0, **more: Any) -> list[tuple[str, int]]:
    at = facts(log(first=members(1, 2)), logs={2: runs(**{"leads": True, **more}, leader=1, listed=now)},
               members_id=members_id)
    return [(each.request.step.name, each.request.id) for each in host.step(at, now_s) if isinstance(each, Change)]


def test_the_leader_of_a_log_follows_one_change_at_a_time_and_nothing_older() -> None:
    peer, now = Identity(2, b"\2" * 16), members(1, 2, 4)
    host = hosting(store(), peers=told(2))
    host.heard(peer, Follow(2, 7, members(1, 2, 3, gone=(4,))))
    host.heard(peer, Follow(2, 6, members(1, 2, 5)))
    assert changes(host, now, 0.0) == [("ADD", 3)] and changes(host, now, 0.1) == []
    assert changes(host, now, T_S, changing=True) == []
    assert changes(host, members(1, 2, 3, 4), 2 * T_S) == [("REMOVE", 4)]
    assert changes(host, members(1, 2, 3), 3 * T_S) == []
    assert changes(host, now, 4 * T_S, members_id=8) == []  # this server knows of a later list by itself
    assert changes(host, now, 5 * T_S, leads=False) == []
    assert changes(host, now, 6 * T_S) == []  # nothing is left of another reign


def test_a_leader_that_has_left_the_cluster_hands_over_and_changes_members_itself_if_that_fails() -> None:
    host, now = hosting(store(), peers=told(2)), members(1, 2)
    host.heard(Identity(2, b"\2" * 16), Follow(2, 7, members(2, 3, gone=(1,))))
    at = facts(log(first=now), logs={2: runs(True, 1, now, ready=(2,))})
    asked = [[each for each in host.step(at, n * T_S) if isinstance(each, HandLog | Change)] for n in range(3)]
    assert asked[0] == asked[2] == [HandLog(2, 2)]
    assert isinstance(asked[1][0], Change) and asked[1][0].request.id == 3


def test_a_server_that_was_removed_goes_by_no_list_of_its_own() -> None:
    cluster = Cluster(3)
    cluster.elect()
    cluster.run(1)
    assert seen(cluster.replica(1), {}).members_sure
    cluster.replica(1).retired = True
    assert not seen(cluster.replica(1), {}).members_sure


def test_a_change_that_cannot_be_holds_up_no_other() -> None:
    host = hosting(store(), peers=told(2))
    host.heard(Identity(2, b"\2" * 16), Follow(2, 7, members(1, 2, 5)))
    asked = [changes(host, members(1, 2, 3), at * T_S) for at in range(4)]
    assert asked == [[("ADD", 5)], [("REMOVE", 3)]] * 2


def test_enough_voters_are_left_at_each_change() -> None:
    def steps(now: MemberList, wanted: MemberList) -> list[tuple[str, int]]:
        return [(each.step.name, each.id) for each in next_changes(now, wanted)]

    learners = [Member(id, f"h{id}:7100", 0, bytes([id]) * 16, Role.LEARNER) for id in (4, 5, 6)]
    now, wanted = MemberList.of([*members(1, 2, 3).members, *learners]), members(4, 5, 6)
    assert steps(now, wanted) == [("REMOVE", 1), ("REMOVE", 2), ("REMOVE", 3)]
    now = MemberList.of([*members(2, 3, gone=(1,)).members, *learners])
    assert steps(now, wanted) == []  # a learner has to be a voter first
    now = MemberList.of([*members(2, 3, 4, gone=(1,)).members, *learners[1:]])
    assert steps(now, wanted) == [("REMOVE", 2), ("REMOVE", 3)]
    assert steps(members(1, 2), members(1)) == [("REMOVE", 2)]
    moved = MemberList.of([*members(1, 2).members, Member(5, "h3:7100", 0, b"\5" * 16, Role.VOTER)])
    assert steps(members(1, 2, 3), moved) == [("REMOVE", 3)]  # whose address the new one has
    assert steps(members(1, 2, 3, gone=(4,)), members(1, 2, 3)) == []


FIRST, THEN = members(1, 2, 3), members(3, 4, 5)


@pytest.mark.parametrize(("ended", "done_"), [
    ({}, False), ({1: (0, FIRST)}, False), ({1: (0, FIRST), 2: (0, FIRST)}, True),
    ({3: (9, THEN), 4: (9, THEN)}, True), ({3: (9, THEN), 2: (0, FIRST)}, False),
    ({4: (0, FIRST), 5: (0, FIRST)}, False),  # they are no voters of it
    ({1: None, 2: None}, True), ({1: None, 4: None}, False), ({1: (0, FIRST), 2: (4, FIRST)}, False),
    ({1: (0, FIRST), 2: (4, FIRST), 3: (6, FIRST)}, True), ({1: (0, FIRST), 2: (4, FIRST), 3: (9, THEN)}, False),
])
def test_a_deletion_is_done_once_a_majority_of_one_list_has_it_as_its_last(
    ended: dict[int, tuple[int, MemberList] | None], done_: bool
) -> None:
    """None: a store that was never begun."""
    told_ = {
        Identity(id, bytes([id]) * 16): NO_LIST if what is None else standing_of(*what) for id, what in ended.items()
    }
    assert over(deleted(FIRST), told_) is done_
    assert not over(deleted(FIRST), {Identity(id, b"another store....") : standing_of(0, FIRST) for id in (1, 2, 3)})
    assert over(deleted(None), {})


# -- who leads ----------------------------------------------------------------------------------------------


def test_a_log_is_handed_to_the_server_that_should_lead_it_once_that_was_fit_for_long() -> None:
    host = hosting(store(2), store(3))
    rows = [log(number, members(1, 2, 3), lead=2) for number in (2, 3)]
    leading = runs(True, 1, members(1, 2, 3), ready=(2, 3))

    def handed(now_s: float, **more: Any) -> list[int]:
        others = {3: leading} if now_s <= FIT_S else {}
        actions = host.step(facts(*rows, logs={2: leading._replace(**more), **others}), now_s)
        return [each.number for each in actions if isinstance(each, HandLog)]

    assert handed(0.0) == [] and host.deadline_s() <= FIT_S
    assert handed(30.0, ready=(3,)) == []  # not fit for a moment
    assert handed(31.0) == []
    assert handed(FIT_S) == [3]
    assert handed(FIT_S + 31.0, changing=True) == []
    assert handed(FIT_S + 32.0) == [] and handed(2 * FIT_S + 32.0) == [2]
    assert handed(2 * FIT_S + 33.0) == [] and BETWEEN_S < FIT_S
    host.balances = False
    assert handed(4 * FIT_S) == []
    host.balances = True
    assert handed(5 * FIT_S) == [2]


def test_without_a_wish_logs_are_spread_by_number() -> None:
    assert [preferred(log(number), members(1, 3, 5)) for number in (2, 3, 4)] == [5, 1, 3]
    assert preferred(log(2, lead=9), members(1, 3, 5)) == 5 and preferred(log(2, lead=3), members(1, 3, 5)) == 3
    assert preferred(log(2), MemberList(())) == 0


def test_a_server_could_lead_though_it_is_an_entry_behind_but_not_without_room() -> None:
    """Servers of a busy log are seldom all level for long."""
    cluster = Cluster(3)
    leader = cluster.elect()
    slow, other = (id for id in (1, 2, 3) if id != leader.me.id)
    cluster.run(1)
    cluster.stalls = lambda host, count: host.id == slow
    cluster.append_some(1)
    assert leader.leadership is not None and leader.leadership.peers[slow].match_id < leader.guaranteed_id
    assert facts_of(leader).ready == (slow, other)
    cluster.stalls = lambda host, count: False
    cluster.commit(slow)
    cluster.give(other, Space(Room.LOW, 1))
    cluster.run(1)
    assert facts_of(leader).ready == (slow,)
