"""The docs as a site: built without a warning, every page in its navigation and reached from the first one."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from browser import browser, program
from mkdocs.config import load_config
from printed import ROOT

PAGES = {page.name for page in (ROOT / "docs").glob("*.md")}


def listed(nav: Any) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    inside = nav.values() if isinstance(nav, dict) else nav
    return {page for each in inside or () for page in listed(each)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    # Option --quiet would silence warnings before they are counted, and --strict would never fail.
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)], cwd=ROOT,
        capture_output=True, text=True, check=False,
    )
    said = (done.stdout + done.stderr).splitlines()
    assert (done.returncode, [line for line in said if not line.startswith("INFO ")]) == (0, [])
    return folder


def test_a_reader_is_told_to_nobody_else(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert {page.parent.name for page in pages} >= {page.removesuffix(".md") for page in PAGES} - {"index"}
    fetches = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*(?:src|href)=["']?(?:https?:)?//[^>]*>""")
    assert [found for page in pages for found in fetches.findall(page.read_text("utf-8"))] == []
    styles = (style for style in site.rglob("*.css") if "@import" in style.read_text("utf-8"))
    assert list(styles) == []


def test_commands_and_what_they_print_are_told_apart(site: Path) -> None:
    shown = (site / "cli" / "index.html").read_text("utf-8")
    assert shown.count('<span class="gp">$ </span>') > 50 and '<span class="go">hello</span>' in shown
    # An indented block right behind a list would be a paragraph of the list, so such a block is fenced.
    assert [page for page in site.rglob("*.html") if ":::" in page.read_text("utf-8")] == []
    assert re.search(r'<span class="nb">export</span>', (site / "deploying" / "index.html").read_text("utf-8"))
    for scheme in ("light", "dark"):
        assert ".codehilite .gp" in (site / "css" / f"code-{scheme}.css").read_text("utf-8")


def test_every_page_has_the_search_in_a_fixed_bar_and_both_schemes(site: Path) -> None:
    """The site's source promises what the next test looks at in a browser, which some machines lack."""
    for name in PAGES:
        folder = site if name == "index.md" else site / name.removesuffix(".md")
        page = (folder / "index.html").read_text("utf-8")
        bar, folded = page.index('<div class="navbar fixed-top'), page.index('id="navbar-collapse"')
        assert bar < page.index('class="site-search"') < folded, name
        assert page.index('id="mkdocs_search_modal"') > folded and page.count("site-search") == 1, name
        assert {*re.findall(r'data-bs-theme-value="(\w+)"', page)} == {"light", "dark", "auto"}, name
        assert page.count('<link id="hljs-light"') == page.count('<link id="hljs-dark"') == 1, name
    style = (site / "css" / "site.css").read_text("utf-8")
    (table,) = re.findall(r"\[role=main\] table \{([^}]+)\}", style)
    assert "overflow-x: auto" in table and "max-width: 100%" in table


@pytest.mark.skipif(program() is None, reason="no Chromium here: the site was looked at by no browser")
@pytest.mark.trio
async def test_pages_fit_into_windows_and_the_search_stays_in_view(site: Path, tmp_path: Path) -> None:
    wide = "[...document.querySelectorAll('table')].filter(each => each.scrollWidth > each.clientWidth + 1).length"
    search = "(({top, right}) => top >= 0 && right <= innerWidth)(document.querySelector('.site-search')" \
        ".getBoundingClientRect())"
    ground = "[document.documentElement.dataset.bsTheme, getComputedStyle(document.body).backgroundColor]"
    async with browser(tmp_path) as tab:
        for page in ("cli", "simulator"):
            for width, dark in ((1280, True), (390, False)):
                await tab.look(f"file://{site}/{page}/index.html", width, dark=dark)
                await tab.value("scrollTo(0, document.body.scrollHeight)")
                assert await tab.value(search), (page, width)
                assert await tab.value("document.documentElement.scrollWidth") == width, page
                assert (page, width) != ("cli", 1280) or await tab.value(wide) == 0
                scheme, colour = await tab.value(ground)
                assert scheme == ("dark" if dark else "light") and (colour != "rgb(255, 255, 255)") == dark
        assert [said for said in tab.complaints if "darkmode.js" in said] == []


def test_every_page_is_in_the_navigation() -> None:
    assert listed(load_config(str(ROOT / "mkdocs.yml")).nav) == PAGES


def test_the_first_page_leads_to_every_other() -> None:
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    assert set(re.findall(r"\]\(([a-z-]+\.md)", index)) == PAGES - {"index.md"}


def test_every_page_begins_with_its_title() -> None:
    assert [name for name in sorted(PAGES) if not (ROOT / "docs" / name).read_text("utf-8").startswith("# ")] == []


def test_what_the_readme_names_is_there() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    links = set(re.findall(r"\]\(([^)#]+)", readme))
    assert [link for link in links if not (ROOT / link).is_file()] == []
    assert links >= {f"docs/{page}.md" for page in (
        "index", "cookbook", "cli", "client", "state", "testing", "spark", "deploying", "operations", "monitoring",
        "performance", "rules",
    )}


def test_the_package_names_pages_that_are_there() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
    assert [url for url in urls.values() if "://" not in url and not (ROOT / url).is_file()] == []
    assert {"Documentation", "Changelog"} <= set(urls)


def test_the_figures_of_the_readme_are_those_of_the_measurements() -> None:
    rows = (ROOT / "README.md").read_text("utf-8").partition("## How fast")[2].partition("\n\nThree servers")[0]
    figures = re.findall(r"\d[\d,.]*", "".join(row.split("|")[2] for row in rows.splitlines() if row.startswith("| ")))
    measured = re.findall(r"\d[\d,.]*\d", (ROOT / "docs" / "performance.md").read_text("utf-8"))
    assert len(figures) >= 5 and [figure for figure in figures if figure not in measured] == []


def test_the_cookbook_has_twenty_tasks_each_with_an_example() -> None:
    tasks = (ROOT / "docs" / "cookbook.md").read_text("utf-8").split("\n## ")[1:]
    assert len(tasks) == 20 and [task.partition("\n")[0] for task in tasks if "\n    $ " not in task] == []
