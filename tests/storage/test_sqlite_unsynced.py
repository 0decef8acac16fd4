"""Files that a start finds may never have been synced: a killed process left them in the kernel's memory. A server
tells nothing of them before they are on disk. A power cut after that neither takes anything back nor makes a sound
store look damaged (R14, R31)."""

from __future__ import annotations

import errno
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from dying import die_at
from power import Power
from sound_log import fill
from store_kit import INCARNATION, SERVER, LogBuilder, SqliteBench, row, table, write

from alpo.core.disk import Boot, StartState
from alpo.core.members import Identity, Member, MemberList, Role, StartStatus
from alpo.storage import founding, schema
from alpo.storage.boot import read_boot
from alpo.storage.interface import DamagedStore, StoreError
from alpo.storage.offline import open_source
from alpo.storage.sqlite import SqliteStore

SECTOR = 512
#: Entries that were synced, and of a commit whose fsync never came to its end.
SYNCED, LEFT = 5, 3
_FILES = ("alpo.db", "alpo.db-wal")


class Killed(NamedTuple):
    """A data directory that a kill -9 left between the write of a commit and its fsync. ``log`` goes on behind it."""

    directory: Path
    power: Power
    log: LogBuilder


def _open(directory: Path) -> SqliteStore:
    return SqliteStore.open(directory, SERVER, make_incarnation=lambda: INCARNATION)


@pytest.fixture
def power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Power]:
    found = Power(tmp_path / "disk", monkeypatch)
    yield found
    found.close()


@pytest.fixture
def killed(tmp_path: Path, power: Power) -> Killed:
    before, directory = tmp_path / "before", tmp_path / "disk" / "data"
    store, log = _open(before), LogBuilder()
    me = Member(SERVER, "127.0.0.1:7100", 0, INCARNATION, Role.VOTER)
    members = MemberList.of([me])
    start = StartState(
        StartStatus.STARTED, (Identity(SERVER, INCARNATION),), b"", members.digest(), members.to_plain(), {}
    )
    store.commit([write(log.datas(SYNCED), start=start, table=table(SYNCED, [row("a")]))])
    synced = {name: (before / name).read_bytes() for name in _FILES}
    store.commit([write(log.datas(LEFT, term=4), vote=SERVER)])
    directory.mkdir(parents=True)
    for name in _FILES:
        (directory / name).write_bytes((before / name).read_bytes())
    store.close()
    power.synced(directory, synced)
    return Killed(directory, power, log)


def _found(directory: Path) -> Boot:
    """The state that a server would start from, with all entries of the log checked to be there."""
    store = _open(directory)
    try:
        boot = store.boot()
        assert [entry.id for entry in store.replay(1)] == list(range(1, boot.last_id + 1))
    finally:
        store.close()
    return boot


def test_the_disk_of_these_tests_forgets_what_was_not_synced(killed: Killed, tmp_path: Path) -> None:
    assert _found(killed.power.cut(tmp_path / "cut") / "data").last_id == SYNCED


def test_what_a_start_has_read_is_there_after_a_power_cut(killed: Killed, tmp_path: Path) -> None:
    store = _open(killed.directory)
    told = store.boot()
    after = killed.power.cut(tmp_path / "cut")
    store.close()
    assert (told.last_id, told.term, told.vote) == (SYNCED + LEFT, 4, SERVER)
    assert _found(after / "data") == told


def test_a_power_cut_in_the_next_commit_leaves_a_sound_store(killed: Killed, tmp_path: Path) -> None:
    """The disk may have written the new frames, and not the frames before them, which were never synced."""
    wal = killed.directory / "alpo.db-wal"
    before = wal.stat().st_size
    store = _open(killed.directory)
    store.commit([write(killed.log.datas(1, term=4), runs=[])])
    store.commit([write(killed.log.datas(1, term=4), runs=[])])
    after = killed.power.cut(tmp_path / "cut", lambda synced, now: synced.ljust(before, b"\0")[:before] + now[before:])
    store.close()
    assert _found(after / "data").last_id >= SYNCED + LEFT


@pytest.mark.parametrize("seed", range(20))
def test_whatever_part_of_the_next_commits_is_on_disk(killed: Killed, tmp_path: Path, seed: int) -> None:
    """Sector by sector, a few or many of them missing."""
    rng = random.Random(seed)
    missing = rng.choice((0.03, 0.5))

    def some(synced: bytes, now: bytes) -> bytes:
        synced = synced.ljust(len(now), b"\0")
        return b"".join(
            (synced if rng.random() < missing else now)[at : at + SECTOR] for at in range(0, len(now), SECTOR)
        )

    store = _open(killed.directory)
    store.commit([write(killed.log.datas(1 + seed % 3, term=4), runs=[])])
    after = killed.power.cut(tmp_path / "cut", some)
    store.close()
    assert _found(after / "data").last_id >= SYNCED + LEFT


