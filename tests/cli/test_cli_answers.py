"""Answers that the command gives at once, and its messages when the cluster cannot do what was asked."""

from __future__ import annotations

from alpo_command import Alpo, until
from ports import free_port

#: A timeout so long that a command which waits for it, though its answer is known at once, is killed and fails.
LONG = ("--timeout", "3600")


def test_a_server_that_is_not_there_is_told_at_once(alpo: Alpo) -> None:
    for words in (("read", "--local", "--server", "9"), ("compact", "--server", "9"), ("backup", "x", "--server", "9")):
        assert "the cluster has no server 9" in alpo.says(*words, *LONG, code=1), words
    said = alpo.says("read", "--follow", "--local", "--server", "9", *LONG, code=1)
    assert said == "alpo: the cluster has no server 9\n"


def test_a_change_that_takes_longer_than_the_timeout_says_what_it_waits_for(alpo: Alpo) -> None:
    nobody = f"127.0.0.1:{free_port(1)}"
    said = alpo.says("member", "add", f"9={nobody}", "--timeout", "2", code=1)
    assert said.startswith("alpo: no answer within 2 s: ")
    assert f"no server 9 that waits to join answers at {nobody} (last seen: " in said
    other = alpo.says("member", "add", f"8={nobody}", code=1)
    assert f"another change of the member list is under way (to add server 9 at {nobody}" in other
    until(lambda: "under way" not in alpo.says("member", "remove", "7", code=1))


def test_to_ask_for_the_same_change_again_goes_on_waiting_for_it(alpo: Alpo) -> None:
    nobody = f"127.0.0.1:{free_port(1)}"
    alpo.run("member", "add", f"9={nobody}", "--timeout", "1", code=1)
    said = alpo.says("member", "add", f"9={nobody}", code=1)
    (leader,) = (m["address"] for m in alpo.lines("status")[0]["members"] if m["state"] == "leader")
    assert said.startswith(
        f"alpo: no server 9 that waits to join answers at {nobody}; start it there: alpod --id 9 --data DIR --listen"
        f" {nobody} --join {leader} (last seen: "
    )


def test_a_voter_that_is_added_again_is_no_learner(alpo: Alpo) -> None:
    address = alpo.servers.split(",")[0]
    said = alpo.says("member", "add", f"1={address}", code=0)
    assert said == "server 1 is in the cluster already, and votes\n"
