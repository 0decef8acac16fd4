"""docs/rules.md, its index docs/rules-index.toml and the code agree: rules that are cited exist, names in the index
exist, mutations are of rules that there are. Names on the page docs/how-it-works.md exist, too."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from printed import ROOT

from alpo.core.ranks import TRANSITIONS
from alpo_sim.checks import INVARIANTS
from alpo_sim.mutations import MUTATIONS

PAGE = ROOT / "docs" / "rules.md"
INDEX = tomllib.loads((ROOT / "docs" / "rules-index.toml").read_text("utf-8"))
#: Files and folders in which rules are cited. (A test's constants R1 to R3 are no citations, and do no harm.)
CITING = (
    "alpo", "cli", "sim", "benchmarks", "tests", "docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md",
    "changes",
)
_HERE = "tests/docs/test_docs_rules.py"
_SECTION = re.compile(r'^<a id="([a-z0-9-]+)"></a>\n\n### (.+)\n', re.MULTILINE)
_CITED = re.compile(r"\bR(\d{1,2})\b(?:(?:-| to )R(\d{1,2})\b)?")
_ANCHOR = re.compile(r"\brules\.md#([a-z0-9-]+)")
#: Citations of a document that users do not have; a paper's "section 5.2" is not meant.
_ELSEWHERE = re.compile(r"\b[Ss]ection \d+\b(?!\.\d)|\((?:architecture|protocol|interface), [\"A-Z]")


class Section(NamedTuple):
    """One section of the page. ``name``: its rule's number, or the name by which mutations call a section without one;
    ``cited``: the way in which code cites it."""

    anchor: str
    title: str
    name: str
    cited: str


def sections(text: str) -> Iterator[Section]:
    """Sections of the page."""
    for anchor, title in _SECTION.findall(text):
        number = re.match(r"R\d+(?=: )", title)
        name = number[0] if number else anchor.replace("-", " ")
        yield Section(anchor, title, name, name if number else f"rules.md#{anchor}")


TEXT = PAGE.read_text("utf-8")
SECTIONS = list(sections(TEXT))
RULES = {section.name: section for section in SECTIONS if re.fullmatch(r"R\d+", section.name)}


def cited(text: str) -> set[str]:
    """The rules that a text cites; R21-R24 are four rules."""
    return {
        f"R{number}" for first, last in _CITED.findall(text) for number in range(int(first), int(last or first) + 1)
    }


def texts() -> Iterator[tuple[str, str]]:
    """Every file in which rules may be cited, and what is in it."""
    for name in CITING:
        for path in sorted((ROOT / name).rglob("*")) if (ROOT / name).is_dir() else [ROOT / name]:
            if path.suffix in (".py", ".md", ".txt") and path != PAGE:
                yield str(path.relative_to(ROOT)), path.read_text("utf-8")


def defined(text: str) -> set[str]:
    """Names that a text defines: functions, classes, constants and fields."""
    found = re.findall(r"\b(?:def|class) (\w+)|^ *(\w+)(?:: [^=\n]+)? = |^ +(\w+): ", text, re.MULTILINE)
    return {name for names in found for name in names if name}


def test_every_rule_has_its_anchor_and_stands_once() -> None:
    names = [section.name for section in SECTIONS if section.name in RULES]
    assert sorted(names) == sorted(RULES) != []
    assert [s.anchor for s in SECTIONS if s.name in RULES and s.anchor != s.name.lower()] == []
    assert len({section.anchor for section in SECTIONS}) == len(SECTIONS) == TEXT.count("\n### ")


def test_every_section_says_where_it_is_carried_out_and_shown() -> None:
    assert list(INDEX) == [section.anchor for section in SECTIONS]
    assert [anchor for anchor, about in INDEX.items() if not (about["code"] and about["tests"])] == []


def test_every_rule_that_is_cited_is_here() -> None:
    unknown = [(file, rule) for file, text in texts() for rule in sorted(cited(text) - set(RULES))]
    assert unknown == []


def test_every_section_that_is_cited_is_here() -> None:
    anchors = {section.anchor for section in SECTIONS}
    found = {file: set(_ANCHOR.findall(text)) for file, text in texts()}
    assert [(file, each) for file, there in found.items() for each in sorted(there - anchors)] == []
    elsewhere = [(file, each[0]) for file, text in texts() if file != _HERE for each in _ELSEWHERE.finditer(text)]
    assert elsewhere == []


def test_every_rule_is_cited_by_a_file_that_carries_it_out() -> None:
    uncited = []
    for section in SECTIONS:
        held = "\n".join((ROOT / path).read_text("utf-8") for path in INDEX[section.anchor]["code"])
        if section.cited not in cited(held) | {f"rules.md#{anchor}" for anchor in _ANCHOR.findall(held)}:
            uncited.append(section.title)
    assert uncited == []


@pytest.mark.parametrize("label", ["code", "tests"])
def test_what_is_named_is_there(label: str) -> None:
    missing = []
    for anchor, about in INDEX.items():
        for path, names in about[label].items():
            held = (ROOT / path).read_text("utf-8") if (ROOT / path).is_file() else None
            if held is None or path.startswith("tests/") != (label == "tests"):
                missing.append((anchor, path))
                continue
            there = defined(held)
            missing += [(anchor, f"{path}: {name}") for name in names
                        if (name not in held if name.startswith('"') else name not in there)]
    assert missing == []


def test_every_check_is_there_and_on_the_rules_that_it_is_of() -> None:
    told = {anchor: set(about.get("checks", ())) for anchor, about in INDEX.items()}
    assert [(anchor, check) for anchor, checks in told.items() for check in sorted(checks - set(INVARIANTS))] == []
    lacking = [
        (rule, check)
        for check, what in INVARIANTS.items() for rule in sorted(cited(what)) if check not in told[rule.lower()]
    ]
    assert lacking == []


def test_every_mutation_is_of_rules_that_there_are() -> None:
    known = {section.name for section in SECTIONS}
    unknown = [(name, mutation.rule) for name, mutation in MUTATIONS.items() if set(mutation.rule.split(", ")) - known]
    assert unknown == []


def test_the_walk_tells_what_a_server_may_become() -> None:
    text = (ROOT / "docs" / "how-it-works.md").read_text("utf-8")
    told = re.findall(r"^\| (passive|candidate|leader) \| (\w+) \| (.+) \|$", text, re.MULTILINE)
    assert told == [(before.value, after.value, why) for (before, after), why in TRANSITIONS.items()]


def test_what_the_walk_through_the_files_names_is_there() -> None:
    text = " ".join((ROOT / "docs" / "how-it-works.md").read_text("utf-8").split())
    walked = re.sub(r"```.*?```", "", text)
    paths = [code for code in re.findall(r"`([^` ]+)`", walked) if "/" in code]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    inside = [
        (path, name) for path, names in re.findall(r"`([\w./]+\.py)` \(((?:`\w+`(?:, )?)+)\)", walked)
        for name in re.findall(r"\w+", names)
    ]
    assert [each for each in inside if each[1] not in defined((ROOT / each[0]).read_text("utf-8"))] == []
    code = "\n".join(held for file, held in texts() if file.endswith(".py") and not file.startswith("tests/"))
    assert sorted(set(re.findall(r"`(\w+)`", walked)) - defined(code)) == []
    assert len(inside) > 50 and len(paths) > 50


def test_mutations_that_the_core_and_its_tests_cite_are_there() -> None:
    unknown = [
        (file, name) for file, text in texts() if file.startswith(("alpo/core/", "tests/core/"))
        for name in re.findall(r"\b[MNSGPWH]\d{1,2}[a-z]?\b", text) if name not in MUTATIONS
    ]
    assert unknown == []


@pytest.mark.parametrize("page", ["how-it-works.md", "wire-format.md", "simulator.md"])
def test_pages_that_cite_rules_lead_here(page: str) -> None:
    assert "](rules.md" in (ROOT / "docs" / page).read_text("utf-8")
