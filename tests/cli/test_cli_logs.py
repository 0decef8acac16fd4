"""The commands about a cluster's logs besides the first, and `--log` with the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from alpo_command import Alpo, until

from alpo.standing import Cluster


def names(alpo: Alpo) -> list[str]:
    return [row["name"] for row in alpo.lines("log", "list") if row["state"] != "deleting"]


def test_a_log_from_its_creation_to_its_end(alpo: Alpo, directory: Path) -> None:
    assert alpo.says("log", "create", "billing", "--keep", "7d", code=0) == "billing: log 2\n"
    (made,) = alpo.lines("log", "create", "audit", "--keep-bytes", "20G", "--lead", "2", "--bytes-max", "30G")
    assert len(made.pop("id")) == 32
    assert made == {
        "name": "audit", "number": 3, "keep_age_s": None, "keep_bytes": 20 << 30, "bytes_max": 30 << 30, "lead": 2,
    }
    assert names(alpo) == ["billing", "audit"]
    assert "logs besides the first: 2 " in alpo.says("status", code=0)
    assert alpo.out("append", "--log", "billing", "one", "two") == "1\n2\n"
    assert alpo.out("append", "to the first") == "1\n"
    assert alpo.out("read", "--log", "billing") == "one\ntwo\n"
    assert alpo.out("read", "--log", "default") == "to the first\n"
    assert "30.0 GiB" in alpo.out("log", "list")
    until(lambda: all(row["behind"] == [] and row["leader"] for row in alpo.lines("log", "list")))
    (listed, _) = alpo.lines("log", "list")
    assert [listed[key] for key in ("name", "state", "first_lsn", "last_lsn", "why")] == ["billing", "ready", 1, 2, []]
    assert listed["leader"] in (1, 2, 3) and listed["bytes"] > 0 and listed["behind"] == []
    (status,) = alpo.lines("status")
    assert [[log["name"] for log in member["logs"]] for member in status["members"]] == 3 * [
        ["default", "billing", "audit"]
    ]
    (changed,) = alpo.lines("log", "set", "billing", "--keep", "0", "--lead", "1")
    assert (changed["keep_age_s"], changed["lead"]) == (None, 1)
    assert alpo.lines("log", "rename", "billing", "bills") == [{"name": "bills", "number": 2}]
    assert alpo.out("read", "--log", "bills") == "one\ntwo\n"
    (status,) = alpo.lines("status", "--log", "bills")
    assert max(member["last_lsn"] for member in status["members"]) == 2
    found = [row for row in alpo.lines("doctor") if row["check"] == "logs"]
    assert found[0]["says"].startswith("2 besides the first") and found[0]["verdict"] == "ok"
    assert "did not tell" not in "".join(row["says"] for row in found)
    assert "exists already" not in alpo.says("log", "create", "bills", "--if-missing", code=0)
    assert alpo.lines("log", "create", "bills", "--lead", "1", "--if-missing")[0]["number"] == 2
    other = "alpo: there is a log bills already, with another value of keep_s and lead\n"
    assert alpo.says("log", "create", "bills", "--if-missing", "--keep", "1d", "--lead", "2", code=1) == other
    assert alpo.says("log", "create", "bills", code=1) == "alpo: there is a log bills already\n"
    assert alpo.lines("log", "delete", "audit", "--yes") == [{"name": "audit", "number": 3}]
    until(lambda: len(alpo.lines("log", "list")) == 1)  # the last server has moved it away, too
    assert alpo.says("log", "delete", "audit", "--yes", code=1) == "alpo: there is no log audit\n"
    assert names(alpo) == ["bills"]
    assert [row["name"] for row in alpo.lines("log", "list", "--log", "bills") if row["state"] == "ready"] == ["bills"]


@pytest.mark.parametrize(("words", "code", "why"), [
    (["log", "create", "Billing"], 2, "NAME: a log's name is 1 to 63 characters"),
    (["log", "create", "b", "--keep", "seven"], 2, "--keep seven: a whole number and one of s, m, h, d, as in 7d"),
    (["log", "create", "b", "--keep-bytes", "20"], 2, "one of K, M, G, T, as in 20G, or 0"),
    (["log", "set", "b", "--bytes-max", "20"], 2, "--bytes-max 20: a whole number and one of K, M, G, T"),
    (["log", "create", "b", "--lead", "9"], 1, "server 9 is not a voting member"),
    (["log", "set", "b"], 2, "nothing to change"),
    (["log", "set", "nothing", "--keep", "1d"], 1, "there is no log nothing"),
    (["log", "rename", "nothing", "b"], 1, "there is no log nothing"),
    (["log", "delete", "nothing"], 2, "needs --yes where nobody can be asked"),
    (["append", "--log", "nothing", "--timeout", "500", "x"], 1, "alpo: there is no log nothing\n"),
    (["read", "--log", "nothing", "--timeout", "500", "--local"], 1, "alpo: there is no log nothing\n"),
    (["read", "--log", "Default"], 2, "--log or ALPO_LOG: log 'Default': a log's name"),
    (["restore", "/tmp/x", "--data", "/tmp/y", "--id", "1", "--listen", "h:1", "--log", "b"], 2,
     "--log means nothing to this command"),
])
def test_what_is_refused(alpo: Alpo, words: list[str], code: int, why: str) -> None:
    assert why in alpo.says(*words, code=code)


def test_settings_are_a_log_s_own(alpo: Alpo) -> None:
    alpo.run("log", "create", "slow")
    alpo.run("settings", "set", "--log", "slow", "quota_appends_per_s=5")
    for log, rate in (("slow", 5), ("default", 0)):
        (shown,) = alpo.lines("settings", "show", "--log", log)
        assert shown["quota_appends_per_s"] == rate


def test_the_files_of_a_log(alpo: Alpo, directory: Path) -> None:
    alpo.run("log", "create", "files")
    alpo.run("append", "--log", "files", "--wait", "everyone", "one")
    (made,) = [row for row in alpo.lines("log", "list") if row["name"] == "files"]
    folder = directory / "server-1" / "logs" / str(made["number"])
    assert alpo.out("log", "verify", folder).startswith("sound: ")
    data = directory / "server-1"
    assert "entries" in alpo.out("log", "diff", data, directory / "server-2", "--log", "files")
    assert "server-1 has no log nothing; besides the first it has " in alpo.says(
        "log", "verify", data, "--log", "nothing", code=1
    )
    assert "alpo.db is a file of one log" in alpo.says("log", "verify", data / "alpo.db", "--log", "files", code=1)
    alpo.run("log", "rename", "files", "papers")
    alpo.run("log", "create", "files")
    until(lambda: not any(row["behind"] for row in alpo.lines("log", "list")))  # a majority has begun it
    for name, count in (("papers", "1"), ("files", "0")):
        asked = "select count(*) as n from payloads"
        assert alpo.out("log", "query", data, asked, "--log", name, "--csv").split() == ["n", count]
        assert alpo.out("log", "export", data, "--log", name).count("\n") == int(count)
        assert ("one" in alpo.out("log", "show", data, "--log", name)) == (name == "papers")
    assert alpo.says("member", "remove", "3", "--log", "papers", code=1).startswith("alpo: members and logs are those")


def test_a_removed_server_has_left_all_logs(alpo: Alpo) -> None:
    """The last test: two servers stay."""
    alpo.run("member", "remove", "3")
    for row in alpo.lines("log", "list"):
        (found,) = alpo.lines("status", "--log", row["name"])
        assert Cluster(found["members"]).voters == {1, 2}, row["name"]
