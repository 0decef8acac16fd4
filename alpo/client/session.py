"""The bookkeeping of one client's session: its id and opening, its appends' serials, and what every answer means. No
I/O.

Laws (R21-R24):

* A request waits in the *queue* without a serial until it is first sent; then it stands in the *line* with one.
  The line's serials have no gaps, and it is sent again from its head, in order, on every new connection.
* A request leaves the line when the cluster's last word on it is known. A refusal settles the transmission
  that it answers: one that was lost, or taken by a leader that fell, may still be in the log (MAYBE).
* A serial is given back only when no transmission of it, nor of any later one, can still be taken: the clean tail
  of the line goes back to the queue (`_recall`). So what expires in the queue is surely not in the log
  (`Unavailable`), and what expires in the line is reported as unknown and stays there.
* A request that asks for another serial than the next, or expects an LSN to be the last, goes *alone*: nothing is in
  the line with it.
* An append that is refused for good while MAYBE holds is reported as unknown, never as "not in the log", unless the
  refusal speaks of earlier transmissions too. A conflict does, if the log is beyond the LSN expected: the log never
  goes back, so no late transmission is taken any more, and the serial is free.

Laws of an opening (R22): a nonce is fresh for each epoch that the request names, and kept over lost connections, so
that an open that was taken is answered again instead of fencing itself. Only the answer to the latest request is
heeded.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable
from copy import copy
from functools import partial

from alpo.core.entries import random_client
from alpo.core.requests import Appended, Code, OpenSession
from alpo.errors import AlpoError, Refused, SerialExpected, Unavailable
from alpo.wire.requests import Append, AppendAfter, AppendRefused

from .arguments import After, Item, Parcel
from .handle import MAYBE, REFUSED, REPORTED, RESOLVED, Handle, heard
from .pipeline import Pipeline
from .reasons import ENDS, UNSEEN, code_name, fenced, unknown, verdict
from .tasks import NEW_EVENT, Event

#: Payload bytes gathered into one frame, and in flight at once (one larger append is always sent).
RUN_BYTES_MAX = 256 * 1024
FLIGHT_BYTES_MAX = 4 << 20


class Session(Pipeline):
    """The serials, transmissions and outcomes of one client's appends."""

    def __init__(
        self, name: str | None, queue_max: int, queue_bytes_max: int,
        begin_wait: Callable[[], Event] = NEW_EVENT,
    ) -> None:
        super().__init__(queue_max, queue_bytes_max, begin_wait)
        self.named = name is not None
        self.client = name
        self.epoch = 0
        #: The session's last serial as of its opening (R22); 0 for random clients.
        self.opened_last = 0
        self.next_serial = 1
        #: True if serials may be given: a named session is open, or a random id was made.
        self.ready = False
        #: The code of the last refusal that asks for another try; None once the line is sent again.
        self.stalled: Code | None = None
        #: `next_serial` as it was before the append that goes alone; None while none does.
        self._alone_before: int | None = None
        #: True if something was appended under this id, or may have been.
        self._touched = False

    def expire(self, now_s: float) -> None:
        """Tell every append whose deadline has passed: `Unavailable` (or what it was refused for) if no server can have
        taken it, else `NotGuaranteed`."""
        if now_s < self.soonest_s:
            return
        if self.stalled is not None:
            if self.waits():
                self._take_back_refused()
            else:
                self._take_back()
        for handle in self.queue.take_late(now_s):
            self.outcomes.fail(handle, self.unavailable("no server took the append in time"))
        for handle in self.line:
            if not handle.done and handle.deadline_s <= now_s:
                why = f"; {self.reason}" if self.reason is not None else ""
                self.outcomes.report(handle, f"no answer in time: it may or may not be appended{why}")
        waiting = [h.deadline_s for h in self.queue.handles] + [h.deadline_s for h in self.line if not h.done]
        self.soonest_s = min(waiting, default=math.inf)

    def gone(self, error: AlpoError) -> None:
        """End all appends: there is no log any more that could take them. Of what a server may have taken, nobody can
        tell what became."""
        self.refuse_all(error)
        text = f"{error}: before that it may or may not have been appended"
        for handle in self.line:
            if not handle.state & RESOLVED:
                doubt = unknown(text, handle.client, handle.serial, handle.epoch, too_old=True)
                self.outcomes.resolve(handle, doubt if handle.state & MAYBE else copy(error))
        self._pop_resolved()

    # -- the session itself -----------------------------------------------------------------------------------

    def begin(self, client: str, epoch: int, last_serial: int) -> None:
        """Begin to give serials, after ``last_serial``: the session is open (R22), or a random id was made."""
        self.client, self.epoch, self.opened_last = client, epoch, last_serial
        self.next_serial = last_serial + 1
        self._touched, self.ready = False, True

    # -- sending ----------------------------------------------------------------------------------------------

    def next_append(self) -> Append | AppendAfter | None:
        """The next frame's worth to send on this connection; None if there is nothing, or no room in the window."""
        if self.stalled is not None:
            return None
        if self.line.sent < len(self.line.handles):
            again = self.line.send_again(RUN_BYTES_MAX)
            if again:
                if self._alone_before is not None:
                    return self._alone(again[0])
                return self._frame(again[0].serial, False, [h.parcel.item for h in again])
        if not self.ready or self._alone_before is not None:
            return None
        while self.queue.handles:
            wanted = self.queue.handles[0].wanted
            if wanted == 0 or wanted == self.next_serial:
                return self._next_run()
            if self.line:
                return None
            alone = self._next_alone()
            if alone is not None:
                return alone
        return None

    def _next_run(self) -> Append | None:
        """A frame of as many appends from the queue as the window has room for, with the next serials."""
        queue, line = self.queue.handles, self.line.handles
        client, epoch = self.client or "", self.epoch
        room = self._sizes.window - len(line)
        room_bytes = min(RUN_BYTES_MAX, FLIGHT_BYTES_MAX - self.line.bytes)
        first = serial = self.next_serial
        items: list[Item] = []
        size = 0
        while queue and len(items) < room:
            handle = queue[0]
            parcel = handle.parcel
            if handle.wanted and handle.wanted != serial:
                break
            if size + parcel.size > room_bytes and (items or line):
                break
            queue.popleft()
            handle.client, handle.serial, handle.epoch = client, serial, epoch
            serial += 1
            items.append(parcel.item)
            size += parcel.size
            line.append(handle)
        if not items:
            return None
        self.next_serial = serial
        self.queue.bytes -= size
        self.line.bytes += size
        self.line.sent = len(line)
        return self._frame(first, False, items)

    def _next_alone(self) -> Append | AppendAfter | None:
        """A frame of the queue's head, which wants another serial than the next, or is conditional; None if it needs no
        sending."""
        handle = self.queue.take()
        expected = self.next_serial
        wanted = handle.wanted.serial or expected if isinstance(handle.wanted, After) else handle.wanted
        if wanted <= self.opened_last and not handle.sparse:
            handle.finish(None, True)
            return None
        if wanted > expected and not (handle.sparse and self.named):
            text = f"serial {wanted} is above the next, {expected}"
            self.outcomes.fail(handle, SerialExpected(text, expected=expected))
            return None
        self._alone_before = expected
        self.next_serial = max(expected, wanted + 1)
        handle.client, handle.serial, handle.epoch = self.client or "", wanted, self.epoch
        self.line.add(handle)
        self.line.sent = 1
        return self._alone(handle)

    def _alone(self, handle: Handle) -> Append | AppendAfter:
        """The frame of an append that goes alone."""
        after, item = handle.wanted, handle.parcel.item
        if isinstance(after, After):
            return AppendAfter(handle.client, handle.epoch, handle.serial, False, after.expect_last, item)
        return self._frame(handle.serial, handle.sparse and self.named, [item])

    def _frame(self, serial: int, sparse: bool, items: list[Item]) -> Append:
        return Append(self.client or "", self.epoch, serial, sparse, False, items)

    def lend(self) -> int | None:
        """The next serial, if callers may append by themselves now (`own_append`); else None."""
        if not self.idle or not self.ready or self.ended is not None or self.stalled is not None:
            return None
        self._touched = True
        return self.next_serial

    def own_append(self, parcel: Parcel, serial: int, deadline_s: float) -> tuple[Handle, Append]:
        """The handle and the frame of an append of a caller who was lent the serials. Called in the caller's thread."""
        handle: Handle = Handle(parcel, 0, False, deadline_s, self._begin_wait)
        client, epoch = self.client or "", self.epoch
        handle.client, handle.serial, handle.epoch = client, serial, epoch
        return handle, tuple.__new__(Append, (client, epoch, serial, False, False, [parcel.item]))

    def take_back(self, next_serial: int, handle: Handle | None) -> None:
        """Go on from a caller's appends: ``next_serial`` is the next, or that of the one under way."""
        self.next_serial = next_serial
        if handle is None:
            return
        self.next_serial = handle.serial + 1
        if not handle.done:
            handle.add_done_callback(heard)  # a blocking call waits for it, or was interrupted
            self.line.add(handle)
            self.line.sent = 1
            self.soonest_s = min(self.soonest_s, handle.deadline_s)

    # -- answers ----------------------------------------------------------------------------------------------

    def appended(self, answer: Appended) -> None:
        """Settle the appends of an answer: all their transmissions have succeeded."""
        line, handles = self.line, self.line.handles
        if answer.client != self.client or not handles:
            return
        self._touched = True
        duplicate = answer.duplicate
        if answer.serial != handles[0].serial:
            for handle, lsn in line.named(answer.serial, answer.lsns):
                self.outcomes.resolve(handle, lsn, duplicate)
            self._pop_resolved()
            return
        for lsn in answer.lsns[: len(handles)]:
            handle = handles.popleft()
            line.bytes -= handle.parcel.size
            if handle.state:
                self.outcomes.resolve(handle, lsn, duplicate)
            else:
                handle.finish(lsn, duplicate)
            line.sent -= 1
        if line.sent < 0:
            line.sent = 0
        self._after_pop()

    def refused(self, answer: AppendRefused) -> None:
        """Judge a refusal: a verdict ends its appends, any other has them sent again."""
        if answer.client != self.client:
            return
        code = answer.code
        named = self.line.named(answer.serial, [None] * min(answer.count, len(self.line)))
        handles = [h for h, _ in named if not h.state & (RESOLVED | REFUSED)]
        if code in UNSEEN or code == Code.LOST_LEADERSHIP:
            for handle in handles:
                handle.state |= REFUSED
                if code == Code.LOST_LEADERSHIP:
                    handle.state |= MAYBE
                    self._touched = True
            self.stalled = Code(code)
        elif code == Code.SESSION_EXPIRED and not self.named:
            self._expired(answer)
        elif code == Code.CONFLICT:
            for handle in handles:
                self._conflict(handle, answer)
        else:
            taken_over = code in ENDS or (code == Code.SERIAL_REUSED and self._is_new(answer.serial))
            for handle in handles:
                if code == Code.SERIAL_REUSED and handle.serial <= self.opened_last:
                    self.outcomes.resolve(handle, None, True)  # the serial was appended before this session was opened
                else:
                    self._refuse(handle, answer, taken_over)
            if taken_over:
                self._end(fenced(answer))
            elif code not in (Code.SERIAL_REUSED, Code.SKIPPED, Code.TOO_OLD):
                self._hole(answer)
        self._pop_resolved()

    def waits(self) -> bool:
        """True if any transmission on this connection is unanswered."""
        return bool(self.line.unanswered())

    def lost(self) -> None:
        """Note that the connection is gone: what was unanswered may have been taken, and all is to be sent again."""
        for handle in self.line.unanswered():
            handle.state |= MAYBE
            self._touched = True
        self.rewind()

    def rewind(self) -> None:
        """Have the line sent again from its head; only while no transmission is unanswered (`waits`)."""
        self._take_back()
        self.stalled = None

    # -- inside -----------------------------------------------------------------------------------------------

    def _take_back(self) -> None:
        self.line.rewind()
        self._recall()

    def _recall(self) -> None:
        """Give back the serials at the end of the line that no server can have taken."""
        line = self.line
        while line and not line[-1].state:
            self._give_back(line.take_last())

    def _take_back_refused(self) -> None:
        """Give back the serials at the end of the line that a server has refused unseen, or was not sent, while it
        still owes an answer to what is before them."""
        line = self.line
        while line and line[-1].state == (REFUSED if len(line) <= line.sent else 0):
            self._give_back(line.take_last())
            line.sent = min(line.sent, len(line))

    def _give_back(self, handle: Handle) -> None:
        """Put an append, just taken from the end of the line, back to the queue's head without its serial."""
        self.next_serial = handle.serial if self._alone_before is None else self._alone_before
        self._alone_before = None
        handle.serial = handle.state = 0
        if self.ended is not None:
            self.outcomes.fail(handle, copy(self.ended))
        else:
            self.queue.put_back(handle)

    def _expired(self, answer: AppendRefused) -> None:
        """Go on under a new random id: the present one has ended (R22). Appends that may be in the log under the old id
        fail."""
        if not self._touched:
            for handle in self.line:
                handle.state &= ~REFUSED
        else:
            for handle in self.line:
                if not handle.state & RESOLVED:
                    self._refuse(handle, answer)
        self.line.sent = 0
        self._start_over()

    def _start_over(self) -> None:
        """Send what is left, and later appends, under a new random id."""
        self._pop_resolved()
        # No append left in the line was made, though some were reported as unknown.
        for handle in self.line:
            if handle.state & REPORTED:
                self.outcomes.resolve(handle, Unavailable("its client id had ended: it was not appended"))
        self.line.drop_settled()
        self._recall()
        self._after_pop()
        self.ready = False
        self.client = None
        self.next_serial = 1
        self.stalled = None

    def _conflict(self, handle: Handle, answer: AppendRefused) -> None:
        """Settle a conditional append whose LSN is not the last, and give its serial back. If the log has yet to reach
        that LSN, an earlier transmission may still be taken: then nothing can follow."""
        after = handle.wanted
        if isinstance(after, After) and answer.number > after.expect_last:
            handle.state &= ~MAYBE
        in_doubt = handle.state & MAYBE
        self._refuse(handle, answer)
        if in_doubt:
            self._hole(answer)
        else:
            self.next_serial = handle.serial

    def _hole(self, answer: AppendRefused) -> None:
        """End all unresolved appends after one that can never be right: its serial stays free, and nothing can follow
        it."""
        for handle in self.line:
            if not handle.state & RESOLVED:
                text = f"unanswered when serial {answer.serial} was refused"
                error = unknown(text, handle.client, handle.serial, handle.epoch, too_old=True)
                self.outcomes.resolve(handle, error)
        self.line.sent = 0
        if self.named:
            why = answer.detail or code_name(answer.code)
            self._end(Refused(f"the session cannot go on after a request that was refused: {why}"))
        else:
            self._start_over()

    def _end(self, error: AlpoError) -> None:
        """Take nothing new; what is unresolved is still settled."""
        self.ended = error
        self.refuse_all(error)

    def _is_new(self, serial: int) -> bool:
        """True if this process gave the serial: if it was used already, another process has done that."""
        return self.named and (self._alone_before is None or serial >= self._alone_before)

    def _refuse(self, handle: Handle, answer: AppendRefused, taken_over: bool = False) -> None:
        """Settle an append that was refused for good, as far as this transmission goes."""
        error = verdict(answer, handle.serial, handle.epoch, bool(handle.state & MAYBE), taken_over)
        self.outcomes.resolve(handle, error)

    def _pop_resolved(self) -> None:
        """Remove the resolved head of the line."""
        self.line.drop_settled_head()
        self._after_pop()

    def _after_pop(self) -> None:
        if not self.line.handles:
            self._alone_before = None
        elif self.line.handles[0].state & RESOLVED:
            self._pop_resolved()


