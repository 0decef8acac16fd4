"""alpod as installed, for tests: started (not forked, see `warm`), asked, seen to serve, and gone at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

WAIT_S = 30
INSTALLED = str(Path(sys.executable).with_name("alpod"))


def flags(data: Path, port: int, id: int = 1) -> list[str]:
    return [
        "--id", str(id), "--data", str(data), "--listen", f"127.0.0.1:{port}", "--member", f"{id}=127.0.0.1:{port}",
    ]


def start(*arguments: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [INSTALLED, *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | environ,
    )


def run(*arguments: str, **environ: str) -> tuple[int, str]:
    """Exit code and stderr of an alpod that is expected to end by itself, and to say why for people."""
    process = start(*arguments, "--log-format", "console", **environ)
    _, err = process.communicate(timeout=WAIT_S)
    return process.returncode, err


def ask(*arguments: str, **environ: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of an alpod that is only asked something."""
    process = start(*arguments, **environ)
    out, err = process.communicate(timeout=WAIT_S)
    return process.returncode, out, err


class Serving:
    """An alpod that serves, stopped at the end whatever happens."""

    def __init__(self, *arguments: str, **environ: str) -> None:
        self.process = start(*arguments, **environ)
        self.lines: list[dict[str, object]] = []

    def __enter__(self) -> Serving:
        self.until("serving")
        return self

    def until(self, event: str) -> dict[str, object]:
        """Wait for that line of its log. Fails if it ends first; the test's own time limit ends the wait."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(json.loads(line))
            if self.lines[-1]["event"] == event:
                return self.lines[-1]
        raise AssertionError(f"alpod ended: {self.lines}")

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=WAIT_S)
