"""docs/rules.md and the code agree: rules that are cited exist, names on the page exist, mutations are on their rules.
Names on the page docs/how-it-works.md exist, too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from printed import ROOT

from alpo.core.ranks import TRANSITIONS
from alpo_sim.checks import INVARIANTS
from alpo_sim.mutations import MUTATIONS

PAGE = ROOT / "docs" / "rules.md"
#: Files and folders in which rules are cited. (A test's constants R1 to R3 are no citations, and do no harm.)
CITING = (
    "alpo", "cli", "sim", "benchmarks", "tests", "docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md",
    "changes",
)
_HERE = "tests/docs/test_docs_rules.py"
LABELS = ["Code", "Tests", "Mutations"]

_SECTION = re.compile(r'^<a id="([a-z0-9-]+)"></a>\n\n### (.+)\n', re.MULTILINE)
_ITEM = re.compile(r"^\* \*\*([A-Z][a-z ]+):\*\*(.*(?:\n  .*)*)", re.MULTILINE)
_CITED = re.compile(r"\bR(\d{1,2})\b(?:(?:-| to )R(\d{1,2})\b)?")
_ANCHOR = re.compile(r"\brules\.md#([a-z0-9-]+)")
#: Citations of a document that users do not have; a paper's "section 5.2" is not meant.
_ELSEWHERE = re.compile(r"\b[Ss]ection \d+\b(?!\.\d)|\((?:architecture|protocol|interface), [\"A-Z]")
_MUTATION = re.compile(r"`([MNSGPWH]\d+[a-z]?)` \(([^`]*)\)(?:; |$)")


class Section(NamedTuple):
    """One section of the page. ``name``: its rule's number, or the name by which mutations call a section without one;
    ``cited``: the way in which code cites it."""

    anchor: str
    title: str
    name: str
    cited: str
    items: dict[str, str]


def sections(text: str) -> Iterator[Section]:
    """Sections of the page, each without the line breaks of its items."""
    found = list(_SECTION.finditer(text))
    ends = [*(each.start() for each in found[1:]), len(text)]
    for each, end in zip(found, ends, strict=True):
        items = {label: " ".join(rest.split()) for label, rest in _ITEM.findall(text[each.end() : end])}
        number = re.match(r"R\d+(?=: )", each[2])
        name = number[0] if number else each[1].replace("-", " ")
        yield Section(each[1], each[2], name, name if number else f"rules.md#{each[1]}", items)


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


def named(item: str) -> Iterator[tuple[str, str, str]]:
    """(file, a name in it, "code" or "quoted": how the item names it) of each name; ("", "") for the file alone."""
    path = ""
    for code, quoted in re.findall(r'`([^`]+)`|"([^"]+)"', item):
        if "/" in code:
            path = code
            yield path, "", ""
        else:
            yield path, code or quoted, "code" if code else "quoted"


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
    assert [(s.title, list(s.items)) for s in SECTIONS if list(s.items) != LABELS or not all(s.items.values())] == []


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
        files = [path for path, what, _ in named(section.items["Code"]) if not what]
        held = "\n".join((ROOT / path).read_text("utf-8") for path in files)
        if section.cited not in cited(held) | {f"rules.md#{anchor}" for anchor in _ANCHOR.findall(held)}:
            uncited.append(section.title)
    assert uncited == []


@pytest.mark.parametrize("label", ["Code", "Tests"])
def test_what_is_named_is_there(label: str) -> None:
    missing = []
    for section in SECTIONS:
        for path, what, how in named(section.items[label]):
            held = (ROOT / path).read_text("utf-8") if path and (ROOT / path).is_file() else None
            if held is None or path.startswith("tests/") != (label == "Tests"):
                missing.append((section.title, path))
            elif what and (what not in defined(held) if how == "code" else f'"{what}"' not in held):
                missing.append((section.title, f"{path}: {what}"))
    assert missing == []


def test_every_check_is_there_and_on_the_rules_that_it_is_of() -> None:
    told = {section.anchor: set(re.findall(r"\*([^*]+)\*", section.items["Tests"])) for section in SECTIONS}
    assert [(anchor, check) for anchor, checks in told.items() for check in sorted(checks - set(INVARIANTS))] == []
    lacking = [
        (rule, check)
        for check, what in INVARIANTS.items() for rule in sorted(cited(what)) if check not in told[rule.lower()]
    ]
    assert lacking == []


def test_every_mutation_is_on_the_line_of_its_rule_and_on_no_other() -> None:
    wanted = {
        (rule, name, mutation.title) for name, mutation in MUTATIONS.items() for rule in mutation.rule.split(", ")
    }
    told = [
        (section.name, name, what)
        for section in SECTIONS for name, what in _MUTATION.findall(section.items["Mutations"])
    ]
    assert sorted(told) == sorted(wanted)
    left = [
        (section.title, rest) for section in SECTIONS
        if (rest := _MUTATION.sub("", section.items["Mutations"])) not in ("", "none")
    ]
    assert left == []


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


@pytest.mark.parametrize("page", ["protocol.md", "glossary.md", "simulator.md"])
def test_pages_that_cite_rules_lead_here(page: str) -> None:
    assert "](rules.md" in (ROOT / "docs" / page).read_text("utf-8")
