"""Messages that want an answer: a connection is given up if none comes for them, so the right ones must be listed."""

from __future__ import annotations

import typing

import pytest
from damage_kit import cluster_of
from message_kit import messages

from alpo.core import messages as m
from alpo.core.ready import Received


def _sent(number: int) -> tuple[m.Message, bool]:
    """The message at that place of `messages`, and True if a follower answers the leader that sent it."""
    cluster, leader, (follower, _) = cluster_of()
    message = messages(leader)[number]
    envelope = m.Envelope(leader.cluster, leader.me, follower.me, message)
    ready = follower.step([Received(envelope)], cluster.now_s, cluster.wall_ms())
    assert ready.alarm is None
    return message, any(told.target == leader.me for told in ready.send + ready.send_after_write)


@pytest.fixture(scope="module")
def sent() -> list[tuple[m.Message, bool]]:
    return [_sent(number) for number in range(len(messages(cluster_of()[1])))]


def test_what_wants_an_answer_is_answered_by_every_sound_server(sent: list[tuple[m.Message, bool]]) -> None:
    assert {type(message) for message, _ in sent} == {*typing.get_args(m.Message)}
    assert [message for message, answered in sent if m.wants_answer(message) and not answered] == []


def test_every_request_wants_an_answer_unless_it_may_be_left_without_one(sent: list[tuple[m.Message, bool]]) -> None:
    silent = {type(message) for message, answered in sent if not answered and isinstance(message, m.REQUESTS)}
    assert silent == {*m.UNANSWERED, m.AppendRequest}, "an append request that carries the marks alone"
    wanting = {type(message) for message, _ in sent if m.wants_answer(message)}
    assert wanting == {*m.REQUESTS} - {*m.UNANSWERED}
