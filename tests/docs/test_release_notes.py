"""The files in `changes/` are well formed, and each is in the notes of the next release."""

from __future__ import annotations

import os
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
    """The fault of a release note; "" if there is none."""
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


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A small repository with two notes, at version 9.8.7."""
    for name in ("Makefile", "pyproject.toml", "CHANGELOG.md", "changes/template.md", "changes/README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "changes" / "one.fixed.md").write_text("- One\n  thing.\n", "utf-8")
    (tmp_path / "changes" / "two.new.md").write_text("- Two things.\n", "utf-8")
    (tmp_path / "alpo").mkdir()
    (tmp_path / "alpo" / "_version.py").write_text('__version__ = "9.8.7"\n', "utf-8")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "before")
    return tmp_path


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    who = {f"GIT_{role}_{what}": "x" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return subprocess.run(command, cwd=folder, env=os.environ | who, capture_output=True, text=True, check=False)


def git(folder: Path, *arguments: str) -> str:
    done = run(folder, "git", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def release(folder: Path) -> subprocess.CompletedProcess[str]:
    make = ["make", "--no-print-directory", "release", f"BIN={Path(sys.executable).parent}", "CHECK_STAMP="]
    return run(folder, *make)


def test_a_release_moves_the_notes_into_the_changelog_and_tags_that(clone: Path) -> None:
    before = (clone / "CHANGELOG.md").read_text("utf-8")
    done = release(clone)
    assert done.returncode == 0 and done.stdout.endswith("tagged v9.8.7\n"), done.stderr
    head, mark, older = before.partition("<!-- release notes begin -->\n")
    assert (clone / "CHANGELOG.md").read_text("utf-8") == (
        f"{head}{mark}\n## 9.8.7\n\n### New\n- Two things.\n\n### Fixed\n- One\n  thing.\n{older}")
    assert sorted(path.name for path in (clone / "changes").iterdir()) == ["README.md", "template.md"]
    assert git(clone, "status", "--porcelain") == "" and git(clone, "log", "--format=%s") == "Release 9.8.7\nbefore\n"
    assert git(clone, "rev-parse", "v9.8.7^{commit}") == git(clone, "rev-parse", "HEAD")


def test_a_release_is_made_once_and_of_what_is_committed(clone: Path) -> None:
    (clone / "more").touch()
    done = release(clone)
    assert done.returncode != 0 and "commit first" in done.stderr and git(clone, "tag") == ""
    (clone / "more").unlink()
    assert release(clone).returncode == 0
    done = release(clone)
    assert done.returncode != 0 and "v9.8.7 is released" in done.stderr
    (clone / "alpo" / "_version.py").write_text('__version__ = "9.9.0"\n', "utf-8")
    git(clone, "commit", "--quiet", "--all", "--message", "next")
    done = release(clone)
    assert done.returncode != 0 and "CHANGELOG.md says nothing of 9.9.0" in done.stderr
    (clone / "changes" / "three.new.md").write_text("- More.\n", "utf-8")
    (clone / "CHANGELOG.md").write_text("<!-- release notes begin -->\n\n## 9.9.0\n", "utf-8")
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message", "gathered too early")
    done = release(clone)
    assert done.returncode != 0 and "CHANGELOG.md has 9.9.0 already" in done.stderr
    assert git(clone, "tag") == "v9.8.7\n"
