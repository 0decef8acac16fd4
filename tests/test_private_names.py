"""Private names (with a leading underscore) belong to the module that defines them: no other module uses them."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("alpo", "cli", "sim")

#: Names with an underscore that Python documents for everybody: those of named tuples, and `os._exit`.
DOCUMENTED = {"_asdict", "_exit", "_field_defaults", "_fields", "_make", "_replace"}

#: Most names in `EXCEPTIONS`. This may only become smaller.
EXCEPTIONS_MAX = 2

#: File -> private names of other modules that it uses all the same, and how often; with the reason.
EXCEPTIONS: dict[str, dict[str, int]] = {
    # Typer imports rich for each completion in zsh and fish (48 to 59 ms here), and has no option against it.
    "cli/alpo_cli/frame.py": {"_completion_classes": 1, "_sanitize_help_text": 1},
}


def is_private(name: str) -> bool:
    return name.startswith("_") and name.strip("_") != "" and not name.endswith("__") and name not in DOCUMENTED


def targets(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Pairs of the target of an assignment and its value; those of `a, b = c, d` one by one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple):
                    values = node.value.elts if isinstance(node.value, ast.Tuple) else [None] * len(target.elts)
                    yield from zip(target.elts, values, strict=False)
                else:
                    yield target, node.value
        elif isinstance(node, ast.AnnAssign):
            yield node.target, node.value


def is_own(value: ast.expr, bases: set[str]) -> bool:
    """True for `self`, `cls`, `super()`, and a class that one of the module is made of."""
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "super"
    return isinstance(value, ast.Name) and value.id in {"self", "cls", *bases}


def defined(tree: ast.AST) -> set[str]:
    """Names that a module defines: functions, classes, variables, slots, and attributes of its own objects. What an
    object takes over from another's attribute of the same name does not count."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    for target, value in targets(tree):
        if isinstance(target, ast.Name) and target.id == "__slots__" and value is not None:
            names |= {str(each.value) for each in ast.walk(value) if isinstance(each, ast.Constant)}
        elif isinstance(target, ast.Attribute) and is_own(target.value, set()):
            if not (isinstance(value, ast.Attribute) and value.attr == target.attr):
                names.add(target.attr)
    return names


def reach_ins(text: str) -> list[str]:
    """Uses of private names that the module ``text`` does not define: attributes of other objects, and imports."""
    tree = ast.parse(text)
    own = defined(tree)
    bases = {
        base.id for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
        for base in node.bases if isinstance(base, ast.Name)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if is_private(node.attr) and node.attr not in own and not is_own(node.value, bases):
                found.append(node.attr)
        elif isinstance(node, ast.ImportFrom):
            found += [alias.name for alias in node.names if is_private(alias.name)]
    return found


def all_reach_ins() -> dict[str, Counter[str]]:
    """File -> private names of other modules that it uses, with how often."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    found = {str(path.relative_to(ROOT)): Counter(reach_ins(path.read_text("utf-8"))) for path in paths}
    return {path: names for path, names in found.items() if names}


def test_no_module_uses_a_private_name_of_another() -> None:
    assert {path: dict(names) for path, names in all_reach_ins().items()} == EXCEPTIONS


def test_there_are_few_exceptions() -> None:
    assert sum(map(len, EXCEPTIONS.values())) <= EXCEPTIONS_MAX


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("log._servers.reason", ["_servers"]),
        ("from x import _y, z", ["_y"]),
        ("from x import _y\n_y()", ["_y"]),
        ("import _thread\n_ = x.__dict__", []),
        ("def _f(): ...\nx._f()", []),
        ("class A:\n def f(self, x):\n  self._y = 1\n  return x._y + self._z", []),
        ("class A:\n def f(self, x):\n  self._y = x._y", ["_y"]),
        ("class A:\n def f(self, x):\n  self._y, self._z = x._y, 1", ["_y"]),
        ("class A:\n __slots__ = ('_y',)\nx._y", []),
        ("class A:\n _y: int\nx._y", []),
        ("class A(B):\n def f(self):\n  super()._f()\n f = B._g\n h = C._g", ["_g"]),
        ("x._replace(a=1)._asdict()", []),
    ],
)
def test_the_check_can_fail(text: str, found: list[str]) -> None:
    assert reach_ins(text) == found


if __name__ == "__main__":  # the whole list
    for path, names in sorted(all_reach_ins().items(), key=lambda item: -item[1].total()):
        print(names.total(), path, *(f"{name} {number}" for name, number in names.most_common()), sep="  ")
    print(sum(names.total() for names in all_reach_ins().values()), "in", len(all_reach_ins()), "files")
