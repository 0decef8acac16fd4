"""Mutations of the rules of `alpo.rsm`, each of which its own tests must catch: the model under faults, or a test that
is named here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import test_rsm_crashes as crashes
import test_rsm_disputes as disputes
import test_rsm_odd_machines as odd
import test_rsm_replica as replicas
from some import some
from test_rsm_model import one_run, short_times

from alpo.errors import AlpoError, NotGuaranteed
from alpo.rsm import Replica
from alpo.rsm.folder import Folder, Sent
from alpo.rsm.hosted import COMMAND_ROOM, Copied, Hosted
from alpo.rsm.items import Decoder, Thawing
from alpo.rsm.kind import Kind
from alpo.rsm.loading import Cache, _fields, _frame, first_lsn
from alpo.rsm.machine import Outcome, Result
from alpo.rsm.snapshots import AnyFolder, Keeper, _write_parts
from alpo.testing import Broken

Patch = Callable[[pytest.MonkeyPatch], None]
Check = Callable[[pytest.MonkeyPatch, Path], object]
#: Most runs of the model until a mutation must have been caught.
RUNS = 60


def model(patch: pytest.MonkeyPatch, folder: Path, first: int = 0) -> None:
    """Run the model, from this seed on, until it finds something."""
    short_times(patch)
    for seed in range(first, first + RUNS):
        one_run(seed, folder / str(seed))


def without(test: Callable[..., object], *given: Any) -> Check:
    """A test that needs nothing but ``given``."""
    return lambda patch, folder: test(*given)


# -- snapshots ------------------------------------------------------------------------------------------------


def as_it_is_now(patch: pytest.MonkeyPatch) -> None:
    """A snapshot is of the machine as it is when its parts are written."""
    patch.setattr(Hosted, "copied", lambda self: Copied(self.user, self.lsn))


def granted_to_all(patch: pytest.MonkeyPatch) -> None:
    """A snapshot may be written by whoever asks, also while another writes one."""
    patch.setattr("alpo.rsm.machine.UPLOAD_STALE_MS", 0)


def never_taken_over(patch: pytest.MonkeyPatch) -> None:
    """A writer that has died keeps its grant."""
    patch.setattr("alpo.rsm.machine.UPLOAD_STALE_MS", 1 << 60)


def any_end_counts(patch: pytest.MonkeyPatch) -> None:
    """The digest of a snapshot is not compared with that of the machine."""
    patch.setattr(Hosted, "digest_bytes", lambda self, kept: Always())


class Always(bytes):
    """A digest like any other."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = bytes.__hash__


def unproved(patch: pytest.MonkeyPatch) -> None:
    """A snapshot is ended that the log, folded anew, does not give."""
    async def prove(*given: Any) -> None: ...

    patch.setattr("alpo.rsm.snapshots.prove", prove)


def trimmed_unproved(patch: pytest.MonkeyPatch) -> None:
    """A trim follows on snapshots that nobody has proved."""
    async def is_sound(*given: Any) -> bool:
        return True

    patch.setattr(Keeper, "_is_sound", is_sound)


def without_a_beat(patch: pytest.MonkeyPatch) -> None:
    """A writer whose proof is slow loses its grant."""
    patch.setattr("alpo.rsm.snapshots.BEAT_S", 1e9)


def nothing_kept(patch: pytest.MonkeyPatch) -> None:
    """Processes that differ stop, and the log is trimmed by the other side."""
    async def keep_log(*given: Any) -> bool:
        return False

    patch.setattr(Replica, "_keep_log", keep_log)


def begun_where_the_other_side_says(patch: pytest.MonkeyPatch) -> None:
    """A newcomer begins at the last snapshot though two sides differ."""
    from alpo.rsm.loading import cursor_lsn

    async def lsn(log: Any, name: str) -> int:
        return 0 if name == disputes.AGREED else await cursor_lsn(log, name)

    patch.setattr("alpo.rsm.loading.cursor_lsn", lsn)


