"""Certificates, the rights that they give, and TLS connections as sockets."""

from __future__ import annotations

import os
import select
import shutil
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from alpo.errors import TlsError
from alpo.secure import Contexts, SecureSocket, TlsBroken, Trust
from alpo.tls import Rights, Tls, is_client_role, is_role, rights_of, tls_given
from alpo_cli.certificates import Leaf, client_leaf, make, server_leaf

MIB = 1 << 20


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("certs")
    make(at, "prod", [server_leaf("1=localhost,127.0.0.1"), client_leaf("append:billing")], 30)
    return at


def of(directory: Path, stem: str, name: str = "prod") -> Tls:
    return Tls(directory / "ca.pem", directory / f"{stem}.pem", directory / f"{stem}.key", name)


class Pair:
    """The two ends of a connection; each goes through the handshake by itself."""

    def __init__(self, server: Contexts, client: Contexts) -> None:
        ours, theirs = socket.socketpair()
        for sock in (ours, theirs):
            sock.setblocking(False)
        self.server, self.client = server.wrap(ours, True), client.wrap(theirs, False, "localhost")

    def shake_hands(self) -> None:
        """Shake hands at both ends. Raises the `TlsBroken` of the first end that fails."""
        left = [self.client, self.server]
        for _ in range(100):
            for end in list(left):
                try:
                    end.handshake()
                    left.remove(end)
                except ssl.SSLWantReadError:
                    pass
            if not left:
                return
        raise AssertionError("no end")

    def close(self) -> None:
        self.server.close()
        self.client.close()


@pytest.fixture
def pair(certs: Path) -> Iterator[Pair]:
    made = Pair(Contexts.load(of(certs, "server-1")), Contexts.load(of(certs, "billing")))
    made.shake_hands()
    yield made
    made.close()


