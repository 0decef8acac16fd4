"""Error messages when no server would do: first the reasons of living servers, then the servers that do not answer."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import pytest
from fake_cluster import CUT, SWALLOW, TAKE, FakeCluster, fake_cluster, until
from frame_samples import LOG

import alpo
import alpo.state
from alpo.client.reasons import ADDRESSES_MAX, TOLD_MAX, OtherCluster, Reasons
from alpo.client.servers import Servers, given_servers
from alpo.core.directory import DeletedLog, Listing
from alpo.core.requests import Code
from alpo.wire.framing import CLUSTER_TOLD, TLS_ONLY_TOLD
from alpo.wire.requests import LOGS_VERSION, Problem

pytestmark = pytest.mark.anyio

Call = Callable[[alpo.Log], Awaitable[object]]
#: Calls that need a leader.
CALLS: dict[str, Call] = {
    "append": lambda log: log.append(b"x"),
    "opened": lambda log: log.opened(),
    "last": lambda log: log.last(),
    "end": lambda log: log.end(),
    "trim": lambda log: log.trim(1),
    "transfer": lambda log: log.transfer(1),
    "remove_member": lambda log: log.remove_member(3),
    "settings": lambda log: log.settings(),
    "sessions": lambda log: log.sessions(),
    "cursors": lambda log: log.cursors(),
    "outcome": lambda log: log.outcome("c", 1),
    "append_by_hand": lambda log: log.append_by_hand([b"x"], client="c", serial=1),
}


async def test_the_time_that_was_left_is_told_in_few_digits() -> None:
    """A message rounds the time left: one step of a `State` call may leave 0.999778 s of a second to the next."""
    async with alpo.connect("127.0.0.1:1", timeout_s=0.2) as log, alpo.state.State(log) as state:
        with pytest.raises(alpo.Unavailable, match=r"within 0\.[12]\d{0,2} s: "):
            await state.put("x", "1")


def one_lives(c: FakeCluster) -> None:
    c.lead(0)
    for id in (1, 3):
        c.servers[id].kill()


@pytest.mark.parametrize("name", CALLS)
async def test_the_living_server_is_heard_first(name: str) -> None:
    async with fake_cluster() as c:
        one_lives(c)
        living, dead = c.servers[2].address, [c.servers[id].address for id in (1, 3)]
        for timeout_s in (0.3, 3.0):  # the longer one on a machine that stalls
            log = alpo.connect(c.addresses, client="c" if name == "opened" else None, timeout_s=timeout_s)
            with pytest.raises(alpo.Unavailable) as caught:
                await CALLS[name](log)
            await log.close()
            said = str(caught.value)
            wanted = f": 1 of 3 servers answers, less than a majority (see alpo status); {living} knows no leader; "
            if wanted in said:
                break
        assert wanted in said
        for address in dead:
            assert said.count(f"{address}: connection refused") == 1
            assert said.index(living) < said.index(address)
        assert f"{timeout_s:g} s" in said or name in ("append", "opened")


async def test_a_leader_that_is_gone_is_named() -> None:
    async with fake_cluster() as c:
        c.servers[1].kill()
        for timeout_s in (0.3, 3.0):  # the longer one on a machine that stalls
            async with alpo.connect(c.addresses, timeout_s=timeout_s) as log:
                with pytest.raises(alpo.Unavailable) as caught:
                    await log.end()
            said = str(caught.value)
            wanted = (
                f"{c.servers[2].address} takes server 1 for the leader", f"{c.servers[1].address}: connection refused",
            )
            if all(words in said for words in wanted):
                break
        assert all(words in said for words in wanted), said
        assert "majority" not in said


async def test_the_leaders_own_answer_goes_first() -> None:
    async with fake_cluster() as c:
        c.servers[3].kill()
        c.script = lambda server, append: Code.NO_SPACE
        for call in (CALLS["append"], CALLS["append_by_hand"]):
            assert isinstance(await error_once_answered(c, call), alpo.NoSpace)


async def error_once_answered(c: FakeCluster, call: Call) -> BaseException:
    """The error of a call that had time to hear the leader: with longer timeouts on a machine that stalls."""
    for timeout_s in (0.3, 3.0, 30.0):
        asked = len(c.appends)
        async with alpo.connect(c.addresses, timeout_s=timeout_s) as log:
            with pytest.raises(alpo.AlpoError) as caught:
                await call(log)
        # The client asked again, so it had the first answer, and its time was not up while the next was under way.
        if len(c.appends) > asked + 1 and not isinstance(caught.value, alpo.NotGuaranteed):
            break
    return caught.value


async def test_what_was_refused_behind_an_unanswered_append_is_told_so() -> None:
    """The leader took the first append, which may be in the log, and refuses all that follow, which are not in it."""
    async with fake_cluster() as c, alpo.connect(c.addresses, client="me", timeout_s=3.0) as log:
        await log.opened()
        c.script = lambda server, append: Code.NO_SPACE if append.serial > 1 else SWALLOW
        handles = [log.append_nowait(b"taken")]
        while not c.appends:
            await anyio.sleep(0.005)
        handles += [log.append_nowait(payload) for payload in (b"two", b"three")]
        errors = [await error_of(handle) for handle in handles]
        assert [type(error) for error in errors] == [alpo.NotGuaranteed, alpo.NoSpace, alpo.NoSpace]
        c.script = lambda server, append: TAKE
        assert [await log.append(b"four"), await log.append(b"five")] == [2, 3]
        assert (c.payloads, await log.settle()) == ([b"taken", b"four", b"five"], {1: 1})


async def error_of(handle: alpo.Handle[int]) -> BaseException:
    with pytest.raises(alpo.AlpoError) as caught:
        await handle
    return caught.value


async def test_a_leader_that_does_not_answer_an_append_is_asked_what_it_lacks() -> None:
    async with fake_cluster() as c:
        lacks = ["server 3 is low on disk space", "server 2 confirms no entries"]
        c.servers[1].says_of_appends = {"work": False, "why": lacks, "may_fail": 0}
        c.script = lambda server, append: SWALLOW
        async with alpo.connect(c.addresses, timeout_s=1.5) as log:
            error = await error_of(log.append_nowait(b"x"))
            assert isinstance(error, alpo.NotGuaranteed)
            says = f"{c.servers[1].address} leads, but {', '.join(lacks)}"
            assert str(error).startswith(f"no answer in time: it may or may not be appended; {says} (client ~")
            assert 1 <= c.servers[1].asked_status <= 2, "an append has no more than its last second to ask in"
            c.script = lambda server, append: TAKE


@pytest.mark.parametrize("says", [
    None, "no", {"work": True, "why": ["server 2 does not answer"]}, {"work": False, "why": []}, {"work": False},
    {"work": False, "why": "all"},
])
async def test_a_leader_that_says_nothing_of_use_is_not_quoted(says: object) -> None:
    async with fake_cluster() as c:
        c.servers[1].says_of_appends = says
        for timeout_s in (0.6, 3.0, 30.0):  # the longer ones on a machine that stalls
            c.script = lambda server, append: SWALLOW
            async with alpo.connect(c.addresses, timeout_s=timeout_s) as log:
                error = await error_of(log.append_nowait(b"x"))
                c.script = lambda server, append: TAKE
            if c.servers[1].asked_status:
                break
        assert str(error).startswith("no answer in time: it may or may not be appended (client ~")
        assert c.servers[1].asked_status


async def test_a_leader_that_answers_is_not_asked_what_it_lacks() -> None:
    asked = [1]
    for _ in range(5):  # the machine may stall, and the leader with it; each log could ask at once
        async with fake_cluster() as c:
            with suppress(alpo.NotGuaranteed):  # after half a second of stalling
                async with alpo.connect(c.addresses, timeout_s=0.5) as log:
                    under_way = log.append_nowait(b"x")
                    for _ in range(3_000):  # one is unanswered whenever the client looks
                        following = log.append_nowait(b"x")
                        await under_way
                        under_way = following
                    asked = [server.asked_status for server in c.servers.values()]
        if not any(asked):
            break
    assert asked == [0, 0, 0]


async def test_what_is_over_is_not_told() -> None:
    async with fake_cluster() as c:
        servers = Servers(given_servers(c.addresses))
        one_lives(c)
        assert await servers.find_leader() is None
        assert "connection refused" in str(servers.reason)
        c.lead(2)
        found = await servers.find_leader()
        assert found is not None and servers.reason is None
        servers.close()


def test_the_most_telling_reason() -> None:
    reasons = Reasons()
    assert reasons.told is None
    reasons.lost("a", alpo.Unavailable("a: refused"))
    assert str(reasons.told) == "a: refused"
    reasons.says("b", alpo.Unavailable("b knows no leader"))
    reasons.lost("c", alpo.Unavailable("c: refused"))
    reasons.lost("a", alpo.Unavailable("a: refused"))
    assert str(reasons.told) == "b knows no leader; a: refused; c: refused"
    reasons.answered("c", alpo.NoSpace("disk full"))
    assert isinstance(reasons.told, alpo.NoSpace)
    assert str(reasons.told) == "disk full; b knows no leader; a: refused"
    reasons.lost("b", alpo.Overloaded("b: too many clients"))
    assert str(reasons.told) == "b: too many clients; disk full; a: refused"
    reasons.counted(2, 3)
    assert "majority" not in str(reasons.told)
    reasons.counted(2, 4)
    assert "; disk full; 2 of 4 servers answer, less than a majority (see alpo status); a:" in str(reasons.told)
    reasons.found("c")
    assert str(reasons.told) == "disk full"
    reasons.found("a")
    assert reasons.told is None


def test_it_is_bounded() -> None:
    reasons = Reasons()
    for n in range(2 * ADDRESSES_MAX):
        reasons.lost(f"h{n}", alpo.Unavailable(f"h{n}: refused"))
    assert len(reasons._known) == ADDRESSES_MAX
    assert str(reasons.told).split("; ")[TOLD_MAX:] == [f"{ADDRESSES_MAX - TOLD_MAX} more"]


@pytest.mark.parametrize(("name", "says"), [
    *((name, "hello") for name in [*CALLS, "read", "local", "follow"]), ("append", "problem"), ("read", "problem"),
])
async def test_servers_of_another_cluster_are_an_error_of_their_own(name: str, says: str) -> None:
    """A program that was connected before a restore at the same addresses is not asked to repeat its call."""
    calls: dict[str, Call] = {
        **CALLS, "read": lambda log: anext(log.read()), "local": lambda log: anext(log.read(local=True)),
        "follow": lambda log: anext(log.follow()),
    }
    async with fake_cluster() as c:
        log = alpo.connect(c.addresses, client="c" if name == "opened" else None, timeout_s=0.3)
        await log.end(timeout_s=30)
        c.cluster = bytes(16)[1:] + b"x"
        for server in c.servers.values():
            if says == "problem":
                server.problem = Problem(Code.INVALID, f"cluster 00ff: {CLUSTER_TOLD} {c.cluster.hex()}")
        c.servers[3].kill()  # a restored cluster has one server at first
        for connection in log._servers._idle:
            connection.close()
        log._servers._idle.clear()
        said = f"(another cluster,|{CLUSTER_TOLD}) {c.cluster.hex()}"
        while True:  # a machine that stalls may need another try
            with pytest.raises(alpo.Unavailable) as caught:
                await calls[name](log)
            if re.search(said, str(caught.value)):
                break
        assert type(caught.value) is alpo.ProtocolError
        await log.close()


WEB, NEW = alpo.ProtocolError("a: an HTTP port answers there"), OtherCluster("a: another cluster")
NO_TLS, GONE = alpo.TlsMismatch("a: TLS"), alpo.Unavailable("a: connection refused")


@pytest.mark.parametrize(("wrong", "kind"), [
    ([WEB], alpo.ProtocolError), ([NEW], alpo.ProtocolError), ([NO_TLS], alpo.TlsMismatch), ([GONE], alpo.Unavailable),
    ([WEB, GONE], alpo.Unavailable), ([WEB, NO_TLS, GONE], alpo.ProtocolError),
    ([NO_TLS, NO_TLS, GONE], alpo.TlsMismatch), ([NO_TLS, GONE, GONE], alpo.Unavailable),
    ([GONE, GONE, NEW], alpo.ProtocolError),
])
def test_that_repeating_is_of_no_use_is_told_when_no_server_can_come_back(
    wrong: list[alpo.AlpoError], kind: type[alpo.AlpoError]
) -> None:
    reasons = Reasons()
    for at, error in enumerate(wrong):
        reasons.lost(f"a{at}", error)
    assert type(reasons.told) is kind
    reasons.says("our own", alpo.Unavailable("knows no leader"))
    assert type(reasons.told) is alpo.Unavailable, "a server of this cluster is heard"


@pytest.mark.parametrize(("code", "text", "kind"), [
    (Code.NO_RIGHT, TLS_ONLY_TOLD, alpo.TlsMismatch), (Code.NO_RIGHT, "it takes the role read", alpo.Refused),
    (Code.INVALID, f"cluster aa: {CLUSTER_TOLD} none yet", alpo.Unavailable),
    (Code.INVALID, f"cluster aa: {CLUSTER_TOLD} bb", alpo.ProtocolError),
    (Code.INVALID, "version 9, this server speaks 3", alpo.ProtocolError), (Code.OVERLOADED, "full", alpo.Overloaded),
])
async def test_what_a_server_says_before_it_closes_is_an_error_of_its_own(
    code: Code, text: str, kind: type[alpo.AlpoError]
) -> None:
    async with fake_cluster(1) as c:
        c.servers[1].problem = Problem(code, text)
        for call in (CALLS["append"], CALLS["last"], CALLS["settings"]):
            async with alpo.connect(c.addresses, timeout_s=0.5) as log:
                with pytest.raises(alpo.AlpoError, match=re.escape(text)) as caught:
                    await call(log)
            assert type(caught.value) is kind


NOT_HERE = "there is no log billing on this server"
#: Cases: whether the client knows the log's id, the server asked first, the listing of the first log, and what is told.
DENIED = [
    (False, 1, Listing(), "^there is no log billing$"),
    (False, 3, Listing(), "^there is no log billing$"),
    (False, 1, Listing((LOG,), (), 4), NOT_HERE),
    (True, 1, Listing(), NOT_HERE),  # a log of that id may have another name by now
    (True, 1, Listing((), (DeletedLog(*LOG[:3], LOG.nonce, LOG.first_list),), 3), "^there is no log billing$"),
]


@pytest.mark.parametrize("name", ["append", "opened", "last"])
@pytest.mark.parametrize(("known", "first", "listing", "why"), DENIED)
async def test_the_first_log_s_leader_alone_proves_that_there_is_no_log(
    name: str, known: bool, first: int, listing: Listing, why: str
) -> None:
    """Any other server may be behind."""
    async with fake_cluster() as c:
        c.listing = listing
        for server in c.servers.values():
            server.problem = Problem(Code.NO_SUCH_LOG, NOT_HERE)
        there = Servers([c.servers[first].address], cluster=LOG.id if known else b"", log="billing")
        log = alpo.Log(there, "c" if name == "opened" else None, 1.0 if why is NOT_HERE else 500.0, 1, 1)
        with pytest.raises(alpo.NoSuchLog, match=why):
            await CALLS[name](log)
        await log.close()


async def test_appends_under_way_to_a_log_that_is_deleted_are_told_at_once() -> None:
    async with fake_cluster(1) as c:
        c.cluster, c.script = LOG.id, lambda *_: SWALLOW
        async with alpo.Log(Servers([c.servers[1].address], log="billing"), "c", 500.0, 9, 99) as log:
            sent = log.append_nowait(b"sent")
            await until(lambda: c.appends)
            c.listing = Listing((), (DeletedLog(*LOG[:3], LOG.nonce, LOG.first_list),), 3)
            c.servers[1].problem = Problem(Code.NO_SUCH_LOG, NOT_HERE)
            c.script = lambda *_: CUT
            for handle in (log.append_nowait(b"cut"), sent):
                with pytest.raises(alpo.NotGuaranteed, match=r"^there is no log billing: before that") as told:
                    await handle
                assert told.value.too_old


async def test_a_server_that_knows_the_first_log_alone_takes_nothing_for_another() -> None:
    """Else payloads of a log that was named would be in the first one."""
    async with fake_cluster(1) as c:
        c.servers[1].speaks = LOGS_VERSION - 1
        async with alpo.connect(c.addresses, timeout_s=0.5, log="billing") as log:
            with pytest.raises(alpo.Refused, match="too old: it knows the first log alone, and not billing"):
                await log.append(b"x")
        assert not c.entries
        async with alpo.connect(c.addresses, timeout_s=20) as log:
            await log.append(b"y")
            with pytest.raises(alpo.Refused, match=r"too old: it knows the first log alone$"):
                await log.create_log("billing")
        assert len(c.entries) == 1
