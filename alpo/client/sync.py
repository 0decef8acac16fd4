"""`connect_sync` and `SyncLog`: the same client for programs without an event loop; usable from several threads.

Law: every method is that of `Log` of the same name, with the same parameters; `blocking` has the machinery.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Literal

from alpo.errors import Closed
from alpo.tls import Tls

from .arguments import Payload, batch, json_payload, need_append, single, text_payload
from .blocking import Appending, BlockingLog, Queueing, blocking, reading
from .handle import Many, chunks
from .log import Log, connect
from .reading import SyncStopEvent, polled
from .record import Record


def connect_sync(
    servers: str | Sequence[str] | None = None, client: str | None = None, timeout_s: float = 10.0, *,
    queue_max: int = 10_000, queue_bytes_max: int = 32 << 20, tls: Tls | None = None, log: str | None = None,
) -> SyncLog:
    """Connect like `alpo.connect`, for programs without an event loop: enter the result by ``with``, or `close` it at
    the end. Same arguments, same errors."""
    made = connect(servers, client, timeout_s, queue_max=queue_max, queue_bytes_max=queue_bytes_max, tls=tls, log=log)
    return SyncLog(made, queue_max)


class SyncLog(BlockingLog):
    """One client of a cluster, blocking; may be used from several threads. Every call is that of the same name of
    `Log`.

    Use it in a ``with``; or as it is, and `close` it at the end: then it opens with the first call, and the end of the
    interpreter closes it at the latest.
    """

    # -- who we are -----------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {repr(self._log).partition(' ')[2]}"

    @property
    def closed(self) -> bool:
        """True once closed, here or in the process that this one was forked from."""
        return self._log.closed

    @property
    def client(self) -> str | None:
        """The client id: the name given, or the random id, which is None until the first append is sent."""
        return self._log.client

    @property
    def epoch(self) -> int:
        """The session's epoch (0 for random clients). Raises `Unavailable` while a named session is not open."""
        return self._log.epoch

    @property
    def last_serial(self) -> int:
        """The session's last serial as of its opening (0 for random clients). Raises as `epoch` does."""
        return self._log.last_serial

    opened = blocking(Log.opened)

    # -- appending ------------------------------------------------------------------------------------------

    append = Appending(single)(Log.append)
    append_text = Appending(text_payload)(Log.append_text)
    append_json = Appending(json_payload)(Log.append_json)
    append_batch = Appending(batch)(Log.append_batch)

    def append_many(
        self, payloads: Iterable[Payload], *, serial: int | None = None,
        progress: Callable[[int], object] | None = None, timeout_s: float | None = None,
    ) -> int:
        """Append each payload by itself, in order, with many in flight and bounded memory; returns their number once
        all are in the log. The fast way to append much.

        As `Log.append_many`; payloads are taken, and ``progress`` is called, in the thread of the caller. Payloads
        that other threads append come between these.
        """
        self._servers.require_open()
        need_append(serial, timeout_s)
        many = Many(lambda parcel, number: self._log.enter(parcel, number, False, timeout_s), serial)
        try:
            for chunk in chunks(payloads):
                done = self.run(partial(many.feed, chunk))
                if progress is not None:
                    progress(done)
            return self.run(many.finish)
        except BaseException:
            with suppress(Closed):
                self.run(partial(self._withdraw, many.under_way))
            raise

    append_nowait = Queueing(single, """Queue one payload and return at once: a future of the finished `Handle`.

        Its result raises the append's error, if it ends with one. Raises `Overloaded` when as many as ``queue_max``
        wait to enter the loop. Cancelling the future takes the append back if it has not entered the loop yet; later
        there is no cancelling. The future's callbacks are called in the loop's thread, where nobody can wait for the
        loop: they must make no call of this log.
        """)(Log.append_nowait)
    append_batch_nowait = Queueing(batch, """As `append_nowait`, for a batch; the handle's `lsns` are those of all
        payloads.
        """)(Log.append_batch_nowait)
    settle = blocking(Log.settle)

    def wait_room(self) -> None:
        """Wait until `append_nowait` has room for a payload in the local queue. Raises `Closed`."""
        self.run(self._wait_room)

    # -- reading --------------------------------------------------------------------------------------------

    read = reading(Log.read, BlockingLog._records)
    read_batches = reading(Log.read_batches, BlockingLog._lists)

    def follow(
        self, start: int | Literal["end"] | None = None, *, stop: SyncStopEvent | None = None, local: bool = False,
        server: int | None = None, last: int | None = None, since: datetime | None = None, client: str | None = None,
        timeout_s: float | None = None,
    ) -> Generator[Record, None, None]:
        """Iterate as `read` does, but wait for more at the end; survives failovers, without a gap or a repeat.

        ``start="end"``: from the LSN that is next when the first record is asked for. ``stop``: a `threading.Event`;
        the loop ends once it is set, and when the log is closed. Raises `OutOfRange` when the log is trimmed beyond the
        position, `Unavailable` when no server answers for ``timeout_s``.
        """
        return self._records(self._log.follow(
            start, stop=polled(stop), local=local, server=server, last=last,
            since=since, client=client, timeout_s=timeout_s,
        ))

    def follow_batches(
        self, start: int | Literal["end"] | None = None, *, stop: SyncStopEvent | None = None, local: bool = False,
        server: int | None = None, last: int | None = None, since: datetime | None = None, client: str | None = None,
        timeout_s: float | None = None,
    ) -> Generator[list[Record], None, None]:
        """Iterate as `follow` does, over lists of records as they come over the wire."""
        return self._lists(self._log.follow_batches(
            start, stop=polled(stop), local=local, server=server, last=last,
            since=since, client=client, timeout_s=timeout_s,
        ))

    last = blocking(Log.last)
    end = blocking(Log.end)

    # -- what operators ask ---------------------------------------------------------------------------------

    append_by_hand = blocking(Log.append_by_hand)
    status = blocking(Log.status)
    events = blocking(Log.events)
    sessions = blocking(Log.sessions)
    drop_session = blocking(Log.drop_session)
    outcome = blocking(Log.outcome)
    wait_everyone = blocking(Log.wait_everyone)
    settings = blocking(Log.settings)
    change_settings = blocking(Log.change_settings)
    set_cursor = blocking(Log.set_cursor)
    cursors = blocking(Log.cursors)
    drop_cursor = blocking(Log.drop_cursor)
    trim = blocking(Log.trim)
    add_member = blocking(Log.add_member)
    remove_member = blocking(Log.remove_member)
    replace_member = blocking(Log.replace_member)
    transfer = blocking(Log.transfer)
    backup = blocking(Log.backup)
    compact = blocking(Log.compact)
    init = blocking(Log.init)
    create_log = blocking(Log.create_log)
    logs = blocking(Log.logs)
    set_log = blocking(Log.set_log)
    rename_log = blocking(Log.rename_log)
    delete_log = blocking(Log.delete_log)
