"""Worlds: repeatable to the byte, sound over fixed seeds, and their checks see what they are there for."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from alpo.core.disk import Write
from alpo.core.entries import RUN_BYTES_MAX, counts_of, serials_of
from alpo.core.messages import Envelope, SnapshotPart, StartAnswer
from alpo.core.ranks import State
from alpo.core.ready import Input, Ready, Received
from alpo.core.replica import Replica
from alpo.core.requests import Appended, AppendRun, Code, Refused
from alpo.storage.memory import MemoryStore
from alpo_sim.host import Host
from alpo_sim.narrate import Tracer
from alpo_sim.options import FAULTS, Load, Network, Options
from alpo_sim.stage import Watcher
from alpo_sim.world import World, run_world

#: Fixed for good; fresh ones are for the soak, and most of these.
SEEDS = range(1, 81)
CHUNK = 4
IN_EVERY_RUN = range(1, 5)


def trace_of(seed: int, seconds: int) -> str:
    world = World(Options.draw(seed, seconds=seconds))
    file = io.StringIO()
    world.stage.watchers.append(Tracer(world.stage, file))
    verdict = run_world(world)
    return f"{file.getvalue()}{verdict._replace(cpu_s=0)}"


def test_whoever_stays_down_at_the_end_leaves_a_majority_of_a_list_that_is_not_guaranteed() -> None:
    """Server 2 has the removal of 3 in its log, and leads nothing without 1; 3, whose log is shorter, is outranked."""
    assert run_world(World(Options.draw(719924, seconds=10))).ok


@pytest.mark.parametrize("first", [
    pytest.param(first, marks=() if first in IN_EVERY_RUN else pytest.mark.soak) for first in SEEDS[::CHUNK]
])
def test_every_check_holds_over_fixed_seeds(first: int) -> None:
    for seed in range(first, first + CHUNK):
        verdict = run_world(World(Options.draw(seed, seconds=30)))
        assert verdict.ok, f"alpo-sim run --seed {seed} --seconds 30: {verdict.invariant}: {verdict.detail}"
        assert verdict.steps > 100


def test_a_candidate_that_is_being_removed_counts_no_vote_of_its_own() -> None:
    """A server whose removal may yet be expunged stands without a vote of its own: the check of candidates that wait
    too long (R7) must not count one."""
    assert run_world(World(Options.draw(300420, seconds=10))).ok


def test_a_late_answer_counts_from_the_beginning_of_its_round() -> None:
    """A late answer belongs to the round that it answers. Its voter may have heard the leader again before the next
    round: no healthy leader was deposed then."""
    assert run_world(World(Options.draw(303433, seconds=10))).ok


def test_what_moves_again_is_watched_from_then_on_and_not_from_the_next_entry_on() -> None:
    """New entries do not make older ones under way, which stand still, any younger: the leader may send them again."""
    assert run_world(World(Options.draw(303585, seconds=10))).ok


@pytest.mark.parametrize("seed", [3, 5, 18])
def test_a_seed_gives_the_same_trace_in_other_processes_and_hash_seeds(seed: int) -> None:
    code = f"import test_sim_world as t; print(t.trace_of({seed}, 10))"
    traces = []
    for hash_seed in ("1", "2"):
        env = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parent)}
        traces.append(subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True).stdout)
    assert traces[0] == traces[1]
    assert len(traces[0]) > 10_000
    assert trace_of(seed, 10).encode() == traces[0].removesuffix(b"\n")


def test_other_seeds_give_other_worlds() -> None:
    assert trace_of(3, 2) != trace_of(4, 2)
    assert Options.draw(3) != Options.draw(4)
    assert {Options.draw(seed).servers for seed in range(100)} >= {1, 2, 3, 5, 9}


def test_every_fault_happens_somewhere() -> None:
    seen: dict[str, int] = {}
    for seed in range(12):
        world = World(Options.draw(seed, seconds=20, faults=FAULTS, fault_every_us=300_000, servers=3, wipes=1))
        assert run_world(world).ok
        for name, count in world.faults.counts.items():
            seen[name] = seen.get(name, 0) + count
    assert set(seen) >= {*FAULTS, "wipe"}


def test_a_calm_world_is_calm() -> None:
    """One leader is enough in a world without faults, and all requests are carried out."""
    quiet = Network(late=0.0, loss=0.0, duplication=0.0, damage=0.0)
    options = Options(7, seconds=20, fault_every_us=0, drift=0.0, network=quiet, load=Load(operators=False))
    world = World(options)
    verdict = run_world(world)
    assert verdict.ok, verdict.detail
    assert verdict.terms == 1
    assert verdict.acknowledged > 100 and verdict.reads > 5


def changed_world(seed: int, servers: int = 3, **options: Any) -> World:
    world = World(Options.draw(seed, servers=servers, seconds=20, faults=("crash",), auto_init=True, **options))
    assert world.run_until(5_000_000, lambda: world.leader() is not None)
    return world


def status(world: World, id: int) -> str:
    replica = world.stage.hosts[id].replica
    return replica.status_text if replica is not None else "down"


@pytest.mark.parametrize("seed", range(4))
def test_a_lost_disk_comes_back_by_itself(seed: int) -> None:
    world = changed_world(seed, wipes=1, stewards=0)
    before = world.stage.hosts[1].store.boot().me
    world.wipe(1)
    world.boot(1)
    assert run_world(world).ok
    assert status(world, 1) == "VOTING"
    latest = world.lists.latest
    assert latest is not None
    member = latest.get(1)
    assert member is not None and before.incarnation in member.retired


@pytest.mark.parametrize("seed", range(4))
def test_an_old_disk_put_back_is_retired_and_does_no_harm(seed: int) -> None:
    quiet = Network(late=0.0, loss=0.0, duplication=0.0, damage=0.0)
    world = changed_world(seed, wipes=0, stewards=0, fault_every_us=0, network=quiet)
    world.wipe(1)
    world.boot(1)
    assert world.run_until(60_000_000, lambda: status(world, 1) == "VOTING")
    world.crash(1)
    world.stage.put_back(1)
    world.boot(1)
    assert world.run_until(world.now_us + 20_000_000, lambda: status(world, 1) == "RETIRED")
    terms = len(world.safety.leaders)
    world.run_until(world.now_us + 10_000_000)
    assert len(world.safety.leaders) == terms and status(world, 1) == "RETIRED"


def test_a_cluster_grows_and_shrinks() -> None:
    """Clusters grow from one server to several, and shrink to few again, under all faults."""
    sizes: set[int] = set()
    for seed in range(5):
        options = Options.draw(seed, servers=1, seconds=60, stewards=2, spares=5, wipes=0, auto_init=False)
        world = World(options)
        verdict = run_world(world)
        assert verdict.ok, f"{seed}: {verdict.invariant}: {verdict.detail}"
        sizes |= {len(members.voters) for _, members in world.lists.guaranteed}
    assert sizes >= {1, 2, 3, 4}


def test_a_disk_that_lies_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks can fail: a crash loses entries that were fsynced."""
    honest = MemoryStore.crash

    def lying(store: MemoryStore) -> MemoryStore:
        found = honest(store)
        del found._entries[-3:]
        return found

    monkeypatch.setattr(MemoryStore, "crash", lying)
    verdicts = [run_world(World(Options.draw(seed, servers=3, seconds=20, faults=("crash_all",)))) for seed in range(4)]
    assert not any(verdict.ok for verdict in verdicts)


