"""`alpo append` when the majority dies after the request was sent: exit 3, and the same by hand later."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from harness import Cluster, alpo, alpo_process, cluster

from alpo import connect

#: A leader keeps leading for so long without an answer (R15): the request has to reach it within.
TIMERS = {"heartbeat_s": 0.3, "election_timeout_s": 1.5}
FLAGS = re.compile(r"--client (\S+) --serial (\d+) --epoch (\d+)")
TEXT = "of two minds"


async def send_unanswered(running: Cluster, leader: int, reaches_others: bool) -> list[str]:
    """One append that the leader takes and nobody answers for; the flags to retry with, as the command told them."""
    append = ["--servers", running.addresses, "--timeout", "3", "append", "--client", "billing", "--json"]
    async with alpo_process(*append) as command:
        await command.write(b"one\n")
        assert (await command.line())["lsn"] == 1
        others = running.others(leader)
        for id in others:
            if not reaches_others:
                running.network.drop(leader, id)
            running.servers[id].pause()
        before = await running.status(leader)
        assert before is not None
        await command.write(TEXT.encode() + b"\n")
        await running.until("the leader takes it", lambda all_: all_[leader]["last_id"] > before["last_id"])
        # The majority dies: both others, or the leader and one of them.
        for id in others if reaches_others else [leader, others[0]]:
            running.servers[id].kill()
        if not reaches_others:
            running.servers[others[1]].resume()
        code, text = await command.end()
    assert code == 3, text
    told = FLAGS.search(text)
    assert told is not None and told[1] == "billing" and told[2] == "2", text
    return told[0].split()


@pytest.mark.parametrize("got_in", [True, pytest.param(False, marks=pytest.mark.soak)])
@pytest.mark.trio
async def test_the_retry_by_hand_gives_one_lsn_whether_or_not_the_first_try_got_in(
    tmp_path: Path, got_in: bool
) -> None:
    async with cluster(tmp_path, timers=TIMERS) as running:
        leader = await running.leader()
        flags = await send_unanswered(running, leader, reaches_others=got_in)
        running.network.heal_all()
        # A majority with the old leader, which has it, where the first try got in; else one without it. The third comes
        # later, and what it holds beyond the others is expunged.
        back, *_ = others = running.others(leader)
        running.start(back)
        await running.leader()
        append = ["--servers", running.addresses, "append", "--json", *flags]
        for expected_duplicate in (got_in, True):
            code, out, text = await alpo(*append, TEXT)
            assert code == 0, text
            result = json.loads(out)
            assert (result["lsn"], result["serial"], result["duplicate"]) == (2, 2, expected_duplicate)
        code, out, text = await alpo(*append, "something else")
        assert (code, out) == (1, ""), text
        running.start(others[1] if got_in else leader)
        assert await running.level() == 2
        async with connect(running.addresses) as log:
            for id in running.servers:
                payloads = [record.payload async for record in log.read(local=True, server=id)]
                assert payloads == [b"one", TEXT.encode()]
