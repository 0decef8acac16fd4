"""The package's public surface: equal on every kind of log, exported, and typed so that mistakes are found."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast, get_overloads

import pytest

import alpo
import alpo.registry
import alpo.state
from alpo import testing
from alpo.registry import ViewWatch
from alpo.state.recipes import Election, Lock
from alpo.testing.logs import SimulatedLog, SimulatedSyncLog

ROOT = Path(__file__).parents[2]
#: Public names of logs, for the library's own use and for libraries built on one.
INSIDE = {"cluster", "enter", "forked", "log", "reason", "run", "settled", "timeout_s"}
#: Types of async calls (patterns) -> the types that blocking calls have in their place.
BLOCKING = {
    r"^Handle\[(.*)\]$": r"Future[Handle[\1]]", "^Records$": "Generator[Record, None, None]",
    "^Batches$": "Generator[list[Record], None, None]", r"^StopEvent \| None$": "SyncStopEvent | None",
}


def public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}


def spelt(annotation: object, changes: dict[str, str]) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    for pattern, there in changes.items():
        text = re.sub(pattern, there, text)
    return text


def shape(function: Any, changes: dict[str, str]) -> tuple[Any, ...]:
    """Parameters and result. (The results of overloads are for type checkers: see tests/typing.)"""
    signature = inspect.signature(function)
    return (
        [(p.name, p.kind, p.default, spelt(p.annotation, changes)) for p in signature.parameters.values()],
        spelt(signature.return_annotation, changes),
    )


@pytest.mark.parametrize(("twin", "changes"), [
    (alpo.SyncLog, BLOCKING), (SimulatedLog, {}), (SimulatedSyncLog, BLOCKING),
], ids=["blocking", "simulated", "simulated and blocking"])
def test_every_log_has_every_call_with_the_same_arguments_and_types(twin: type, changes: dict[str, str]) -> None:
    real, found = public(alpo.Log), public(twin)
    assert real.keys() - INSIDE == found.keys() - INSIDE
    assert len(found) > 35
    for name in real.keys() - INSIDE:
        if isinstance(real[name], property):
            assert isinstance(found[name], property)
            assert found[name].__doc__
            continue
        assert shape(found[name], {}) == shape(real[name], changes), name
        assert found[name].__name__ == name
        assert found[name].__doc__, name
        asynchronous = inspect.iscoroutinefunction(real[name]) and "Sync" not in twin.__name__
        assert inspect.iscoroutinefunction(found[name]) == asynchronous


def test_a_simulated_log_has_no_call_that_would_miss_the_real_one_behind_it() -> None:
    made_of_others = {"read", "follow"}
    assert public(alpo.Log).keys() - made_of_others <= vars(SimulatedLog).keys()


def test_what_a_call_gives_has_a_name_in_the_package() -> None:
    plain = {"None", "int", "str", "bool", "list", "dict", "range", "Future", "Generator", "Any", "float"}
    for kind in (alpo.Log, alpo.SyncLog):
        for name, method in public(kind).items():
            if inspect.isfunction(method) and name not in INSIDE:
                for form in (*get_overloads(method), method):
                    names = set(re.findall(r"\w+", str(inspect.signature(cast(Any, form)).return_annotation)))
                    assert names - plain <= set(alpo.__all__), name


def test_every_name_is_there() -> None:
    assert [name for name in alpo.__all__ if not hasattr(alpo, name)] == []
    shown = {name for name in dir(alpo) if not name.startswith("__") and not inspect.ismodule(getattr(alpo, name))}
    assert shown == {name for name in alpo.__all__ if not name.startswith("__")} and "__version__" in dir(alpo)


TYPING = ROOT / "tests" / "typing"
MARK = re.compile(r"# error: (\S+)$")


def used(path: Path) -> set[str]:
    """Every name and every attribute that a program uses."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    return {n.id for n in nodes if isinstance(n, ast.Name)} | {n.attr for n in nodes if isinstance(n, ast.Attribute)}


def test_the_typed_program_uses_every_public_name() -> None:
    found = used(TYPING / "api.py")
    assert set(alpo.__all__) - found == set()
    assert set(testing.__all__) - {"Broken", "Stuck"} - found == set()
    for kind, inside in (
        (alpo.Log, INSIDE), (alpo.SyncLog, set()), (alpo.Records, {"aclose"}), (alpo.Batches, set()),
        (alpo.Handle, {"fail", "failure", "finish", "last_word", "leave", "state", "unheard"}),
        (alpo.Record, {"count", "index"}),
    ):
        assert public(kind).keys() - inside - found == set(), kind


def blocking_calls(path: Path) -> set[str]:
    """Attributes of ``log`` used in a file's plain functions, where ``log`` is a `SyncLog`."""
    functions = [n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.FunctionDef)]
    return {
        n.attr for function in functions for n in ast.walk(function)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "log"
    }


def test_the_typed_program_uses_every_blocking_call() -> None:
    assert public(alpo.SyncLog).keys() - blocking_calls(TYPING / "api.py") == set()