def test_a_core_that_raises_is_a_failure_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(replica: Replica, id: int) -> None:
        raise KeyError(id)

    monkeypatch.setattr(Replica, "set_guaranteed", raising)
    verdict = run_world(World(Options.draw(3, seconds=5)))
    assert verdict.invariant == "alarm" and "raised KeyError(" in verdict.detail


class Counted(Watcher):
    """Counts what worlds are drawn for."""

    def __init__(self) -> None:
        self.parts = self.again = 0
        self._seen: set[tuple[object, ...]] = set()

    def sent(self, host: Host, envelope: Envelope) -> None:
        self.parts += isinstance(envelope.message, SnapshotPart) and envelope.message.part > 0

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        for each in inputs:
            if isinstance(each, Received) and isinstance(each.envelope.message, StartAnswer):
                what = (*each.envelope[1:3], each.envelope.message.number)
                self.again += what in self._seen
                self._seen.add(what)


def test_bases_of_several_parts_and_answers_that_come_again_late_are_met_often() -> None:
    parts = again = worlds = 0
    for seed in range(75):
        options = Options.draw(seed, servers=3, seconds=10)
        if not (options.wipes or options.stewards) or not options.network.again:
            continue
        world, counted = World(options), Counted()
        world.stage.watchers.append(counted)
        assert run_world(world).ok
        worlds += 1
        parts += counted.parts > 0
        again += counted.again > 0
    assert worlds >= 5 and parts >= worlds / 5 and again >= worlds / 3, (worlds, parts, again)


