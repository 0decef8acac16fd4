"""Reports of processes that share a state, held against the log that they share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from alpo.client.record import Record
from alpo.rsm.machine import Outcome, Result, time_ms_of
from alpo.state.codec import MAGIC, Command, decode
from alpo.state.machine import Machine


class Wrong(AssertionError):
    """A report that the log contradicts."""


class Write(NamedTuple):
    """A write that ended: ``mark``, its value, is in no other; ``lsn`` None: refused; -1: nobody knows."""

    who: str
    name: str
    mark: bytes
    lsn: int | None
    since_lsn: int
    until_lsn: int
    absent: bool


class Fetched(NamedTuple):
    """A fetch: ``version`` was told as of ``lsn``; ``since_lsn`` had been told to somebody before it began."""

    who: str
    name: str
    version: int
    lsn: int
    since_lsn: int


class Row(NamedTuple):
    """A row that was written at ``lsn`` under a lock's token."""

    token: int
    lsn: int


class Answer(NamedTuple):
    """An operation on agent "x", and what was told of it by the leader with this token, between two LSNs."""

    operation: str
    told: bool
    token: int
    since_lsn: int
    until_lsn: int


class Folded(NamedTuple):
    """The digest of all variables in one process, as of ``lsn``."""

    who: str
    lsn: int
    digest: int


Report: TypeAlias = Write | Fetched | Row | Folded | Answer


# -- judgement ------------------------------------------------------------------------------------------------


class Fold:
    """The whole log, folded by itself: the result of each LSN, and the versions of each name."""

    def __init__(self, records: Sequence[Record], names: set[str]) -> None:
        self.machine = Machine()
        self.results: list[Result] = [Result(Outcome.FOREIGN, 0)]
        self.digests = [0]
        self.puts: dict[bytes, list[int]] = {}
        #: Name -> its version as of each LSN.
        self.versions: dict[str, list[int]] = {name: [0] for name in names}
        for record in records:
            result = self.machine.apply(record.lsn, time_ms_of(record.time), record.payload)
            self.results.append(result)
            self.digests.append(self.machine.digest)
            done = decode(record.payload) if record.payload[:2] == MAGIC else None
            if result.outcome is Outcome.DONE and isinstance(done, Command):
                for op in done.ops:
                    if op[0] == 0:
                        self.puts.setdefault(op[2], []).append(record.lsn)
            for name, versions in self.versions.items():
                cell = self.machine.cells.get(name)
                versions.append(0 if cell is None else cell.version)


def judge(reports: Sequence[Report], records: Sequence[Record], added: list[int], add_attempts: int) -> None:
    """Hold every report against the log; ``added``: sums that were told, of so many attempts. Raises `Wrong`."""
    names = {report.name for report in reports if isinstance(report, Write | Fetched)} | {"reg", "reg\0x"}
    fold = Fold(records, names)
    for report in reports:
        if isinstance(report, Write):
            _judge_write(fold, report)
        elif isinstance(report, Folded):
            if fold.digests[report.lsn] != report.digest:
                raise Wrong(f"{report}: the fold of the whole log is {fold.digests[report.lsn]}")
        elif isinstance(report, Answer):
            _judge_answer(fold, report)
        elif isinstance(report, Fetched):
            if report.lsn < report.since_lsn:
                raise Wrong(f"{report}: older than what somebody had been told before")
            if fold.versions[report.name][report.lsn] != report.version:
                raise Wrong(f"{report}: the log says version {fold.versions[report.name][report.lsn]}")
    _judge_versions(fold, records)
    _judge_count(fold, added, add_attempts)
    rows = sorted((report for report in reports if isinstance(report, Row)), key=lambda row: row.lsn)
    for before, after in pairwise(rows):
        if before.token > after.token:
            raise Wrong(f"{after}: written under an older token than {before}")


def _judge_write(fold: Fold, write: Write) -> None:
    done = fold.puts.get(write.mark, [])
    if len(done) > 1:
        raise Wrong(f"{write}: done {len(done)} times, at {done}")
    if write.lsn is None and done:
        raise Wrong(f"{write}: told as refused, and done at {done[0]}")
    if write.lsn is not None and write.lsn > 0 and done != [write.lsn]:
        raise Wrong(f"{write}: told as done, and the log says {done}")
    if write.lsn is None and write.absent and write.until_lsn:
        versions = fold.versions[write.name][write.since_lsn : write.until_lsn + 1]
        if versions and not any(versions):
            raise Wrong(f"{write}: told that it is there, and it was absent all the time")


def _judge_answer(fold: Fold, answer: Answer) -> None:
    """An answer was right at some moment between question and answer, while its leader led."""
    before = {"Admit": not answer.told, "Readmit": answer.told, "Remove": answer.told}[answer.operation]
    header, agent = fold.versions["reg"], fold.versions["reg\0x"]
    moments = range(answer.since_lsn, answer.until_lsn + 1)
    if not any(header[lsn] == answer.token and (agent[lsn] > 0) == before for lsn in moments):
        raise Wrong(f"{answer}: that was so at no moment; agent {agent[answer.since_lsn :]}, header {header[-3:]}")


def _judge_versions(fold: Fold, records: Sequence[Record]) -> None:
    """No version was stored upon twice."""
    won: dict[tuple[str, int], Any] = {}
    for record in records:
        done = decode(record.payload) if record.payload[:2] == MAGIC else None
        if not isinstance(done, Command) or fold.results[record.lsn].outcome is not Outcome.DONE:
            continue
        written = {op[1] for op in done.ops if op[0] in (0, 1, 3)}
        for by, name, lsn in done.guards:
            if by == 0 and lsn and name in written:
                if (name, lsn) in won:
                    raise Wrong(f"{name!r} at version {lsn} was stored upon at {won[name, lsn]} and {record.lsn}")
                won[name, lsn] = record.lsn
        for op in done.ops:
            owner, mark, _ = op[1].partition("\0")
            if mark and not any(name == owner and lsn for _, name, lsn in done.guards):
                raise Wrong(f"the row {op[1]!r} was written at {record.lsn} without a fence")


def _judge_count(fold: Fold, added: list[int], add_attempts: int) -> None:
    cell = fold.machine.cells.get("count")
    total = int(cell.value) if cell is not None else 0
    if len(set(added)) != len(added):
        raise Wrong(f"two were told the same sum: {sorted(added)}")
    if not len(added) <= total <= add_attempts:
        raise Wrong(f"{len(added)} were acknowledged, {add_attempts} tried, and the count is {total}")
