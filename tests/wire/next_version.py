"""A made-up next version of the protocol, for whoever tests how versions are negotiated.

In it the LSNs of an `Appended` are always a packed list, an `Outcome` has no epoch, and an `AppendAnswer` has no room.
"""

from __future__ import annotations

import pytest

from alpo.core import messages as m
from alpo.core import requests as q
from alpo.wire import client_codec, codec
from alpo.wire import requests as r
from alpo.wire import shapes as s
from alpo.wire.framing import pack

NEXT = r.VERSION + 1


def _without_last(shapes: tuple[s.Shape, ...], cls: type) -> s.Shape:
    """The shape of this class without its last field, for which the class has a default."""
    shape = next(each for each in shapes if each.cls is cls)
    return shape._replace(checks=shape.checks[:-1])


_APPENDED = s.Shape(
    32, q.Appended, (s.client_id, s.positive, s.numbers(client_codec.ITEMS_MAX), s.flag),
    forms=((2, lambda lsns: pack(list(lsns))),), kept=1,
)
_OUTCOME = _without_last(client_codec.REQUESTS, q.Outcome)
_ANSWER = _without_last(codec.SHAPES, m.AppendAnswer)


def know_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process encode and decode the next version too; hellos still name the present one."""
    client, peer = client_codec, codec
    for known, shape in (
        (client._BY_NUMBER_REQUEST, _OUTCOME), (client._BY_NUMBER_REPLY, _APPENDED), (peer._BY_NUMBER, _ANSWER)
    ):
        monkeypatch.setitem(known, NEXT, known[r.VERSION] | {shape.number: shape})
    monkeypatch.setitem(client._BY_NUMBER_HELLO, NEXT, client._BY_NUMBER_HELLO[r.VERSION])
    by_class = client._BY_CLASS[r.VERSION] | {q.Appended: _APPENDED, q.Outcome: _OUTCOME}
    monkeypatch.setitem(client._BY_CLASS, NEXT, by_class)
    monkeypatch.setitem(peer._BY_CLASS, NEXT, peer._BY_CLASS[r.VERSION] | {m.AppendAnswer: _ANSWER})


def speak_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have whatever this process listens for be of a release that speaks the next version beside the present one."""
    know_next(monkeypatch)
    monkeypatch.setattr(r, "VERSION", NEXT)
