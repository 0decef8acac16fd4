"""Faults of disks, each with what must follow from it: the server votes again, by itself or on another disk.

Laws (docs/rules.md states the limits that they keep to):

* The disks of a minority are harmed, here one at a time: the next only once everybody votes again, and what was the
  log's end then is guaranteed everywhere.
* A directory is put back to an older copy only when all that it held since is held by all others, a term that it may
  have voted in has its leader, and more is fully replicated than the copy holds: anything else is the limit of R31, "a
  directory rolled back whole, before anyone can tell, may vote twice".
* With several logs, the store of one of them is lost, damaged or put back; and all servers vote in all of them before
  the next one. The store of a log that comes and goes is lost with the whole disk only.
* Damage that nobody has noticed stays damage: unless the store was set aside, or SQLite and the scrub find nothing
  wrong with it, the disk is replaced, as docs/operations.md tells an operator to.
"""

from __future__ import annotations

import random
import resource
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio
from disks import Held, OwnDisk, empty, fill, flip_in_file, flip_in_wal, held, is_sound, make_room
from hanging_disks import DEAD, HANG, can_halt, halt, heal
from harness import Cluster, Server
from probe import until
from workload import History

from alpo import AlpoError, connect

#: Seconds for all servers to vote before a fault (or it is left out); seconds to vote again and show its effect.
BEFORE_S, AFTER_S = 10.0, 60.0
#: Seconds for the scrub to come round, and for the damage that it found to be mended.
SCRUB_S, MEND_S = 20.0, 10.0
POLL_S = 0.05
MIB = 1 << 20
LOW_WATER_BYTES = 8 * MIB
#: Bytes left free on a disk that fills up: below the low-water mark, below the reserve, none.
LEFT_BYTES = (5 * MIB, MIB, 0)
#: Bytes that a server's text log may still grow by under a limit on the size of files.
LOG_BYTES = MIB
#: Milliseconds that an fsync of a slow disk takes longer.
SLOW_MS = (20, 100, 300, 700)

#: Names in a data directory that are not of the first log.
OF_OTHERS = ("logs", "deleted")

Statuses = dict[int, dict[str, Any]]


