"""Which connection a message to a peer leaves by (R27).

Requests leave over the connection that we dialled, answers over the one that the request came in on. A
connection whose hello left a cluster or an incarnation unknown carries START_ONLY messages and nothing else.
What has no way is dropped: the core repeats what matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from alpo.core.members import Identity
from alpo.core.messages import REQUESTS, START_ONLY, AppendRequest, Envelope, wants_answer
from alpo.wire.codec import encode_entries, encode_envelope

from .link import Link


class Route:
    """A connection to one peer: open for everything, or for first-start messages only."""

    def __init__(self, link: Link, full: bool, version: int) -> None:
        self.link = link
        self.full = full
        #: Of the protocol, as spoken on this connection.
        self.version = version
        #: When the first message that wants an answer left after the last answer; None: nothing is unanswered.
        self.silent_since_s: float | None = None


class Routes:
    """All connections between servers, by peer."""

    def __init__(self) -> None:
        self.dialled: dict[int, Route] = {}
        self.accepted: dict[Identity, Route] = {}

    def send(self, envelopes: Sequence[Envelope], now_s: float) -> None:
        """Encode and send, the first peer's before the next one's is encoded."""
        for link, data in self._encode(envelopes, now_s):
            link.push(data)

    def prepare(self, envelopes: Sequence[Envelope], now_s: float) -> Callable[[], None]:
        """Encode now; what is returned sends, from any thread."""
        encoded = list(self._encode(envelopes, now_s))

        def send() -> None:
            for link, data in encoded:
                link.push_from_thread(data)

        return send

    def _encode(self, envelopes: Sequence[Envelope], now_s: float) -> Iterator[tuple[Link, bytes]]:
        """The bytes for each connection, neighbours for the same one joined. The same entries to several peers are
        encoded once."""
        blobs: dict[tuple[int, int], bytes] = {}
        link: Link | None = None
        parts: list[bytes] = []
        for envelope in envelopes:
            message = envelope.message
            route = self._route(envelope)
            if route is None:
                continue
            blob = None
            if type(message) is AppendRequest and message.entries:
                # Consecutive and immutable, so that the two ends stand for all between.
                ends = (id(message.entries[0]), id(message.entries[-1]))
                blob = blobs.get(ends)
                if blob is None:
                    blob = blobs[ends] = encode_entries(message.entries)
            if route.link is not link:
                if link is not None:
                    yield link, b"".join(parts)
                link, parts = route.link, []
            parts.append(encode_envelope(envelope, blob, route.version))
            if route.silent_since_s is None and wants_answer(message):
                route.silent_since_s = now_s
        if link is not None:
            yield link, b"".join(parts)

    def _route(self, envelope: Envelope) -> Route | None:
        message = envelope.message
        if isinstance(message, REQUESTS):
            route = self.dialled.get(envelope.target.id)
        else:
            route = self.accepted.get(envelope.target)
        if route is None or not (route.full or isinstance(message, START_ONLY)):
            return None
        return route
