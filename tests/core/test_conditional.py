"""Appends that name the LSN that they expect to be the log's last (R21)."""

from __future__ import annotations

import pytest
from cluster_kit import Cluster
from session_leader import CLIENT, random_id

from alpo.core.entries import Kind, join_payloads
from alpo.core.requests import Appended, AppendRun, Code, Refused

OTHER, THIRD = random_id(1_700_000_200_001), random_id(1_700_000_200_002)


def ask(
    cluster: Cluster, serial: int, expect_last: int | None, *payloads: bytes, client: str = CLIENT, to: int = 0,
) -> str:
    cluster.count += 1
    origin = f"ask {cluster.count}"
    body = (len(payloads), join_payloads(payloads)) if len(payloads) > 1 else (1, payloads[0] if payloads else b"x")
    run = AppendRun(origin, client, 0, serial, [body], expect_last=expect_last)
    cluster.give(to or cluster.reigning.me.id, run)
    return origin


def conflict(origin: str, serial: int, last_lsn: int, client: str = CLIENT) -> Refused:
    return Refused(origin, client, serial, 1, Code.CONFLICT, last_lsn)


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.elect()
    return cluster


def test_it_is_appended_right_behind_the_lsn_that_it_expects(cluster: Cluster) -> None:
    asked = [ask(cluster, 1, 0), ask(cluster, 2, 1, b"a", b"b"), ask(cluster, 3, 3)]
    cluster.run(1.0)
    lsns = zip(asked, (1, 2, 4), strict=True)
    expected = [Appended(origin, CLIENT, n, [lsn], False) for n, (origin, lsn) in enumerate(lsns, 1)]
    assert [replied(cluster, origin) for origin in asked] == expected
    data = [entry for entry in cluster.log_of(cluster.reigning.me.id) if entry.kind == Kind.DATA]
    assert [(entry.serial, entry.lsn, entry.count) for entry in data] == [(1, 1, 1), (2, 2, 2), (3, 4, 1)]


def replied(cluster: Cluster, origin: str) -> object:
    reply = cluster.reply_to(origin)
    return reply._replace(lsns=list(reply.lsns)) if isinstance(reply, Appended) else reply


def test_another_last_lsn_is_a_conflict_and_the_serial_stays_free(cluster: Cluster) -> None:
    first = ask(cluster, 1, 0)
    below, above, right = (ask(cluster, 2, expect) for expect in (0, 5, 1))
    cluster.run(1.0)
    assert replied(cluster, first) == Appended(first, CLIENT, 1, [1], False)
    assert replied(cluster, below) == conflict(below, 2, 1)
    # The one above waited for a read round; by then the next had taken the serial.
    assert replied(cluster, right) == Appended(right, CLIENT, 2, [2], False)
    assert replied(cluster, above) == Appended(above, CLIENT, 2, [2], True)
    beyond = ask(cluster, 3, 7)
    cluster.run(1.0)
    assert replied(cluster, beyond) == conflict(beyond, 3, 2)


def test_its_serial_is_judged_first(cluster: Cluster) -> None:
    first = ask(cluster, 1, 0, b"a")
    cluster.append(CLIENT, 2, b"b")
    cluster.run(1.0)
    again, other, skipped = ask(cluster, 1, 0, b"a"), ask(cluster, 1, 2, b"other"), ask(cluster, 9, 2)
    cluster.run(1.0)
    assert replied(cluster, first) == Appended(first, CLIENT, 1, [1], False)
    assert replied(cluster, again) == Appended(again, CLIENT, 1, [1], True)
    assert replied(cluster, other) == Refused(other, CLIENT, 1, 1, Code.SERIAL_REUSED)
    assert replied(cluster, skipped) == Refused(skipped, CLIENT, 9, 1, Code.SERIAL_EXPECTED, 3)


def test_of_two_that_expect_the_same_one_is_appended(cluster: Cluster) -> None:
    asked = [ask(cluster, 1, 0, client=client) for client in (CLIENT, OTHER, THIRD)]
    cluster.run(1.0)
    assert replied(cluster, asked[0]) == Appended(asked[0], CLIENT, 1, [1], False)
    assert replied(cluster, asked[1]) == conflict(asked[1], 1, 1, OTHER)
    assert replied(cluster, asked[2]) == conflict(asked[2], 1, 1, THIRD)


def test_a_conflict_waits_until_what_it_rests_on_is_guaranteed_or_is_told_by_nobody(cluster: Cluster) -> None:
    old = cluster.reigning.me.id
    cluster.isolate(old)
    cluster.append(OTHER, 1, b"never guaranteed")
    waits = ask(cluster, 1, 0)
    cluster.run(0.05)
    assert cluster.reply_to(waits) is None
    cluster.run_until(lambda: cluster.reply_to(waits) is not None)
    reply = cluster.reply_to(waits)
    assert isinstance(reply, Refused) and reply.code is Code.NOT_LEADER
    cluster.elect()
    again = ask(cluster, 1, 0)  # the append of LSN 1 was expunged
    cluster.run(1.0)
    assert replied(cluster, again) == Appended(again, CLIENT, 1, [1], False)


def test_r25_a_deposed_leader_that_does_not_know_it_says_of_no_lsn_that_it_is_yet_to_come(cluster: Cluster) -> None:
    old = cluster.reigning.me.id
    cluster.isolate(old)
    cluster.run_until(lambda: cluster.leader is not None and cluster.leader.me.id != old)
    cluster.elect()
    cluster.append(OTHER, 1, b"one", b"two")
    asked = ask(cluster, 1, 2, to=old)
    cluster.run(3.0)
    reply = cluster.reply_to(asked)
    assert isinstance(reply, Refused) and reply.code is Code.NOT_LEADER
    assert cluster.replica(old).inflight_bytes == 0
    again = ask(cluster, 1, 2)
    cluster.run(1.0)
    assert replied(cluster, again) == Appended(again, CLIENT, 1, [3], False)


def test_what_waits_for_a_round_is_taken_if_the_log_has_come_so_far(cluster: Cluster) -> None:
    leader = cluster.reigning
    cluster.isolate(leader.me.id)
    asked = ask(cluster, 1, 1, b"abc")
    cluster.run(0.01)
    assert leader.inflight_bytes == 3
    cluster.append(OTHER, 1, b"first")
    cluster.heal()
    cluster.run_until(lambda: cluster.reply_to(asked) is not None)
    assert replied(cluster, asked) == Appended(asked, CLIENT, 1, [2], False)
    assert cluster.reigning.inflight_bytes == 0


def test_the_lsn_counts_on_over_a_trim_and_entries_without_payloads(cluster: Cluster) -> None:
    cluster.append(OTHER, 1, b"one", b"two")
    cluster.run(1.0)
    old = cluster.reigning.me.id
    cluster.isolate(old)
    cluster.run_until(lambda: cluster.leader is not None and cluster.leader.me.id != old)
    cluster.elect()
    asked = ask(cluster, 1, 2)
    cluster.run(1.0)
    assert replied(cluster, asked) == Appended(asked, CLIENT, 1, [3], False)