class Runs(Watcher):
    """Counts runs, and what happens to them. ``bounded``: what one frame brought is in several, for its size;
    ``within``: a retry was answered from the middle of one; ``undone``: one was expunged; ``early``: one was made while
    some server did not know runs."""

    def __init__(self, world: World) -> None:
        self.runs = self.mixed = self.bounded = self.within = self.undone = 0
        self._world = world
        world.stage.watchers.append(self)

    def committing(self, host: Host, writes: Sequence[Write]) -> None:
        for write in writes:
            if write.expunge_from is not None:
                gone = host.store.read_entries(write.expunge_from, host.disk_last_id, 1 << 30)
                self.undone += sum(serials_of(entry.digest) > 1 for entry in gone)

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        for reply in ready.replies:
            if isinstance(reply, Appended) and reply.duplicate:
                guaranteed, id_of_lsn = self._world.safety.guaranteed, self._world.safety.id_of_lsn
                self.within += guaranteed[id_of_lsn[reply.lsns[0] - 1] - 1].serial < reply.serial
        made = ready.write.entries if ready.write is not None and host.running.state is State.LEADER else []
        for entry in made:
            self.runs += serials_of(entry.digest) > 1
            self.mixed += counts_of(entry.digest) is not None
        for before, after in pairwise(made):
            follows = before.client == after.client and before.serial + serials_of(before.digest) == after.serial
            self.bounded += follows and len(before.body) > RUN_BYTES_MAX // 2


def test_runs_of_every_form_are_met() -> None:
    worlds = []
    for seed in range(11):
        drawn = Options.draw(
            seed, servers=3, seconds=10, election_timeout_us=150_000, faults=("cut", "pause"), fault_every_us=500_000,
        )
        world = World(replace(drawn, load=replace(drawn.load, frame=16, large=0.02, writers=4)))
        worlds.append(Runs(world))
        assert run_world(world).ok
    for form in ("runs", "mixed", "bounded", "within", "undone"):
        assert sum(getattr(each, form) > 0 for each in worlds) >= 2, form
    assert {Options.draw(seed).load.frame for seed in range(20)} == {1, 4, 16}
    assert {Options.draw(seed).load.large > 0 for seed in range(40)} == {False, True}


def test_faults_are_aimed_at_what_has_just_begun() -> None:
    """Aimed faults happen even if no faults are drawn at random."""
    aimed = 0
    for seed in range(2):
        options = Options.draw(
            seed, servers=3, seconds=15, fault_every_us=0, stewards=2, spares=2, wipes=3, aimed=True
        )
        world = World(options)
        assert run_world(world).ok
        aimed += sum(world.faults.counts.values())
    assert aimed > 5


class Conditional(Watcher):
    """Counts conditional appends that are answered: taken, refused, and refused because their LSN is yet to come."""

    def __init__(self, world: World) -> None:
        self.taken = self.beyond = self.ahead = 0
        self._expected: dict[object, int] = {}
        world.stage.watchers.append(self)

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        for each in inputs:
            if isinstance(each, AppendRun) and each.expect_last is not None:
                self._expected[each.origin] = each.expect_last
        for reply in ready.replies:
            expected = self._expected.get(reply.origin)
            if expected is not None and isinstance(reply, Appended):
                self.taken += 1
            elif expected is not None and isinstance(reply, Refused) and reply.code is Code.CONFLICT:
                self.beyond += reply.number > expected
                self.ahead += reply.number < expected


def test_conditional_appends_are_taken_and_refused() -> None:
    worlds = []
    for seed in range(4):
        drawn = Options.draw(seed, servers=3, seconds=10)
        world = World(replace(drawn, load=replace(drawn.load, conditional=0.5, writers=4)))
        worlds.append(Conditional(world))
        assert run_world(world).ok
    for what in ("taken", "beyond", "ahead"):
        assert sum(getattr(each, what) > 0 for each in worlds) >= 2, what
    assert {Options.draw(seed).load.conditional > 0 for seed in range(20)} == {False, True}
