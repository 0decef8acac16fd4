"""Every example of docs/client.md runs, against a simulated cluster."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from sound_log import fill
from store_kit import SqliteBench

import alpo
from alpo.testing import Cluster

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text("utf-8")
FENCED = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = {PAGE[: found.start()].count("\n") + 1: found[1] for found in FENCED.finditer(PAGE)}


def names(cluster: Cluster) -> dict[str, Any]:
    """Names that the examples use and do not define."""
    async def export(record: alpo.Record) -> None:
        assert record.payload

    def endless() -> Iterator[bytes]:
        yield from [b"x"] * 50

    return {
        "alpo": alpo, "servers": "127.0.0.1", "payload": b"x", "payloads": [b"x", b"y"], "lines": [b"1", b"2"],
        "wanted": b"x", "position": 1, "checkpoint_lsn": 1, "export": export, "endless": endless,
        "note": lambda handle: None, "cluster": cluster,
    }


def indented(example: str) -> str:
    return textwrap.indent(example, "    ")


async def run_fragment(example: str, around: dict[str, Any]) -> None:
    """Run an example that awaits outside a function; ``log`` is open, unless the example connects by itself."""
    exec(compile(f"async def fragment():\n{indented(example)}", "client.md", "exec"), around)
    async with alpo.connect() as log:
        await log.append(b"x")
        around.setdefault("log", log)
        await around["fragment"]()


@pytest.mark.parametrize("line", EXAMPLES)
def test_an_example_runs(
    line: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    example = EXAMPLES[line]
    monkeypatch.chdir(tmp_path)
    if "monday.alpo" in example:
        bench = SqliteBench(tmp_path / "monday.alpo")
        fill(bench)
        bench.store.close()
    with Cluster(seed=line) as cluster:
        for name in ("connect", "connect_sync"):
            real, twin = getattr(alpo, name), getattr(cluster, name)

            def connect(servers: Any = None, *args: Any, real: Any = real, twin: Any = twin, **how: Any) -> Any:
                inspect.signature(real).bind(servers, *args, **how)
                return twin(*args, **how)

            monkeypatch.setattr(alpo, name, connect)
        around = names(cluster)
        try:
            whole = compile(example, "client.md", "exec")
        except SyntaxError:
            whole = None
        if whole is None or (loose := "log." in example and "connect" not in example):
            anyio.run(run_fragment, example, around)
        else:
            assert not loose
            exec(whole, around)
            for found in ast.parse(example).body:  # a function that nothing calls
                if isinstance(found, ast.FunctionDef) and not found.args.args and "print" not in example:
                    around[found.name]().append(b"x")
                    around[found.name]().close()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 12
