"""Every declared dependency is used: imported in the folders it is for, or listed here with its use."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))

SHIPPED = ("alpo", "cli", "sim")
#: Extras that are for more than the shipped folders -> all their folders.
FOLDERS = dict.fromkeys(("check", "test"), (*SHIPPED, "tests", "benchmarks"))
#: Packages that are used without being imported -> a file that shows the use, and a pattern of its words.
USES = {
    "hatchling": ("pyproject.toml", r'^build-backend = "hatchling\.build"'),
    "mkdocs": ("mkdocs.yml", r"^nav:|^docs_dir:|^site_name:"),
    "mypy": ("Makefile", r"^\t\$\(BIN\)/mypy"),
    "pygments": ("docs/theme/hooks.py", r"^from pygments\.formatters import"),
    "setuptools": ("hatch_build.py", r"^        from setuptools import"),
    "ruff": ("Makefile", r"^\t\$\(BIN\)/ruff check"),
    "pytest-rerunfailures": ("tests/conftest.py", r"pytest\.mark\.flaky\(reruns"),
    "pytest-timeout": ("pyproject.toml", r"^timeout_method = "),
    "pytest-trio": ("tests/node/test_pace.py", r"^pytestmark = pytest\.mark\.trio[\s\S]*autojump_clock"),
    "pytest-xdist": ("tests/conftest.py", r"^from xdist\.scheduler import"),
    "towncrier": ("Makefile", r"^\t\$\(BIN\)/towncrier build"),
    "pyyaml": ("tests/config/test_config_monitoring.py", r"^import yaml$"),
    "py-spy": ("CONTRIBUTING.md", r"py-spy record"),
    # Spark Connect's client imports it, and 3 is newer than this Spark.
    "pandas": ("pyproject.toml", r"pyspark\[connect\]"),
}


def declared() -> list[tuple[str, str]]:
    """(extra, name of the package); "" for packages that every user installs."""
    project, build = PROJECT["project"], PROJECT["build-system"]["requires"]
    groups = {"": project["dependencies"], **project["optional-dependencies"], "build": build}
    return [(extra, re.match(r"[A-Za-z0-9._-]+", requirement)[0].lower())  # type: ignore[index]
            for extra, requirements in groups.items() for requirement in requirements]


def imported(text: str) -> set[str]:
    """The top names of modules that a source imports, also by `import_module` and `importorskip`."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module or "")
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            if ast.unparse(node.func).rpartition(".")[2] in ("import_module", "importorskip", "find_spec"):
                found.add(str(node.args[0].value))
    return {name.partition(".")[0] for name in found}


@functools.cache
def imported_in(folder: str) -> set[str]:
    return set().union(*(imported(path.read_text("utf-8")) for path in (ROOT / folder).rglob("*.py")))


def test_what_is_declared_is_used() -> None:
    for extra, name in declared():
        if name in USES:
            where, words = USES[name]
            assert re.search(words, (ROOT / where).read_text("utf-8"), re.MULTILINE), f"{where} uses {name} no more"
            continue
        folders, module = FOLDERS.get(extra, SHIPPED), name.replace("-", "_")
        assert any(module in imported_in(folder) for folder in folders), f"nothing in {folders} imports {module}"


def test_the_uses_are_of_what_is_declared() -> None:
    assert set(USES) <= {name for _, name in declared()}


def test_imports_of_every_kind_are_seen() -> None:
    text = "import a.b\nfrom c.d import e\nfrom . import f\ndef g():\n    import h\n    import_module('i.j')\n#import k"
    assert imported(text) == {"a", "c", "h", "i"}