def _dies_before_sync(number: int, directory: Path) -> bool:
    """Make a store in a process that is gone before its ``number``th sync; False if it came to its end before."""
    def body() -> None:
        left, sync = number, os.fsync

        def counted(fd: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os._exit(9)
            sync(fd)

        os.fsync = counted
        SqliteStore.open(directory, SERVER).close()

    return die_at(1 << 30, body)


def test_a_store_whose_making_was_cut_short_is_told_of_only_once_it_is_on_disk(power: Power, tmp_path: Path) -> None:
    """A store tells its incarnation only when it is on disk: a power cut would change it. Nothing that the dead process
    synced counts here."""
    died, number, taken_up = True, 0, 0
    while died:
        number += 1
        directory = tmp_path / "disk" / str(number) / "made" / "data"
        died = _dies_before_sync(number, directory)
        taken_up += died and (directory / schema.DB_NAME).exists()
        store = SqliteStore.open(directory, SERVER)
        told = store.boot().me
        after = power.cut(tmp_path / f"cut {number}")
        store.close()
        assert _found(after / str(number) / "made" / "data").me == told
    assert number > 5 and taken_up, "one of them died when the file had its name and nobody had synced that"


def test_a_wal_that_stayed_behind_is_gone_before_a_store_takes_its_place(
    power: Power, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A WAL that stayed behind must go, because SQLite would take it for the new file's own."""
    directory = tmp_path / "disk" / "data"
    _open(directory).close()
    (directory / "alpo.db").unlink()
    (directory / "alpo.db-wal").write_bytes(b"of another store")
    power.synced(directory, {"alpo.db-wal": b"of another store"})
    seen = []
    replace = Path.replace

    def watched(self: Path, target: Path) -> Path:
        seen.append(sorted(path.name for path in power.cut(tmp_path / "cut").joinpath("data").iterdir()))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", watched)
    _open(directory).close()
    assert len(seen) == 1 and "alpo.db-wal" not in seen[0]


def test_recover_goes_on_only_from_what_is_on_disk(power: Power, tmp_path: Path) -> None:
    directory = tmp_path / "disk" / "data"
    bench = SqliteBench(tmp_path / "before")
    fill(bench)
    directory.mkdir(parents=True)
    for name in _FILES:
        (directory / name).write_bytes((bench.directory / name).read_bytes())
    bench.store.close()
    with founding.recovery(directory) as found:
        after = power.cut(tmp_path / "cut")
        with open_source(after / "data" / schema.DB_NAME) as source, source.snapshot() as db:
            assert found.remains.boot == read_boot(db, source.path)


def _refuse(monkeypatch: pytest.MonkeyPatch, call: str, number: int, *refused: Path) -> None:
    """Let `os.fsync` or `os.open` fail for these directories from now on, with this errno."""
    original = getattr(os, call)

    def refusing(file: Any, *arguments: Any, **options: Any) -> Any:
        path = Path(file) if call == "open" else Path(f"/proc/self/fd/{file}").readlink()
        if path in refused:
            raise OSError(number, os.strerror(number), str(path) if call == "open" else None)
        return original(file, *arguments, **options)

    monkeypatch.setattr(os, call, refusing)


_REFUSALS = [
    ("fsync", errno.EINVAL), ("fsync", errno.EROFS), ("fsync", errno.ENOTSUP), ("open", errno.EACCES),
    ("open", errno.EPERM),
]


@pytest.mark.parametrize(("call", "number"), _REFUSALS)
def test_directories_from_before_that_cannot_be_synced_end_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    (tmp_path / "parent" / "data").mkdir(parents=True)
    _refuse(monkeypatch, call, number, *tmp_path.parents, tmp_path)
    for directory in (tmp_path / "parent" / "data", tmp_path / "parent" / "made" / "just now" / "data"):
        for _ in range(2):
            _open(directory).close()


@pytest.mark.parametrize(("call", "number"), _REFUSALS)
@pytest.mark.parametrize("refused", ["", "made", "made/too", "made/too/data"])
def test_of_what_the_start_has_made_all_is_synced_or_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, refused: str
) -> None:
    _refuse(monkeypatch, call, number, tmp_path / refused)
    with pytest.raises(StoreError, match=re.escape(f"{tmp_path / refused}: ")):
        _open(tmp_path / "made" / "too" / "data")


@pytest.mark.parametrize(("call", "number"), _REFUSALS)
def test_the_directory_that_the_data_directory_is_in_is_synced_unless_nothing_can_be_made_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """A process that was killed may have made the data directory. It did not where it must not write."""
    directory = tmp_path / "parent" / "data"
    directory.mkdir(parents=True)
    _refuse(monkeypatch, call, number, directory.parent)
    with pytest.raises(StoreError, match=re.escape(f"{directory.parent}: cannot be synced")):
        _open(directory)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != directory.parent)
    _open(directory).close()


def test_a_disk_error_above_is_never_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parent" / "data").mkdir(parents=True)
    _refuse(monkeypatch, "fsync", errno.EIO, tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(StoreError, match=re.escape(f"{tmp_path}: cannot be synced: Input/output error")):
        _open(tmp_path / "parent" / "data")


@pytest.mark.parametrize("name", ["alpo.db-wal", "alpo.db", "data", "disk"])
def test_a_sync_that_fails_at_the_start_is_an_error_and_no_damage(killed: Killed, name: str) -> None:
    killed.power.fail(name)
    for start in (_open, lambda directory: founding.recovery(directory).__enter__()):
        with pytest.raises(StoreError, match=rf"{name}: .*Input/output error") as raised:
            start(killed.directory)
        assert not isinstance(raised.value, DamagedStore), "nothing is set aside for it"
    assert {path.name for path in killed.directory.iterdir()} == {*_FILES, "alpo.lock"}
    killed.power.fail("")
    assert _found(killed.directory).last_id >= SYNCED, "and the lock was given back"


def test_after_a_sync_that_failed_only_what_the_disk_holds_is_read(killed: Killed, tmp_path: Path) -> None:
    """Linux marks such a file clean: the next sync succeeds, and writes nothing."""
    killed.power.fail("alpo.db-wal")
    with pytest.raises(StoreError):
        _open(killed.directory)
    killed.power.fail("")
    store = _open(killed.directory)
    told = store.boot()
    after = killed.power.cut(tmp_path / "cut")
    store.close()
    assert told.last_id == SYNCED and _found(after / "data") == told