class DiskFaults:
    """Faults of servers' disks. ``by_kind`` counts them, ``became`` their effects; ``problems``: what must not happen.
    ``small``: disks that may fill up; ``own``: all disks that are no part of this machine's own; ``histories``: those
    of all logs, the first log's first."""

    def __init__(
        self, cluster: Cluster, seed: int, by_kind: Counter[str], problems: list[str], small: Mapping[Path, OwnDisk],
        own: Mapping[Path, OwnDisk], histories: list[History],
    ) -> None:
        self.became: Counter[str] = Counter()
        self._cluster = cluster
        self._rng = random.Random(f"{seed}/disks")
        self._by_kind = by_kind
        self._problems = problems
        self._small, self._own = small, own
        self._histories = histories
        #: The log whose store is harmed.
        self._at = histories[0]
        #: History of the log that comes and goes, while there is one.
        self.passing: History | None = None
        #: Lock to hold while one server's disk is harmed.
        self.one_harmed = trio.Lock()
        self._kinds: dict[str, Callable[[int, float], Any]] = {
            "lose disk": self._lose, "flip file": self._flip_file, "flip WAL": self._flip_wal,
            "roll back": self._roll_back, "replace": self._replace,
        }

    async def harm(self, kind: str, id: int, length_s: float) -> None:
        """Harm server ``id``'s disk, or do nothing if not all servers vote.

        A fault that has begun is carried through, even if cancelled: a server left harmed might not vote again.
        """
        if not await self._all_vote(BEFORE_S):
            return
        for path in self._aside(self._cluster.servers[id]):  # stores set aside before are of no more use
            shutil.rmtree(path)
        if len(self._histories) > 1:
            self._at = self._rng.choice(self._histories)
        with trio.CancelScope(shield=True):
            if await self._kinds[kind](id, length_s) and not await self._all_vote(AFTER_S):
                found = {history.log: await self._cluster.statuses(history.log) for history in self._histories}
                harmed = f"{kind}{self._which} of server {id}"
                self._problems.append(f"not everybody votes {AFTER_S:g} s after {harmed}: {found}")

    # -- the kinds: True, once it was done ---------------------------------------------------------------

    async def _lose(self, id: int, down_s: float) -> bool:
        self._by_kind["lose disk"] += 1
        self.became["lost of log N"] += self._at.number > 1
        await self._new_disk(id, down_s)
        return True

    async def _flip_file(self, id: int, down_s: float) -> bool:
        """Flip bytes in the data file of a server that was killed, or stopped in order (then the file holds all)."""
        self._by_kind["flip file"] += 1
        server = self._cluster.servers[id]
        await self._end(id)
        flip_in_file(self._folder(server), self._rng)
        await trio.sleep(down_s)
        self._cluster.start(id)
        became = await self._until(lambda found: self._seen(server, found), SCRUB_S, self._at) or "not readable"
        if became == "damaged" and await self._until(
            lambda found: self._sound_again(server, found), MEND_S, self._at
        ):
            became = "mended"
        if became not in ("set aside", "ended") and not (
            became in ("unseen", "mended") and is_sound(self._folder(server))
        ):
            became += ", disk replaced"
            server.kill()
            await self._new_disk(id, 0)
        if became == "ended":
            self._problems.append(f"server {id} ended by itself over a damaged file\n{server.tail(3)}")
            await self._new_disk(id, 0)
        self.became[f"file{self._which}: {became}"] += 1
        return True

    async def _flip_wal(self, id: int, down_s: float) -> bool:
        """Flip bytes in the WAL, so that synced commits would vanish: the server always notices."""
        server = self._cluster.servers[id]
        server.kill()
        done = flip_in_wal(self._folder(server), self._rng)
        if done:
            self._by_kind["flip WAL"] += 1
        await trio.sleep(down_s)
        self._cluster.start(id)
        if done:
            await self._must_be_set_aside(server, f"WAL{self._which}")
        return done

    async def _roll_back(self, id: int, length_s: float) -> bool:
        """Roll the disk back to a copy made ``length_s`` or more before."""
        cluster, server = self._cluster, self._cluster.servers[id]
        copy, folder = cluster.home / "copy", self._folder(server)
        await self._end(id)
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(*OF_OTHERS))
        old = held(copy)
        cluster.start(id)
        await trio.sleep(length_s)
        beyond = await self._until(lambda found: _all_know_more(cluster, found, old), AFTER_S, self._at)
        server.kill()
        now = held(folder)
        if beyond and await self._until(lambda found: _others_hold(cluster, found, id, now), AFTER_S, self._at):
            self._by_kind["roll back"] += 1
            empty(folder, but=OF_OTHERS)
            shutil.copytree(copy, folder, dirs_exist_ok=True)
            cluster.start(id)
            await self._must_be_set_aside(server, f"older copy{self._which}")
        else:
            cluster.start(id)
        shutil.rmtree(copy)
        return True

    async def _replace(self, id: int, down_s: float) -> bool:
        """The server is gone for good; another takes its place at another address.

        The old address leads to it as well: it may be taken for one whose disk was lost before anybody asks.
        """
        self._by_kind["replace"] += 1
        cluster = self._cluster
        cluster.servers[id].kill()
        empty(cluster.servers[id].data)
        await trio.sleep(down_s)
        address = await cluster.newcomer(id)
        with trio.move_on_after(AFTER_S):
            while True:
                with suppress(AlpoError):  # another change is under way, or nobody leads
                    async with connect(cluster.addresses, timeout_s=5.0) as log:
                        await log.replace_member(id, address)
                    self.became["replace: asked for"] += 1
                    return True
                if await self._all_vote(POLL_S):
                    self.became["replace: as a lost disk"] += 1
                    return True
        self._problems.append(f"server {id} was not replaced within {AFTER_S:g} s")
        return True

    # -- no harm to what is on the disk ------------------------------------------------------------------

    async def fill_up(self, id: int, length_s: float) -> None:
        """Fill the server's disk, if it is a small one."""
        data = self._cluster.servers[id].data
        if data in self._small:
            self._by_kind["fill disk"] += 1
            fill(data, self._rng.choice(LEFT_BYTES))
            try:
                await trio.sleep(length_s)
            finally:
                make_room(data)

    async def hold_up(self, kind: str, id: int, length_s: float) -> None:
        """Let the disk hang, or be slow, where that can be done."""
        server = self._cluster.servers[id]
        if can_halt(server):
            self._by_kind[kind] += 1
            hangs = self._rng.choice((HANG, DEAD))
            halt(server, hangs if kind == "hang disk" else str(self._rng.choice(SLOW_MS)))
            try:
                await trio.sleep(length_s)
            finally:
                heal(server)

    def can_cut_power(self, id: int) -> bool:
        disk = self._own.get(self._cluster.servers[id].data)
        return disk is not None and disk.is_real

    async def cut_power(self, ids: list[int], length_s: float) -> None:
        """Cut the power of these servers' hosts, of all at one moment. The disks hold what was synced before."""
        self._by_kind["power cut"] += 1
        servers = [self._cluster.servers[id] for id in ids]
        before = {server.id: self._aside(server) for server in servers}
        for server in servers:
            server.wanted = False
            server.pause()
        for server in servers:
            self._own[server.data].cut_power(self._rng)
            server.kill()
        with trio.CancelScope(shield=True):
            for server in servers:
                await trio.to_thread.run_sync(self._own[server.data].restore_power)
            await trio.sleep(length_s)
            self._cluster.start(*ids)
            if await self._until(lambda found: found.keys() >= set(ids), AFTER_S) is None:
                self._problems.append(f"servers {ids} do not answer {AFTER_S:g} s after a power cut")
        for server in servers:
            if aside := self._aside(server) - before[server.id]:
                self._problems.append(f"server {server.id} set {aside} aside after a power cut\n{server.tail(3)}")
        self.became[f"power cut: {'one host' if len(ids) == 1 else 'all hosts'}"] += 1

    async def fail_writes(self, id: int, length_s: float) -> None:
        """Limit the size of files: the server ends itself over the write that fails. If it writes nothing, kill it."""
        self._by_kind["fail writes"] += 1
        server = self._cluster.servers[id]
        assert server.process is not None
        files = [path.stat().st_size for path in server.data.iterdir()]
        limit_bytes = max(*files, server.log.stat().st_size + LOG_BYTES)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
        server.wanted = False
        with trio.CancelScope(shield=True), suppress(trio.TooSlowError):
            await until(lambda: not server.running, length_s)
        if server.running:
            server.kill()
        elif server.process.returncode != 1:
            code = server.process.returncode
            self._problems.append(f"server {id}: exit {code} over a failed write\n{server.tail(3)}")
        else:
            self.became["writes: stopped itself"] += 1
        self._cluster.start(id)

    # -- steps -------------------------------------------------------------------------------------------

    async def _end(self, id: int) -> None:
        """End the server, by SIGTERM or by kill -9."""
        server = self._cluster.servers[id]
        if self._rng.random() < 0.5:
            codes = await self._cluster.stop(id)
            if codes != {id: 0}:
                self._problems.append(f"server {id}: exit {codes[id]} when stopped\n{server.tail(3)}")
        else:
            server.kill()

    async def _new_disk(self, id: int, down_s: float) -> None:
        server = self._cluster.servers[id]
        server.kill()
        empty(self._folder(server))
        await trio.sleep(down_s)
        self._cluster.start(id)

    async def _must_be_set_aside(self, server: Server, what: str) -> None:
        if await self._until(lambda found: _set_aside(self._folder(server)), AFTER_S):
            self.became[f"{what}: set aside"] += 1
        else:
            self._problems.append(f"server {server.id} has not set its store aside: {what}\n{server.tail(3)}")
            await self._new_disk(server.id, 0)

    def _seen(self, server: Server, found: Statuses) -> str:
        """The state that the server shows: set aside, ended, damaged or unseen; "" as long as it shows nothing."""
        if _set_aside(self._folder(server)):
            return "set aside"
        if not server.running:
            return "ended"
        fields = found.get(server.id)
        if fields is None or not (fields["damaged"] or fields["scrub_passes"]):
            return ""
        return "damaged" if fields["damaged"] else "unseen"

    def _sound_again(self, server: Server, found: Statuses) -> bool:
        return server.id in found and not found[server.id]["damaged"]

    @property
    def _which(self) -> str:
        """The log whose store is harmed, for a report."""
        return "" if self._at.number == 1 else " of log N"

    def _folder(self, server: Server) -> Path:
        """The directory of the store that is harmed."""
        return server.folder(self._at.number)

    def _aside(self, server: Server) -> set[Path]:
        """Stores of any log that the server has set aside."""
        return {path for history in self._histories for path in _set_aside(server.folder(history.number))}

    async def _until(
        self, condition: Callable[[Statuses], Any], within_s: float, history: History | None = None
    ) -> Any:
        """The condition's value, of the statuses in a log (the first), once that is true; None if it does not become
        true in time."""
        async def came_to() -> Any:
            return condition(await self._cluster.statuses(history.log if history is not None else ""))

        with suppress(trio.TooSlowError):
            return await until(came_to, within_s)
        return None

    async def _all_vote(self, within_s: float) -> bool:
        """True if all servers come to vote in all logs."""
        by_s = trio.current_time() + within_s
        logs = self._histories if self.passing is None else [*self._histories, self.passing]
        return all([await self._vote_in(history, max(0.0, by_s - trio.current_time())) for history in logs])

    async def _vote_in(self, history: History, within_s: float) -> bool:
        """True if all come to vote in a log, by their own accounts and the leader's list, and know this guaranteed; or
        if it is a log that has gone meanwhile."""
        ends: list[int] = []

        def vote(found: Statuses) -> bool:
            if history not in self._histories and history is not self.passing:
                return True
            if not _are_voters(self._cluster, found):
                ends.clear()
                return False
            ends.append(max(fields["last_id"] for fields in found.values()))
            return all(fields["guaranteed_id"] >= ends[0] for fields in found.values())

        return bool(await self._until(vote, within_s, history))


