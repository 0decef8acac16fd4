"""Imports between modules, as far as they are allowed. The core is pure: its code runs in a server and in a simulator
with one outcome."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

#: Modules of the standard library that the core may import: none has a clock, a socket, a thread or randomness of its
#: own. `random` is here for its type alone: a Random is handed in.
PURE = {
    "__future__", "abc", "bisect", "collections", "contextlib", "copy", "dataclasses", "enum", "functools", "hashlib",
    "heapq", "itertools", "json", "math", "operator", "random", "re", "string", "struct", "types", "typing", "zlib",
}

#: Folder or file -> modules that it must not import, nor any module below them.
FORBIDDEN = {
    "alpo": {"alpo_cli", "alpo_elections", "alpo_sim"},
    "alpo/wire": {"alpo.node", "alpo.client", "alpo.storage", "alpo.daemon", "alpo.server", "alpo.config"},
    "alpo/storage": {"alpo.node", "alpo.client", "alpo.wire", "alpo.daemon", "alpo.server", "alpo.config"},
    "alpo/client": {"alpo.node", "alpo.storage", "alpo.daemon", "alpo.server", "alpo.rsm", "alpo.state"},
    "alpo/state": {"alpo.node", "alpo.storage", "alpo.daemon", "alpo.server", "alpo.config", "alpo.registry"},
    "alpo/node": {"alpo.client"},
    "cli/alpo_cli": {"alpo.node", "alpo.core.replica", "alpo_elections", "alpo_sim"},
    "sim/alpo_sim": {"alpo.node", "alpo.client", "alpo_elections", "trio", "asyncio"},
    "sim/alpo_elections": {"alpo.node", "alpo.client", "alpo.storage", "alpo.wire", "trio", "asyncio"},
}


#: The one part of the library that is made of the simulator: a cluster for users' own tests. No other part imports it,
#: so neither a server nor a client ever loads the simulator.
MADE_OF_THE_SIMULATOR = ("alpo/testing", "alpo/testing_plugin.py")

#: Measuring elections is research beside the simulator, which has the command and nothing else of it.
COMMAND_OF_ELECTIONS = "sim/alpo_sim/commands/elections.py"


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[1:] if parts[0] in ("cli", "sim") else parts).removesuffix(".__init__")


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    """Every module that the tree names in an import, relative ones resolved; ``from a import b`` gives a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = module.split(".")[: None if is_package and node.level == 1 else is_package - node.level]
                base = ".".join([*up, *filter(None, [base])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def breaches(text: str, module: str, forbidden: set[str], is_package: bool = False) -> list[str]:
    found = set(imports(ast.parse(text), module, is_package))
    return sorted(name for name in found if any(name == f or name.startswith(f + ".") for f in forbidden))


def impure(text: str, module: str, is_package: bool = False) -> list[str]:
    found = set(imports(ast.parse(text), module, is_package))
    return sorted(n for n in found if n.partition(".")[0] not in PURE and n not in ("alpo",) and not inside_core(n))


def inside_core(name: str) -> bool:
    return name == "alpo.core" or name.startswith("alpo.core.")


def random_calls(text: str) -> list[int]:
    """Lines that use `random` for more than the type: its functions share one hidden generator."""
    return sorted(
        node.lineno
        for node in ast.walk(ast.parse(text))
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "random"
            and node.attr != "Random"
        )
        or (isinstance(node, ast.ImportFrom) and node.module == "random" and {a.name for a in node.names} != {"Random"})
        or (isinstance(node, ast.Call) and ast.unparse(node.func) in ("random.Random", "Random"))
    )


def is_set(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return is_set(node.left) or is_set(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ("list", "tuple", "iter", "enumerate", "reversed") and node.args:
            return is_set(node.args[0])
        return node.func.id in ("set", "frozenset")
    return isinstance(node, ast.Set | ast.SetComp)


def set_loops(text: str) -> list[int]:
    """Lines that loop over what is visibly a set: its order depends on the hash seed."""
    loops = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.For | ast.comprehension))
    return [loop.iter.lineno for loop in loops if is_set(loop.iter)]


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_nobody_imports_what_is_not_theirs(folder: str) -> None:
    wrong = {
        str(path.relative_to(ROOT)): names
        for path in sources(folder)
        if (names := breaches(path.read_text(), module_of(path), _forbidden(folder, path), path.name == "__init__.py"))
    }
    assert wrong == {}


def _forbidden(folder: str, path: Path) -> set[str]:
    if any(path.is_relative_to(ROOT / made) for made in MADE_OF_THE_SIMULATOR):
        return FORBIDDEN[folder] - {"alpo_sim"}
    if path == ROOT / COMMAND_OF_ELECTIONS:
        return FORBIDDEN[folder] - {"alpo_elections"}
    return FORBIDDEN[folder] | {"alpo.testing", "alpo.testing_plugin"}


def test_core_is_pure() -> None:
    files = sources("alpo/core")
    assert len(files) > 5
    wrong = {
        path.name: names
        for path in files
        if (names := impure(path.read_text(), module_of(path), path.name == "__init__.py"))
    }
    assert wrong == {}


def circle(knows: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, in that order; [] if there is no circle."""
    free: set[str] = set()

    def search(module: str, way: list[str]) -> list[str]:
        if module in way:
            return way[way.index(module) :]
        for known in sorted(knows.get(module, set()) - free):
            if found := search(known, [*way, module]):
                return found
        free.add(module)
        return []

    return next(filter(None, (search(module, []) for module in sorted(knows))), [])


def known_modules(path: Path, module: str, files: Container[str]) -> set[str]:
    """Modules of ours that ``module`` imports anywhere; a package only if it names no module of the package."""
    named = list(imports(ast.parse(path.read_text()), module, path.name == "__init__.py"))
    packages = {name.rpartition(".")[0] for name in named if name in files}
    return {name for name in named if name in files and name not in packages} - {module}


def test_no_imports_go_in_a_circle() -> None:
    """Imports under TYPE_CHECKING, and in functions, count like all others."""
    files = {module_of(path): path for folder in ("alpo", "cli", "sim") for path in sources(folder)}
    knows = {module: known_modules(path, module, files) for module, path in files.items()}
    assert sum(map(len, knows.values())) > 100
    assert circle(knows) == []


def test_the_check_of_circles_can_fail() -> None:
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": {"d"}, "d": {"b"}}) == ["b", "c", "d"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


#: Modules of the core that the replicated state machine may import: words, and nothing of how servers agree.
WORDS = {"client_ids", "disk", "entries", "machine", "requests", "runs", "settings"}


def test_the_state_machine_knows_nothing_of_consensus() -> None:
    wrong = {
        path.name: names
        for path in sources("alpo/core/machine")
        if (names := {
            name for name in imports(ast.parse(path.read_text()), module_of(path), path.name == "__init__.py")
            if name.startswith("alpo.core.") and name.split(".")[2] not in WORDS
        })
    }
    assert wrong == {}


#: Parts of the library that the machinery of replicated machines may import, besides the words of the core.
GROUND = {"client", "errors", "rsm", "tls", "wire"}


def test_the_machinery_stands_on_the_client_and_knows_no_machine() -> None:
    files = sources("alpo/rsm")
    assert len(files) > 5
    wrong = {
        path.name: names
        for path in files
        if (names := {
            name for name in imports(ast.parse(path.read_text()), module_of(path), path.name == "__init__.py")
            if name.startswith("alpo.") and name.split(".")[1] not in GROUND
            and not (inside_core(name) and name.split(".")[2:3] and name.split(".")[2] in WORDS)
        })
    }
    assert wrong == {}


def test_what_clients_ask_and_are_told_stands_on_the_ground() -> None:
    path = ROOT / "alpo/core/requests.py"
    named = imports(ast.parse(path.read_text()), module_of(path), False)
    ground = {"directory", "disk", "entries", "members"}
    assert {name.split(".")[2] for name in named if name.startswith("alpo.core.")} <= ground


def test_core_has_no_randomness_of_its_own() -> None:
    assert {p.name: lines for p in sources("alpo/core") if (lines := random_calls(p.read_text()))} == {}


def test_core_never_loops_over_a_set() -> None:
    assert {p.name: lines for p in sources("alpo/core") if (lines := set_loops(p.read_text()))} == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import time", ["time"]),
        ("from os import path", ["os", "os.path"]),
        ("def f():\n    import trio.lowlevel", ["trio.lowlevel"]),
        ("from ..wire import codec", ["alpo.wire", "alpo.wire.codec"]),
        ("from alpo import errors", ["alpo.errors"]),
        ("from . import log\nfrom .entries import Entry\nimport random, json", []),
    ],
)
def test_the_check_of_purity_can_fail(text: str, found: list[str]) -> None:
    assert impure(text, "alpo.core.replica") == found


@pytest.mark.parametrize(
    ("text", "module", "is_package", "found"),
    [
        ("from alpo import node", "alpo.client.log", False, ["alpo.node"]),
        ("from ..node.driver import Driver", "alpo.client.log", False, ["alpo.node.driver", "alpo.node.driver.Driver"]),
        ("from .. import node", "alpo.client", True, ["alpo.node"]),
        ("from .node import x", "alpo.client", True, []),
        ("import alpo.nodes", "alpo.client.log", False, []),
    ],
)
def test_the_check_of_imports_can_fail(text: str, module: str, is_package: bool, found: list[str]) -> None:
    assert breaches(text, module, {"alpo.node"}, is_package) == found


def test_the_checks_of_order_and_chance_can_fail() -> None:
    assert set_loops("for x in {1, 2}: pass\nfor y in sorted({1}): pass\n[z for z in list(set(a) - b)]") == [1, 3]
    assert random_calls("import random\nr: random.Random\nrandom.random()\nq = random.Random(1)") == [3, 4]
