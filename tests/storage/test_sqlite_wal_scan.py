"""A WAL that was damaged never opens as a log with fewer commits than were synced; a torn one opens (R31)."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_kit import SERVER, LogBuilder, SqliteBench, write

from alpo.storage.filescan import heeded_pages
from alpo.storage.interface import DamagedStore, LostCommits, Rest, StoreError
from alpo.storage.sqlite import SqliteStore
from alpo.storage.wal import LULL_BYTES

COMMITS = 200
HEADER, FRAME = 32, 24 + 4096
#: Offsets within a frame.
FIELDS = {"page": 3, "commit": 6, "salt 1": 9, "salt 2": 14, "sum 1": 16, "sum 2": 23, "data": 24, "data end": 4119}


class Left(NamedTuple):
    """Files that a kill -9 left: ``alpo.db``, its WAL, and the numbers (from 1) of the frames that end commits."""

    db: bytes
    wal: bytes
    ends: list[int]


def _left(store: SqliteStore, directory: Path) -> Left:
    db, wal = (directory / "alpo.db").read_bytes(), (directory / "alpo.db-wal").read_bytes()
    frames = [struct.unpack_from(">IIII", wal, at) for at in range(HEADER, len(wal), FRAME)]
    salts = struct.unpack_from(">II", wal, 16)
    return Left(db, wal, [at for at, (_, pages, *own) in enumerate(frames, 1) if pages and tuple(own) == salts])


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """One entry a commit, 1 … 200, all of them in the WAL."""
    directory = tmp_path_factory.mktemp("left")
    store = SqliteStore.open(directory, SERVER)
    log = LogBuilder()
    for id in range(1, COMMITS + 1):
        store.commit([write([log.data()], runs=[(1, 1)] if id == 1 else [])])
    found = _left(store, directory)
    store.close()
    assert len(found.ends) == COMMITS
    return found


def _last_id(directory: Path) -> int:
    store = SqliteStore.open(directory, SERVER)
    try:
        assert [e.id for e in store.replay(1)] == list(range(1, store.boot().last_id + 1))
        return store.boot().last_id
    finally:
        store.close()


def _opened(left: Left, wal: bytes) -> int | type[StoreError]:
    """The last entry of a store with this WAL, or the error. A refused store was not changed."""
    directory = Path(tempfile.mkdtemp())
    try:
        (directory / "alpo.db").write_bytes(left.db)
        (directory / "alpo.db-wal").write_bytes(wal)
        try:
            return _last_id(directory)
        except StoreError as error:
            assert "alpo.db" in str(error)
            if isinstance(error, LostCommits):
                assert (directory / "alpo.db").read_bytes() == left.db
                assert (directory / "alpo.db-wal").read_bytes() == wal
            return type(error)
    finally:
        shutil.rmtree(directory)


def _changed(wal: bytes, at: int, mask: int) -> bytes:
    return wal[:at] + bytes([wal[at] ^ mask]) + wal[at + 1 :]


def test_what_a_kill_left_is_whole(left: Left) -> None:
    assert _opened(left, left.wal) == COMMITS


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("commit", [1, 2, 100, 198, 199])
def test_a_flip_before_the_last_commit(left: Left, field: str, commit: int) -> None:
    at = HEADER + (left.ends[commit - 1] - 1) * FRAME + FIELDS[field]
    for bit in range(8):
        assert _opened(left, _changed(left.wal, at, 1 << bit)) is LostCommits, bit


@pytest.mark.parametrize("at", range(HEADER))
def test_a_flip_in_the_header(left: Left, at: int) -> None:
    assert _opened(left, _changed(left.wal, at, 0x10)) is LostCommits
    assert _opened(left, _changed(left.wal, at, 0x01)) is LostCommits


def test_a_flip_in_the_header_before_a_single_commit(left: Left) -> None:
    wal = left.wal[: HEADER + left.ends[0] * FRAME]
    assert _opened(left, wal) == 1
    assert _opened(left, _changed(wal, 20, 1)) is LostCommits


@pytest.mark.parametrize("field", FIELDS)
def test_a_flip_in_the_last_commit_looks_like_a_torn_one(left: Left, field: str) -> None:
    """The limit that docs/data-file.md states."""
    at = HEADER + (left.ends[-1] - 1) * FRAME + FIELDS[field]
    assert _opened(left, _changed(left.wal, at, 1)) == COMMITS - 1


def test_a_region_of_many_frames_damaged(left: Left) -> None:
    begin, end = HEADER + 100 * FRAME + 1000, HEADER + 110 * FRAME + 3000
    for filling in (bytes(end - begin), os.urandom(end - begin)):
        assert _opened(left, left.wal[:begin] + filling + left.wal[end:]) is LostCommits


@settings(deadline=None, max_examples=60)
@given(cut=st.integers(0, HEADER + 400 * FRAME))
def test_a_wal_cut_anywhere_opens_with_the_commits_that_it_holds(left: Left, cut: int) -> None:
    frames = max(0, min(cut, len(left.wal)) - HEADER) // FRAME
    held = sum(1 for end in left.ends if end <= frames)
    assert _opened(left, left.wal[:cut]) in ((held,) if held else (0, DamagedStore))


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_torn_last_commit_opens(left: Left, data: st.DataObject) -> None:
    """A store opens whichever 512-byte blocks of the last commit have reached the disk; the rest is unchanged."""
    begin = HEADER + left.ends[-2] * FRAME
    torn = bytearray(left.wal)
    for at in range(begin - begin % 512, len(torn), 512):
        if data.draw(st.booleans()):
            low = max(begin, at)
            torn[low : at + 512] = bytes(len(torn[low : at + 512]))
    assert _opened(left, bytes(torn)) == (COMMITS if torn == left.wal else COMMITS - 1)


def _may_lose(left: Left, damaged: bytes) -> bool:
    """True if the damage reaches the last commit, or removes the mark of the commit before."""
    last = HEADER + left.ends[-2] * FRAME
    mark = HEADER + (left.ends[-2] - 1) * FRAME + 4
    return damaged[last:] != left.wal[last:] or damaged[mark : mark + 4] == bytes(4)


@settings(deadline=None, max_examples=150)
@given(
    flips=st.lists(
        st.tuples(
            st.one_of(st.integers(0, 10**6), st.integers(0, 5 * FRAME).map(lambda back: -back - 1)),
            st.integers(1, 255),
        ),
        min_size=1, max_size=4,
    )
)
def test_random_flips_never_open_with_fewer_commits(left: Left, flips: list[tuple[int, int]]) -> None:
    damaged = bytearray(left.wal)
    for at, mask in flips:
        damaged[at % len(damaged)] ^= mask
    found = _opened(left, bytes(damaged))
    if isinstance(found, int) and found < COMMITS:
        assert _may_lose(left, bytes(damaged)), found


def test_frames_left_from_before_the_wal_was_begun_anew_are_no_commits(tmp_path: Path) -> None:
    """Old frames beyond the new ones, and damage in them, mean nothing."""
    store = SqliteStore.open(tmp_path / "data", SERVER)
    log = LogBuilder()
    store.commit([write([log.data()])])
    for _ in range(50):
        store.commit([write([log.data()], runs=[])])
    store.checkpoint(Rest.IDLE)
    for _ in range(10):
        store.commit([write([log.data()], runs=[])])
    left = _left(store, tmp_path / "data")
    store.close()
    frames = (len(left.wal) - HEADER) // FRAME
    assert left.ends[-1] <= 20 < frames
    assert _opened(left, left.wal) == 61
    last, old = (HEADER + (frame - 1) * FRAME + 100 for frame in (left.ends[-1], frames - 5))
    assert _opened(left, _changed(left.wal, old, 1)) == 61
    assert _opened(left, _changed(left.wal, last, 1)) == 60
    assert _opened(left, _changed(left.wal, HEADER + 100, 1)) is LostCommits


def test_the_rest_of_a_commit_that_was_torn_earlier_is_no_commit(left: Left, tmp_path: Path) -> None:
    """A torn commit of many frames, over which a smaller one was written and torn too."""
    directory = tmp_path / "data"
    directory.mkdir()
    (directory / "alpo.db").write_bytes(left.db)
    (directory / "alpo.db-wal").write_bytes(left.wal)
    store = SqliteStore.open(directory, SERVER)
    log = LogBuilder(COMMITS + 1, COMMITS + 1)
    store.commit([write(log.datas(50, size=3000), runs=[])])
    whole = _left(store, directory)
    store.close()
    torn = _changed(whole.wal, HEADER + (left.ends[-1] + 20) * FRAME, 1)
    (directory / "alpo.db").write_bytes(whole.db)
    (directory / "alpo.db-wal").write_bytes(torn)
    store = SqliteStore.open(directory, SERVER)
    assert store.boot().last_id == COMMITS
    log = LogBuilder(COMMITS + 1, COMMITS + 1)
    store.commit([write(log.datas(5, size=3000), runs=[])])
    again = _left(store, directory)
    store.close()
    assert _opened(again, again.wal) == COMMITS + 5
    assert _opened(again, _changed(again.wal, HEADER + (left.ends[-1] + 1) * FRAME, 1)) == COMMITS


def test_without_the_index_all_is_found(left: Left, tmp_path: Path) -> None:
    (tmp_path / "alpo.db").write_bytes(left.db)
    (tmp_path / "alpo.db-wal").write_bytes(left.wal)
    (tmp_path / "alpo.db-shm").write_bytes(b"\xff" * 32768)
    assert _last_id(tmp_path) == COMMITS


def test_without_the_wal_nothing_is_made_up(sqlite: SqliteBench, tmp_path: Path) -> None:
    """A store without its WAL holds the entries of its file. One server alone cannot know that others are missing."""
    log = LogBuilder()
    sqlite.store.commit([write([log.data()])])
    sqlite.store.checkpoint(Rest.IDLE)
    sqlite.store.commit([write([log.data()], runs=[])])
    (tmp_path / "alpo.db").write_bytes(sqlite.path.read_bytes())
    assert _last_id(tmp_path) == 1


@pytest.mark.parametrize("at", [0, 5, 16, 60, 68])
def test_a_damaged_header_of_the_file(sqlite: SqliteBench, at: int) -> None:
    sqlite.store.commit([write(LogBuilder().datas(3))])
    sqlite.store.close()
    damaged = bytearray(sqlite.path.read_bytes())
    damaged[at] ^= 0xFF
    sqlite.path.write_bytes(damaged)
    with pytest.raises(StoreError, match=r"alpo\.db"):
        _last_id(sqlite.directory)


@pytest.mark.parametrize("kept", ["in a frame's head", "in a page", "of the head"])
def test_a_wal_that_is_truncated_under_a_scan_gives_what_it_still_holds(
    sqlite: SqliteBench, tmp_path: Path, kept: str
) -> None:
    log = LogBuilder()
    for _ in range(20):
        sqlite.store.commit([write([log.data()])])
    whole = tmp_path / "whole"
    shutil.copytree(sqlite.directory, whole)
    pages = heeded_pages(whole / "alpo.db", FRAME - 24)
    assert pages and max(pages.values()) > HEADER + 30 * FRAME
    size = {"in a frame's head": HEADER + 5 * FRAME + 10, "in a page": HEADER + 5 * FRAME + 100, "of the head": 5}[kept]
    os.truncate(whole / "alpo.db-wal", size)
    left = heeded_pages(whole / "alpo.db", FRAME - 24)
    assert set(left) <= set(pages) and all(offset <= size for offset in left.values())


# -- a file that was grown before the first commit


def _killed(store: SqliteStore, at: Path, to: Path) -> Path:
    """Copy what a kill -9 would leave of ``store`` in directory ``at``."""
    to.mkdir()
    for name in ("alpo.db", "alpo.db-wal"):
        shutil.copyfile(at / name, to / name)
    return to


@pytest.mark.parametrize("commits", [0, 1, 100])
def test_a_grown_wal_holds_its_commits_after_a_kill_and_grows_no_more(tmp_path: Path, commits: int) -> None:
    at, log = tmp_path / "0", LogBuilder()
    store = SqliteStore.open(at, SERVER)
    store.grow_wal()
    grown_bytes = store.wal_bytes()
    assert grown_bytes > LULL_BYTES
    for _ in range(commits):
        store.commit([write([log.data()])])
    assert store.wal_bytes() == grown_bytes
    left = _killed(store, at, tmp_path / "1")
    store.close()
    assert _last_id(left) == commits
    again = SqliteStore.open(left, SERVER)
    again.grow_wal()
    again.commit([write([log.data()])])
    last = _killed(again, left, tmp_path / "2")
    again.close()
    assert _last_id(last) == commits + 1


def test_damage_before_the_commits_of_a_grown_wal_is_seen(tmp_path: Path) -> None:
    at, log = tmp_path / "0", LogBuilder()
    store = SqliteStore.open(at, SERVER)
    store.grow_wal()
    for _ in range(3):
        store.commit([write([log.data()])])
    left = _killed(store, at, tmp_path / "1")
    store.close()
    with (left / "alpo.db-wal").open("r+b") as wal:
        wal.seek(HEADER + 100)
        wal.write(b"\xff" * 8)
    with pytest.raises(LostCommits):
        SqliteStore.open(left, SERVER)


def test_a_wal_that_cannot_grow_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore.open(tmp_path / "0", SERVER)
    before = store.wal_bytes()

    def full(number: int, data: bytes, at: int) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        store.grow_wal()
    with monkeypatch.context() as patched:  # some of it fits
        written = os.pwrite
        patched.setattr(os, "pwrite", lambda number, data, at: written(number, data[:5000], at))
        store.grow_wal()
    assert store.wal_bytes() == before
    store.commit([write([LogBuilder().data()])])
    left = _killed(store, tmp_path / "0", tmp_path / "1")
    store.close()
    assert _last_id(left) == 1