def checked(folder: Path, *files: Path) -> Iterator[tuple[str, int, str, str]]:
    """Errors that mypy --strict reports in a user's programs: (file, line, words, code)."""
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", ROOT / ".mypy_cache" / "users",
         *files],
        cwd=folder, capture_output=True, text=True, timeout=170, check=False, env={"MYPYPATH": str(ROOT)},
    )
    assert ran.returncode in (0, 1), ran.stderr + ran.stdout
    for line in ran.stdout.splitlines():
        if found := re.match(r"(\S+\.py):(\d+): error: (.*)  \[(\S+)\]$", line):
            yield Path(found[1]).name, int(found[2]), found[3], found[4]


def test_a_type_checker_takes_what_is_right_and_refuses_what_is_not(tmp_path: Path) -> None:
    names = [name for name in alpo.__all__ if not name.startswith("__")]
    misspelt = tmp_path / "misspelt.py"
    misspelt.write_text("\n".join(["import alpo", *(f"alpo.{name[:-2] + name[-1]}" for name in names)]))
    wrong = TYPING / "wrong.py"
    found = list(checked(tmp_path, TYPING / "api.py", wrong, misspelt))
    assert [each for each in found if each[0] == "api.py"] == []
    lines = {line for file, line, words, _ in found if file == "misspelt.py" and "has no attribute" in words}
    assert lines == {*range(2, len(names) + 2)}
    marked = {
        (number, mark[1])
        for number, line in enumerate(wrong.read_text("utf-8").splitlines(), 1) if (mark := MARK.search(line))
    }
    assert {(line, code) for file, line, _, code in found if file == "wrong.py"} == marked
    assert len(marked) > 35


def test_beginning_to_work_imports_no_more_than_it_needs() -> None:
    script = "import sys, alpo; alpo.connect_sync; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert {"anyio", "msgpack"} <= set(ran.stdout.split())
    assert {"trio", "pydantic", "rich", "typer", "structlog", "sqlite3", "sqlite_utils"} & set(
        ran.stdout.split()
    ) == set()


def test_every_public_object_shows_itself() -> None:
    """No public object has `object`'s own repr: an address in memory tells users nothing."""
    modules = [alpo, alpo.state, alpo.registry, testing]
    kinds = [getattr(module, name) for module in modules for name in module.__all__] + [Lock, Election]
    plain = [kind for kind in kinds if inspect.isclass(kind) and not getattr(kind, "_is_protocol", False)]
    assert [kind.__name__ for kind in plain if kind.__repr__ is object.__repr__] == []
    assert len(plain) > 40


async def shown() -> AsyncIterator[tuple[object, str]]:
    """Objects, opened and not, and how each is shown."""
    at = "127.0.0.1:1, 127.0.0.1:2"
    log = alpo.connect(at.replace(" ", ""), "billing")
    yield log, f"<Log of {at}: client 'billing', open>"
    yield log.read(5, client="a"), f"<Records of {at}: start=5, client='a'>"
    yield log.follow_batches(local=True), f"<Batches of {at}: local=True, follow=True>"
    state = alpo.state.State(log)
    yield state, f"<State as of LSN 0, in <Log of {at}: client 'billing', open>>"
    yield state.watch("limits/"), "<Watch of 'limits/'>"
    yield state.rows("agents", 7), "<Rows of 'agents', fence 7>"
    yield Lock(state, "nightly"), "<Lock 'nightly': not held>"
    yield Election(state, "boss"), "<Election 'boss'>"
    yield alpo.registry.Registry(state, "agents"), "<Registry 'agents': not led>"
    yield alpo.state.Put("a", "x" * 50, lease_s=1.5), f"Put('a', b'{'x' * 40}'… (50 bytes), lease_s=1.5)"
    await log.close()
    yield log, f"<Log of {at}: client 'billing', closed>"
    with closing(alpo.connect_sync(at.replace(" ", ""))) as blocking:
        yield blocking, f"<SyncLog of {at}: a random client, open>"
        sync = alpo.state.SyncState(blocking)
        yield sync, f"<SyncState as of LSN 0, in <SyncLog of {at}: a random client, open>>"
        yield sync.lock("nightly"), "<SyncLock 'nightly': not held>"
        yield sync.rows("agents"), "<SyncRows of 'agents'>"
    with testing.Cluster(seed=4) as cluster:
        yield cluster, "alpo.testing.Cluster(seed=4)"


@pytest.mark.anyio
async def test_how_they_show_themselves() -> None:
    async for given, says in shown():
        assert repr(given) == says


@pytest.mark.anyio
async def test_a_plain_loop_is_told_what_to_write_instead() -> None:
    async with alpo.connect("127.0.0.1:1") as log:
        state = alpo.state.State(log)
        for many in (log.read(), log.follow(), log.read_batches(), state.watch(), ViewWatch(state, "agents")):
            with pytest.raises(TypeError, match=f"^{type(many).__name__} is iterated over by async for; for a plain"):
                list(cast(Any, many))
