"""The payloads of a state in docs/wire-format.md are those of the code."""

from __future__ import annotations

import re

from printed import ROOT

from alpo.state import codec
from alpo.state.codec import By, Command, Do, Kind

SECTION = (ROOT / "docs" / "wire-format.md").read_text("utf-8").partition("\n## Payloads of a state\n")[2]


def test_the_example_is_what_is_written_and_read() -> None:
    (found,) = re.findall(r"^    (c1 41 [0-9a-f ]+)$", SECTION, re.MULTILINE)
    guards, ops = [(int(By.VERSION), "motd", 7)], [(int(Do.PUT), "motd", b"hello", 0)]
    payload = bytes.fromhex(found)
    assert codec.command(guards, ops, 1 << 20) == [payload]
    assert codec.decode(payload) == Command(0, guards, ops)


def test_every_kind_of_payload_is_told_of() -> None:
    assert re.findall(r"^\| (\d) \| ([A-Z]+) \|", SECTION, re.MULTILINE) == [
        (str(int(kind)), kind.name) for kind in Kind]


def test_every_guard_and_operation_is_told_of() -> None:
    told = re.findall(r"^\| `\[(\d), name[^`]*\]` \|", SECTION, re.MULTILINE)
    assert told == [str(int(kind)) for kind in (*By, *Do)]
