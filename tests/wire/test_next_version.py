"""Versions of the protocol side by side: each connection has the shapes of its own."""

from __future__ import annotations

from typing import Any

import pytest
from frame_samples import HOSTS, ME, OTHER, OTHERS, OTHERS_5, OTHERS_TOO, PEERS, PEERS_TOO, frames
from next_version import NEXT, know_next, speak_next

from alpo.core import messages as m
from alpo.core import requests as q
from alpo.wire import codec
from alpo.wire import requests as r
from alpo.wire.framing import HEADER_BYTES

ANSWER = next(message for message in PEERS if type(message) is m.AppendAnswer)._replace(room=m.Room.NONE)


def body(message: Any, version: int) -> bytes:
    if isinstance(message, m.AppendAnswer):
        return codec.encode_envelope(m.Envelope(b"e" * 16, ME, OTHER, message), version=version)[HEADER_BYTES:]
    return codec.encode(message, version)[HEADER_BYTES:]


def decoded(message: Any, sent: bytes, version: int) -> Any:
    if isinstance(message, m.AppendAnswer):
        envelope = codec.decode_peer(sent, version)
        assert isinstance(envelope, m.Envelope)
        return envelope.message
    return (codec.decode_client if isinstance(message, q.Outcome) else codec.decode_server)(sent, version)


@pytest.mark.parametrize(("message", "comes"), [
    (q.Outcome(1, "web", 4, 9), q.Outcome(1, "web", 4)),
    (q.Appended(None, "web", 4, range(5, 7), False), q.Appended(None, "web", 4, [5, 6], False)),
    (ANSWER, ANSWER._replace(room=m.AppendAnswer._field_defaults["room"])),
], ids=lambda each: type(each).__name__)
def test_a_connection_has_the_shapes_of_its_version(
    message: Any, comes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_next(monkeypatch)
    now, later = body(message, r.VERSION), body(message, NEXT)
    assert now != later
    assert decoded(message, now, r.VERSION) == message and decoded(message, later, NEXT) == comes
    for sent, version in ((now, NEXT), (later, r.VERSION)):
        if not isinstance(message, q.Appended):  # the present version knows both forms of it
            with pytest.raises(codec.WireError, match="fields, not"):
                decoded(message, sent, version)


def test_all_else_is_the_same_in_both(monkeypatch: pytest.MonkeyPatch) -> None:
    before = frames()
    know_next(monkeypatch)
    assert frames(r.VERSION) == before
    messages = [*OTHERS, *OTHERS_TOO, *OTHERS_5, *PEERS, *PEERS_TOO, *HOSTS]
    differ = {
        type(each) for each, one, other in zip(messages, frames(NEXT), before, strict=True) if one != other
    }
    assert differ == {q.Appended, q.Outcome, m.AppendAnswer}


def test_a_side_takes_hellos_of_the_versions_that_it_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    server = r.PeerHello(0, b"", 1, b"a" * 16, "h:1", 2, b"", 1_000, 0, (50, 500, 25))
    hellos = [
        hello._replace(version=version)
        for hello in (r.ClientHello(0, b"", "x"), server) for version in range(r.OLDEST_VERSION - 1, NEXT + 2)
    ]
    for newest in (r.VERSION, NEXT):
        if newest == NEXT:
            speak_next(monkeypatch)
        for hello in hellos:
            sent = codec.encode(hello)[HEADER_BYTES:]
            if r.OLDEST_VERSION <= hello.version <= newest:
                assert codec.decode_hello(sent) == hello
                continue
            with pytest.raises(codec.WrongVersion) as caught:
                codec.decode_hello(sent)
            assert caught.value.version == hello.version and codec.version_told(str(caught.value)) == newest