def no_decision(patch: pytest.MonkeyPatch) -> None:
    """Processes that differ stop, whatever was decided since."""
    async def last_judgement(*given: Any) -> None: ...

    patch.setattr("alpo.rsm.replica.last_judgement", last_judgement)


def any_decision(patch: pytest.MonkeyPatch) -> None:
    """A decision is not for one snapshot, and not to be taken back."""
    async def last_judgement(*given: Any) -> bool:
        return True

    patch.setattr("alpo.rsm.replica.last_judgement", last_judgement)


def the_wrong_go_on(patch: pytest.MonkeyPatch) -> None:
    """A decision is nothing to those whose snapshot is set aside."""
    notice = Replica._notice

    def careless(self: Replica[Any], result: Result) -> None:
        if result.outcome is not Outcome.JUDGED:
            notice(self, result)

    patch.setattr(Replica, "_notice", careless)


def read_meanwhile(patch: pytest.MonkeyPatch) -> None:
    """A machine that differs is read while it is not known who is right."""
    dispute = Folder.dispute

    def careless(self: Folder[Any, Any], end_lsn: int, agrees: bool, begin_lsn: int = 0) -> None:
        try:
            dispute(self, end_lsn, agrees, begin_lsn)
        finally:
            self._disputed = False

    patch.setattr(Folder, "dispute", careless)


def an_end_of_other_parts(patch: pytest.MonkeyPatch) -> None:
    """An end that does not fit its parts is a word on the machine."""
    patch.setattr(Hosted, "_end", super(Hosted, Hosted)._end)


# -- trims ----------------------------------------------------------------------------------------------------


def trimmed_to_the_last(patch: pytest.MonkeyPatch) -> None:
    """The log is trimmed to the last snapshot, not to the one before it."""
    async def tidy(self: Keeper[Any]) -> None:
        machine = await self._folder.reach(0)
        if machine.snapshot is not None:
            await self._log.set_cursor(self._folder.kind.cursor, machine.snapshot.begin)
            await self._log.trim(machine.snapshot.end)

    patch.setattr(Keeper, "tidy", tidy)


def trimmed_before_the_end(patch: pytest.MonkeyPatch) -> None:
    """The log is trimmed as soon as a snapshot is granted."""
    async def early(folder: AnyFolder, sid: bytes, encoder: Any) -> None:
        machine = folder.machine
        if machine is not None and machine.upload is not None:
            await folder.log.trim(machine.upload.begin, force=True)
        await _write_parts(folder, sid, encoder)

    patch.setattr("alpo.rsm.snapshots._write_parts", early)


def trimmed_with_payloads_of_others(patch: pytest.MonkeyPatch) -> None:
    """Payloads of others are trimmed like all else."""
    tidy = Keeper.tidy

    async def careless(self: Keeper[Any]) -> None:
        machine = await self._folder.reach(0)
        foreign_lsn, machine.foreign_lsn = machine.foreign_lsn, 0
        try:
            await tidy(self)
        finally:
            machine.foreign_lsn = foreign_lsn

    patch.setattr(Keeper, "tidy", careless)


# -- loading --------------------------------------------------------------------------------------------------


def taken_for_empty(patch: pytest.MonkeyPatch) -> None:
    """A log whose beginning is gone is taken for one that begins there."""
    async def load(kind: Kind[Any], log: Any, cache: Any = None) -> Any:
        machine = kind.machine()
        machine.lsn = await first_lsn(log) - 1
        return machine

    patch.setattr("alpo.rsm.folder.load", load)


def forgets(name: str, value: Any) -> Patch:
    """A register that a snapshot does not hold."""
    def mutate(patch: pytest.MonkeyPatch) -> None:
        set_all = Hosted.set_all_registers

        def set_most(self: Hosted[Any], registers: tuple[Any, ...]) -> None:
            set_all(self, registers)
            setattr(self, name, value() if callable(value) else value)

        patch.setattr(Hosted, "set_all_registers", set_most)

    mutate.__name__ = f"forgets_{name}"
    return mutate


