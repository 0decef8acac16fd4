"""Trio tests that hang are cancelled in real time, by the limit that pytest-timeout has for them."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
import trio


@pytest.mark.timeout(0)
@pytest.mark.trio
async def test_a_timeout_of_0_is_none() -> None:
    await trio.lowlevel.checkpoint()


@pytest.mark.timeout(timeout=20)
@pytest.mark.trio
async def test_a_timeout_has_a_keyword_and_virtual_time_does_not_count(autojump_clock: Any) -> None:
    await trio.sleep(3600)


@pytest.mark.timeout(method="thread")
@pytest.mark.trio
async def test_a_mark_may_leave_the_timeout_as_it_is() -> None:
    await trio.lowlevel.checkpoint()


@pytest.mark.trio
async def test_a_hang_is_cancelled_where_it_stands(autojump_clock: Any, pytestconfig: pytest.Config) -> None:
    conftest: Any = pytestconfig.pluginmanager.getplugin(str(Path(__file__).with_name("conftest.py")))

    async def stands_here() -> None:
        while True:  # virtual time stands still
            await trio.lowlevel.checkpoint()

    async def hangs() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stands_here)

    with pytest.raises(trio.TooSlowError) as caught:
        await conftest._within(0.01, hangs)()
    assert "in stands_here" in "".join(traceback.format_exception(caught.value))
