"""The public interface as a type checker sees it: every name used once, with the type of what comes out.

Nothing here runs. `make lint` checks this file; tests/client/test_client_surface.py checks it again as a
user's program, and that no public name is left out. What must be refused is in wrong.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from concurrent.futures import Future
from datetime import datetime
from pathlib import Path
from typing import Any, assert_type

import trio

import alpo
from alpo import (
    BackupInfo,
    Batches,
    ByHand,
    CursorInfo,
    Events,
    FileSpace,
    Handle,
    Leadership,
    Log,
    LogInfo,
    MemberInfo,
    MemberStatus,
    Outcome,
    PeerStatus,
    Record,
    Records,
    ServerEvent,
    SessionInfo,
    Settings,
    Silent,
    StopEvent,
    SyncLog,
    SyncStopEvent,
    offline,
)
from alpo.state import If, Put, State
from alpo.testing import FAULTS, Cluster

Settled = dict[int, int | None | alpo.AlpoError]


def connecting() -> None:
    assert_type(alpo.connect(), Log)
    assert_type(alpo.connect("a:1,b", "me", 3, queue_max=10, queue_bytes_max=1 << 20), Log)
    tls = alpo.Tls("ca.pem", cert="me.pem", key="me.key", name="prod", verify_hostname=True)
    assert_type(alpo.connect("a:1", tls=tls), Log)
    assert_type(alpo.connect_sync("a:1", tls=tls), SyncLog)
    assert_type(alpo.connect("a:1", log="billing"), Log)
    assert_type(alpo.connect_sync("a:1", log="billing"), SyncLog)
    assert_type(alpo.connect_sync(), SyncLog)
    assert_type(alpo.connect_sync(["a:1", "b"], client="me", timeout_s=0.5), SyncLog)
    assert_type(alpo.__version__, str)


async def appending(log: Log) -> None:
    assert_type(await log.append(b"x"), int)
    assert_type(await log.append(bytearray(b"x"), timeout_s=1), int)
    assert_type(await log.append(memoryview(b"x"), serial=7), int | None)
    assert_type(await log.append(b"x", expect_last=7), int)
    assert_type(await log.append(b"x", serial=7, expect_last=0, timeout_s=1), int | None)
    assert_type(await log.append_text("x", expect_last=7), int)
    assert_type(await log.append_json(1, expect_last=7), int)
    assert_type(await log.append_batch([b"x"], expect_last=7), range)
    assert_type(await log.append_text("x"), int)
    assert_type(await log.append_text("x", serial=7, timeout_s=1), int | None)
    assert_type(await log.append_json({"a": 1}), int)
    assert_type(await log.append_json([1, None], serial=7), int | None)
    assert_type(await log.append_batch([b"x", b"y"]), range)
    assert_type(await log.append_batch((b"x" for _ in range(2)), serial=7), range | None)
    assert_type(await log.append_many((b"x" for _ in range(2)), serial=7, progress=print, timeout_s=1), int)
    handle = log.append_nowait(b"x")
    assert_type(handle, Handle[int])
    assert_type(await handle, int)
    assert_type(await log.append_nowait(b"x", serial=7), int | None)
    assert_type(await log.append_batch_nowait([b"x"]), int)
    assert_type(log.append_batch_nowait([b"x"], serial=7, timeout_s=1), Handle[int | None])
    assert_type(await log.settle(timeout_s=1), Settled)
    await log.wait_room()


def handling(handle: Handle) -> None:
    handle.add_done_callback(lambda done: print(done.lsn, done.error))
    assert_type(handle, Handle[int | None])
    assert_type(handle.lsn, int | None)
    assert_type(handle.lsns, range)
    assert_type(handle.done, bool)
    assert_type(handle.duplicate, bool)
    assert_type(handle.error, alpo.AlpoError | None)
    assert_type((handle.client, handle.serial, handle.epoch), tuple[str, int, int])


async def reading(log: Log, stop: StopEvent, since: datetime) -> None:
    assert_type(log.read(5, 9, timeout_s=1), Records)
    assert_type([record async for record in log.read(last=3, client="me")], list[Record])
    assert_type(log.read_batches(local=True, server=2), Batches)
    async for records in log.read_batches(since=since):
        assert_type(records, list[Record])
    async with log.follow("end", stop=stop) as following:
        assert_type(following, Records)
        assert_type(await anext(following), Record)
    async with log.follow_batches(5, stop=stop) as batches:
        assert_type(await anext(batches), list[Record])
    assert_type(batches.follows, bool)
    assert_type(batches.stopped, bool)
    await batches.aclose()
    assert_type(await log.last(), Record | None)
    assert_type(await log.end(), int)


def a_record(record: Record) -> None:
    assert_type((record.lsn, record.id, record.term, record.serial), tuple[int, int, int, int])
    assert_type(record.time, datetime)
    assert_type(record.client, str)
    assert_type(record.payload, bytes)
    assert_type(record.text, str)
    assert_type(record.json(), Any)
    assert_type(record.to_dict(), dict[str, int | str])


async def operating(log: Log, since: datetime) -> None:
    assert_type(await log.append_by_hand([b"x"], client="me", serial=7, epoch=3), ByHand)
    assert_type(await log.status(), list[MemberStatus])
    assert_type(await log.events(since), Events)
    assert_type(await log.sessions(), list[SessionInfo])
    assert_type(await log.drop_session("me", epoch=3), int)
    assert_type(await log.outcome("me", 7, epoch=3), Outcome)
    await log.wait_everyone(5, timeout_s=1)
    assert_type(await log.settings(), Settings)
    assert_type(await log.change_settings({"window": 4096}, expected=await log.settings()), Settings)
    await log.set_cursor("reader", 5)
    assert_type(await log.cursors(), list[CursorInfo])
    assert_type(await log.drop_cursor("reader"), int)
    assert_type(await log.trim(5, force=True), int)
    assert_type(await log.add_member(4, "d:7100", priority=1), list[MemberInfo])
    assert_type(await log.remove_member(4), list[MemberInfo])
    assert_type(await log.replace_member(3, "e:7100"), list[MemberInfo])
    assert_type(await log.transfer(2), Leadership)
    assert_type(await log.compact(2), FileSpace)
    made = await log.backup("monday.alpo", server=2, progress=print, timeout_s=1)
    assert_type(made, BackupInfo)
    assert_type((made.first_lsn, made.last_lsn, made.bytes), tuple[int, int, int])
    await log.init()
    billing = await log.create_log("billing", keep_s=60.0, keep_bytes=1 << 30, lead=2, bytes_max=1 << 34)
    assert_type(billing, LogInfo)
    assert_type((billing.name, billing.number, billing.id), tuple[str, int, str])
    assert_type((billing.keep_s, billing.keep_bytes, billing.lead), tuple[float | None, int | None, int | None])
    assert_type(await log.logs(), list[LogInfo])
    assert_type(await log.set_log("billing", lead=0), LogInfo)
    assert_type(await log.rename_log("billing", "bills"), LogInfo)
    assert_type(await log.delete_log("bills"), int)
    try:
        await log.create_log("bills")
    except (alpo.LogExists, alpo.NoSuchLog) as error:
        assert_type(error.log, str)


def answers(
    by_hand: ByHand, cursor: CursorInfo, events: Events, space: FileSpace, leadership: Leadership, member: MemberInfo,
    outcome: Outcome, session: SessionInfo,
) -> None:
    assert_type((by_hand.lsn, by_hand.count, by_hand.serial, by_hand.epoch), tuple[int, int, int, int])
    assert_type((by_hand.client, by_hand.duplicate), tuple[str, bool])
    assert_type((cursor.name, cursor.lsn, cursor.lag_bytes, cursor.lag_s), tuple[str, int, int, float])
    assert_type((events.events, events.silent), tuple[list[ServerEvent], list[Silent]])
    assert_type((space.server, space.disk_bytes, space.free_bytes, space.giving_back), tuple[int, int, int, bool])
    assert_type((leadership.leader, leadership.term), tuple[int, int])
    assert_type((member.id, member.address, member.priority, member.role), tuple[int, str, int, str])
    assert_type((outcome.outcome, outcome.lsn, outcome.birth), tuple[str, int | None, int | None])
    assert_type((session.client, session.last_time), tuple[str, datetime])
    assert_type((session.epoch, session.last_serial, session.last_id), tuple[int, int, int])


def happenings(event: ServerEvent, silent: Silent) -> None:
    assert_type((event.time_ms, event.server, event.number, event.shifted_ms), tuple[int, int, int, int])
    assert_type((event.name, event.fields), tuple[str, dict[str, Any]])
    assert_type((silent.id, silent.address, silent.why), tuple[int | None, str, str])


def rows(status: MemberStatus, peer: PeerStatus, settings: Settings) -> None:
    assert_type(status["last_lsn"], int | None)
    assert_type(status.get("problem"), str | None)
    assert_type(status.get("peers"), list[PeerStatus] | None)
    assert_type(peer["round_trip_ms"], float | None)
    assert_type((settings["window"], settings["session_ttl_s"]), tuple[int, float])


async def living(log: Log) -> None:
    await log.opened(timeout_s=1)
    assert_type(log.client, str | None)
    assert_type((log.epoch, log.last_serial), tuple[int, int])
    assert_type(log.closed, bool)
    await log.close()


async def under_trio(since: datetime) -> None:
    async with alpo.connect() as log, trio.open_nursery() as nursery:
        assert_type(log, Log)
        nursery.start_soon(reading, log, trio.Event(), since)
        nursery.start_soon(log.append, b"x")


async def under_asyncio(since: datetime) -> None:
    async with alpo.connect() as log, asyncio.TaskGroup() as tasks:
        task = tasks.create_task(log.append_text("x", serial=7))
        tasks.create_task(reading(log, asyncio.Event(), since))
    assert_type(task.result(), int | None)


def blocking_appends(log: SyncLog) -> None:
    assert_type(log.append(b"x"), int)
    assert_type(log.append(b"x", serial=7, timeout_s=1), int | None)
    assert_type(log.append(b"x", expect_last=7), int)
    assert_type(log.append_batch([b"x"], serial=7, expect_last=7), range | None)
    assert_type(log.append_text("x"), int)
    assert_type(log.append_text(text="x", serial=7), int | None)
    assert_type(log.append_json({"a": 1}), int)
    assert_type(log.append_json(value=None, serial=7), int | None)
    assert_type(log.append_batch([b"x"]), range)
    assert_type(log.append_batch(payloads=[b"x"], serial=7), range | None)
    assert_type(log.append_many([b"x"], serial=7, progress=print, timeout_s=1), int)
    assert_type(log.append_nowait(b"x"), Future[Handle[int]])
    assert_type(log.append_nowait(payload=b"x", serial=7), Future[Handle[int | None]])
    assert_type(log.append_batch_nowait([b"x"]), Future[Handle[int]])
    assert_type(log.append_batch_nowait([b"x"], serial=7, timeout_s=1), Future[Handle[int | None]])
    assert_type(log.append_nowait(b"x").result(1).lsn, int | None)
    assert_type(log.settle(1), Settled)
    log.wait_room()


def blocking_reads(log: SyncLog, stop: SyncStopEvent, since: datetime) -> None:
    assert_type(log.read(5, stop=9, timeout_s=1), Generator[Record, None, None])
    assert_type(log.read_batches(since=since, client="me"), Generator[list[Record], None, None])
    assert_type(log.follow("end", stop=stop), Generator[Record, None, None])
    assert_type(log.follow_batches(last=5, stop=stop), Generator[list[Record], None, None])
    assert_type([record.lsn for record in log.read(local=True, server=2)], list[int])
    assert_type(log.last(), Record | None)
    assert_type(log.end(timeout_s=1), int)


def blocking_operations(log: SyncLog, since: datetime) -> None:
    assert_type(log.append_by_hand([b"x"], client="me", serial=7, expect_last=7), ByHand)
    assert_type(log.status(timeout_s=1), list[MemberStatus])
    assert_type(log.events(since), Events)
    assert_type(log.sessions(), list[SessionInfo])
    assert_type(log.drop_session(name="me", epoch=3), int)
    assert_type(log.outcome("me", 7, epoch=3), Outcome)
    log.wait_everyone(5)
    assert_type(log.settings(), Settings)
    assert_type(log.change_settings({"window": 4096}, expected=log.settings()), Settings)
    log.set_cursor("reader", lsn=5)
    assert_type(log.cursors(), list[CursorInfo])
    assert_type(log.drop_cursor("reader"), int)
    assert_type(log.trim(5, force=True), int)
    assert_type(log.add_member(4, "d:7100", priority=1), list[MemberInfo])
    assert_type(log.remove_member(4), list[MemberInfo])
    assert_type(log.replace_member(3, address="e:7100"), list[MemberInfo])
    assert_type(log.transfer(target=2), Leadership)
    assert_type(log.compact(2), FileSpace)
    assert_type(log.backup("monday.alpo"), BackupInfo)
    log.init()
    assert_type(log.create_log("billing", keep_s=60), LogInfo)
    assert_type(log.logs(), list[LogInfo])
    assert_type(log.set_log("billing", keep_bytes=0), LogInfo)
    assert_type(log.rename_log("billing", "bills"), LogInfo)
    assert_type(log.delete_log("bills"), int)


def blocking_program() -> None:
    with alpo.connect_sync(client="me") as log:
        assert_type(log, SyncLog)
        blocking_reads(log, threading.Event(), datetime.now())
        log.opened()
        assert_type(log.client, str | None)
        assert_type((log.epoch, log.last_serial), tuple[int, int])
        assert_type(log.closed, bool)
        log.close()


async def building(log: Log, guard: If, put: Put) -> None:
    """Calls that libraries use which are built on a log, or on the state in it."""
    clock = log.clock
    assert_type(clock.now_s(), float)
    assert_type(clock.rng.random(), float)
    await clock.sleep(1)
    with clock.move_on_after(1, shield=True) as scope:
        assert_type(scope.cancelled_caught, bool)
    assert_type((log.timeout_s, log.cluster, log.forked), tuple[float, str, bool])
    assert_type(log.reason, alpo.AlpoError | None)
    assert_type(await log.settled(log.append_nowait(b"x")), int | None | alpo.AlpoError)
    state = State(log)
    command = await state.command([guard.plain()], [put.plain()], timeout_s=1)
    assert_type((await command.result()).lsn, int)
    assert_type(await command.settled(), int)
    assert_type(command.handle, Handle)
    assert_type((await state.folded(local=True, at_least=7, until_s=clock.now_s() + 1)).lsn, int)
    assert_type(state.timeout_s, float)
    assert_type(state.in_doubt(), list[Handle])


def offline_files(path: Path) -> None:
    with offline.open_source(path) as source:
        summary = source.summary()
        assert_type(list(source.walk(summary.first_id, summary.end_id)), list[offline.Found])
        assert_type([offline.tell(fault) for fault in offline.verify(source).faults], list[str])
        assert_type(offline.digest(source, 1, summary.end_id), offline.Span)


def building_on_a_blocking_one(log: SyncLog) -> None:
    assert_type(log.log, Log)
    assert_type(log.run(log.log.end), int)


def failing(log: SyncLog) -> None:
    try:
        log.append(b"x")
    except alpo.NotGuaranteed as error:
        assert_type((error.client, error.serial, error.epoch), tuple[str, int, int])
        assert_type(error.too_old, bool)
    except alpo.Fenced as error:
        assert_type(error.epoch, int)
    except alpo.SerialExpected as error:
        assert_type(error.expected, int)
    except alpo.Conflict as error:
        assert_type(error.last_lsn, int)
    except alpo.OutOfRange as error:
        assert_type((error.first_lsn, error.last_lsn), tuple[int, int])
    except alpo.NotEverywhere as error:
        assert_type((error.lsn, error.behind), tuple[int, tuple[int, ...]])
    except (alpo.Closed, alpo.NoSpace, alpo.Overloaded) as error:
        assert_type(error, alpo.Closed | alpo.NoSpace | alpo.Overloaded)
    except (alpo.BackupFailed, alpo.Refused, alpo.TooLarge, alpo.Unavailable) as error:
        assert_type(error, alpo.BackupFailed | alpo.Refused | alpo.TooLarge | alpo.Unavailable)
    except (alpo.SerialReused, alpo.SessionExpired, alpo.Skipped, alpo.TlsMismatch, alpo.ProtocolError) as error:
        assert_type(str(error), str)
    except alpo.AlpoError as error:
        assert_type(error.args, tuple[Any, ...])


async def testing(cluster: Cluster) -> None:
    """The logs of a test's cluster are logs: what takes a `Log` or a `SyncLog` takes them."""
    print(Cluster(seed=1, servers=5, faults=FAULTS).recipe)
    async with cluster.connect(client="me") as log:
        await appending(log)
        assert_type(await log.append(b"x"), int)
        assert_type(log.append_nowait(b"x", serial=7), Handle[int | None])
        assert_type(await log.status(), list[MemberStatus])
        assert_type([record async for record in log.follow("end")], list[Record])
    with cluster.connect_sync() as blocking:
        blocking_appends(blocking)
        assert_type(blocking.append(b"x"), int)
        assert_type(blocking.read(), Generator[Record, None, None])
