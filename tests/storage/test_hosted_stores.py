"""Stores of the logs besides the first, on disk: killed at any step, they are as before or as after."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from alpo.core.hosting.words import NO_LIST, FoundStore, Standing, StoreState
from alpo.core.members import Identity
from alpo.storage import hosted, schema
from alpo.storage.hosted import find_stores, folder_of, make_store, move_store, remove_moved
from alpo.storage.interface import StoreError

CLUSTER = b"c" * 16
NOW = datetime(2026, 11, 24, 20, 1, tzinfo=UTC)
STANDING = Standing(7, (Identity(1, b"a" * 16), Identity(2, b"b" * 16)), (1, 2, 3))


class Killed(BaseException):
    """The end of a process, at once."""


@contextmanager
def killed_before(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Kill the process before its ``step``-th change of the disk, counted from 0; yields the names of those made."""
    made: list[str] = []

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if len(made) == step:
                raise Killed
            made.append(name)
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in ("mkdir", "rename", "replace", "write_text"):
            patch.setattr(Path, name, counted(name, getattr(Path, name)))
        for name in ("_fill", "sync"):
            patch.setattr(schema, name, counted(name, getattr(schema, name)))
        yield made


def steps_of(do: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of changes that ``do`` makes."""
    with killed_before(1_000, monkeypatch) as made:
        do()
    return len(made)


def stores(data: Path) -> list[FoundStore]:
    found, troubles = find_stores(data, 1)
    assert not troubles
    return found


def test_a_store_is_made_found_and_moved(tmp_path: Path) -> None:
    made = make_store(tmp_path, 1, 2, "billing", CLUSTER)
    assert made == FoundStore(2, made.incarnation, StoreState.EMPTY, CLUSTER, NO_LIST) and len(made.incarnation) == 16
    assert stores(tmp_path) == [made]
    with pytest.raises(StoreError, match="holds a store already"):
        make_store(tmp_path, 1, 2, "billing", CLUSTER)
    told = made._replace(standing=STANDING)
    where = move_store(tmp_path, told, "billing", NOW)
    assert where == tmp_path / "deleted" / "2-billing-20261124T200100Z"
    assert stores(tmp_path) == [told._replace(state=StoreState.STOPPED)]
    assert not folder_of(tmp_path, 2).exists()


def test_a_retired_store_makes_room(tmp_path: Path) -> None:
    made = make_store(tmp_path, 1, 2, "billing", CLUSTER)
    where = move_store(tmp_path, made, "billing", NOW, retired=True)
    assert where.name == "2-billing-20261124T200100Z-retired" and stores(tmp_path) == []
    again = make_store(tmp_path, 1, 2, "billing", CLUSTER)
    assert again.incarnation != made.incarnation and stores(tmp_path) == [again]


def test_killed_while_it_makes_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = steps_of(lambda: make_store(tmp_path / "whole", 1, 2, "billing", CLUSTER), monkeypatch)
    assert steps > 8
    for step in range(steps):
        data = tmp_path / str(step)
        with killed_before(step, monkeypatch), pytest.raises(Killed):
            make_store(data, 1, 2, "billing", CLUSTER)
        found = stores(data)
        assert [store.state for store in found] in ([], [StoreState.EMPTY])
        if not found:
            assert not folder_of(data, 2).exists(), "nothing is left"
            found = [make_store(data, 1, 2, "billing", CLUSTER)]
        assert stores(data) == found


def test_killed_while_it_moves_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def move(data: Path) -> None:
        move_store(data, stores(data)[0]._replace(standing=STANDING), "billing", NOW)

    make_store(tmp_path / "whole", 1, 2, "billing", CLUSTER)
    steps = steps_of(lambda: move(tmp_path / "whole"), monkeypatch)
    for step in range(steps):
        data = tmp_path / str(step)
        made = make_store(data, 1, 2, "billing", CLUSTER)
        with killed_before(step, monkeypatch), pytest.raises(Killed):
            move(data)
        (found,) = stores(data)
        assert found.incarnation == made.incarnation
        if found.state is not StoreState.STOPPED:
            assert found == made
            move(data)
        assert stores(data) == [made._replace(state=StoreState.STOPPED, standing=STANDING)]


def test_stores_that_were_kept_for_long_enough_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = []
    for number, retired in ((2, False), (3, False), (3, True)):
        store = make_store(tmp_path, 1, number, f"log-{number}", CLUSTER)
        folders.append(move_store(tmp_path, store, f"log-{number}", NOW, retired=retired))
    (tmp_path / "deleted" / "mine").mkdir()
    renamed = tmp_path / "deleted" / "2-please-keep-this"
    shutil.copytree(folders[0], renamed)
    asked = []

    def may_go(cluster: bytes, number: int, retired: bool) -> bool:
        asked.append((cluster, number, retired))
        return retired or number == 2

    assert remove_moved(tmp_path, may_go, NOW, ()) == [] and asked == []
    later = NOW + timedelta(seconds=1)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda path: (_ for _ in ()).throw(OSError("the disk is away")))
        assert remove_moved(tmp_path, may_go, later, ()) == []
    assert all((folder / "log.json").exists() for folder in folders), "the mark goes last"
    asked.clear()
    assert remove_moved(tmp_path, may_go, later, (2, 3)) == [folders[0], folders[2]]
    assert [path.name for path in folders[0].iterdir()] == ["log.json"], "the mark says that the log was stopped here"
    assert remove_moved(tmp_path, may_go, later, ()) == [] and not folders[0].exists()
    assert asked[:3] == [(CLUSTER, 2, False), (CLUSTER, 3, False), (CLUSTER, 3, True)]
    assert sorted(path.name for path in (tmp_path / "deleted").iterdir()) == sorted(
        [renamed.name, "mine", folders[1].name]
    )


def test_a_store_that_is_damaged_is_set_aside(tmp_path: Path) -> None:
    make_store(tmp_path, 1, 2, "billing", CLUSTER)
    file = folder_of(tmp_path, 2) / schema.DB_NAME
    with file.open("r+b") as raw:
        raw.write(os.urandom(8192))
    found, (trouble,) = find_stores(tmp_path, 1)
    assert not found and trouble.number == 2 and "set aside in" in trouble.why
    assert list(folder_of(tmp_path, 2).glob("lost-*/alpo.db"))
    again = make_store(tmp_path, 1, 2, "billing", CLUSTER)
    assert stores(tmp_path) == [again]


def test_a_store_that_does_not_say_whose_it_is(tmp_path: Path) -> None:
    make_store(tmp_path, 1, 2, "billing", CLUSTER)
    for text, why in (("{}", "does not say whose log this is"), ('{"format": 2}', "a newer release has written it")):
        (folder_of(tmp_path, 2) / hosted.MARK).write_text(text)
        found, (trouble,) = find_stores(tmp_path, 1)
        assert not found and trouble.number == 2 and why in trouble.why
    assert (folder_of(tmp_path, 2) / schema.DB_NAME).exists()
