"""Writing from Spark otherwise than by a stream: jobs, numbered jobs, foreachBatch, direct; and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import trio
from harness import cluster

from alpo import connect


@pytest.mark.timeout(240)
@pytest.mark.trio
async def test_every_way_to_write(tmp_path: Path) -> None:
    settings = {"payload_bytes_max": 512, "batch_bytes_max": 2048}
    async with cluster(tmp_path, 3, settings=settings) as running:
        await running.level()
        script = Path(__file__).with_name("sink_jobs.py")
        done = await trio.run_process(
            [sys.executable, str(script), running.addresses, str(tmp_path)], capture_stdout=True,
            stderr=subprocess.STDOUT, check=False,
        )
        text = done.stdout.decode()
        assert done.returncode == 0, text[-4000:]
        async with connect(running.addresses) as log:
            records = [(record.client, record.payload.decode()) async for record in log.read()]
    said = json.loads(text.splitlines()[-1])
    counts = Counter(payload for _, payload in records)
    there = Counter(payload.rpartition("-")[0] for payload in counts)
    assert {payload for payload, count in counts.items() if count != 1} == set()
    for tag, number in {"plain": 100, "txn": 100, "txn-dir": 100, "direct": 100, "binary": 10}.items():
        assert (there[tag], said[tag]) == (number, ""), text
    for tag in ("each", "each-dir"):
        assert there[tag] >= 150 and there[tag] % 50 == 0 and said[tag] == "", text
    assert {client for client, payload in records if payload.startswith("txn-")} >= {"spark:txn", "spark:txn-dir"}
    assert there["large"] == 0 and "give checkpointLocation" in said["large"]
    assert "These rows have payload string, n int" in said["two columns"]
    assert "a payload is NULL" in said["null"]
    assert 'write with .mode("append")' in said["overwrite"]