def no_digest_of_what_begins(patch: pytest.MonkeyPatch) -> None:
    """A process that was loaded from a snapshot does not know the digest as of its begin."""
    patch.setattr(Hosted, "take", lambda self, user, digest: setattr(self, "user", user))


def any_parts(patch: pytest.MonkeyPatch) -> None:
    """A snapshot counts though its items are not those of its digest, or are cut off."""
    def machine(self: Thawing[Any], parts: int, chain: bytes, digest: bytes) -> Any:
        made = self._machine
        assert made is not None
        made.take(self._items.user, digest)
        return made

    patch.setattr(Decoder, "digest", property(lambda self: Always()))
    patch.setattr(Thawing, "machine", machine)


def any_cache(patch: pytest.MonkeyPatch) -> None:
    """A cache is taken whatever cluster it is of."""
    thawed = Cache._thawed

    async def careless(self: Cache[Any], file: Any, cluster: bytes) -> Any:
        file.seek(len(self._kind.cache_magic))
        _, cluster, _ = _fields(_frame(file))
        file.seek(0)
        return await thawed(self, file, cluster)

    patch.setattr(Cache, "_thawed", careless)


# -- versions -------------------------------------------------------------------------------------------------


def older_commands_too(patch: pytest.MonkeyPatch) -> None:
    """A command for an older version than the one in force is applied."""
    apply = Hosted.apply

    def careless(self: Hosted[Any], lsn: int, time_ms: int, payload: bytes, term: int = 0) -> Result:
        if payload[:4] == b"\xc1\x52\x01\x01" and len(payload) >= COMMAND_ROOM:
            wanted = max(self.version, int.from_bytes(payload[4:6], "big"))
            payload = payload[:4] + wanted.to_bytes(2, "big") + payload[6:]
        return apply(self, lsn, time_ms, payload, term)

    patch.setattr(Hosted, "apply", careless)


def versions_by_ones_own_clock(patch: pytest.MonkeyPatch) -> None:
    """Each process judges by its own clock, which is fast or slow, whether a newer version may begin."""
    take, machines = Hosted._take_version, count()
    fast_ms: dict[int, int] = {}

    def early(self: Hosted[Any], version: int) -> Result:
        time_ms = self.time_ms
        self.time_ms += fast_ms.setdefault(id(self), next(machines) % 5 * 2000 - 4000)
        try:
            return take(self, version)
        finally:
            self.time_ms = time_ms

    patch.setattr(Hosted, "_take_version", early)


def a_version_at_once(patch: pytest.MonkeyPatch) -> None:
    """A newer version begins though commands for the older one still come."""
    patch.setattr(Hosted, "_want", lambda self, version: None)


# -- commands -------------------------------------------------------------------------------------------------


def reads_without_asking(patch: pytest.MonkeyPatch) -> None:
    """A read is answered from what is folded, without a question for the end."""
    async def now(self: Folder[Any, Any], until_s: float | None = None) -> Any:
        return await self.reach(0)

    patch.setattr(Folder, "now", now)


def sent_again(patch: pytest.MonkeyPatch) -> None:
    """A command whose outcome is unknown is sent again as a new one."""
    run = Replica.run

    async def again(self: Replica[Any], command: bytes) -> Any:
        try:
            return await run(self, command)
        except NotGuaranteed:
            return await run(self, command)

    patch.setattr(Replica, "run", again)


def the_last_answer(patch: pytest.MonkeyPatch) -> None:
    """A command is given the result of the next one of its process."""
    mine = Folder._mine

    def late(self: Folder[Any, Any], machine: Any, record: Any, result: Result) -> None:
        mine(self, machine, record, getattr(self, "_late", result) if result.outcome is Outcome.DONE else result)
        if result.outcome is Outcome.DONE:
            self._late = result  # type: ignore[attr-defined]

    patch.setattr(Folder, "_mine", late)


def jumped_over_is_done(patch: pytest.MonkeyPatch) -> None:
    """A command that the fold has jumped over is answered."""
    from alpo.rsm.replica import _judged as real

    def judged(sent: Sent, machine: Any, lsn: int) -> Result:
        return Result(Outcome.DONE, lsn) if sent.result is None else real(sent, machine, lsn)

    patch.setattr("alpo.rsm.replica._judged", judged)


