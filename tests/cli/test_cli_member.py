"""`alpo member add|remove` says how many members may fail now, and asks; ids and names are completed."""

from __future__ import annotations

import os
import pty
import subprocess
from typing import Any

import anyio
import pytest
from alpo_command import COMMAND, ENDS_WITHIN_S, Alpo, completed, environment, until

from alpo.standing import Cluster
from alpo_cli.commands import member
from alpo_cli.commands.member import may_fail_text, question_of
from alpo_cli.exits import Failed
from alpo_cli.options import Target


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


@pytest.mark.parametrize(("voters", "id", "asks"), [
    (5, 5, ""), (4, 4, ""), (3, 9, ""), (3, 8, ""), (1, 1, ""),
    (3, 2, "without server 2, 2 members vote: neither of them may fail, or appends stand"),
    (2, 1, "without server 1, 1 member votes: it may not fail, or appends stand"),
])
def test_it_is_asked_before_fewer_than_three_vote(voters: int, id: int, asks: str) -> None:
    assert question_of(Cluster(rows(voters, 1)), id) == asks


def test_a_terminal_is_asked_and_a_script_is_not(alpo: Alpo) -> None:
    def remove(id: int, answer: bytes) -> subprocess.CompletedProcess[bytes]:
        ours, theirs = pty.openpty()
        os.write(ours, answer)
        done = subprocess.run([*COMMAND, "member", "remove", str(id)], stdin=theirs, capture_output=True,
                              env=environment(alpo.servers), timeout=ENDS_WITHIN_S, check=False)
        os.close(ours)
        os.close(theirs)
        return done

    done = remove(3, b"no\n")
    assert (done.returncode, done.stdout) == (1, b"")  # stdout may be a pipe to who reads the result
    assert b"without server 3, 2 members vote" in done.stderr and b"nothing was changed" in done.stderr
    assert b"Type yes to go on: " in done.stderr
    assert b"nothing was changed" in remove(3, b"\x04").stderr  # Ctrl-D
    assert len(Cluster(alpo.lines("member", "list")[0]["members"]).voters) == 3
    done = remove(3, b"yes\n")
    assert done.returncode == 0 and b"2 members are left: neither may fail" in done.stderr
    assert "1 member is left: it may not fail" in alpo.says("member", "remove", "2", code=0)


def test_a_log_that_still_has_a_removed_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def needs(*_: object) -> bool:
        return True

    monkeypatch.setattr(member, "_may_need", needs)
    with pytest.raises(Failed, match=r"still in 1 log besides the first: let it run until `alpo status --log bills`"):
        anyio.run(member._leave_logs, Target((), 0.0, False), 3, ["bills"])


def test_what_the_cluster_knows_is_completed(alpo: Alpo) -> None:
    alpo.run("cursor", "set", "nightly", "1")
    alpo.run("append", "x", "--client", "billing")
    alpo.run("state", "set", "limits/t7", "5")
    for words, there in (
        ("transfer ", "1"), ("member remove ", "1"), ("read --server ", "1"), ("cursor drop ni", "nightly"),
        ("outcome ", "billing"), ("state get lim", "limits/t7"), ("state watch ", "limits/t7"),
    ):
        # A busy machine may not answer within the command's time limit: then nothing is offered, and this asks again.
        until(lambda words=words, there=there: there in completed("bash", f"alpo {words}", alpo.servers).split())  # type: ignore[misc]
    for line in ("alpo --servers 127.0.0.1:1 transfer ", "alpo transfer --servers nonsense:x ",
                 "alpo transfer --ca none.pem --cert none.pem --key none.key "):
        assert completed("bash", line, alpo.servers).strip() == ""
