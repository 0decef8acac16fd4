"""`Log.backup`: a file that is whole or not there. (With real servers: tests/cli/test_cli_backup.py.)"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_cluster import FakeServer, fake_cluster
from sound_log import fill
from store_kit import SqliteBench

import alpo
from alpo import backup
from alpo.client.operator.files import Overtaken
from alpo.storage.offline import open_source
from alpo.testing import Cluster
from alpo.wire.requests import Backup, BackupHead, BackupRows, Done

GUARANTEED = 38


@pytest.fixture
def messages(tmp_path: Path) -> Iterator[list[Any]]:
    """The messages of a sound copy."""
    bench = SqliteBench(tmp_path / "data")
    fill(bench)
    state = bench.store.copy_state(GUARANTEED)
    entries = bench.store.read_entries(state.first_id, state.end_id, 1 << 30)
    yield [
        BackupHead(1, state.schema, state.server_id, state.end_id, state.bytes_about),
        *(BackupRows(1, table, rows) for table, rows in state.tables.items()),
        *(BackupRows(1, "log", [tuple(entry)]) for entry in entries),
        Done(1, state.end_id),
    ]
    bench.store.close()


def serve(monkeypatch: pytest.MonkeyPatch, messages: list[Any], overtaken: int = 0) -> list[tuple[Any, ...]]:
    """Have copies consist of these messages, the first few but for the end; returns what is asked for."""
    asked: list[tuple[Any, ...]] = []

    async def copy_log(servers: object, *given: Any) -> AsyncIterator[Any]:
        asked.append(given)
        for message in messages[: -1 if len(asked) <= overtaken else None]:
            yield message
        if len(asked) <= overtaken:
            raise Overtaken("the log was cleaned while it was copied")

    monkeypatch.setattr(backup, "copy_log", copy_log)
    return asked


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.anyio
async def test_a_copy_that_is_overtaken_is_made_anew(
    messages: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, steps = serve(monkeypatch, messages, overtaken=backup.TRIES - 1), []
    file = tmp_path / "log.alpo"
    async with alpo.connect("127.0.0.1:1", timeout_s=7) as log:
        made = await log.backup(str(file), server=2, progress=lambda done, about: steps.append((done, about)))
    assert asked == [(2, 7)] * backup.TRIES
    with open_source(file) as source:
        assert (source.is_backup, source.summary().guaranteed_id) == (True, GUARANTEED)
    assert (made.first_lsn, made.bytes) == (1, file.stat().st_size) and made.last_lsn > 1
    assert steps[-1][0] > 0 and {about for _, about in steps} == {messages[0].bytes_about}
    assert names(tmp_path) == ["data", "log.alpo"]


@pytest.mark.anyio
async def test_one_whose_server_is_deposed_is_made_of_the_next_leader_s_log(
    messages: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    read = FakeServer._read

    async def read_deposed(server: FakeServer, stream: Any, ask: Any) -> None:
        server.cluster.lead(2)
        await read(server, stream, ask)

    monkeypatch.setattr(FakeServer, "_read", read_deposed)

    def answers(server: FakeServer, request: Any) -> list[Any]:
        assert isinstance(request, Backup)
        asked.append(server.id)
        return [message._replace(request=request.request) for message in messages]

    monkeypatch.setattr(FakeServer, "_answers", answers)
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        await log.backup(tmp_path / "log.alpo")
    with open_source(tmp_path / "log.alpo") as source:
        assert source.summary().guaranteed_id == GUARANTEED
    assert asked == [2]


@pytest.mark.anyio
async def test_one_that_always_is_ends_with_that(
    messages: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = serve(monkeypatch, messages, overtaken=backup.TRIES)
    async with alpo.connect("127.0.0.1:1") as log:
        with pytest.raises(alpo.Refused, match="cleaned"):
            await log.backup(tmp_path / "log.alpo", timeout_s=3)
    assert asked == [(None, 3)] * backup.TRIES
    assert names(tmp_path) == ["data"]


@pytest.mark.anyio
@pytest.mark.parametrize(("break_it", "why"), [
    (lambda sent: sent.pop(), "no whole copy"),
    (lambda sent: sent.pop(0), "no whole copy"),
    (lambda sent: sent.pop(-3), "entry 38 came where 37 belongs"),
    (lambda sent: sent.insert(1, BackupRows(1, "events", [(1,)])), "do not belong"),
], ids=["cut off", "headless", "a gap", "a strange table"])
async def test_what_is_no_copy_leaves_the_file_as_it_was(
    messages: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, break_it: Any, why: str
) -> None:
    break_it(messages)
    serve(monkeypatch, messages)
    file = tmp_path / "log.alpo"
    file.write_text("the one before")
    async with alpo.connect("127.0.0.1:1") as log:
        with pytest.raises(alpo.BackupFailed, match=why):
            await log.backup(file)
    assert file.read_text() == "the one before"
    assert names(tmp_path) == ["data", "log.alpo"]


@pytest.mark.anyio
async def test_a_place_without_room_or_that_is_not_there_is_named(
    messages: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, messages)
    async with alpo.connect("127.0.0.1:1") as log:
        with pytest.raises(alpo.BackupFailed, match=r"nowhere/log.alpo: No such file or directory"):
            await log.backup(tmp_path / "nowhere" / "log.alpo")
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1))
        with pytest.raises(alpo.BackupFailed, match=r"log.alpo: 1 B are free, and the backup will take about "):
            await log.backup(tmp_path / "log.alpo")


def test_servers_without_a_data_file_refuse(tmp_path: Path) -> None:
    with Cluster(seed=1) as cluster, cluster.connect_sync() as log:
        with pytest.raises(alpo.Refused, match="has no data file"):
            log.backup(tmp_path / "log.alpo")
