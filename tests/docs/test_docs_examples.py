"""The docs' examples show what the commands print."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import warm
from printed import ROOT, Example, Shell, difference, interrupted, masked, read_page

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_EXAMPLES = [page for page in PAGES if read_page(page).steps]
#: Pages whose examples start Spark again and again, which takes minutes.
SLOW = {"spark.md"}


@pytest.mark.parametrize("page", [
    pytest.param(page, id=page.name, marks=[pytest.mark.soak, pytest.mark.timeout(1800)] if page.name in SLOW else [])
    for page in WITH_EXAMPLES
])
def test_the_examples_of_a_page_print_what_it_says(page: Path, tmp_path: Path) -> None:
    shell = Shell(tmp_path, warm.shims())
    wrong = []
    try:
        for step in read_page(page).steps:
            code, printed = shell.run(step.command, interrupted(step) if isinstance(step, Example) else None)
            if isinstance(step, Example):
                wrong.append(difference(step, printed))
            else:
                assert code == 0, f"{step.where}: {step.command} ended with {code}:\n{printed}"
    finally:
        shell.close()
    assert not any(wrong), "\n\n".join(text for text in wrong if text)


def test_the_python_of_the_pages_is_python() -> None:
    for page in PAGES:
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            compile(block, page.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)


def test_what_a_reader_sees_changed_is_a_difference() -> None:
    example = Example("p:1", "alpo append x", ["7", "…", "end"])
    assert difference(example, "7\nmore\nand more\nend\n") == ""
    assert difference(example, "7\nend\n") == ""
    assert "the page says" in difference(example, "8\nend\n")
    assert "the page says" in difference(example, "7\n")


def test_a_line_may_come() -> None:
    example = Example("p:1", "alpo doctor", ["OK leader"], may_come=("^ +-> look",))
    assert difference(example, "OK leader\n    -> look\n") == ""
    assert "the page says" in difference(example, "OK leader\n    -> weep\n")


def test_times_sizes_and_random_ids_vary() -> None:
    line = "2026-11-21T15:09:18.375Z ~01a1fea7-96a7-762b-99c3-b59f7097ab95 took 17.6 s, 1,234 bytes, 3 entries"
    assert masked(line) == "<time> <client> took <duration>, <size>, 3 entries"
