"""Reader cursors: kept in the log, alike on all servers, and nothing that one needs is cleaned."""

from __future__ import annotations

import pytest
from cluster_kit import Cluster, ask
from session_leader import CLIENT

from alpo.core import operator_requests
from alpo.core.entries import Kind, json_body
from alpo.core.machine.cursors import CURSORS_MAX
from alpo.core.ready import Clean
from alpo.core.requests import Code, CursorIs, CursorsAre, DropCursor, ListCursors, Refused, SetCursor, Trim, Trimmed


def loaded(count: int = 20) -> Cluster:
    """A cluster that holds ``count`` payloads, fully replicated."""
    cluster = Cluster()
    cluster.elect()
    for serial in range(1, count + 1):
        cluster.append(CLIENT, serial, b"%d" % serial)
    cluster.run(2.0)
    return cluster


def clean_to_lsn(cluster: Cluster, id: int, next_lsn: int) -> int:
    """Have server ``id`` clean all below an LSN; where its log begins then."""
    host = cluster.hosts[id]
    upto_id = host.store.find_lsn(next_lsn, host.replica.guaranteed_id) - 1  # type: ignore[union-attr]
    head = host.store.entry_head(upto_id)
    assert head is not None and head[1] + head[2] == next_lsn
    cluster.give(id, Clean(upto_id, head[0], next_lsn))
    cluster.run(0.5)
    return host.replica.log.base_next_lsn  # type: ignore[union-attr]


def test_cursors_are_alike_on_all_servers_and_survive_restart_and_cleaning() -> None:
    cluster = loaded()
    assert ask(cluster, SetCursor("a", "nightly", 5)) == CursorIs("a", "nightly", 5)
    assert ask(cluster, SetCursor("b", "tail", 21)) == CursorIs("b", "tail", 21)
    assert [r.cursors.now for r in cluster.replicas] == [{"nightly": 5, "tail": 21}] * 3
    for id in cluster.hosts:
        assert clean_to_lsn(cluster, id, 5) == 5  # which saves the table
    for id in cluster.hosts:
        cluster.crash(id)
    for id in cluster.hosts:
        cluster.boot(id)
    cluster.elect()
    assert ask(cluster, ListCursors("c")) == CursorsAre("c", (("nightly", 5), ("tail", 21)))
    assert [r.cursors.now for r in cluster.replicas] == [{"nightly": 5, "tail": 21}] * 3


def test_no_server_cleans_what_a_cursor_needs() -> None:
    cluster = loaded()
    ask(cluster, SetCursor("a", "nightly", 5))
    for id in cluster.hosts:
        assert clean_to_lsn(cluster, id, 6) == 1
        assert clean_to_lsn(cluster, id, 5) == 5
    ask(cluster, DropCursor("b", "nightly"))
    assert clean_to_lsn(cluster, 1, 6) == 6
    dropped = [(id, fields) for _, id, name, fields in cluster.events if name == "cursor_dropped"]
    assert dropped == [(id, {"cursor": "nightly", "lsn": 5, "why": "operator"}) for id, _ in dropped]
    assert sorted(id for id, _ in dropped) == [1, 2, 3]


def test_a_cursor_that_comes_in_the_step_of_a_cleaning_is_heeded() -> None:
    cluster = loaded()
    leader = cluster.leader
    assert leader is not None
    host = cluster.hosts[leader.me.id]
    upto_id = host.store.find_lsn(10, leader.guaranteed_id) - 1
    head = host.store.entry_head(upto_id)
    assert head is not None
    leader.out.begin()
    leader.cleaning.clean(Clean(upto_id, head[0], 10))
    assert leader.cleaning.base is not None and leader.cleaning.head_first_lsn == 10
    assert leader.leadership is not None
    leader.leadership.append_special(Kind.CURSOR, json_body(op="set", name="nightly", lsn=4))
    assert leader.cleaning.take_base() is None


