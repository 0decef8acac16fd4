"""What becomes of a process whose server ends: it goes, or another server runs in it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from alpo.node import signals as module
from alpo.node.signals import Signals


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Exit codes with which the process would have ended."""
    codes: list[int] = []
    monkeypatch.setattr(module, "STOP_S_MAX", 0.05)
    monkeypatch.setattr(module, "_leave", codes.append)
    yield codes


def made() -> tuple[Signals, list[int]]:
    """One that hears nothing of the tests' own signals, with what its server is told."""
    signals, heard = Signals(), list[int]()
    signals._heard = heard.append  # as if begun already
    return signals, heard


def timer_of(signals: Signals) -> threading.Timer:
    assert signals._timer is not None
    return signals._timer


def test_a_process_whose_server_has_ended_is_gone_soon(left: list[int]) -> None:
    signals, _ = made()
    signals.ends(1)
    signals.ends(0)
    timer_of(signals).join()
    assert left == [1]


def test_a_process_that_goes_on_with_another_server_stays(left: list[int]) -> None:
    """As when a lost store is set aside."""
    signals, _ = made()
    signals.ends(1)
    timer = timer_of(signals)
    signals.goes_on()
    timer.join()
    assert left == []
    signals.ends(1)
    timer_of(signals).join()
    assert left == [1]


def test_a_signal_that_comes_between_two_servers_is_for_the_second(left: list[int]) -> None:
    signals, first = made()
    second: list[int] = []
    signals._told_to_stop = True
    signals.ends(0)
    signals.goes_on()
    signals.serve(second.append, 1.0, lambda name, ms: None)
    timer_of(signals).join()
    assert (first, second, left) == ([], [signal.SIGTERM], [0])
