"""Processes in which `alpo.rsm.check` folds, with different hash seeds, kept from one call to the next.

None outlives this process: each ends when its line to this process does, whatever it is doing.
"""

from __future__ import annotations

import atexit
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgpack  # type: ignore[import-untyped]

from . import world as worlds
from .child import LENGTH, MAIN_AGAIN, POSITION

#: Seconds for a process to begin and to import the machine's module.
START_S = 60.0
#: Seconds that one call of a machine's method may take beyond the time limit.
CALL_S = 10.0
_SAID_BYTES = 1000
_BOOT = """
import importlib.util, json, sys
given = json.loads(sys.argv[1])
sys.path[:] = given["path"]
spec = importlib.util.spec_from_file_location("alpo.rsm.checking.world", given["file"])
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.install()
from alpo.rsm.checking.child import main
main(given)
"""


class Target(NamedTuple):
    """A class as other processes find it."""

    module: str
    qualname: str
    file: str | None
    main: bool

    @classmethod
    def of(cls, machine: type[Any]) -> Self:
        """The class's target. Raises TypeError for one that no other process can import."""
        name, qualname = machine.__module__, machine.__qualname__
        module = sys.modules.get(name)
        found: Any = module
        for part in qualname.split("."):
            found = getattr(found, part, None)
        if found is not machine:
            raise TypeError(
                f"check folds in other processes, which import the class: {name}.{qualname} cannot be imported. "
                "Define it at the top level of a module"
            )
        file = getattr(module, "__file__", None)
        if name == "__main__":
            spec = getattr(module, "__spec__", None)
            if spec is not None:  # python -m
                return cls(spec.name, qualname, file and str(Path(file).absolute()), False)
            if file is None or not Path(file).is_file():
                raise TypeError(f"check folds in other processes: put {qualname} into a file that they can import")
        return cls(name, qualname, file and str(Path(file).absolute()), name == "__main__")

    def stamp(self) -> tuple[str | None, int]:
        """The state of the file: a module that was changed is imported anew."""
        return self.file, Path(self.file).stat().st_mtime_ns if self.file and Path(self.file).exists() else 0


class Died(NamedTuple):
    """The end of a process amid a fold. ``way``, ``method``: numbers (`ways`). ``late``: it did not come back and
    was killed."""

    way: int
    method: int
    number: int
    how: str
    said: str
    late: bool


class Child:
    """One process."""

    def __init__(self, hash_seed: int) -> None:
        self.hash_seed = hash_seed
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        with tempfile.TemporaryFile() as shared:
            shared.truncate(POSITION.size)
            self._position = mmap.mmap(shared.fileno(), POSITION.size)
            self._line, theirs = socket.socketpair()
            with theirs:
                given = {
                    "path": search_path(), "file": str(Path(worlds.__file__).absolute()), "line": theirs.fileno(),
                    "position": shared.fileno(),
                }
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _BOOT, json.dumps(given)], stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, stderr=self._said, pass_fds=(theirs.fileno(), shared.fileno()),
                    env=os.environ | {"PYTHONHASHSEED": str(hash_seed)}, start_new_session=True,
                )

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def send(self, request: bytes) -> None:
        """Send a request. A child that is gone says so when its answer is awaited."""
        POSITION.pack_into(self._position, 0, 0, 6, -1)
        self._line.settimeout(START_S)
        try:
            self._line.sendall(LENGTH.pack(len(request)) + request)
        except (BrokenPipeError, ConnectionResetError):
            return

    def answer(self, until_s: float) -> dict[str, Any] | Died:
        """The answer, awaited until that moment of the monotonic clock."""
        try:
            (size,) = LENGTH.unpack(self._received(LENGTH.size, until_s))
            told: dict[str, Any] = msgpack.unpackb(self._received(size, until_s), strict_map_key=False)
        except TimeoutError:
            return self._died(True)
        except (EOFError, ConnectionResetError):
            return self._died(False)
        return told

    def close(self) -> None:
        """End the process."""
        self._line.close()
        self._process.kill()
        self._process.wait()
        self._position.close()
        self._said.close()

    def _received(self, size: int, until_s: float) -> bytes:
        received = bytearray()
        while len(received) < size:
            self._line.settimeout(max(0.001, until_s - time.monotonic()))
            part = self._line.recv(min(size - len(received), 1 << 20))
            if not part:
                raise EOFError
            received += part
        return bytes(received)

    def _died(self, late: bool) -> Died:
        if late:
            self._process.kill()
        code = self._process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
        self._said.seek(0)
        said = self._said.read()[-_SAID_BYTES:].decode("utf-8", "replace").strip()
        way, method, number = POSITION.unpack(self._position[:])
        return Died(way, method, number, how, said, late)


class Children:
    """Processes with the hash seeds given, and those that were needed fresh."""

    def __init__(self, hash_seeds: Sequence[int]) -> None:
        self.hash_seeds = tuple(hash_seeds)
        self.path, self.owner = search_path(), os.getpid()
        self.stamps: dict[str, tuple[str | None, int]] = {}
        self._children: dict[int, Child] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def serves(self, target: Target, hash_seeds: Sequence[int]) -> bool:
        """True if these processes can fold for the target: they have not imported anything else under its name."""
        stamp = target.stamp()
        return (
            (self.path, self.owner, self.hash_seeds) == (search_path(), os.getpid(), tuple(hash_seeds))
            and self.stamps.setdefault(MAIN_AGAIN if target.main else target.module, stamp) == stamp
        )

    def pids(self) -> list[int]:
        """The ids of the processes that are there."""
        return [child.pid for child in self._children.values()]

    def start(self) -> None:
        """Begin all processes that are not there."""
        for seed in self.hash_seeds:
            if seed not in self._children:
                self._children[seed] = Child(seed)

    def ask(self, requests: Iterable[tuple[int, dict[str, Any]]], limit_s: float) -> list[dict[str, Any] | Died]:
        """The answers to requests, each of the process with that hash seed; all of them work at once."""
        self.start()
        asked = []
        for seed, request in requests:
            self._children[seed].send(msgpack.packb(request))
            asked.append(seed)
        until_s = time.monotonic() + limit_s
        answers = []
        for seed in asked:
            answer = self._children[seed].answer(until_s)
            if isinstance(answer, Died):
                self._children.pop(seed).close()
            answers.append(answer)
        return answers

    def close(self) -> None:
        """End all processes. In a fork of the process that began them this does nothing."""
        children, self._children = self._children, {}
        for child in children.values() if self.owner == os.getpid() else ():
            child.close()


_kept: Children | None = None


def children_for(target: Target, hash_seeds: Sequence[int]) -> Children:
    """Processes for the target: those of the last call if they serve."""
    global _kept
    if _kept is None or not _kept.serves(target, hash_seeds):
        close_children()
        _kept = Children(hash_seeds)
        _kept.serves(target, hash_seeds)
    return _kept


def close_children() -> None:
    """End the processes that are kept."""
    global _kept
    if _kept is not None:
        _kept.close()
    _kept = None


def kept_pids() -> list[int]:
    """The ids of the processes that are kept."""
    return _kept.pids() if _kept is not None else []


def search_path() -> list[str]:
    """Folders where this process finds modules, wherever it may go."""
    return [str(Path(folder).absolute()) for folder in sys.path]


atexit.register(close_children)
