"""Style rules of length for every Python file; each break is reported with its place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("alpo", "benchmarks", "cli", "sim", "tests")

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60

#: Files, or file:function, that are still too long. Never add one; take out one that has become short enough.
TOO_LONG_YET: set[str] = set()


def sources() -> Iterator[tuple[str, str]]:
    """Every file of ours: its path from the root, its text."""
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        yield str(path.relative_to(ROOT)), path.read_text()


def long_file(path: str, text: str) -> dict[str, str]:
    """Place -> its fault. Every line counts: prose, comments and empty lines too."""
    lines = len(text.splitlines())
    return {path: f"{path}: {lines} lines, at most {FILE_LINES_MAX}"} if lines > FILE_LINES_MAX else {}


def long_functions(path: str, text: str) -> dict[str, str]:
    """Place -> its fault. A function's lines go from its `def` to its last statement's end: the signature,
    the docstring, empty lines and functions inside count, decorators do not."""
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                where = f"{path}:{node.lineno}: {node.name}() has {lines} lines, at most {FUNCTION_LINES_MAX}"
                found[f"{path}:{node.name}"] = where
    return found


def test_no_file_and_no_function_is_too_long() -> None:
    found: dict[str, str] = {}
    for path, text in sources():
        found |= long_file(path, text) | long_functions(path, text)
    new = [said for place, said in found.items() if place not in TOO_LONG_YET]
    assert not new, "\n".join(["too long:", *new])
    mended = sorted(TOO_LONG_YET - set(found))
    assert not mended, "\n".join(["no longer too long, to be taken from TOO_LONG_YET:", *mended])


def test_every_line_of_a_file_counts() -> None:
    assert long_file("a.py", "#\n" * 600) == {}
    assert long_file("a.py", "\n" * 601) == {"a.py": "a.py: 601 lines, at most 600"}


def test_a_function_counts_from_its_def_to_its_last_line() -> None:
    def function(lines: int, before: str = "") -> str:
        return f"@property\n{before}def f():\n    '''Two\n    lines.'''\n" + "\n" * (lines - 4) + "    return 1\n\n\n"

    assert long_functions("a.py", function(60)) == {}
    assert long_functions("a.py", function(61)) == {"a.py:f": "a.py:2: f() has 61 lines, at most 60"}
    assert long_functions("a.py", function(61, "async ")) == {"a.py:f": "a.py:2: f() has 61 lines, at most 60"}
    inner = "".join(f"    {line}\n" for line in function(61).splitlines())
    assert set(long_functions("a.py", f"class C:\n{inner}")) == {"a.py:f"}
