"""Real processes: the leader of the log and the leader of a registry are killed in turn, under 1,000 callers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio
from harness import cluster
from probe import until
from registrar import told_before

import alpo.state
from alpo.registry import Registry

PROGRAM = Path(__file__).with_name("registrar.py")


def leads(out: Path) -> bool:
    """True once a registrar has said that it leads. Raises if it failed."""
    text = out.read_text()
    assert "Traceback" not in text, text
    return "leads since" in text


def started(out: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with out.open("wb") as to:
        return subprocess.Popen([sys.executable, str(PROGRAM), *arguments], stdout=to, stderr=to)


@pytest.mark.trio
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seconds", [6, pytest.param(60, marks=pytest.mark.soak)])
async def test_nobody_removed_comes_back_and_nobody_admitted_is_lost(tmp_path: Path, seconds: int) -> None:
    file, number = tmp_path / "told", 0
    file.touch()
    async with cluster(tmp_path) as running:
        await running.leader()
        began_s = trio.current_time()
        while trio.current_time() - began_s < seconds or number < 2:
            number += 1
            out = tmp_path / f"registrar-{number}.out"
            process = started(out, running.addresses, str(file), f"m{number}")
            try:
                await until(lambda: leads(out), within_s=60)
                lines = file.stat().st_size
                await until(lambda: file.stat().st_size > lines + 20_000, within_s=60)
                old = await running.leader()
                running.servers[old].kill()
                await until(lambda: file.stat().st_size > lines + 60_000, within_s=60)
                running.start(old)
            finally:
                process.kill()
                process.wait()
            assert "Traceback" not in out.read_text(), out.read_text()
        removed, admitted = told_before(str(file))
        async with alpo.state.connect(running.addresses) as state, Registry(state, "agents") as registry:
            rows = registry.rows
            assert [id for id in removed if id in rows] == []
            assert [id for id in admitted if id not in rows] == []
            assert len(removed) > 500 and len(admitted) > 20
