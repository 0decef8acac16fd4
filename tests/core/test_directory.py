"""The directory of logs: what entries make of it, what a leader grants and refuses, and that it survives."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_kit import Cluster, ask
from hypothesis import given
from hypothesis import strategies as st

from alpo.core.directory import (
    DELETED_MAX,
    LOGS_MAX,
    DeletedLog,
    Listing,
    LogOptions,
    NamedLog,
    changed,
    valid_log,
)
from alpo.core.entries import Kind
from alpo.core.members import Member, MemberList, Role
from alpo.core.requests import (
    ChangeMember,
    Code,
    CreateLog,
    DeleteLog,
    FoundLog,
    ListLogs,
    LogDeleted,
    LogIs,
    LogsAre,
    MembersChanged,
    MemberStep,
    Refused,
    RenameLog,
    SetLog,
)
from alpo.core.settings import Settings

SETTINGS = Settings().to_plain()
NONCE, OTHER = b"n" * 16, b"o" * 16


def first_list(*ids: int) -> MemberList:
    return MemberList.of(Member(id, f"h{id}:7100", 0, bytes([id]) * 16, Role.VOTER) for id in ids)


def created(number: int, name: str, nonce: bytes = NONCE) -> dict[str, Any]:
    return {"op": "create", "number": number, "name": name, "nonce": nonce.hex(), "options": [0, 0, 0, 0],
            "settings": SETTINGS}


# -- the table ----------------------------------------------------------------------------------------------


def test_numbers_go_up_by_one_and_never_come_back() -> None:
    listing = Listing()
    for number in range(2, 6):
        listing = changed(listing, created(number, "a"))
        listing = changed(listing, {"op": "delete", "number": number, "nonce": OTHER.hex()})
        assert listing.lacks(number) and not listing.lacks(number + 1)
        with pytest.raises(ValueError, match="is not the next number"):
            changed(listing, created(number, "a"))
    assert [gone.number for gone in listing.deleted] == [2, 3, 4, 5] and not listing.lacks(1)


def test_a_log_is_founded_once_and_bears_the_id_of_its_first_list() -> None:
    listing, first = changed(Listing(), created(2, "a")), first_list(1, 2)
    found = {"op": "found", "number": 2, "members": first.to_plain()}
    listing = changed(listing, found)
    assert listing.logs[0].id == first.digest() and listing.logs[0].first_list == first.to_plain()
    with pytest.raises(ValueError, match="was founded before"):
        changed(listing, {**found, "members": first_list(3).to_plain()})
    gone = changed(listing, {"op": "delete", "number": 2, "nonce": OTHER.hex()}).deleted[0]
    assert gone == DeletedLog(2, "a", NONCE, OTHER, first.to_plain(), first.digest())


def test_only_the_last_deleted_logs_are_remembered() -> None:
    listing = Listing()
    for number in range(2, 2 + DELETED_MAX + 5):
        listing = changed(listing, created(number, "a"))
        listing = changed(listing, {"op": "delete", "number": number, "nonce": OTHER.hex()})
    assert [gone.number for gone in listing.deleted] == list(range(7, 2 + DELETED_MAX + 5))
    assert listing.lacks(2)


@pytest.mark.parametrize("fields", [
    {}, {"op": "found"}, {"op": "create"}, {"op": "set", "number": 2, "options": [0, 0, 0]},
    {"op": "set", "number": 2, "options": [0, 0, 0, -1]}, {"op": "set", "number": 2, "options": None},
    {"op": "set", "number": 9, "options": [0, 0, 0, 0]}, {"op": "rename", "number": 2, "name": "B"},
    {"op": "rename", "number": 2, "name": "b"}, {"op": "rename", "number": 2, "name": "default"},
    {"op": "rename", "number": True, "name": "c"}, {"op": "delete", "number": 2, "nonce": "00"},
    {"op": "delete", "number": 9, "nonce": NONCE.hex()}, {"op": "found", "number": 2, "members": []},
    {"op": "found", "number": 2, "members": [[1, "h", 0, "", 2, []]]}, created(4, "b"),
    {"op": "found", "number": 2, "members": None}, {"op": "found", "number": 2, "members": [[1, "h", 0, "", 1, []]]},
    {"op": "found", "number": 2, "members": [[float("inf"), "h", 0, "00" * 16, 1, []]]},
    {"op": "found", "number": 2, "members": [[1, "h", 0, "00" * 16, 1, []], [1, "g", 0, "01" * 16, 1, []]]},
    {"op": "found", "number": 2, "members": [[1, "h", 0, "00" * 16, 1, []], [2, "g", 0, "00" * 16, 1, []]]},
    created(9, "c"),
    {**created(4, "c"), "settings": {"window": 0}}, {**created(4, "c"), "nonce": 7}, {"op": ["create"]},
])
def test_what_makes_no_sense_changes_nothing(fields: dict[str, Any]) -> None:
    listing = changed(changed(Listing(), created(2, "a")), created(3, "b"))
    with pytest.raises(ValueError):
        changed(listing, fields)


@given(st.text(max_size=70))
def test_a_name_is_one_that_is_safe_everywhere(name: str) -> None:
    allowed = set("abcdefghijklmnopqrstuvwxyz0123456789._-")
    right = 0 < len(name) < 64 and set(name) <= allowed and name[0] not in "._-" and name != "default"
    assert valid_log(name) is right


STEP = st.sampled_from(["create", "found", "delete", "set", "rename"])
LOGS = st.lists(st.tuples(STEP, st.integers(0, 6)), max_size=40)


@given(LOGS)
def test_the_plain_form_gives_the_directory_back(steps: list[tuple[str, int]]) -> None:
    listing = Listing()
    for step, which in steps:
        number = which + 2
        fields: dict[str, dict[str, Any]] = {
            "create": created(listing.next_number, f"n{which}", bytes([which]) * 16),
            "found": {"op": "found", "number": number, "members": first_list(1, 2, which + 3).to_plain()},
            "delete": {"op": "delete", "number": number, "nonce": bytes([which]).hex() * 16},
            "set": {"op": "set", "number": number, "options": [which, 0, 1, 2]},
            "rename": {"op": "rename", "number": number, "name": f"m{which}"},
        }
        try:
            listing = changed(listing, fields[step])
        except ValueError:
            continue
    assert Listing.from_plain(listing.to_plain()) == listing
    names = [log.name for log in listing.logs]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("plain", [
    None, {}, [], {"logs": [], "deleted": []}, {"logs": [[]], "deleted": [], "next": 2},
    {"logs": [], "deleted": [[2, "a"]], "next": 3}, {"logs": [], "deleted": [], "next": "3"},
    {"logs": [[2, "a", NONCE.hex(), [0, 0, 0, 0], SETTINGS, None]], "deleted": [], "next": 2},
    {"logs": [[n, "a", NONCE.hex(), [0, 0, 0, 0], SETTINGS, None] for n in (2, 3)], "deleted": [], "next": 4},
    {"logs": [], "deleted": [[4, "a", NONCE.hex(), OTHER.hex(), None]], "next": 4},
    {"logs": [[2, "a", NONCE.hex(), [0, 0, 0, 0], SETTINGS, None]],
     "deleted": [[2, "a", NONCE.hex(), OTHER.hex(), None]], "next": 4},
])
def test_another_shape_is_no_directory(plain: Any) -> None:
    with pytest.raises(ValueError):
        Listing.from_plain(plain)


# -- requests to a leader -----------------------------------------------------------------------------------


def refused(reply: Any) -> Code:
    assert isinstance(reply, Refused)
    return reply.code


def create(origin: str, name: str, nonce: bytes = NONCE, **options: int) -> CreateLog:
    return CreateLog(origin, name, nonce, LogOptions(**options), SETTINGS)


def test_a_log_is_created_founded_and_found_again_after_a_restart() -> None:
    cluster = Cluster()
    cluster.elect()
    made = ask(cluster, create("a", "billing", keep_ms=5))
    assert isinstance(made, LogIs) and made.log == NamedLog(2, "billing", NONCE, LogOptions(keep_ms=5), SETTINGS)
    cluster.give(cluster.reigning.me.id, FoundLog(2, first_list(1, 2).to_plain()))
    cluster.run(1.0)
    listing = cluster.reigning.directory.guaranteed
    assert listing.logs[0].id == first_list(1, 2).digest()
    assert [r.directory.guaranteed for r in cluster.replicas] == [listing] * 3
    for id in cluster.hosts:
        cluster.crash(id)
    for id in cluster.hosts:
        cluster.boot(id)
    cluster.elect()
    assert ask(cluster, ListLogs("b")) == LogsAre("b", listing)


def test_a_request_that_comes_again_is_told_what_became_of_it() -> None:
    cluster = Cluster()
    cluster.elect()
    made = ask(cluster, create("a", "billing"))
    assert ask(cluster, create("b", "billing")).log == made.log
    assert refused(ask(cluster, create("c", "billing", OTHER))) is Code.LOG_EXISTS
    gone = ask(cluster, DeleteLog("d", "billing", OTHER))
    assert isinstance(gone, LogDeleted) and gone.log.number == 2
    assert ask(cluster, DeleteLog("e", "billing", OTHER)).log == gone.log
    assert refused(ask(cluster, create("f", "billing"))) is Code.NO_SUCH_LOG
    assert refused(ask(cluster, DeleteLog("g", "billing", NONCE))) is Code.NO_SUCH_LOG
    assert ask(cluster, create("h", "billing", b"p" * 16)).log.number == 3


def test_a_log_is_changed_and_renamed() -> None:
    cluster = Cluster()
    cluster.elect()
    ask(cluster, create("a", "billing"))
    ask(cluster, create("b", "audit", OTHER))
    assert ask(cluster, SetLog("c", "billing", (("keep_ms", 7), ("lead", 2)))).log.options == LogOptions(7, 0, 0, 2)
    assert ask(cluster, RenameLog("d", "billing", "invoices")).log.name == "invoices"
    assert ask(cluster, RenameLog("e", "invoices", "invoices")).log.name == "invoices"
    assert refused(ask(cluster, RenameLog("f", "invoices", "audit"))) is Code.LOG_EXISTS
    assert refused(ask(cluster, RenameLog("g", "billing", "x"))) is Code.NO_SUCH_LOG
    assert refused(ask(cluster, SetLog("h", "billing", ()))) is Code.NO_SUCH_LOG
    assert refused(ask(cluster, RenameLog("i", "invoices", "No"))) is Code.INVALID
    for changes in ((("keep", 7),), (("lead", 9),), (("keep_ms", -1),)):
        assert refused(ask(cluster, SetLog("j", "invoices", changes))) is Code.INVALID


def test_an_option_is_set_though_the_server_that_should_lead_is_gone() -> None:
    cluster = Cluster()
    cluster.elect()
    other = next(id for id in cluster.hosts if id != cluster.reigning.me.id)
    ask(cluster, create("a", "billing", lead=other))
    assert isinstance(ask(cluster, ChangeMember("b", MemberStep.REMOVE, other, "", 0)), MembersChanged)
    assert ask(cluster, SetLog("c", "billing", (("keep_ms", 7),))).log.options == LogOptions(7, 0, 0, other)
    assert refused(ask(cluster, SetLog("d", "billing", (("lead", other),)))) is Code.INVALID


@pytest.mark.parametrize("request_", [
    create("x", "default"), create("x", "Billing"), create("x", ""), create("x", "a", b"short"),
    create("x", "a", lead=9), CreateLog("x", "a", NONCE, LogOptions(), {"window": -1}),
    CreateLog("x", "a", NONCE, LogOptions(), {"unknown": 1}),
    CreateLog("x", "a", NONCE, LogOptions(), {**SETTINGS, "window": 1 << 40}),
])
def test_what_can_never_be_a_log_is_refused(request_: CreateLog) -> None:
    cluster = Cluster()
    cluster.elect()
    assert refused(ask(cluster, request_)) is Code.INVALID
    assert cluster.reigning.directory.head == Listing()


def test_there_are_so_many_logs_at_most() -> None:
    cluster = Cluster()
    cluster.elect()
    for each in range(LOGS_MAX):
        cluster.give(cluster.reigning.me.id, create(f"a{each}", f"log-{each}", each.to_bytes(16, "big")))
    cluster.run(1.0)
    assert refused(ask(cluster, create("b", "more", b"m" * 16))) is Code.TOO_MANY_LOGS
    ask(cluster, DeleteLog("c", "log-3", OTHER))
    assert ask(cluster, create("d", "more", b"m" * 16)).log.number == LOGS_MAX + 2


def test_nobody_founds_a_log_with_too_few_or_twice() -> None:
    cluster = Cluster()
    cluster.elect()
    ask(cluster, create("a", "billing"))
    leader = cluster.reigning
    last_id = leader.last_id
    for number, first in ((2, first_list(1)), (2, first_list(1, 9)), (3, first_list(1, 2))):
        cluster.give(leader.me.id, FoundLog(number, first.to_plain()))
        cluster.run(0.5)
    assert leader.last_id == last_id
    for ids in ((1, 2), (1, 2, 3)):
        cluster.give(leader.me.id, FoundLog(2, first_list(*ids).to_plain()))
        cluster.run(0.5)
    kinds = [entry.kind for id in range(last_id + 1, leader.last_id + 1) if (entry := leader.log.entry(id)) is not None]
    assert kinds == [Kind.LOGS] and leader.directory.head.logs[0].id == first_list(1, 2).digest()