def test_a_cursor_is_set_on_what_there_is() -> None:
    cluster = loaded()
    ask(cluster, Trim("trim", 5))
    for lsn in (4, 22):
        assert ask(cluster, SetCursor(f"{lsn}", "nightly", lsn)) == Refused(
            f"{lsn}", "", 0, 0, Code.OUT_OF_RANGE, detail="5,20"
        )
    assert ask(cluster, SetCursor("end", "nightly", 21)) == CursorIs("end", "nightly", 21)
    assert ask(cluster, SetCursor("back", "nightly", 5)) == CursorIs("back", "nightly", 5)
    last_id = cluster.reigning.last_id
    assert ask(cluster, SetCursor("again", "nightly", 5)) == CursorIs("again", "nightly", 5)
    assert cluster.reigning.last_id == last_id


@pytest.mark.parametrize("name", ["", "x" * 129, "\udc80"])
def test_what_is_no_name_is_refused(name: str) -> None:
    reply = ask(loaded(1), SetCursor("a", name, 1))
    assert isinstance(reply, Refused) and reply.code is Code.INVALID


def test_there_are_so_many_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CURSORS_MAX == 1000  # which take long
    monkeypatch.setattr(operator_requests, "CURSORS_MAX", 50)
    cluster = loaded(1)
    leader = cluster.leader
    assert leader is not None
    cluster.give(leader.me.id, *(SetCursor(f"c{n}", f"c{n}", 1) for n in range(50)))
    cluster.run(2.0)
    full = ask(cluster, SetCursor("more", "more", 1))
    assert full == Refused("more", "", 0, 0, Code.TOO_MANY_CURSORS, detail="there are 50 cursors already")
    assert ask(cluster, SetCursor("move", "c7", 2)) == CursorIs("move", "c7", 2)


def test_a_drop_names_what_it_drops() -> None:
    cluster = loaded()
    ask(cluster, SetCursor("a", "nightly", 5))
    assert ask(cluster, DropCursor("b", "other")).detail == "there is no cursor other"
    assert ask(cluster, DropCursor("c", "nightly", 4)).detail == "the cursor nightly is at LSN 5"
    assert ask(cluster, DropCursor("d", "nightly", 5)) == CursorIs("d", "nightly", 5)


def test_a_trim_spares_cursors_unless_it_is_forced() -> None:
    cluster = loaded()
    ask(cluster, SetCursor("a", "nightly", 5))
    ask(cluster, SetCursor("b", "weekly", 3))
    held = ask(cluster, Trim("held", 6))
    assert held.code is Code.CURSOR_HOLDS
    assert held.detail == "the cursor weekly needs LSN 3 and what follows (and 1 more)"
    assert ask(cluster, Trim("at", 3)) == Trimmed("at", 3)
    assert ask(cluster, Trim("forced", 5, True)) == Trimmed("forced", 5)
    assert [r.cursors.now for r in cluster.replicas] == [{"nightly": 5}] * 3
    whys = [fields["why"] for _, _, name, fields in cluster.events if name == "cursor_dropped"]
    assert whys == ["trim"] * 3


def test_what_is_expunged_is_undone_and_holds_until_then() -> None:
    cluster = loaded()
    ask(cluster, SetCursor("a", "nightly", 5))
    old = cluster.reigning.me.id
    cluster.isolate(old)
    replica = cluster.hosts[old].replica
    assert replica is not None and replica.reign is not None
    for request in (SetCursor("b", "nightly", 9), SetCursor("c", "new", 7)):
        replica.reign.operators.judge(request)
    replica.reign.operators.trim(Trim("d", 8, True))
    assert replica.cursors.now == {"nightly": 9} and replica.cursors.hold_lsn == 5
    assert replica.cursors.rows_at(replica.guaranteed_id) == (("nightly", 5),)
    cluster.run_until(lambda: cluster.leader is not None and cluster.leader.me.id != old)
    cluster.elect()
    cluster.heal()
    cluster.run(3.0)
    assert [r.cursors.now for r in cluster.replicas] == [{"nightly": 5}] * 3
    assert not [name for _, _, name, _ in cluster.events if name == "cursor_dropped"]
