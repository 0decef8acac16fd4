"""Settings changed through the log: compared, bounded, the same on all servers, undone with their
entry (rules.md#settings)."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_kit import Cluster, ask
from session_leader import CLIENT, RANDOM, A, B, C, Leader, refused

from alpo.core import settings as setting_rules
from alpo.core.entries import Kind, json_body
from alpo.core.machine.verdicts import Duplicate
from alpo.core.requests import ChangeSettings, Code, OpenSession, Refused, SettingsAre, ShowSettings
from alpo.core.settings import Settings

DEFAULT = Settings().values()


def change(cluster: Cluster, origin: str, **changes: tuple[int, int]) -> Any:
    return ask(cluster, ChangeSettings(origin, tuple((name, *pair) for name, pair in changes.items())))


def test_a_change_takes_effect_on_all_servers_and_survives_a_restart() -> None:
    cluster = Cluster()
    cluster.elect()
    assert ask(cluster, ShowSettings("before")) == SettingsAre("before", DEFAULT)
    wanted = {**DEFAULT, "window": 2048, "window_total": 4096}
    assert change(cluster, "set", window=(1024, 2048), window_total=(200_000, 4096)) == SettingsAre("set", wanted)
    assert [r.settings.values() for r in cluster.replicas] == [wanted] * 3
    for id in cluster.hosts:
        cluster.crash(id)
    for id in cluster.hosts:
        cluster.boot(id)
    cluster.elect()
    assert ask(cluster, ShowSettings("after")) == SettingsAre("after", wanted)
    assert [name for _, _, name, _ in cluster.events].count("settings") == 3


def test_of_two_operators_the_second_is_told_of_the_first() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    first = ChangeSettings("first", (("window", 1024, 512),))
    second = ChangeSettings("second", (("window", 1024, 64), ("names_max", 10_000, 5)))
    cluster.give(leader.me.id, first, second)
    cluster.run(1.0)
    assert cluster.reply_to("first") == SettingsAre("first", {**DEFAULT, "window": 512})
    assert cluster.reply_to("second") == Refused(
        "second", "", 0, 0, Code.CHANGED, detail="window is 512 by now, not 1024"
    )
    assert leader.settings.names_max == 10_000


def test_what_is_in_force_already_is_done_without_an_entry() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    change(cluster, "once", window=(1024, 512))
    last_id = leader.last_id
    assert change(cluster, "again", window=(1024, 512)) == SettingsAre("again", {**DEFAULT, "window": 512})
    assert leader.last_id == last_id


@pytest.mark.parametrize(("changes", "why"), [
    ({"window": (1024, 0)}, "window = 0 is not from 1 to 65536"),
    ({"window_total": (200_000, 1000)}, "window_total = 1000 is less than window = 1024"),
    ({"payload_bytes_max": (1 << 20, 9 << 20)}, "batch_bytes_max = 8388608 is less than payload_bytes_max = 9437184"),
    ({"batch_bytes_max": (8 << 20, 1 << 40)}, "batch_bytes_max = 1099511627776 is not from 1 to 268435456"),
    ({"color": (1, 2)}, f"no setting color; there are {', '.join(DEFAULT)}"),
    ({}, f"no setting is named; there are {', '.join(DEFAULT)}"),
])
def test_what_cannot_be_is_refused(changes: dict[str, tuple[int, int]], why: str) -> None:
    cluster = Cluster()
    leader = cluster.elect()
    assert change(cluster, "set", **changes) == Refused("set", "", 0, 0, Code.INVALID, detail=why)
    assert leader.settings == Settings()


def test_there_may_not_be_fewer_names_than_are_open() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    for name in ("alice", "bob"):
        ask(cluster, OpenSession(name, name, 0, name.encode().ljust(16)))
    refused = change(cluster, "one", names_max=(10_000, 1))
    assert refused.detail == "names_max = 1: 2 names are open; drop some first"
    assert change(cluster, "two", names_max=(10_000, 2)).values["names_max"] == 2
    assert leader.settings.names_max == 2


def test_a_smaller_window_forgets_on_all_servers_alike() -> None:
    cluster = Cluster()
    cluster.elect()
    for serial in range(1, 9):
        cluster.append(CLIENT, serial, b"%d" % serial)
    cluster.run(1.0)
    change(cluster, "set", window=(1024, 4), window_total=(200_000, 5))
    tables = [r.sessions.state() for r in cluster.replicas]
    assert tables[0] == tables[1] == tables[2]
    (row,) = tables[0][2]
    assert [slot[0] for slot in row.slots] == [5, 6, 7, 8]


def test_a_smaller_window_forgets_what_is_in_flight_too() -> None:
    """R32: a retry is answered TOO_OLD once the log is guaranteed up to here, and never as not in the log."""
    leader = Leader(window=4)
    leader.guaranteed = 0
    for serial, append in enumerate((A, B, C), 1):
        leader.append(RANDOM, 0, serial, append)
    leader.special(Kind.SETTINGS, json_body(**Settings(window=1).to_plain()))
    assert leader.ask(RANDOM, 0, 1, A) == refused(1, 1, Code.TOO_OLD, 0, leader.head)
    assert leader.ask(RANDOM, 0, 3, C) == [Duplicate(3, [3], 3)]
    leader.table.expunge(leader.head)
    assert leader.ask(RANDOM, 0, 1, A) == [Duplicate(1, [1], 1)]


def test_a_change_that_is_expunged_is_undone() -> None:
    cluster = Cluster()
    old = cluster.elect().me.id
    cluster.isolate(old)
    replica = cluster.hosts[old].replica
    assert replica is not None and replica.reign is not None
    replica.reign.operators.judge(ChangeSettings("lost", (("window", 1024, 7),)))
    assert replica.settings.window == 7
    cluster.run_until(lambda: cluster.leader is not None and cluster.leader.me.id != old)
    cluster.elect()
    cluster.heal()
    cluster.run(3.0)
    assert [r.settings.window for r in cluster.replicas] == [1024] * 3
    assert isinstance(cluster.reply_to("lost"), Refused)


def test_the_defaults_can_be() -> None:
    assert setting_rules.problem(Settings()) == ""
    assert set(setting_rules.BOUNDS) == set(DEFAULT)


def test_quotas_are_written_only_if_there_are_any() -> None:
    assert "quota_appends_per_s" not in Settings().to_plain()
    assert Settings.from_plain(Settings().to_plain()) == Settings()
    with pytest.raises(ValueError, match="positive"):
        Settings.from_plain({"window": 0})
    cluster = Cluster()
    cluster.elect()
    assert isinstance(change(cluster, "one", window=(1024, 512)), SettingsAre)
    assert change(cluster, "two", quota_appends_per_s=(0, 5)).values["quota_appends_per_s"] == 5
    assert [r.settings.quota_appends_per_s for r in cluster.replicas] == [5] * 3
    assert change(cluster, "three", quota_appends_per_s=(5, 0)).values == {**DEFAULT, "window": 512}
