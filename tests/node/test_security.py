"""Requests that each role may make, and what is in force after a reload (docs/deploying.md)."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
from node_rig import rig

from alpo.core import requests as q
from alpo.core.requests import Code
from alpo.node.client_connection import APPENDS, ClientRequests
from alpo.node.security import ALLOWED, OF_CLUSTER, Security, TlsConfig, missing_role
from alpo.secure import first_end_s
from alpo.testing.connections import ServerEnd
from alpo.tls import Rights, Tls
from alpo.wire import requests as w
from alpo_cli.certificates import make, server_leaf

DOCS = Path(__file__).parents[2] / "docs/deploying.md"
REQUESTS = list(get_args(w.ClientRequest))
ROLES = {role: Rights("CN=x", frozenset({role})) for role in ("append", "read", "admin")}
ROLES["peer"] = Rights("CN=x", frozenset(), frozenset({1}))


def test_the_documentation_s_table_is_what_is_allowed() -> None:
    told = dict(re.findall(r"^\| `(append|read|peer)`[^|]*\| ([^|]*)\|", DOCS.read_text("utf-8"), re.MULTILINE))
    assert {role: set(re.findall(r"`(\w+)`", text)) for role, text in told.items()} == {
        role: {kind.__name__ for kind in kinds} for role, kinds in ALLOWED.items()
    }


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("role", ROLES)
def test_what_is_not_named_is_for_admins_alone(kind: type, role: str) -> None:
    may = role == "admin" or kind in ALLOWED[role]
    assert (missing_role(ROLES[role], kind) == "") == may
    assert missing_role(Rights("CN=x"), kind).split(" or ")[-1] == "admin"


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_role_in_one_log_allows_what_the_role_does_but_nothing_of_the_cluster(kind: type) -> None:
    in_log = {role: Rights("CN=x", frozenset({f"{role}/billing"})) for role in ("append", "read", "admin")}
    for role, rights in in_log.items():
        of_cluster = kind in OF_CLUSTER
        assert of_cluster == (kind in (q.Initialise, q.ChangeMember, *get_args(q.LogRequest)) and kind != q.ListLogs)
        may = not of_cluster and not missing_role(ROLES[role], kind)
        assert (missing_role(rights, kind, "billing") == "") == may
        elsewhere = missing_role(rights, kind, "default")
        assert (elsewhere == "") == (kind is q.ListLogs), "who has a right somewhere may see which logs there are"
        assert elsewhere.endswith(
            "" if kind is q.ListLogs else "admin in all logs" if of_cluster else "admin in the log default"
        )
        assert missing_role(ROLES[role], kind, "billing").partition(" in ")[0] == missing_role(ROLES[role], kind)


#: Requests that no other role than `admin` may make.
ADMINS_ALONE = {
    q.Initialise, q.DropSession, q.ListSessions, q.Trim, q.ChangeMember, q.Transfer, q.ChangeSettings, q.DropCursor,
    w.Backup, w.GiveBack, w.AcceptClocks, q.CreateLog, q.SetLog, q.RenameLog, q.DeleteLog,
}


def test_somebody_has_decided_who_may_make_each_request() -> None:
    assert len(REQUESTS) == len(set(REQUESTS)) > 20
    allowed = ALLOWED["append"] | ALLOWED["read"]
    assert ADMINS_ALONE.isdisjoint(allowed), "of these say who may make them: in ALLOWED, or here"
    assert {kind.__name__ for kind in REQUESTS} == {kind.__name__ for kind in ADMINS_ALONE | allowed}


@pytest.mark.trio
async def test_somebody_answers_each_request() -> None:
    """A request without a handler goes to the core, which knows none but its own."""
    simulated = ServerEnd(cast(Any, SimpleNamespace(
        server=1, to_server=SimpleNamespace(), world=SimpleNamespace(stage=SimpleNamespace(hosts={1: None})),
    ))).handlers
    async with rig(1) as r:
        for where, handlers in (("Host.handlers", r.nodes[0].handlers), ("alpo.testing's ServerEnd", simulated)):
            left = set(REQUESTS) - {*get_args(q.Request), *get_args(q.LogRequest)} - set(APPENDS) - set(handlers)
            assert not left, f"no handler in {where} for {[kind.__name__ for kind in left]}"


class Out:
    closed = ""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def push(self, data: bytes) -> None:
        self.sent.append(data)


@pytest.mark.parametrize("request_", [
    q.Trim(7, 1), q.ListSessions(7),
], ids=["Trim", "ListSessions"])
def test_a_request_without_a_right_reaches_nobody(request_: Any) -> None:
    noted: list[str] = []
    services = SimpleNamespace(limits=SimpleNamespace(connection_requests_max=9), no_right=noted.append)
    posted: list[Any] = []
    poster = SimpleNamespace(post=lambda *given: posted.append(given))
    made = ClientRequests(Out(), cast(Any, poster), cast(Any, services), w.VERSION, ROLES["append"])
    answers: list[Any] = []
    made.gather = answers.append  # type: ignore[assignment]
    made.take(request_, 100)
    assert posted == [] and made.requests == 0
    assert [(answer.request, answer.code) for answer in answers] == [(7, Code.NO_RIGHT)]
    assert noted == [answers[0].detail] == ["CN=x (append) may not do this: it takes the role admin"]


def security(directory: Path, mode: str) -> Security:
    tls = Tls(directory / "ca.pem", directory / "server-1.pem", directory / "server-1.key", "prod")
    return Security(TlsConfig(cast(Any, mode), tls, {}))


def test_only_another_ca_or_the_end_of_plain_ends_connections(tmp_path: Path) -> None:
    for at in ("one", "two"):
        make(tmp_path / at, "prod", [server_leaf("1=localhost")], 1)
    in_force = Security()
    for mode, anew in (("accept", False), ("dial", False), ("require", True), ("dial", False), ("require", True)):
        assert in_force.replace(security(tmp_path / "one", mode)) is anew, mode
        assert in_force.mode == mode and in_force.takes_plain is (mode != "require")
        assert in_force.dials_tls is (mode != "accept")
    assert in_force.replace(security(tmp_path / "one", "require")) is False
    assert in_force.replace(security(tmp_path / "two", "require")) is True
    assert in_force.replace(security(tmp_path / "two", "off")) is True and in_force.contexts is None


def test_files_that_changed_are_found(tmp_path: Path) -> None:
    make(tmp_path, "prod", [server_leaf("1=localhost")], 1)
    in_force = security(tmp_path, "require")
    assert in_force.fresh() is None and Security().fresh() is None
    for end in ("pem", "key"):
        (tmp_path / f"server-1.{end}").unlink()
    make(tmp_path, "prod", [server_leaf("1=localhost")], 1)
    fresh = in_force.fresh()
    assert fresh is not None and in_force.replace(fresh) is False and in_force.fresh() is None


def test_of_a_bundle_the_first_certificate_to_end_counts(tmp_path: Path) -> None:
    """While a CA is replaced, the file holds the old and the new one, in any order."""
    made = []
    for stem, days in (("old", 3), ("new", 300)):
        make(tmp_path / stem, "prod", [server_leaf("1=127.0.0.1")], days)
        made.append((tmp_path / stem / "server-1.pem").read_bytes())
    old, new = made
    assert first_end_s(old) < first_end_s(new)
    assert first_end_s(old + new) == first_end_s(new + old) == first_end_s(old)
