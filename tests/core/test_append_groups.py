"""Appends that come together are judged, appended and answered as if each had come by itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest
from cluster_kit import Cluster
from hypothesis import given, settings
from hypothesis import strategies as st
from session_leader import random_id

from alpo.core.entries import Entry, Kind
from alpo.core.messages import AppendAnswer, Envelope, Room
from alpo.core.ready import Received, Space, Tick
from alpo.core.requests import Appended, AppendRun, ChangeSettings, Code, Refused, Reply

CLIENTS = [random_id(1_700_000_200_000, number) for number in range(4)]
#: One append: its client, its serial relative to the next one, its payloads, and the last LSN that it expects, relative
#: to the log's end; None: it expects none.
ASKED = st.tuples(
    st.sampled_from(CLIENTS), st.sampled_from([*[0] * 8, -1, 1]), st.sampled_from([1, 1, 1, 2, 3]),
    st.sampled_from([*[None] * 8, 0, -1]), st.booleans(),
)


#: Milliseconds for which a session lasts without an append.
TTL_MS = 10_000


def leader(window: int, idle: Collection[str] = ()) -> Cluster:
    """A cluster with a leader; every client has a session, and may have ``window`` appends under way. Those of ``idle``
    have not appended for so long that the next entry ends their sessions."""
    cluster = Cluster()
    id = cluster.elect().me.id
    changes = (
        ("window", 1024, window), ("window_total", 200_000, 2 * window), ("session_ttl_ms", 7 * 86_400_000, TTL_MS),
    )
    cluster.give(id, ChangeSettings("window", changes))
    for serial, clients in enumerate((CLIENTS, [client for client in CLIENTS if client not in idle]), 1):
        cluster.give(id, *(AppendRun(f"{serial} {client}", client, 0, serial, [(1, b"first")]) for client in clients))
        cluster.run(0.6 * TTL_MS / 1000 if idle else 0.5)
    cluster.replies.clear()
    return cluster


def runs_of(
    cluster: Cluster, asked: Sequence[tuple[str, int, int, int | None, bool]], idle: Collection[str] = ()
) -> list[AppendRun]:
    """The appends, with serials that go on from one to the next of a client, as far as they are taken."""
    serials = {client: 2 if client in idle else 3 for client in CLIENTS}
    found, end = [], cluster.reigning.log.next_lsn - 1
    for number, (client, off, count, expects, sparse) in enumerate(asked):
        bodies = [(1, b"%d-%d" % (number, each)) for each in range(count if expects is None else 1)]
        serial, expected = max(1, serials[client] + off), None if expects is None else end + expects
        found.append(AppendRun(f"run {number}", client, 0, serial, bodies, sparse, False, expected))
        if not off:
            serials[client] += len(bodies)
    return found


def result(cluster: Cluster) -> tuple[list[Entry], list[tuple[object, ...]]]:
    """The entries with payloads, and the replies in the order of their requests."""
    cluster.run(1.0)
    data = [entry for entry in cluster.log_of(cluster.reigning.me.id) if entry.kind == Kind.DATA]
    return data, sorted(map(_told, cluster.replies))


def _told(reply: Reply) -> tuple[object, ...]:
    return (*reply[:3], list(reply.lsns), reply.duplicate) if isinstance(reply, Appended) else tuple(reply)


@settings(deadline=None)
@given(
    asked=st.lists(ASKED, min_size=1, max_size=24), window=st.sampled_from([1, 2, 5, 1024]),
    idle=st.sets(st.sampled_from(CLIENTS)),
)
def test_a_group_is_as_good_as_one_after_the_other(
    asked: list[tuple[str, int, int, int | None, bool]], window: int, idle: set[str]
) -> None:
    together, apart = leader(window, idle), leader(window, idle)
    runs = runs_of(together, asked, idle)
    id = together.reigning.me.id
    together.give(id, *runs)
    for run in runs:
        apart.give(id, run)
    assert result(together) == result(apart)


@pytest.mark.parametrize("first", CLIENTS[:2])
def test_the_first_of_a_group_ends_the_sessions_of_the_idle(first: str) -> None:
    idle = CLIENTS[1:3]
    cluster = leader(1024, idle)
    runs = runs_of(cluster, [(client, 0, 1, None, False) for client in sorted(CLIENTS, key=first.__ne__)], idle)
    cluster.give(cluster.reigning.me.id, *runs)
    result(cluster)
    expired = {
        reply.client for reply in cluster.replies if isinstance(reply, Refused) and reply.code == Code.SESSION_EXPIRED
    }
    assert expired == {*idle} - {first}


def test_neighbours_of_different_clients_become_neighbours_in_the_log() -> None:
    cluster = leader(1024)
    runs = [AppendRun(client, client, 0, 3, [(1, client.encode())]) for client in CLIENTS]
    before = cluster.reigning.last_id
    cluster.give(cluster.reigning.me.id, *runs)
    assert cluster.reigning.last_id == before + len(CLIENTS) and cluster.reigning.out.ready.write is not None
    data, told = result(cluster)
    assert [entry.client for entry in data[-4:]] == CLIENTS and len({entry.time_ms for entry in data[-4:]}) == 1
    assert sorted(lsns[0] for *_, lsns, _ in told) == [entry.lsn for entry in data[-4:]]  # type: ignore[index]


@pytest.mark.parametrize("again", [False, True])
def test_a_client_s_second_append_in_a_group_follows_its_first(again: bool) -> None:
    cluster = leader(1024)
    first = AppendRun("a", CLIENTS[0], 0, 3, [(1, b"a")])
    second = AppendRun("b", CLIENTS[0], 0, 3 if again else 4, [(1, b"a" if again else b"b")])
    cluster.give(cluster.reigning.me.id, first, AppendRun("c", CLIENTS[1], 0, 3, [(1, b"c")]), second)
    data, _ = result(cluster)
    assert [entry.body for entry in data[8:]] == ([b"a", b"c"] if again else [b"a", b"c", b"b"])
    reply = cluster.reply_to("b")
    assert isinstance(reply, Appended) and reply.duplicate is again


class Looked(Sequence[AppendRun]):
    """Runs of one client, which count how often one is looked at."""

    def __init__(self, count: int) -> None:
        self._runs = [AppendRun(serial, CLIENTS[0], 0, serial, [(1, b"x")]) for serial in range(3, count + 3)]
        self.times = 0

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, at: Any) -> Any:
        self.times += 1
        return self._runs[at]


def test_appends_that_form_no_group_are_looked_at_a_few_times_each() -> None:
    table, runs = leader(1024).reigning.sessions, Looked(500)
    assert [table.group(runs, at, 10) for at in range(500)] == [1, *[0] * 499]
    assert runs.times < 3 * len(runs)


def test_without_space_a_group_is_refused_one_by_one() -> None:
    cluster = leader(1024)
    runs = [AppendRun(client, client, 0, 3, [(1, b"x")]) for client in CLIENTS]
    cluster.give(cluster.reigning.me.id, Space(Room.LOW, 100), *runs)
    assert [(r.client, r.code) for r in cluster.replies if isinstance(r, Refused)] == [
        (client, Code.NO_SPACE) for client in CLIENTS
    ]


def test_what_inputs_would_leave_without_a_majority_is_known_before_their_step() -> None:
    cluster = Cluster(3)
    leader = cluster.elect()
    cluster.run(0.5)
    acceptances: list[Envelope] = []

    def caught(envelope: Envelope) -> bool:
        if isinstance(envelope.message, AppendAnswer) and envelope.message.match_id > leader.guaranteed_id:
            acceptances.append(envelope)
            return True
        return False

    cluster.catches = caught
    for serial in (1, 2, 3):
        cluster.append(CLIENTS[0], serial, b"a payload")
    cluster.run_until(lambda: len(acceptances) >= 2 and leader.log.stable_id == leader.last_id)
    one, two = (Received(envelope, leader.now_s) for envelope in acceptances[-2:])
    left = leader.last_id - leader.guaranteed_id
    assert left >= 3 and leader.left_after([]) == leader.left_after([Tick()]) == left
    for inputs in ([one], [two], [one, two]):
        most = max(each.envelope.message.match_id for each in inputs if isinstance(each.envelope.message, AppendAnswer))
        assert leader.left_after(inputs) == leader.last_id - most
    expected = leader.left_after([one])
    cluster.give(leader.me.id, one)
    assert leader.last_id - leader.guaranteed_id == expected