def take(sock: SecureSocket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        try:
            data = sock.recv(1 << 16)
        except BlockingIOError:
            continue
        assert data, "the end"
        found += data
    return found


def give(sock: SecureSocket, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[sock.send(view) :]
        except BlockingIOError:
            continue


CERTIFICATE = {
    "subject": ((("organizationName", "Example"),), (("commonName", "billing"),)),
    "subjectAltName": (
        ("URI", "alpo://prod/append"), ("URI", "alpo://prod/peer/3"), ("URI", "alpo://test/admin"),
        ("URI", "https://example.org"), ("DNS", "billing.example.org"),
    ),
}


def test_rights_are_the_uri_names_of_this_cluster_and_the_roles_that_the_table_gives() -> None:
    subject = "O=Example,CN=billing"
    assert rights_of(CERTIFICATE, "prod") == Rights(subject, frozenset({"append"}), frozenset({3}))
    assert rights_of(CERTIFICATE, "test") == Rights(subject, frozenset({"admin"}))
    assert rights_of(CERTIFICATE, "other") == Rights(subject)
    assert str(rights_of(CERTIFICATE, "other")) == f"{subject} (no role)"
    assert str(rights_of(CERTIFICATE, "prod")) == f"{subject} (append, peer/3)"
    others = {"CN=somebody else": "admin"}
    assert rights_of(CERTIFICATE, "other", others | {subject: "read"}) == Rights(subject, frozenset({"read"}))
    held = rights_of(CERTIFICATE, "other", others | {"billing.example.org": "peer/9"})
    assert held == Rights(subject, frozenset(), frozenset({9}))


@pytest.mark.parametrize("uri", [
    "alpo://prod/peer/0", "alpo://prod/peer/", "alpo://prod/peer/1x", "alpo://prod/appends", "alpo://prod/append/",
    "alpo://prod/", "alpo:/prod/append", "ALPO://prod/append", "alpo://prod/append\n", "xalpo://prod/append",
    "alpo://prod.example/append", "alpo:///append", "alpo://prod/a/append", "alpo://prod/append/Billing",
    "alpo://prod/append/a/b", "alpo://prod/append/*-audit", "alpo://prod/append/a*b", "alpo://prod/append/**",
    "alpo://prod/append/-a", "alpo://prod/append/" + "a" * 64, "alpo://prod/append/" + "a" * 63 + "*",
    "alpo://prod/peer/1/billing", "alpo://prod/peer/*", "alpo://prod/append/billing\n",
])
def test_what_is_no_role_gives_no_right(uri: str) -> None:
    held = rights_of({"subjectAltName": (("URI", uri),)}, "prod")
    assert not held.roles and not held.peers


def test_a_role_may_be_one_in_some_logs() -> None:
    longest = "a" * 63
    uris = ("append/billing", "read/audit-*", "admin/default", f"read/{longest}", "append/x.*")
    held = rights_of({"subjectAltName": tuple(("URI", f"alpo://prod/{role}") for role in uris)}, "prod")
    assert held.roles == set(uris)
    assert str(held).endswith(f"(admin/default, append/billing, append/x.*, read/{longest}, read/audit-*)")
    for log, roles in {
        "billing": {"append"}, "billing2": set(), "bill": set(), "audit-": {"read"}, "audit-eu": {"read"},
        "audit": set(), "default": {"admin"}, "": set(), longest: {"read"}, "x.y": {"append"}, "xyz": set(),
    }.items():
        assert held.roles_in(log) == roles, log
    everywhere = Rights("CN=x", frozenset({"append", "read/*"}))
    assert everywhere.roles_in("default") == everywhere.roles_in("billing") == {"append", "read"}


def test_roles_are_known_by_name() -> None:
    assert all(map(is_role, ("append", "read", "admin", "peer/1", "read/audit-*")))
    assert all(map(is_client_role, ("append", "read/audit-*"))) and not is_client_role("peer/1")
    assert not any(map(is_role, ("", "peer", "peer/0", "root", "append,read", "admin\n")))


@pytest.mark.parametrize("size", [1, 16_383, 16_384, 16_385, MIB, 8 * MIB])
def test_bytes_of_every_size_arrive_as_they_were(pair: Pair, size: int) -> None:
    data = os.urandom(size)
    for here, there in ((pair.server, pair.client), (pair.client, pair.server)):
        sender = threading.Thread(target=give, args=(here, data))
        sender.start()
        assert take(there, size) == data
        sender.join()


def test_both_ways_at_once_from_several_threads(pair: Pair) -> None:
    """One OpenSSL object is used by one thread at a time, or it crashes."""
    data = os.urandom(4 * MIB)
    found: list[bytes] = []
    threads = [
        threading.Thread(target=call)
        for here, there in ((pair.server, pair.client), (pair.client, pair.server))
        for call in (
            lambda here=here: give(here, data), lambda there=there: found.append(take(there, len(data))),
        )
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [data, data]


def test_nothing_to_read_and_no_room_are_as_on_a_plain_socket(pair: Pair) -> None:
    with pytest.raises(BlockingIOError):
        pair.server.recv(10)
    with pytest.raises(BlockingIOError):
        for _ in range(1_000):
            pair.client.send(bytes(MIB))
    pair.client.close()
    with pytest.raises(OSError):
        pair.client.send(b"more")


def test_an_end_is_an_end_with_or_without_its_announcement(pair: Pair) -> None:
    pair.client.send(b"last words")
    pair.client.shutdown(socket.SHUT_WR)
    assert take(pair.server, 10) == b"last words"
    assert pair.server.recv(10) == b""


def test_a_connection_that_has_ended_before_tls_is_still_to_be_closed(certs: Path) -> None:
    contexts = Contexts.load(of(certs, "server-1"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        there = socket.create_connection(listening.getsockname())
        with listening.accept()[0] as here:
            here.setblocking(False)
            there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            there.close()  # resets it
            select.select([here], [], [], 10)
            with pytest.raises(TlsBroken):
                contexts.wrap(here, server_side=True)
            assert here.fileno() != -1


Change = Callable[[Path], None]


def _expired(at: Path) -> None:
    import datetime

    from alpo_cli import certificates

    now = certificates._BEFORE
    certificates._BEFORE = datetime.timedelta(days=20)
    try:
        make(at, "prod", [Leaf("expired", ("append",), ())], -1)
    finally:
        certificates._BEFORE = now
    _as(at, "expired")


def _as(at: Path, stem: str) -> None:
    for end in ("pem", "key"):
        (at / f"{stem}.{end}").replace(at / f"billing.{end}")


def _other_ca(at: Path) -> None:
    make(at / "other", "prod", [client_leaf("append:billing")], 1)
    for end in ("pem", "key"):
        (at / "other" / f"billing.{end}").replace(at / f"billing.{end}")


def _key_of_another(at: Path) -> None:
    shutil.copy(at / "server-1.key", at / "billing.key")


@pytest.mark.parametrize(("change", "words"), [
    (_other_ca, "not trusted here"), (_expired, "expired"),
])
def test_a_certificate_that_is_not_good_is_refused_in_words(
    certs: Path, tmp_path: Path, change: Change, words: str
) -> None:
    mine = tmp_path / "certs"
    shutil.copytree(certs, mine)
    change(mine)
    pair = Pair(Contexts.load(of(certs, "server-1")), Contexts.load(of(mine, "billing")))
    try:
        with pytest.raises(TlsBroken, match=words):
            pair.shake_hands()
    finally:
        pair.close()


def test_a_client_s_certificate_serves_no_server(certs: Path) -> None:
    pair = Pair(Contexts.load(of(certs, "billing")), Contexts.load(of(certs, "billing")))
    try:
        with pytest.raises(TlsBroken, match=r"not trusted here: un\w+ certificate purpose"):
            pair.shake_hands()
    finally:
        pair.close()


def _readable(at: Path) -> None:
    (at / "billing.key").chmod(0o640)


def _garbage(at: Path) -> None:
    (at / "billing.pem").write_text("garbage")


def _no_ca(at: Path) -> None:
    (at / "ca.pem").write_text("")


@pytest.mark.parametrize(("change", "words"), [
    (_readable, "others may read this key; chmod 600 it"), (_key_of_another, "the key of another certificate"),
    (_garbage, "no certificate with its key, unencrypted in PEM form"), (_no_ca, "no certificate of a CA in PEM form"),
    (lambda at: (at / "billing.key").unlink(), "billing.key: No such file"),
    (lambda at: (at / "ca.pem").unlink(), "ca.pem: No such file"),
])
def test_files_that_are_wrong_are_named(certs: Path, tmp_path: Path, change: Change, words: str) -> None:
    mine = tmp_path / "certs"
    shutil.copytree(certs, mine)
    change(mine)
    with pytest.raises(TlsError, match=words):
        Contexts.load(of(mine, "billing"))


def test_files_that_change_are_read_anew_and_wrong_ones_leave_what_was(certs: Path, tmp_path: Path) -> None:
    mine = tmp_path / "certs"
    shutil.copytree(certs, mine)
    trust = Trust(of(mine, "billing"))
    first = trust.contexts()
    assert trust.contexts() is first
    _key_of_another(mine)
    assert trust.contexts() is first
    make(mine, "prod", [client_leaf("read:again")], 1)
    _as(mine, "again")
    assert trust.contexts() is not first


def test_what_is_given_counts_before_the_environment_and_all_three_are_needed() -> None:
    names = {"ALPO_CA": "a", "ALPO_CERT": "b", "ALPO_KEY": "c", "ALPO_TLS_NAME": "n"}
    assert tls_given({}) is None and tls_given({"ALPO_TLS_NAME": "n"}) is None
    assert tls_given(names) == Tls("a", "b", "c", "n")
    assert tls_given(names, ca="x", name="m") == Tls("x", "b", "c", "m")
    with pytest.raises(TlsError, match=r"ALPO_CERT \(--cert\) and ALPO_KEY \(--key\) are missing"):
        tls_given({}, ca="x")


def test_no_file_is_overwritten_and_a_second_call_adds_to_the_first(tmp_path: Path) -> None:
    from alpo_cli.exits import UsageProblem

    first = make(tmp_path, "prod", [server_leaf("1=localhost")], 1)
    before = {path: path.read_bytes() for path in first}
    with pytest.raises(UsageProblem, match="there already"):
        make(tmp_path, "prod", [server_leaf("1=localhost")], 1)
    second = make(tmp_path, "prod", [client_leaf("read,append:both")], 1)
    assert {path.name for path in second} == {"both.key", "both.pem"}
    assert {path: path.read_bytes() for path in first} == before
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.glob("*.key"))
    for wrong in ("1", "0=host", "x=host", "1=", "1=a,,b"):
        with pytest.raises(UsageProblem, match="--server"):
            server_leaf(wrong)
    for wrong in ("append", "append:", "peer/1:x", "root:x", "append:../x"):
        with pytest.raises(UsageProblem, match="--client"):
            client_leaf(wrong)


def test_a_host_name_counts_only_if_it_is_asked_for(certs: Path) -> None:
    files = of(certs, "billing").files
    for host, is_good in (("localhost", True), ("127.0.0.1", True), ("elsewhere", False)):
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        pair = Pair.__new__(Pair)
        pair.server = Contexts.load(of(certs, "server-1")).wrap(ours, True)
        pair.client = Contexts.load(Tls(*files, "prod", verify_hostname=True)).wrap(theirs, False, host)
        try:
            if is_good:
                pair.shake_hands()
            else:
                with pytest.raises(TlsBroken, match="not trusted here: Hostname mismatch"):
                    pair.shake_hands()
        finally:
            pair.close()


def test_a_forked_child_forgets_a_connection_that_is_in_use(pair: Pair) -> None:
    """A thread that the child does not have may hold the connection's lock: `forget` does not wait for it."""
    with pair.client._use():
        child = os.fork()
        if child == 0:
            pair.client.forget()
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    pair.client.send(b"goes on")
    assert take(pair.server, 7) == b"goes on"


def test_no_value_of_a_subject_looks_like_several() -> None:
    text = "billing,O=Example"
    forged = {"subject": ((("commonName", text),),), "subjectAltName": (("DNS", f"CN={text}"),)}
    assert not rights_of(forged, "prod", {"CN=billing,O=Example": "admin"}).roles
    assert rights_of(forged, "prod").subject == r"CN=billing\,O\=Example"


def test_a_certificate_that_cannot_be_read_gives_no_right(certs: Path) -> None:
    class Odd:
        def getpeercert(self) -> None:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no")

    with pytest.raises(TlsBroken, match="cannot be read"):
        Contexts.load(of(certs, "billing")).rights(Odd())
