"""Frames stay what they are, byte for byte: a server or client of an older release reads them, and sends the same.

``golden_frames.txt`` has the samples' frames, one a line: the version of the protocol, then the frame in hexadecimal. A
new type adds lines; a line that is there never changes. This file, run as a program, prints what belongs there now.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from frame_samples import frames, marks

from alpo.wire.requests import OLDEST_VERSION, VERSION

GOLDEN = Path(__file__).parent / "golden_frames.txt"


def all_frames(version: int) -> list[bytes]:
    return [*frames(version), *marks()]


def golden(version: int) -> list[str]:
    lines = [line.split() for line in GOLDEN.read_text().splitlines()]
    return [frame for number, frame in lines if int(number) == version]


@pytest.mark.parametrize("version", range(OLDEST_VERSION, VERSION + 1))
def test_frames_are_the_golden_ones(version: int) -> None:
    assert [frame.hex() for frame in all_frames(version)] == golden(version)


if __name__ == "__main__":
    for each in range(OLDEST_VERSION, VERSION + 1):
        print("\n".join(f"{each} {frame.hex()}" for frame in all_frames(each)))