def _set_aside(folder: Path) -> list[Path]:
    return list(folder.glob("lost-*"))


def _are_voters(cluster: Cluster, found: Statuses) -> bool:
    voters = [
        {member["id"] for member in fields["members"] if member["role"] == "VOTER"}
        for fields in found.values() if fields["state"] == "leader"
    ]
    return found.keys() == cluster.servers.keys() and len(voters) == 1 and voters[0] == cluster.servers.keys() and all(
        fields["status"] == "VOTING" and not fields["damaged"] for fields in found.values()
    )


def _all_know_more(cluster: Cluster, found: Statuses, old: Held) -> bool:
    return len(found) == len(cluster.servers) and all(
        fields["fully_replicated_id"] > old.last_id for fields in found.values()
    )


def _others_hold(cluster: Cluster, found: Statuses, id: int, now: Held) -> bool:
    others = {other: found[other] for other in cluster.others(id) if other in found}
    terms = {fields["term"] for fields in others.values()}
    return (
        len(others) == len(cluster.servers) - 1
        and len(terms) == 1 and terms.pop() >= now.term
        and sorted(fields["state"] for fields in others.values()) == ["leader"] + ["passive"] * (len(others) - 1)
        and all(fields["guaranteed_id"] >= now.last_id for fields in others.values())
    )
