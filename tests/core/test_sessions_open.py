"""Verdicts on opens and drops, and on what can never be right: one example a sentence of R22."""

from __future__ import annotations

from typing import Any

import pytest
from session_leader import RANDOM, A, B, Leader, nonce, random_id, refused

from alpo.core.entries import Kind, created_ms, valid_name
from alpo.core.machine.verdicts import (
    SERIAL_MAX,
    Accept,
    DropNow,
    Duplicate,
    OpenAgain,
    OpenNew,
    Refuse,
    drop_body,
    open_body,
)
from alpo.core.requests import Code, OpenSession


@pytest.fixture
def leader() -> Leader:
    return Leader()


# Opening and dropping.


def test_an_unknown_name_opens_in_place_of_none(leader: Leader) -> None:
    assert leader.ask_open("alice", 0, 1) == OpenNew(open_body(nonce(1), 0))


def test_an_open_replaces_only_the_epoch_that_is_current(leader: Leader) -> None:
    first = leader.open()
    second = leader.open(n=2)
    assert leader.ask_open("alice", 0, 3) == Refuse(0, 0, Code.EPOCH, second, second)
    assert leader.ask_open("alice", first, 3) == Refuse(0, 0, Code.EPOCH, second, second)
    assert leader.ask_open("alice", second, 3) == OpenNew(open_body(nonce(3), second))


def test_the_same_open_is_answered_again_as_of_its_entry(leader: Leader) -> None:
    first = leader.open()
    leader.append("alice", first, 1, A, A)
    second = leader.open(n=2)
    leader.append("alice", second, 3, A)
    assert leader.ask_open("alice", first, 2) == OpenAgain(second, 2, second)
    assert leader.ask_open("alice", 0, 1) == Refuse(0, 0, Code.EPOCH, second, second)


def test_serials_go_on_where_they_ended(leader: Leader) -> None:
    leader.append("alice", leader.open(), 1, A, A)
    second = leader.open(n=2)
    assert leader.ask("alice", second, 3, A) == [Accept(3, [A])]
    assert leader.ask("alice", second, 4, A) == refused(4, 1, Code.SERIAL_EXPECTED, 3, 0)


def test_an_open_that_names_an_epoch_of_an_unknown_name(leader: Leader) -> None:
    leader.special(Kind.LEADER)
    assert leader.ask_open("alice", 1, 1) == Refuse(0, 0, Code.EPOCH, 0, 1)
    assert leader.ask_open("alice", 2, 1) == Refuse(0, 0, Code.NOT_LEADER, 0, 0)


def test_an_open_that_claims_more_than_we_know_gets_no_verdict(leader: Leader) -> None:
    leader.open()
    assert leader.ask_open("alice", 99, 2) == Refuse(0, 0, Code.NOT_LEADER, 0, 0)


def test_names_are_bounded_and_a_drop_makes_room() -> None:
    leader = Leader(names_max=1)
    epoch = leader.open()
    assert leader.ask_open("bob", 0, 1) == Refuse(0, 0, Code.TOO_MANY_NAMES, 0, 1)
    assert leader.ask_open("alice", epoch, 2) == OpenNew(open_body(nonce(2), epoch))
    leader.drop("alice", epoch)
    assert isinstance(leader.ask_open("bob", 0, 1), OpenNew)


def test_a_nonce_of_another_length_is_invalid(leader: Leader) -> None:
    request = OpenSession(None, "alice", 0, b"")
    assert leader.table.judge_open(request, 1, 0) == Refuse(0, 0, Code.INVALID, 0, 0)


def test_a_drop_names_the_current_epoch_or_none(leader: Leader) -> None:
    leader.open()
    epoch = leader.open(n=2)
    assert leader.ask_drop("alice", epoch) == DropNow(epoch, drop_body(epoch))
    assert leader.ask_drop("alice", 0) == DropNow(epoch, drop_body(epoch))
    assert leader.ask_drop("alice", 1) == Refuse(0, 0, Code.EPOCH, epoch, epoch)
    assert leader.ask_drop("alice", 9) == Refuse(0, 0, Code.NOT_LEADER, 0, 0)
    assert leader.ask_drop("bob", 0) == Refuse(0, 0, Code.EPOCH, 0, 2)


# What can never be right.

GOOD_UUID = RANDOM[1:]
BAD_IDS = ["", "x" * 129, "é" * 65, "\ud800", "~", "~" + GOOD_UUID.upper().replace("0", "A"), "~" + GOOD_UUID + "0"]
BAD_IDS += ["~" + GOOD_UUID.replace("-7", "-4"), "~" + GOOD_UUID.replace("-8", "-c"), "~" + GOOD_UUID.replace("-", "0")]
BAD_IDS += ["~" + GOOD_UUID[:7] + "-" + GOOD_UUID[7] + GOOD_UUID[9:], "~" + "g" + GOOD_UUID[1:], "~+" + GOOD_UUID[1:]]


@pytest.mark.parametrize("client", BAD_IDS)
def test_a_malformed_id_is_invalid(client: str, leader: Leader) -> None:
    assert leader.ask(client, 0, 1, A) == refused(1, 1, Code.INVALID, 0, 0)
    assert leader.ask_open(client, 0, 1) == Refuse(0, 0, Code.INVALID, 0, 0)
    assert leader.ask_drop(client, 0) == Refuse(0, 0, Code.INVALID, 0, 0)


def test_names_up_to_128_bytes_are_valid() -> None:
    assert valid_name("é" * 64) and valid_name("x") and valid_name("a~")
    assert created_ms(random_id(0x123456789ABC)) == 0x123456789ABC


@pytest.mark.parametrize(("serial", "bodies"), [(0, [A]), (-1, [A]), (SERIAL_MAX + 1, [A]), (1, [])])
def test_a_run_without_a_serial_or_a_body_is_invalid(serial: int, bodies: list[Any], leader: Leader) -> None:
    epoch = leader.open()
    assert leader.ask("alice", epoch, serial, *bodies, sparse=True)[0].code == Code.INVALID


def test_a_run_is_judged_up_to_the_last_serial_there_can_be(leader: Leader) -> None:
    """R21: appends of a run beyond the greatest serial are invalid, and have no effect on the others."""
    epoch = leader.open()
    assert leader.ask("alice", epoch, SERIAL_MAX, A, B) == [
        *refused(SERIAL_MAX, 1, Code.SERIAL_EXPECTED, 1, 0), *refused(SERIAL_MAX + 1, 1, Code.INVALID, 0, 0),
    ]
    leader.append("alice", epoch, SERIAL_MAX - 1, A, sparse=True)
    assert leader.ask("alice", epoch, SERIAL_MAX, B, A) == [
        Accept(SERIAL_MAX, [B]), *refused(SERIAL_MAX + 1, 1, Code.INVALID, 0, 0),
    ]
    leader.append("alice", epoch, SERIAL_MAX, B)
    assert leader.ask("alice", epoch, SERIAL_MAX + 1, A) == refused(SERIAL_MAX + 1, 1, Code.INVALID, 0, 0)
    assert leader.ask("alice", epoch, SERIAL_MAX - 1, A, B, A, A) == [
        Duplicate(SERIAL_MAX - 1, [1, 2], 3), *refused(SERIAL_MAX + 1, 2, Code.INVALID, 0, 0),
    ]
