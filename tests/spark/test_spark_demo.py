"""The proof of `make demo-spark`: it reports all that is lost, doubled or wrong. The demo itself is run by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from demo import check, main
from demo_proof import Row, ends_of, expected, prove

LINES = [b"Down the rabbit-hole", b"", b"down, DOWN, down!", b"the end"]
ENDS = [2, 3, 4]


def test_what_should_be_there() -> None:
    assert sorted(expected(LINES, ENDS)) == [
        Row(0, "down", 1), Row(0, "hole", 1), Row(0, "rabbit", 1), Row(0, "the", 1), Row(1, "down", 4),
        Row(2, "end", 1), Row(2, "the", 2),
    ]
    assert prove(LINES, ENDS, expected(LINES, ENDS)) == (3, 7, 0, 0, 5, 0)
    assert prove(LINES, ENDS, expected(LINES, ENDS)).holds


@pytest.mark.parametrize(("change", "lost", "doubled", "wrong"), [
    (lambda rows: rows + rows[:1], 0, 1, 1),
    (lambda rows: rows[1:], 1, 0, 0),
    (lambda rows: rows[:-1], 1, 0, 1),
    (lambda rows: [*rows[:-1], rows[-1]._replace(times=9)], 1, 1, 1),
    (lambda rows: [], 7, 0, 5),
])
def test_what_is_not(change: Callable[[list[Row]], list[Row]], lost: int, doubled: int, wrong: int) -> None:
    proof = prove(LINES, ENDS, change(expected(LINES, ENDS)))
    assert (proof.lost, proof.doubled, proof.wrong) == (lost, doubled, wrong) and not proof.holds


def test_the_ends_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    for batch, lsn in enumerate((3, 11, 12)):
        (tmp_path / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"log": "aa", "lsn": {lsn}}}')
    (tmp_path / "offsets" / ".2.crc").write_text("")
    assert ends_of(tmp_path) == [2, 10, 11]
    (tmp_path / "offsets" / "0").unlink()
    with pytest.raises(SystemExit, match="does not know all"):
        ends_of(tmp_path)


def test_a_claim_that_does_not_hold_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    check(True, "all is well")
    assert capsys.readouterr().out == "  ✓ all is well\n"
    with pytest.raises(SystemExit, match="NOT so: all is well"):
        check(0, "all is well")


def test_a_text_too_short_to_kill_spark_in_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"\n".join(LINES))
    with pytest.raises(SystemExit, match="short has 4 lines: 1500 or more"):
        main(str(tmp_path / "short"))