# -- opening a session --------------------------------------------------------------------------------------


def random_id(
    time_ms: int, horizon_ms: int, random_bytes: Callable[[int], bytes] = secrets.token_bytes
) -> str:
    """A new random client id: ``~`` and a UUIDv7 (RFC 9562) of max(time, horizon + 1), ms, as a server's hello told
    them."""
    return random_client(max(time_ms, horizon_ms + 1), int.from_bytes(random_bytes(10), "big"))


NONCE_BYTES = 16


def nonces(rng: random.Random) -> Callable[[], bytes]:
    """A maker of fresh nonces, drawn from ``rng``."""
    return partial(rng.randbytes, NONCE_BYTES)


class Opening:
    """The requests that open one named session, until it has its epoch."""

    def __init__(self, name: str, make_nonce: Callable[[], bytes]) -> None:
        self._name = name
        self._make_nonce = make_nonce
        self._nonce = make_nonce()
        self._replaces = 0
        #: The number of the latest request, on the connection that it was sent on; 0 for none.
        self.request = 0

    def ask(self, request: int) -> OpenSession:
        """The open request, under this number."""
        self.request = request
        return OpenSession(request, self._name, self._replaces, self._nonce)

    def outdated(self, epoch: int) -> None:
        """Note that the session's present epoch is another (0: it is not open): the next request names that one."""
        self._replaces = epoch
        self._nonce = self._make_nonce()
        self.request = 0

    def lost(self) -> None:
        """Note that the connection is gone: the same request is to be sent again."""
        self.request = 0
