"""The files in `changes/` are well formed, and each is in the notes of the next release."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from printed import ROOT

CHANGES = ROOT / "changes"
_SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["towncrier"]
KINDS = [kind["directory"] for kind in _SETTINGS["type"]]
FILES = sorted(path for path in CHANGES.iterdir() if path.name not in ("README.md", "template.md"))
_NAME = re.compile(rf"[a-z0-9][a-z0-9.-]*\.({'|'.join(KINDS)})\.md")


def malformed(name: str, text: str) -> str:
    """What is wrong with a release note, or ""."""
    if not _NAME.fullmatch(name):
        return f"{name}: the name is not WHAT.KIND.md; KIND is one of {', '.join(KINDS)}"
    if not text.startswith("- ") or not text.endswith("\n"):
        return f"{name}: the text is not a list item that begins with '- ' and ends with a line break"
    wrong = [line for line in text.splitlines() if not re.match(r"(- |  )\S", line)]
    return f"{name}: neither a list item nor an indented line: {wrong[0]!r}" if wrong else ""


def test_release_notes_are_well_formed() -> None:
    assert [wrong for path in FILES if (wrong := malformed(path.name, path.read_text("utf-8")))] == []


@pytest.mark.parametrize(("name", "text"), [
    ("note.md", "- a\n"), ("note.better.md", "- a\n"), ("a note.new.md", "- a\n"),
    ("note.new.md", ""), ("note.new.md", "a\n"), ("note.new.md", "- a"), ("note.new.md", "- a\nb\n"),
    ("note.new.md", "- a\n\n- b\n"),
])
def test_a_malformed_release_note_is_found(name: str, text: str) -> None:
    assert malformed(name, text) != ""
    assert malformed("import-resumes.new.md", "- a\n  b\n- c\n") == ""


def test_the_notes_of_the_next_release_hold_every_file() -> None:
    notes = subprocess.run(
        [sys.executable, "-m", "towncrier", "build", "--draft"], cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout
    assert [path.name for path in FILES if path.read_text("utf-8").rstrip() not in notes] == []


def test_a_release_moves_the_notes_into_the_changelog(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text("utf-8"), "utf-8")
    (tmp_path / "CHANGELOG.md").write_text((ROOT / "CHANGELOG.md").read_text("utf-8"), "utf-8")
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "template.md").write_text((CHANGES / "template.md").read_text("utf-8"), "utf-8")
    (tmp_path / "changes" / "one.fixed.md").write_text("- One\n  thing.\n", "utf-8")
    (tmp_path / "changes" / "two.new.md").write_text("- Two things.\n", "utf-8")
    build = [sys.executable, "-m", "towncrier", "build", "--yes", "--version", "9.8.7"]
    subprocess.run(build, cwd=tmp_path, capture_output=True, check=True)
    built = (tmp_path / "CHANGELOG.md").read_text("utf-8")
    assert "\n## 9.8.7\n\n### New\n- Two things.\n\n### Fixed\n- One\n  thing.\n\n## 0.1.0\n" in built
    assert [path.name for path in (tmp_path / "changes").iterdir()] == ["template.md"]
