"""Style rules of length for every Python file; each break is reported with its place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("alpo", "benchmarks", "cli", "sim", "tests")

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60

#: A file of the product with fewer lines says why it is one; `__init__` and `__main__` need no reason.
FILE_LINES_MIN = 80
A_REASON = "of its own"


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


def is_short_without_reason(path: str, text: str) -> bool:
    return (
        path.startswith(("alpo", "cli", "sim")) and not Path(path).name.startswith("__")
        and len(text.splitlines()) < FILE_LINES_MIN
        and A_REASON not in " ".join((ast.get_docstring(ast.parse(text)) or "").split())
    )


def test_no_file_and_no_function_is_too_long() -> None:
    found: dict[str, str] = {}
    for path, text in sources():
        found |= long_file(path, text) | long_functions(path, text)
    assert not found, "\n".join(["too long:", *found.values()])


def test_a_short_file_says_why_it_is_one() -> None:
    short = [path for path, text in sources() if is_short_without_reason(path, text)]
    assert not short, f"fewer than {FILE_LINES_MIN} lines and no reason ({A_REASON!r}) in the docstring: {short}"
    assert is_short_without_reason("alpo/x.py", '"""A room."""\n')
    assert not is_short_without_reason("alpo/x.py", '"""A room\nof its\nown."""\n')


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
