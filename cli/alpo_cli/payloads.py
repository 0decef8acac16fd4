"""Where `alpo append` gets its payloads from: words of the command line, lines or NUL-separated parts of a stream.

Memory is bounded: a part that does not end within PART_BYTES_MAX is refused, whatever the cluster's limit is.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Protocol

from .exits import UsageProblem
from .running import in_thread

CHUNK_BYTES = 1 << 18
PART_BYTES_MAX = 64 << 20


class Splitter:
    """Cuts a stream into parts at a separator byte. A last part without separator counts, an empty rest does not."""

    def __init__(self, separator: bytes) -> None:
        self._separator = separator
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """The parts that this chunk completes. Raises UsageProblem when one grows past all bounds."""
        head, separator, tail = chunk.rpartition(self._separator)
        if not separator:
            self._keep(chunk)
            return []
        parts = (bytes(self._rest) + head).split(self._separator)
        self._rest.clear()
        self._keep(tail)
        return parts

    def end(self) -> list[bytes]:
        """What follows the last separator, if anything does."""
        return [bytes(self._rest)] if self._rest else []

    def _keep(self, tail: bytes) -> None:
        self._rest += tail
        if len(self._rest) > PART_BYTES_MAX:
            raise UsageProblem(f"a payload of more than {PART_BYTES_MAX} bytes without a separator")


class Whole:
    """Takes a stream as a single part, an empty one too."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        self._parts.append(chunk)
        self._bytes += len(chunk)
        if self._bytes > PART_BYTES_MAX:
            raise UsageProblem(f"--whole takes at most {PART_BYTES_MAX} bytes")
        return []

    def end(self) -> list[bytes]:
        return [b"".join(self._parts)]


async def from_words(words: Iterable[str]) -> AsyncIterator[list[bytes]]:
    """Each word a payload, byte for byte as the shell gave it."""
    yield [os.fsencode(word) for word in words]


class Stream(Protocol):
    """An unbuffered stream: a read returns what is there. (A buffered one is locked while it is read: see below.)"""

    def read(self, size: int, /) -> bytes | None: ...


async def from_stream(stream: Stream, splitter: Splitter | Whole) -> AsyncIterator[list[bytes]]:
    """The parts as they come, those of one read together: a slow producer's lines do not wait for more."""
    while True:
        # The thread may hang in a terminal's read for ever: Ctrl-C must not wait for it, nor the interpreter's end.
        chunk = await in_thread(stream.read, CHUNK_BYTES)
        parts = splitter.feed(chunk) if chunk else splitter.end()
        if parts:
            yield parts
        if not chunk:
            return


class Batcher:
    """Gathers payloads into batches of ``size`` (0: everything in one)."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._gathered: list[bytes] = []
        self._bytes = 0

    def feed(self, parts: list[bytes]) -> Iterator[list[bytes]]:
        """The batches that are now full."""
        for part in parts:
            self._gathered.append(part)
            self._bytes += len(part)
            if self._bytes > PART_BYTES_MAX:
                raise UsageProblem(f"a batch of more than {PART_BYTES_MAX} bytes")
            if len(self._gathered) == self._size:
                yield self.take()

    def take(self) -> list[bytes]:
        """What is left at the end; may be empty."""
        batch, self._gathered, self._bytes = self._gathered, [], 0
        return batch
