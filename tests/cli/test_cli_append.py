"""The pipeline of `alpo append` against a log that answers when told to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trio
import trio.testing

from alpo.client.handle import Handle
from alpo.errors import AlpoError, Closed, NotGuaranteed, TooLarge, Unavailable
from alpo_cli import appending
from alpo_cli.appending import Run
from alpo_cli.exits import UsageProblem


class FakeHandle:
    """The part of a `Handle` that `Run` reads."""

    def __init__(self, serial: int) -> None:
        self.client, self.serial, self.epoch = "c", serial, 4
        self.done, self.duplicate = False, False
        self.lsn: int | None = None
        self.error: AlpoError | None = None
        self._callback: Callable[[Any], object] = lambda _: None

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._callback = callback

    def end(self, lsn: int | None = None, error: AlpoError | None = None) -> None:
        self.done, self.lsn, self.error = True, lsn, error
        self._callback(self)


class FakeLog:
    def __init__(self) -> None:
        self.sent: list[tuple[list[bytes], FakeHandle]] = []

    def append_nowait(self, payload: bytes) -> Handle:
        return self.append_batch_nowait([payload])

    def append_batch_nowait(self, payloads: list[bytes]) -> Handle:
        if any(len(payload) > 100 for payload in payloads):
            raise TooLarge("too large")
        self.sent.append((payloads, FakeHandle(len(self.sent) + 1)))
        handle: Any = self.sent[-1][1]
        return handle  # type: ignore[no-any-return]


class FakeSink:
    terminal = False

    def __init__(self, broken: OSError | None = None) -> None:
        self.text = ""
        self.broken = broken

    async def write(self, chunk: bytes) -> None:
        await trio.lowlevel.checkpoint()
        if self.broken is not None:
            raise self.broken
        self.text += chunk.decode()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


class Stage:
    """A run under way over a source that a test feeds by hand."""

    def __init__(self, sink: FakeSink | None, as_json: bool = True) -> None:
        self.log = FakeLog()
        given: Any = sink
        self.run = Run(self.log, given, as_json)
        self.give, self._source = trio.open_memory_channel[list[list[bytes]]](100)
        self.finished = False

    async def source(self) -> AsyncIterator[list[list[bytes]]]:
        async for group in self._source:
            if not group:
                raise UsageProblem("input")
            yield group

    async def __aenter__(self) -> Stage:
        self._opened = trio.open_nursery()
        self._nursery = nursery = await self._opened.__aenter__()
        nursery.start_soon(self.run.collect)

        async def feed() -> None:
            await self.run.feed(self.source)
            self.finished = True

        nursery.start_soon(feed)
        return self

    async def __aexit__(self, *_: object) -> None:
        await trio.testing.wait_all_tasks_blocked()
        self._nursery.cancel_scope.cancel()
        await self._opened.__aexit__(None, None, None)

    async def settle(self) -> None:
        await trio.testing.wait_all_tasks_blocked()


@pytest.mark.trio
async def test_results_come_in_order_whatever_the_answers_order() -> None:
    sink = FakeSink()
    async with Stage(sink) as stage:
        stage.give.send_nowait([[b"a"], [b"b", b"c"]])
        await stage.settle()
        (_, first), (batch, second) = stage.log.sent
        assert batch == [b"b", b"c"]
        second.end(lsn=2)
        await stage.settle()
        assert sink.text == ""
        first.end(lsn=1)
        stage.give.close()
        await stage.settle()
        assert stage.finished and stage.run.failure() is None
    assert [(line["lsn"], line["count"], line["serial"]) for line in sink.lines] == [(1, 1, 1), (2, 2, 2)]
    assert list(sink.lines[0]) == ["lsn", "count", "client", "serial", "epoch", "duplicate"]
    assert stage.run.summary() == "3 appended, LSN 1 to 3"


@pytest.mark.trio
async def test_the_last_results_are_written_before_it_ends() -> None:
    class Slow(FakeSink):
        def __init__(self) -> None:
            super().__init__()
            self.may = trio.Event()

        async def write(self, chunk: bytes) -> None:
            await self.may.wait()
            await super().write(chunk)

    sink = Slow()
    async with Stage(sink, as_json=False) as stage:
        stage.give.send_nowait([[b"a"]])
        await stage.settle()
        stage.log.sent[0][1].end(lsn=7)
        await stage.settle()
        stage.give.close()  # all payloads are answered, but the result is still being written
        await stage.settle()
        assert not stage.finished
        sink.may.set()
        await stage.settle()
        assert stage.finished
    assert sink.text == "7\n"


@pytest.mark.trio
async def test_plain_results_are_lsns() -> None:
    sink = FakeSink()
    async with Stage(sink, as_json=False) as stage:
        stage.give.send_nowait([[b"a"], [b"b", b"c"]])
        await stage.settle()
        stage.log.sent[0][1].end(lsn=7)
        stage.log.sent[1][1].end(lsn=8)
    assert sink.text == "7\n8-9\n"


@pytest.mark.trio
async def test_no_more_than_so_many_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appending, "IN_FLIGHT_MAX", 3)
    monkeypatch.setattr(appending, "BYTES_MAX", 50)

    async with Stage(None) as stage:
        stage.give.send_nowait([[b"x"]] * 5)
        stage.give.send_nowait([[b"x" * 60]] * 2)
        await stage.settle()
        assert len(stage.log.sent) == 3
        stage.log.sent[0][1].end(lsn=1)
        await stage.settle()
        assert len(stage.log.sent) == 4
        for n in range(1, 5):
            await stage.settle()
            stage.log.sent[n][1].end(lsn=n + 1)
        await stage.settle()
        assert len(stage.log.sent) == 6, "the second large one waits for the first"


@pytest.mark.trio
async def test_the_first_failure_stops_the_reading_and_the_unknown_one_is_told() -> None:
    sink = FakeSink()
    async with Stage(sink) as stage:
        stage.give.send_nowait([[b"a"], [b"b"], [b"c"]])
        await stage.settle()
        refused, unknown, fine = (handle for _, handle in stage.log.sent)
        refused.end(error=Unavailable("refused"))
        await stage.settle()
        stage.give.send_nowait([[b"d"]])
        await stage.settle()
        assert len(stage.log.sent) == 3 and not stage.finished
        unknown.end(error=NotGuaranteed("?", client="c", serial=2, epoch=4))
        fine.end(lsn=9)
        await stage.settle()
        assert stage.finished
        failure = stage.run.failure()
        assert isinstance(failure, NotGuaranteed) and failure.serial == 2
    assert [line["lsn"] for line in sink.lines] == [9]


@pytest.mark.trio
@pytest.mark.parametrize(("wrong", "kind"), [([[b"x" * 101]], TooLarge), ([], UsageProblem)])
async def test_bad_input_is_told_after_what_is_under_way(wrong: list[list[bytes]], kind: type[Exception]) -> None:
    async with Stage(FakeSink()) as stage:
        stage.give.send_nowait([[b"a"]])
        stage.give.send_nowait(wrong)
        await stage.settle()
        assert not stage.finished
        stage.log.sent[0][1].end(lsn=1)
        await stage.settle()
        assert stage.finished and isinstance(stage.run.failure(), kind)
        assert stage.run.payloads == 1


@pytest.mark.trio
async def test_after_ctrl_c_what_was_sent_counts_as_unknown() -> None:
    async with Stage(None) as stage:
        stage.give.send_nowait([[b"a"], [b"b"], [b"c"]])
        await stage.settle()
        stage.log.sent[0][1].end(lsn=1)
        await stage.settle()
    failure = stage.run.failure()
    assert isinstance(failure, NotGuaranteed)
    assert (failure.client, failure.serial, failure.epoch) == ("c", 2, 4)


@pytest.mark.trio
@pytest.mark.parametrize("taken_back", [False, True])
async def test_what_was_never_sent_is_not_in_doubt(taken_back: bool) -> None:
    async with Stage(None) as stage:
        stage.give.send_nowait([[b"a"]])
        await stage.settle()
        handle = stage.log.sent[0][1]
        handle.serial = 0
    if taken_back:
        handle.end(error=Closed("closed before it was sent"))  # a `Log` closed after Ctrl-C ends handles this way
    assert stage.run.failure() is None


@pytest.mark.trio
@pytest.mark.parametrize(("broken", "failure"), [(BrokenPipeError(), None), (OSError(28, "full"), OSError)])
async def test_appends_go_on_when_the_results_cannot_be_written(broken: OSError, failure: type[OSError] | None) -> None:
    async with Stage(FakeSink(broken)) as stage:
        stage.give.send_nowait([[b"a"], [b"b"]])
        await stage.settle()
        stage.log.sent[0][1].end(lsn=1)
        await stage.settle()
        stage.log.sent[1][1].end(lsn=2)
        stage.give.close()
        await stage.settle()
        assert stage.finished and stage.run.payloads == 2
        told = stage.run.failure()
        assert told is None if failure is None else isinstance(told, failure)
