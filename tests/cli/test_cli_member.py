"""`alpo member add|remove` says how many members may fail now."""

from __future__ import annotations

from typing import Any

import pytest

from alpo.standing import Cluster
from alpo_cli.commands.member import may_fail_text


def rows(voters: int, may_fail: int, *why: str, work: bool = True) -> list[dict[str, Any]]:
    """A leader's row, and those of the others that vote; server 9 was removed."""
    listed = [{"id": id, "address": f"h{id}:1", "role": "VOTER"} for id in range(1, voters + 1)]
    listed.append({"id": 9, "address": "h9:1", "role": "GONE"})
    found = [
        {"id": id, "address": f"h{id}:1", "reachable": True, "state": "passive", "term": 3, "members": listed}
        for id in range(1, voters + 1)
    ]
    found[0] |= {"state": "leader", "appends": {"work": work, "why": list(why), "may_fail": may_fail}}
    return found


@pytest.mark.parametrize(("what", "found", "says"), [
    ("remove", rows(5, 2), "5 members are left: 2 may fail"),
    ("remove", rows(4, 1), "4 members are left: one may fail"),
    ("remove", rows(3, 1), "3 members are left: one may fail"),
    ("remove", rows(3, 0, "server 2 does not answer"), "3 members are left: none may fail"),
    ("remove", rows(2, 0), "2 members are left: neither may fail"),
    ("remove", rows(1, 0), "1 member is left: it may not fail"),
    ("add", rows(4, 1), "4 members vote now: one may fail"),
    ("replace", rows(3, 1), "3 members vote now: one may fail"),
    ("add", rows(2, 0, "server 2 is low on disk space", work=False),
     "2 members vote now; appends do not work at this moment: server 2 is low on disk space"),
])
def test_how_many_may_fail(what: str, found: list[dict[str, Any]], says: str) -> None:
    assert may_fail_text(Cluster(found), what) == says
