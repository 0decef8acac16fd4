"""`alpo-pipeline replay --machine`: a machine of the user's own as of any LSN, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from pipeline_kit import fields, pipeline
from spark_kit import FileLog

from alpo.rsm import At
from alpo.rsm.hosted import Hosted, Made, commands_head, found, newer_version
from alpo.rsm.items import kind_of
from alpo.rsm.payloads import Begin

ID = b"m" * 16
MINUTE = 60_000


class Words:
    """All words so far, with the terms in which they came; the second version has a mark before each item."""

    mark = b""

    def __init__(self, words: Iterable[bytes] = ()) -> None:
        self.words = list(words)

    def apply(self, command: bytes, at: At) -> object:
        if command == b"bad":
            raise ValueError("no such word")
        self.words.append(b"%s %d" % (command, at.term))
        return len(self.words)

    def items(self) -> Iterator[bytes]:
        for word in self.words:
            yield self.mark + word

    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        return cls(items)

    def freeze(self) -> Self:
        return type(self)(self.words)


class Silent(Words):
    """Words that give no items."""

    def items(self) -> Iterator[bytes]:
        raise OSError("lost")


def command(word: bytes, version: int = 1) -> bytes:
    return commands_head(version) + word


def snapshot(payloads: list[bytes], lsn: int) -> list[bytes]:
    """The payloads of a snapshot at the end of these, of which the last is at ``lsn`` - 1."""
    machine = Hosted(Made(Words, "words", 1))
    kind = kind_of(machine.made)
    sid = b"s" * 16
    for at, payload in enumerate([*payloads, kind.payloads.begin(sid)], 1):
        machine.apply(at, at, payload, 1)
    assert machine.lsn == lsn and isinstance(kind.payloads.snapshot_message(kind.payloads.begin(sid)), Begin)
    encoder = kind.freeze(machine)(4096)
    parts = [kind.payloads.part(sid, number, part) for number, part in enumerate(encoder)]
    return [kind.payloads.begin(sid), *parts, kind.payloads.end(sid, encoder.parts, encoder.chain, encoder.digest)]


STORY = [found(ID, "words", 1), command(b"a"), b"of others", command(b"bad"), command(b"\xff"), b"\xc1\x52\x01broken"]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[FileLog]:
    log = FileLog(tmp_path / "log")
    log.append([each] for each in STORY)
    yield log
    log.close()


def asked(log: FileLog, *more: object, machine: str = f"{__name__}:Words", name: str = "words") -> tuple[Any, ...]:
    return "replay", "--path", log.path, "--machine", machine, "--name", name, *more


def test_as_of_any_lsn(log: FileLog, tmp_path: Path) -> None:
    file = tmp_path / "items"
    told = fields(*asked(log, "--items", file))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines == [{"item": "a 1"}, {"item_base64": "/yAx"}]
    assert told.pop("seconds") >= 0 and len(told.pop("digest")) == 32 and told == {
        "machine": "words", "id": ID.hex(), "cluster": (b"c" * 16).hex(), "lsn": 6, "version": 1, "items": 2,
        "item_bytes": 6, "file": str(file), "from_lsn": 0, "payloads": 6, "folded": 5, "invalid": 1,
    }
    early = fields(*asked(log, "--upto", 2))
    assert (early["lsn"], early["items"], early["file"]) == (2, 1, None)
    out = pipeline(*asked(log))
    assert "words, version 1" in out and "the first payload" in out and fields(*asked(log))["digest"] in out


def test_a_trimmed_log_begins_with_its_snapshot(log: FileLog) -> None:
    log.append([each] for each in snapshot(STORY, 7))
    log.append([[command(b"z")]])
    whole = fields(*asked(log))
    log.clean(6)
    told = fields(*asked(log))
    assert (whole["from_lsn"], told["from_lsn"], told["items"]) == (0, 7, 3) and told["digest"] == whole["digest"]
    assert "ALPO_DATA_LOSS" in pipeline(*asked(log, "--upto", 6), code=1)


def test_what_ends_the_fold(log: FileLog, tmp_path: Path) -> None:
    assert "ALPO_OTHER_MACHINE: this log holds the machine 'words', not 'w'" in pipeline(*asked(log, name="w"), code=1)
    broken = asked(log, "--items", tmp_path / "items", machine=f"{__name__}:Silent")
    assert "gives no items: OSError: lost" in pipeline(*broken, code=1)
    assert not list(tmp_path.glob("items*"))
    log.append([[newer_version(2)], [command(b"b", 2)]])
    fields(*asked(log, "--upto", 6))
    assert "ends at LSN 8, and --upto is 9" in pipeline(*asked(log, "--upto", 9), code=1)


def test_a_newer_version_is_not_folded_by_older_code(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "newer")
    log.append([[found(ID, "words", 2)], [command(b"b", 2)]])
    assert "ALPO_NEWER_VERSION: the machine 'words' is at version 2 as of LSN 1" in pipeline(*asked(log), code=1)
    assert fields(*asked(log, "--code-version", 2))["version"] == 2
    log.close()


@pytest.mark.parametrize(("words", "why"), [
    (("--machine", "no_such:Words", "--name", "w"), "No module named 'no_such'"),
    (("--machine", "json:Words", "--name", "w"), "there is no Words in json"),
    (("--machine", "json:JSONDecoder", "--name", "w"), "a machine is a class with apply, items, load and freeze"),
    (("--machine", "json", "--name", "w"), "accepted: MODULE:CLASS"),
    (("--machine", "json:Words"), "needs the machine's --name"),
    (("--machine", f"{__name__}:Words", "--name", "a b"), "without spaces"),
    (("--machine", "json:Words", "--name", "w", "--state"), "what shall be folded?"),
    (("--machine", "json:Words", "--name", "w", "--to", "there"), "--to goes with --state"),
    (("--state", "--name", "w", "--to", "there"), "go with --machine"),
    (("--state",), "where shall the tables go?"),
])
def test_wrong_usage(log: FileLog, words: tuple[str, ...], why: str) -> None:
    assert why in pipeline("replay", "--path", log.path, *words, code=2)
