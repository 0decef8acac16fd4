"""What the package offers: the same on every kind of log, exported, and typed so that mistakes are seen."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_overloads

import pytest

import alpo
from alpo.testing.logs import SimulatedLog, SimulatedSyncLog

ROOT = Path(__file__).parents[2]
#: Of `Log`, for the library's own use.
INSIDE = {"enter"}
#: What blocking calls give and take in the place of the async ones.
BLOCKING = {
    r"^Handle\[(.*)\]$": r"Future[Handle[\1]]", "^Records$": "Generator[Record, None, None]",
    "^Batches$": "Generator[list[Record], None, None]", r"^StopEvent \| None$": "SyncStopEvent | None",
}
SIMULATED = {"^Simulated(Records|Batches)$": r"\1", "^SimulatedHandle": "Handle"}


def public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}


def spelt(annotation: object, changes: dict[str, str]) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    for pattern, there in changes.items():
        text = re.sub(pattern, there, text)
    return text


def shape(function: Any, changes: dict[str, str]) -> list[tuple[Any, ...]]:
    """Parameters and result of each of its overloads, and of itself."""
    return [
        (
            [(p.name, p.kind, p.default, spelt(p.annotation, changes)) for p in signature.parameters.values()],
            spelt(signature.return_annotation, changes),
        )
        for signature in map(inspect.signature, [*get_overloads(function), function])
    ]


@pytest.mark.parametrize(("twin", "changes", "undone"), [
    (alpo.SyncLog, BLOCKING, {}), (SimulatedLog, {}, SIMULATED), (SimulatedSyncLog, BLOCKING, {}),
], ids=["blocking", "simulated", "simulated and blocking"])
def test_every_log_has_every_call_with_the_same_arguments_and_types(
    twin: type, changes: dict[str, str], undone: dict[str, str]
) -> None:
    real, found = public(alpo.Log), public(twin)
    assert real.keys() - INSIDE == found.keys()
    assert len(found) > 35
    for name in real.keys() - INSIDE:
        if isinstance(real[name], property):
            assert isinstance(found[name], property)
            continue
        assert shape(found[name], undone) == shape(real[name], changes), name
        asynchronous = inspect.iscoroutinefunction(real[name]) and "Sync" not in twin.__name__
        assert inspect.iscoroutinefunction(found[name]) == asynchronous


def test_what_a_call_gives_has_a_name_in_the_package() -> None:
    plain = {"None", "int", "str", "bool", "list", "dict", "range", "Future", "Generator", "Any", "float"}
    for kind in (alpo.Log, alpo.SyncLog):
        for name, method in public(kind).items():
            if inspect.isfunction(method) and name not in INSIDE:
                for signature in map(inspect.signature, [*get_overloads(method), method]):
                    names = set(re.findall(r"\w+", str(signature.return_annotation)))
                    assert names - plain <= set(alpo.__all__), name


def test_every_name_is_there() -> None:
    assert [name for name in alpo.__all__ if not hasattr(alpo, name)] == []
    assert set(alpo.__all__) <= set(dir(alpo))


GOOD = """
import concurrent.futures
import threading
from typing import assert_type

import alpo
from alpo import Handle, MemberStatus, Record, Settings


async def work(log: alpo.Log) -> None:
    handles = [log.append_nowait(b"x") for _ in range(3)]
    assert_type([await handle for handle in handles], list[int])
    assert_type(await log.append_batch_nowait([b"x"]), int)
    assert_type(await log.append_nowait(b"x", serial=7), int | None)
    assert_type(await log.append(b"x"), int)
    assert_type(await log.append(b"x", serial=7, timeout_s=1), int | None)
    assert_type(await log.append_json({"a": 1}), int)
    assert_type((await log.settings())["window"], int)
    await log.change_settings({"window": 4096}, expected=await log.settings())
    assert_type([row["last_lsn"] for row in await log.status()], list[int | None])
    assert_type(await log.last(), Record | None)
    async for record in log.follow("end"):
        assert_type(record.text, str)
    handle: Handle = log.append_nowait(b"x")
    handle.add_done_callback(lambda done: print(done.lsn, done.error))


def block(log: alpo.SyncLog, stop: threading.Event) -> None:
    assert_type(log.append_nowait(b"x"), concurrent.futures.Future[Handle[int]])
    for record in log.follow(stop=stop):
        assert_type(record, Record)
    rows: list[MemberStatus] = log.status()
    settings: Settings = log.settings()
    print(rows, settings)


try:
    with alpo.connect_sync() as log:
        block(log, threading.Event())
except alpo.NotGuaranteed as error:
    print(error.serial)
"""


def checked(folder: Path, *files: Path) -> Iterator[tuple[str, int, str]]:
    """What mypy --strict says of them: (file, line, words)."""
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", ROOT / ".mypy_cache" / "users",
         *files],
        cwd=folder, capture_output=True, text=True, timeout=170, check=False, env={"MYPYPATH": str(ROOT)},
    )
    assert ran.returncode in (0, 1), ran.stderr + ran.stdout
    for line in ran.stdout.splitlines():
        if found := re.match(r"(\S+\.py):(\d+): error: (.*)", line):
            yield Path(found[1]).name, int(found[2]), found[3]


def test_a_type_checker_sees_what_is_misspelt(tmp_path: Path) -> None:
    names = [name for name in alpo.__all__ if not name.startswith("__")]
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(GOOD)
    wrong = [f"alpo.{name[:-2] + name[-1]}" for name in names]
    bad.write_text("\n".join([
        "import alpo", *wrong, "try:", "    alpo.conect_sync()", "except alpo.NotGaranteed:", "    pass",
    ]))
    found = list(checked(tmp_path, good, bad))
    assert [each for each in found if each[0] != "bad.py"] == []
    lines = {line for _, line, words in found if "has no attribute" in words}
    assert lines == {*range(2, len(wrong) + 2), len(wrong) + 3, len(wrong) + 4}


def test_beginning_to_work_imports_no_more_than_it_needs() -> None:
    script = "import sys, alpo; alpo.connect_sync; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert {"anyio", "msgpack"} <= set(ran.stdout.split())
    assert {"trio", "pydantic", "rich", "typer", "structlog", "sqlite3", "sqlite_utils"} & set(
        ran.stdout.split()
    ) == set()
