"""Programs that are wrong. A type checker must refuse each line with a mark, for the reason that the mark names, and
no other line: tests/client/test_client_surface.py. Nothing here runs."""

import asyncio
import threading
from datetime import datetime

import alpo
from alpo import Handle, Record
from alpo.testing import Cluster


async def on_a_loop(log: alpo.Log, stop: threading.Event) -> None:
    await log.apend(b"x")  # error: attr-defined
    await log.append("text")  # error: call-overload
    await log.append(b"x", seriel=7)  # error: call-overload
    await log.append(b"x", serial="7")  # error: call-overload
    await log.append_batch(b"x", None)  # error: call-overload
    lsn: int = await log.append(b"x", serial=7)  # error: assignment
    handle: Handle[int] = log.append_nowait(b"x", serial=7)  # error: assignment
    log.read(start="5")  # error: arg-type
    log.follow("beginning")  # error: arg-type
    log.follow(stop=stop)  # error: arg-type
    await log.events(since="yesterday")  # error: arg-type
    await log.outcome("me")  # error: call-arg
    await log.trim(5, 1.0, True)  # error: call-arg
    await log.transfer("b")  # error: arg-type
    await log.change_settings({"window": "many"})  # error: dict-item
    for record in log.read():  # error: attr-defined
        print(record, lsn, handle)


def blocking(log: alpo.SyncLog, since: datetime) -> None:
    log.apend(b"x")  # error: attr-defined
    log.append("text")  # error: call-overload
    log.append(b"x", seriel=7)  # error: call-overload
    log.append(b"x", 7)  # error: call-overload
    lsn: int = log.append(b"x", serial=7)  # error: assignment
    asyncio.run(log.append(b"x"))  # error: arg-type
    log.append_text(b"x")  # error: call-overload
    log.append_batch(7)  # error: call-overload
    handle: Handle[int] = log.append_nowait(b"x")  # error: assignment
    log.status(timeout="1")  # error: call-arg
    records: list[Record] = log.read()  # error: assignment
    log.read(sinse=since)  # error: call-arg
    log.follow(stop=asyncio.Event)  # error: arg-type
    log.set_cursor("reader", "5")  # error: arg-type
    log.set_cursor("reader")  # error: call-arg
    log.add_member("4", "d:7100")  # error: arg-type
    log.end.value()  # error: attr-defined
    none: int = log.init()  # error: assignment
    print(lsn, handle, records, none)


def names(cluster: Cluster) -> None:
    alpo.conect_sync()  # error: attr-defined
    alpo.connect_sync(server="a:1")  # error: call-arg
    alpo.connect(timeout_s="1")  # error: arg-type
    cluster.connect().apend(b"x")  # error: attr-defined
    cluster.connect_sync().append("text")  # error: call-overload
    try:
        cluster.check()
    except alpo.NotGaranteed:  # error: attr-defined
        raise