def the_time_of_the_last_command(patch: pytest.MonkeyPatch) -> None:
    """A command's time is that of the last one, if another payload came in between at its own time."""
    apply = Hosted.apply

    def stale(self: Hosted[Any], lsn: int, time_ms: int, payload: bytes, term: int = 0) -> Result:
        if time_ms == self.time_ms:
            self._told_ms = time_ms
        return apply(self, lsn, time_ms, payload, term)

    patch.setattr(Hosted, "apply", stale)


def registers(patch: pytest.MonkeyPatch, folder: Path) -> None:
    odd.test_registers_come_with_a_snapshot_and_a_cache(folder)


MUTATIONS: dict[Patch, Check] = {
    as_it_is_now: model,
    granted_to_all: without(crashes.test_only_one_writes),
    never_taken_over: without(crashes.test_another_takes_over, "after begin"),
    any_end_counts: without(replicas.test_a_process_that_differs_stops_at_the_next_snapshot),
    unproved: without(disputes.test_no_snapshot_is_ended_that_the_log_does_not_give),
    trimmed_unproved: without(disputes.test_nothing_is_trimmed_behind_what_nobody_has_proved),
    without_a_beat: lambda patch, folder: disputes.test_a_slow_proof_keeps_the_grant(patch),
    nothing_kept: without(disputes.test_whoever_differs_keeps_the_log_from_where_it_agreed),
    begun_where_the_other_side_says: without(disputes.test_whoever_differs_keeps_the_log_from_where_it_agreed),
    no_decision: without(disputes.test_whoever_differs_keeps_the_log_from_where_it_agreed),
    any_decision: without(disputes.test_a_decision_is_taken_back),
    the_wrong_go_on: without(disputes.test_a_decision_is_taken_back),
    read_meanwhile: without(replicas.test_a_process_that_differs_stops_at_the_next_snapshot),
    an_end_of_other_parts: without(odd.test_an_end_that_does_not_fit_its_parts_stops_nobody),
    trimmed_to_the_last: model,
    trimmed_before_the_end: model,
    trimmed_with_payloads_of_others: without(partial(crashes.crashed, foreign=True), 1 << 30, crashes.stops),
    taken_for_empty: model,
    forgets("wants", dict): registers,
    forgets("version", 1): registers,
    forgets("upload", None): model,
    forgets("snapshot", None): registers,
    forgets("previous", None): registers,
    forgets("command_bytes", 0): registers,
    forgets("foreign_lsn", 0): registers,
    forgets("invalid", 0): registers,
    no_digest_of_what_begins: model,
    any_parts: without(odd.test_a_snapshot_that_was_cut_off_is_none),
    any_cache: lambda patch, folder: odd.test_a_cache_of_another_cluster_is_ignored(folder),
    older_commands_too: without(odd.test_a_command_for_an_older_version_changes_nothing),
    versions_by_ones_own_clock: partial(model, first=4),
    a_version_at_once: model,
    reads_without_asking: model,
    sent_again: model,
    the_last_answer: model,
    jumped_over_is_done: without(crashes.test_a_command_that_was_jumped_over),
    the_time_of_the_last_command: without(odd.test_the_time_of_a_command_is_its_entrys_beside_other_payloads),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", some(range(len(MUTATIONS))), ids=[patch.__name__ for patch in MUTATIONS])
def test_a_mutation_is_caught(number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mutate, check = [*MUTATIONS.items()][number]
    mutate(monkeypatch)
    with pytest.raises((AssertionError, AlpoError, Broken, pytest.fail.Exception, BaseExceptionGroup)) as caught:
        check(monkeypatch, tmp_path)
    assert not any(isinstance(each, TypeError | AttributeError | NameError) for each in leaves(caught.value))


def leaves(error: BaseException) -> list[BaseException]:
    """The errors in a group of errors, or this one."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for each in error.exceptions for leaf in leaves(each)]
