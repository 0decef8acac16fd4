"""Cutting streams into payloads, and payloads into batches."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpo_cli import appending
from alpo_cli.appending import Batcher, Splitter, Whole, from_stream, from_words
from alpo_cli.exits import UsageProblem


def naive(stream: bytes, separator: bytes) -> list[bytes]:
    parts = stream.split(separator)
    return parts if parts[-1] else parts[:-1]


CHUNKS = st.lists(st.binary(max_size=6).map(lambda chunk: chunk.replace(b"\x07", b"\n")))


@given(CHUNKS, st.sampled_from([b"\n", b"\0"]))
def test_chunks_do_not_matter(chunks: list[bytes], separator: bytes) -> None:
    splitter = Splitter(separator)
    got = [part for chunk in chunks for part in splitter.feed(chunk)] + splitter.end()
    assert got == naive(b"".join(chunks), separator)


@pytest.mark.trio
async def test_lines_of_a_stream() -> None:
    async def read(text: bytes, splitter: Splitter | Whole) -> list[bytes]:
        return [part async for parts in from_stream(io.BytesIO(text), splitter) for part in parts]

    assert await read(b"a\n\nb\r\nlast", Splitter(b"\n")) == [b"a", b"", b"b\r", b"last"]
    assert await read(b"", Splitter(b"\n")) == []
    assert await read(b"a\nb\n", Whole()) == [b"a\nb\n"]
    assert await read(b"", Whole()) == [b""]


@pytest.mark.trio
async def test_words_are_the_shell_s_bytes() -> None:
    assert [parts async for parts in from_words(["grün", "\udcff"])] == [["grün".encode(), b"\xff"]]


def test_batches() -> None:
    batcher = Batcher(2)
    assert list(batcher.feed([b"1", b"2", b"3"])) == [[b"1", b"2"]]
    assert list(batcher.feed([b"4", b"5"])) == [[b"3", b"4"]]
    assert batcher.take() == [b"5"] and batcher.take() == []
    everything = Batcher(0)
    assert list(everything.feed([b"1"] * 9)) == [] and everything.take() == [b"1"] * 9


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appending, "PART_BYTES_MAX", 10)
    for splitter in (Splitter(b"\n"), Whole()):
        splitter.feed(b"12345")
        with pytest.raises(UsageProblem, match="10 bytes"):
            splitter.feed(b"678901")
    with pytest.raises(UsageProblem, match="10 bytes"):
        list(Batcher(0).feed([b"123456", b"78901"]))
