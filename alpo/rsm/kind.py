"""`Kind`: what the machinery must know of a kind of machine. A room of its own, for it stands on these parts.

A machine of one's own is a subclass of `Snapshotting`, a class that encodes it piece by piece (`parts.Encoder`), one
that makes it of such pieces (`parts.Thawing`), and a `Kind` that names them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

from .parts import Decoder, Frozen, M, Thawing
from .payloads import Payloads


@dataclass(frozen=True)
class Kind(Generic[M]):
    """A kind of machine. ``title``: the name of the class that users hold ("State"), for messages.

    ``cursor``: name of the log's cursor that keeps what a newcomer needs. ``cache_magic``: begin of a cache file.
    ``machine``: makes an empty one. ``freeze``: freezes one as it stands; what it gives makes an encoder of that copy,
    whose parts have that many bytes at most. ``thawing``: begins to make one of parts. ``decoder``: begins to read
    parts, to no other end than their digest. ``proves``: a snapshot is not ended, and nothing is trimmed
    behind it, before the log, folded anew, has given the same: the machine's code is not ours.
    ``streams``: parts are thawed as they come, not once all are there.
    """

    payloads: Payloads
    title: str
    cursor: str
    cache_magic: bytes
    machine: Callable[[], M]
    freeze: Callable[[M], Frozen]
    thawing: Callable[[], Thawing[M]]
    decoder: Callable[[], Decoder[Any]]
    proves: bool = False
    streams: bool = False

    @property
    def agreed(self) -> str:
        """Name of the cursor with which a process that stops because it differs keeps the log, from the last snapshot
        on that it agreed with."""
        return f"{self.cursor}-agreed"

    @property
    def noun(self) -> str:
        """The word for the machine in messages: "state"."""
        return self.payloads.noun

    @property
    def ended(self) -> str:
        """The reason with which all ends when whoever uses it leaves."""
        return f"this {self.title} was left"
