"""Sources of `alpo append`'s payloads: command line arguments, lines or NUL-separated parts of a stream.

Memory is bounded: a part that does not end within PART_BYTES_MAX is refused, whatever the cluster's limit is.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Protocol

from alpo.threads import in_thread

from .exits import UsageProblem

CHUNK_BYTES = 1 << 18
PART_BYTES_MAX = 64 << 20


class Splitter:
    """Splits a stream at a separator byte. A last part without separator counts, an empty rest does not."""

    def __init__(self, separator: bytes) -> None:
        self._separator = separator
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take a chunk; returns the parts that are now complete. Raises UsageProblem if a part is too long."""
        head, separator, tail = chunk.rpartition(self._separator)
        if not separator:
            self._keep(chunk)
            return []
        parts = (bytes(self._rest) + head).split(self._separator)
        self._rest.clear()
        self._keep(tail)
        return parts

    def end(self) -> list[bytes]:
        """The rest after the last separator, if there is any."""
        return [bytes(self._rest)] if self._rest else []

    def _keep(self, tail: bytes) -> None:
        self._rest += tail
        if len(self._rest) > PART_BYTES_MAX:
            raise UsageProblem(f"a payload of more than {PART_BYTES_MAX} bytes without a separator")


class Whole:
    """Takes a stream as a single part, even an empty one."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take a chunk; returns []. Raises UsageProblem if the stream is too long."""
        self._parts.append(chunk)
        self._bytes += len(chunk)
        if self._bytes > PART_BYTES_MAX:
            raise UsageProblem(f"--whole takes at most {PART_BYTES_MAX} bytes")
        return []

    def end(self) -> list[bytes]:
        """The whole stream as one part."""
        return [b"".join(self._parts)]


async def from_words(words: Iterable[str]) -> AsyncIterator[list[bytes]]:
    """Yield the arguments as payloads, byte for byte as the shell gave them."""
    yield [os.fsencode(word) for word in words]


class Stream(Protocol):
    """An unbuffered stream: a read returns what is available. (A buffered one would be locked while a thread reads
    it.)"""

    def read(self, size: int, /) -> bytes | None: ...


async def from_stream(stream: Stream, splitter: Splitter | Whole) -> AsyncIterator[list[bytes]]:
    """Yield parts as they come, those of one read together: lines of a slow producer do not wait for more."""
    while True:
        # The thread may block in a terminal's read for ever: neither Ctrl-C nor the interpreter's end may wait for it.
        chunk = await in_thread(stream.read, CHUNK_BYTES)
        parts = splitter.feed(chunk) if chunk else splitter.end()
        if parts:
            yield parts
        if not chunk:
            return


class Batcher:
    """Collects payloads into batches of ``size`` (0: all in one)."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._gathered: list[bytes] = []
        self._bytes = 0

    def feed(self, parts: list[bytes]) -> Iterator[list[bytes]]:
        """Add payloads; yields the batches that are now full. Raises UsageProblem if a batch gets too large."""
        for part in parts:
            self._gathered.append(part)
            self._bytes += len(part)
            if self._bytes > PART_BYTES_MAX:
                raise UsageProblem(f"a batch of more than {PART_BYTES_MAX} bytes")
            if len(self._gathered) == self._size:
                yield self.take()

    def take(self) -> list[bytes]:
        """Take what was gathered since the last full batch, and begin anew. At the end this is the rest, or empty."""
        batch, self._gathered, self._bytes = self._gathered, [], 0
        return batch
