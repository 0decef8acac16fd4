"""Counts of the calls that one append costs in a process: of Python functions, and of some that enter the kernel.

As a program, `alpod` with its calls counted: ``python calls.py COUNTS.json ALPOD'S ARGUMENTS …``. It writes the file
when it gets SIGUSR2. A lone append ends with a call of one of `MARKS`; what was called since the last one is its cost.
Appends that something else came between cost more, so the cheap ones tell what the path itself is.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

#: The last call of a lone append on a leader, and on a follower: the next append's begin behind it.
MARKS = ("ClientRequests.answer", "Acceptance.acceptance")
#: Functions in C that enter the kernel, by their names.
_KERNEL = frozenset(("send", "sendmsg", "recv", "recv_into", "poll", "modify", "register", "unregister", "ioctl"))


class Cost(NamedTuple):
    """Calls of Python functions, and calls into the kernel that are seen from Python (SQLite's are not)."""

    python: int
    kernel: int


class Calls:
    """The calls of this process, all threads together."""

    def __init__(self) -> None:
        self.python = self.kernel = 0
        self.appends: list[Cost] = []
        self._before = Cost(0, 0)
        self._known: dict[CodeType, bool] = {}
        #: Calls of each function, by file and name.
        self.functions: Counter[str] = Counter()

    def start(self) -> None:
        """Count from now on, in this thread and those that are started later."""
        threading.setprofile(self.see)
        sys.setprofile(self.see)

    def see(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            self.python += 1
            code = frame.f_code
            marks = self._known.get(code)
            if marks is None:
                marks = self._known[code] = code.co_qualname in MARKS
            self.functions[f"{code.co_filename}:{code.co_qualname}"] += 1
            if marks:
                self.append_ended()
        elif event == "c_call" and arg.__name__ in _KERNEL:
            self.kernel += 1

    def append_ended(self) -> None:
        now = Cost(self.python, self.kernel)
        self.appends.append(Cost(now.python - self._before.python, now.kernel - self._before.kernel))
        self._before = now

    def write(self, path: str) -> None:
        new = Path(path + ".new")
        new.write_text(json.dumps({"appends": self.appends, "functions": self.functions}), "utf-8")
        new.rename(path)


def undisturbed(costs: list[Cost]) -> Cost:
    """The cost that a tenth of these appends do not exceed, for each kind of call."""
    return Cost(*(sorted(kind)[len(kind) // 10] for kind in zip(*costs, strict=True)))


def _as_on_a_quick_machine() -> None:
    """Wait for sockets, and commit, as where an append takes less than a millisecond: a slow disk or processor, or the
    counting itself, would take other ways."""
    from alpo.node import log_server, poller

    for module, name, value in (
        (poller, "_WAIT_S", 0.1), (poller, "_IN_A_ROW_S", 1.0), (log_server, "QUICK_SHARE", 1.0),
    ):
        assert hasattr(module, name)
        setattr(module, name, value)


def main() -> None:
    from alpo.daemon import main as alpod

    _as_on_a_quick_machine()
    calls, path = Calls(), sys.argv.pop(1)
    signal.signal(signal.SIGUSR2, lambda *_: calls.write(path))
    calls.start()
    alpod(sys.argv[1:])


if __name__ == "__main__":
    main()
