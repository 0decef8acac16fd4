"""Processor time that processes have used, from `/proc/PID/task/*/schedstat` (nanoseconds; `/proc/PID/stat` counts
ticks of 10 ms), and how much of it an append takes.

What servers use from the start of a load process to its end is divided by all its appends, those before its clock
started included: meanwhile it was their only work. While the load imports its modules they have none. The first sample
is taken when the load process starts, so the servers' own start is not in it.

The load's own processor time from its start on has its imports in it, as much as a second of appends takes. So its
part is taken from the middle (30 to 90 % of its life): as many times the servers' time, as it used then for each
second that the servers used.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
#: Seconds between two samples. A load takes as long to end after its last append.
EVERY_S = 0.05
#: The middle of a load's life, as parts of it.
MIDDLE = (0.3, 0.9)


@dataclass(frozen=True, slots=True)
class Sample:
    """Nanoseconds that each process has used by ``at_s``."""

    at_s: float
    used_ns: dict[int, int]


@dataclass(frozen=True, slots=True)
class AnAppend:
    """Microseconds of processor time that an append takes: of all servers, of the one that used most (the leader), of
    each other one on average, and of the load."""

    servers: float
    leader: float
    follower: float
    load: float


def threads_ns(pid: int, proc: Path = PROC) -> dict[int, int]:
    """Nanoseconds that each thread of a process has used, by its id; {} for a process that has gone."""
    found = {}
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in (proc / str(pid) / "task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                found[int(thread.name)] = int((thread / "schedstat").read_text().split()[0])
    return found


def children(pid: int, proc: Path = PROC) -> list[int]:
    """Processes started by any thread of a process that has not gone."""
    found = []
    for file in (proc / str(pid) / "task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found += [int(child) for child in file.read_text().split()]
    return found


def tree(pid: int, proc: Path = PROC) -> list[int]:
    """A process and all that descend from it."""
    return [pid, *(below for child in children(pid, proc) for below in tree(child, proc))]


def arguments(pid: int, proc: Path = PROC) -> list[str]:
    """Command line of a process; [] for one that has gone."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return (proc / str(pid) / "cmdline").read_text().split("\0")[:-1]
    return []


class Meter:
    """Samples of processes. A thread that has ended counts as when last seen."""

    def __init__(self, proc: Path = PROC) -> None:
        self.samples: list[Sample] = []
        self._proc = proc
        self._seen: dict[int, dict[int, int]] = {}

    def sample(self, pids: Iterable[int]) -> None:
        """Add a sample of these processes."""
        used_ns = {}
        for pid in pids:
            seen = self._seen.setdefault(pid, {})
            seen.update(threads_ns(pid, self._proc))
            used_ns[pid] = sum(seen.values())
        self.samples.append(Sample(time.monotonic(), used_ns))


def an_append(samples: Sequence[Sample], servers: Sequence[Sequence[int]], load: int, appends: int) -> AnAppend | None:
    """Divide what the samples of a load's life show (see the module's head). ``servers``: the processes of each.
    Returns None if there is too little to divide."""
    if len(samples) < 2 or appends < 1:
        return None

    def used_ns(pids: Iterable[int], since: Sample, until: Sample) -> int:
        return sum(until.used_ns.get(pid, 0) - since.used_ns.get(pid, 0) for pid in pids)

    def at(part: float) -> Sample:  # Leaves out the last: the load may have ended before it.
        at_s = samples[0].at_s + part * (samples[-1].at_s - samples[0].at_s)
        return min(samples[:-1], key=lambda sample: abs(sample.at_s - at_s))

    spent = sorted((used_ns(pids, samples[0], samples[-1]) for pids in servers), reverse=True)
    middle = [at(part) for part in MIDDLE]
    of_servers = sum(used_ns(pids, *middle) for pids in servers)
    if of_servers <= 0:
        return None
    of_load = sum(spent) * used_ns([load], *middle) / of_servers
    followers = sum(spent[1:]) / max(1, len(spent) - 1)
    return AnAppend(*(round(ns / appends / 1000, 1) for ns in (sum(spent), spent[0], followers, of_load)))


def ended(process: subprocess.Popen[bytes], within_s: float) -> bool:
    """Wait for a process without asking again and again, as ``Popen.wait`` does with a timeout."""
    if process.poll() is None:
        descriptor = os.pidfd_open(process.pid)
        try:
            select.select([descriptor], [], [], within_s)
        finally:
            os.close(descriptor)
    return process.poll() is not None


def alive(pid: int) -> bool:
    """False once a process has ended, even if nobody has asked for its exit code yet."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that descend from it, and wait until they have gone."""
    below = tree(process.pid) if process.poll() is None else []
    for pid in below:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    while any(alive(pid) for pid in below):
        time.sleep(0.01)
