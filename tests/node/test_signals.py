"""The end of a server in a process: the process ends, or runs another server."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from alpo import server
from alpo.node import signals as module
from alpo.node.security import Security
from alpo.node.signals import Signals
from alpo.storage.interface import DamagedStore


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Exit codes with which the process would have ended."""
    codes: list[int] = []
    monkeypatch.setattr(module, "STOP_S_MAX", 0.05)
    monkeypatch.setattr(module, "_leave", codes.append)
    yield codes


def made() -> tuple[Signals, list[int], threading.Thread]:
    """`Signals` that receive no real signals, the list of signals that reach the server, and the thread that ends the
    process."""
    signals, heard = Signals(), list[int]()
    signals._heard = heard.append  # as if begun already
    thread = threading.Thread(target=signals._end, daemon=True)
    thread.start()
    return signals, heard, thread


def test_a_process_whose_server_has_ended_is_gone_soon(left: list[int]) -> None:
    signals, _, thread = made()
    signals.ends(1)
    signals.ends(0)
    thread.join()
    assert left == [1]


def test_a_process_that_goes_on_with_another_server_stays(left: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A process stays if another server starts in it, as when a lost store is set aside."""
    signals, _, thread = made()
    monkeypatch.setattr(module, "STOP_S_MAX", 3600)
    signals.ends(1)
    signals.goes_on()
    monkeypatch.setattr(module, "STOP_S_MAX", 0.05)
    signals.ends(2)
    thread.join()
    assert left == [2], "the first end was taken back"


def test_a_signal_that_comes_between_two_servers_is_for_the_second(left: list[int]) -> None:
    signals, first, thread = made()
    second: list[int] = []
    signals._told_to_stop = True
    signals.ends(0)
    signals.goes_on()
    signals.serve(second.append, 1.0, lambda name, ms: None)
    thread.join()
    assert (first, second, left) == ([], [signal.SIGTERM], [0])


def test_an_end_needs_no_thread_that_is_yet_to_be_started(left: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may be out of threads by then."""
    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    signals, _, thread = made()
    monkeypatch.setattr(threading.Thread, "start", none)
    signals.ends(1)
    thread.join()
    assert left == [1]


def test_a_store_may_take_its_time_to_be_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the process that a failed server has asked for is cancelled before the store is set aside, since
    another server follows."""
    made: list[Signals] = []

    def run(config: object, reload: object, security: object, signals: Signals) -> None:
        made.append(signals)
        if len(made) == 1:
            signals.ends(1)
            raise DamagedStore("entry 7", 7)

    def set_aside(directory: Path, now: datetime) -> Path:
        assert made[0]._exit is None
        return directory

    monkeypatch.setattr(server, "raise_file_limit", lambda: None)
    monkeypatch.setattr(server, "_run", run)
    monkeypatch.setattr(server, "set_aside", set_aside)
    config: Any = SimpleNamespace(configured=[1, 2, 3], join=None, data=Path("data"))
    server._run_through_losses(config, cast(Any, None), Security())
    assert made == [made[0]] * 2


class Clock:
    """A stand-in for the module `time`: each sleep takes longer than asked, and the last one does not end."""

    def __init__(self, *longer_s: float) -> None:
        self.now_s, self._longer_s = 100.0, list(longer_s)

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        if not self._longer_s:
            raise StopIteration
        self.now_s += seconds + self._longer_s.pop(0)


@pytest.mark.parametrize(("longer_s", "told"), [
    ((0.01,), 1), ((10,), 0), ((10, 10), 1), ((10, 0.01), 1),
])
def test_a_commit_that_stood_with_the_whole_process_is_not_the_disks_fault(
    longer_s: tuple[float, ...], told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that was under way while the process stood still, as under SIGSTOP, is reported only if it is still
    under way at the next look."""
    names: list[str] = []
    monkeypatch.setattr(module, "time", Clock(*longer_s))
    signals = Signals()
    signals._tell_s, signals.here_since_s, signals._keep = 0.1, lambda: 100.0, lambda name, ms: names.append(name)
    with pytest.raises(StopIteration):
        signals._watch()
    assert names == ["disk_hangs"] * told
