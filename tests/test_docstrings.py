"""Rules for docstrings, `#:` comments, and `#` comments of more than six words: they begin with a verb or a noun, and
are more than a citation.

Their reader has not read the protocol's rules. A text that begins with a pronoun or a preposition ("Of …", "Whoever …",
"It …") is the end of a sentence whose beginning was in the author's head, and a bare rule number says nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

#: Folders and files that are held to the rules.
HELD = ("alpo", "benchmarks", "cli", "examples", "sim", "tests")
#: Words of a `#` comment that may be the end of a sentence: the line beside it is its beginning.
BESIDE_MAX = 6
#: First words of texts that lack their verb or noun.
_PRONOUNS = "it its they their them he she his her that those these such whoever whom whose who what which"
_CONJUNCTIONS = "so as if when where until once because but and or than unless though whether why how"
_PREPOSITIONS = "of for by with at in on to from behind without beyond after before beside under up"
_QUESTIONS = "is are was were does did may must can could shall should will would has"
_NOBODY = "nothing nobody somebody something everybody everything same also only not see"
RIDDLES = frozenset(" ".join((_PRONOUNS, _CONJUNCTIONS, _PREPOSITIONS, _QUESTIONS, _NOBODY)).split())
_RIDDLE = re.compile(r"(one|those|all|none) (that|who|which)\b|the same\b", re.IGNORECASE)
#: Parts of a citation: rules, mutations, sections, names of code.
_CITATION = re.compile(
    r"\b(and|see|of|section|rule|rules)\b|[RNMSP]\d+|rules\.md#[a-z-]+|`[^`]*`|[\s.,:;()–-]+", re.IGNORECASE
)

#: A string, which may hold what looks like a comment, or a comment.
_STRING_OR_COMMENT = re.compile(
    r'"""(?s:\\.|.)*?"""' r"|'''(?s:\\.|.)*?'''" r'|"(?s:\\.|[^"\\\n])*"' r"|'(?s:\\.|[^'\\\n])*'|#[^\n]*"
)
#: Comments for programs.
_MARK = re.compile(r"type: |noqa|fmt: |pragma")

_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def fault_of(text: str) -> str:
    """Fault of a docstring or of a `#:` comment; "" if there is none."""
    words = text.split()
    if not words or not _CITATION.sub("", text):
        return "is a citation and nothing else"
    if words[0].strip(",;:").lower() in RIDDLES or _RIDDLE.match(text):
        return "begins with no verb and no noun"
    return ""


def documented(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """(line, name, docstring) of each module, class and function that has one."""
    for node in ast.walk(tree):
        if isinstance(node, _Documented) and (text := ast.get_docstring(node)) is not None:
            yield node.body[0].lineno, getattr(node, "name", "the module"), text


def attribute_comments(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each `#:` comment's beginning."""
    before = False
    for number, line in enumerate(source.split("\n"), 1):
        here = line.strip().startswith("#:")
        if here and not before:
            yield number, line.strip().removeprefix("#:").strip()
        before = here


def comments(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each `#` comment of more than `BESIDE_MAX` words. Lines of comment below each other are one."""
    begun, last, text, number, place = 0, -1, "", 1, 0
    for found in _STRING_OR_COMMENT.finditer(source):
        token = found[0]
        comment = token.lstrip("# ").strip()
        if not token.startswith("#") or token.startswith(("#:", "#!")) or _MARK.match(comment):
            continue
        number, place = number + source.count("\n", place, found.start()), found.start()
        alone = not source[source.rfind("\n", 0, place) + 1 : place].strip()
        if number == last + 1 and alone:
            last, text = number, f"{text} {comment}"
            continue
        if len(text.split()) > BESIDE_MAX:
            yield begun, text
        begun, last, text = number, number if alone else -1, comment
    if len(text.split()) > BESIDE_MAX:
        yield begun, text


def bare(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of each public function and class of a module without a docstring. Methods are not looked at: many
    implement what a protocol or a base class documents."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not node.name.startswith("_") and ast.get_docstring(node) is None and not _is_plain(node):
                yield node.lineno, node.name


def _is_plain(node: ast.AST) -> bool:
    """True for an enumeration, or a record of fields alone: their names say what they are."""
    return isinstance(node, ast.ClassDef) and all(isinstance(part, ast.AnnAssign | ast.Assign) for part in node.body)


def held_files() -> Iterator[Path]:
    for folder in HELD:
        files = sorted((ROOT / folder).rglob("*.py"))
        assert files, f"{folder} is not there any more: take it out of HELD"
        yield from files


def faults(file: Path) -> Iterator[str]:
    source = file.read_text()
    tree, where = ast.parse(source), file.relative_to(ROOT)
    for line, name, text in documented(tree):
        if fault := fault_of(text):
            yield f"{where}:{line}: the docstring of {name} {fault}: {text.splitlines()[0]}"
    for line, text in attribute_comments(source):
        if fault := fault_of(text):
            yield f"{where}:{line}: the comment {fault}: {text}"
    for line, text in comments(source):
        if fault := fault_of(text):
            yield f"{where}:{line}: the comment {fault}: {text}"
    for line, name in bare(tree) if where.parts[0] not in ("tests", "examples") else ():
        yield f"{where}:{line}: {name} is public and has no docstring"


def test_docstrings_are_read_by_strangers() -> None:
    found = [fault for file in held_files() for fault in faults(file)]
    assert not found, "\n".join(["docstrings:", *found])


RIDDLES_SEEN = """
N3 and M16.
See rule 8.
R27.
See rules.md#timers
Of what is accepted up to ``id`` the part that may be counted.
One that was found to take what a cursor needs.
Its retired incarnations once the present one is among them.
Whom `asked_address` has an address of; 0: nobody.
What there is, and how it is taken back and saved.
In the place of an older one of the same server.
Does it wait?
So many at most.
For status.
The same, column by column.
As `take`.
"""
SENTENCES = """
Append the TRIM entry; the request has passed every check.
True if no membership entry is pending (N3).
The member's retired incarnations.
Hold the reply until entry `id` is guaranteed.
`id`, or the id before the first damaged entry.
Isolated runs.
One server's store.
"""


@pytest.mark.parametrize("text", RIDDLES_SEEN.strip().splitlines())
def test_a_riddle_is_found(text: str) -> None:
    assert fault_of(text)


@pytest.mark.parametrize("text", SENTENCES.strip().splitlines())
def test_a_sentence_is_not(text: str) -> None:
    assert not fault_of(text)


def test_a_public_function_wants_a_docstring() -> None:
    tree = ast.parse("class A:\n    x: int\nclass B:\n    def f(self): ...\ndef g(): ...\ndef _h(): ...\n")
    assert [name for _, name in bare(tree)] == ["B", "g"]


def test_a_comment_on_an_attribute_is_looked_at() -> None:
    source = "#: Of all.\n#: More.\nA = 1\n# Of no account.\nclass C:\n    #: Seconds.\n    b = 2\n"
    assert list(attribute_comments(source)) == [(1, "Of all."), (6, "Seconds.")]


def test_a_long_comment_is_looked_at_whole() -> None:
    source = "a = 1  # of it\n# Of all\n# that there is in the world.\nb = 2  # a b c d e f g\n# Too short.\n"
    assert list(comments(source)) == [(2, "Of all that there is in the world."), (4, "a b c d e f g")]
