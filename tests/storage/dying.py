"""kill -9 at every step of something: in a process of its own, once before each file operation and SQL statement."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def die_at(step: int, body: Callable[[], None]) -> bool:
    """Run ``body`` in a process that is gone without a word before its ``step``th file operation or SQL statement;
    False if it came to its end before."""
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, 9)
        return code == 9
    left = step

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os._exit(9)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in ("open", "os.rename", "os.remove", "os.mkdir", "sqlite3.connect"):
            count()

    fsync, connect = os.fsync, sqlite3.connect

    def traced_connect(*args: Any, **options: Any) -> Any:
        db = connect(*args, **options)
        db.set_trace_callback(count)
        return db

    def counted_fsync(fd: Any) -> None:
        count()
        fsync(fd)

    code = 1
    try:
        os.fsync = counted_fsync
        vars(sqlite3)["connect"] = traced_connect
        sys.addaudithook(hook)
        body()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def killed_after(lines: int, program: str, *words: object) -> list[int]:
    """The numbers in the last whole line of a Python ``program`` that is killed after so many ``lines``."""
    command = [sys.executable, "-c", program, *map(str, words), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = [child.stdout.readline() for _ in range(lines)]
        child.kill()
        said += child.stdout.readlines()
    return [int(word) for word in [line for line in said if line.endswith("\n")][-1].split()]


def steps_of(body: Callable[[], None], check: Callable[[], bool]) -> list[bool]:
    """Results of ``check`` after a death at each step, and last after a run without a death."""
    said = []
    for step in range(1, 1000):
        died = die_at(step, body)
        said.append(check())
        if not died:
            return said
    raise AssertionError("it never ends")
