"""The docs as a site: built without a warning, every page in its navigation and reached from the first one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.config import load_config
from printed import ROOT

PAGES = {page.name for page in (ROOT / "docs").glob("*.md")}


def listed(nav: Any) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    inside = nav.values() if isinstance(nav, dict) else nav
    return {page for each in inside or () for page in listed(each)}


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    # Not --quiet: it silences warnings before they are counted, and --strict then fails of nothing.
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)], cwd=ROOT,
        capture_output=True, text=True, check=False,
    )
    said = (done.stdout + done.stderr).splitlines()
    assert (done.returncode, [line for line in said if not line.startswith("INFO ")]) == (0, [])
    assert {page.name for page in tmp_path.glob("*.html")} >= {"index.html"}


def test_every_page_is_in_the_navigation() -> None:
    assert listed(load_config(str(ROOT / "mkdocs.yml")).nav) == PAGES


def test_the_first_page_leads_to_every_other() -> None:
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    assert set(re.findall(r"\]\(([a-z-]+\.md)", index)) == PAGES - {"index.md"}


def test_every_page_begins_with_its_title() -> None:
    assert [name for name in sorted(PAGES) if not (ROOT / "docs" / name).read_text("utf-8").startswith("# ")] == []
