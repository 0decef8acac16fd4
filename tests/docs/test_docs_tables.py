"""The generated tables of the manual are what the code makes, and the manual leads to each."""

from __future__ import annotations

import pytest
from printed import ROOT
from tables import GENERATED, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_table_is_what_the_code_makes(name: str) -> None:
    """A change of the code takes: python tests/docs/tables.py."""
    assert (GENERATED / name).read_text("utf-8") == PAGES[name]()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_leads_to_each_table(name: str) -> None:
    pages = (page.read_text("utf-8") for page in (ROOT / "docs").glob("*.md"))
    assert any(f"](generated/{name})" in page for page in pages)
