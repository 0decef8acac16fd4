"""Tests that hang: Trio's are cancelled in real time, and a run whose workers end names what failed."""

from __future__ import annotations

import os
import subprocess
import sys
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


_TESTS = """
import time
import pytest

@pytest.mark.parametrize("number", range(3))
def test_before(number): assert number != 1

@pytest.mark.timeout(0.5)
@pytest.mark.parametrize("number", range(2))
def test_hangs(number): time.sleep(600)

@pytest.mark.parametrize("number", range(3))
def test_after(number): assert number != 1
"""


def test_workers_that_end_take_no_name_with_them(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    (tmp_path / "test_some.py").write_text(_TESTS)
    tests = Path(__file__).parent
    options = ["-p", "conftest", "-c", os.devnull, "--rootdir", str(tmp_path), "-q", "-n", "2", "--dist=loadgroup",
               "--no-loadscope-reorder", "-o", "timeout_method=thread"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)], capture_output=True, text=True, timeout=300,
        check=False, cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{tests}:{tests / 'cluster'}"},
    )
    assert "4 failed, 4 passed" in done.stdout and "INTERNALERROR" not in done.stdout, done.stdout + done.stderr
    at_once, _, _ = done.stdout.partition("= FAILURES =")
    for failed in ("before[1]", "hangs[0]", "hangs[1]", "after[1]"):
        assert at_once.count(f"FAILED test_some.py::test_{failed}") == 1
