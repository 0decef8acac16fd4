"""Ctrl-C before a command begins: while modules are imported and the command line is parsed.

Laws:

* It ends the process at once and silently, with a shell's exit code for Ctrl-C. (An exception in the middle of an
  import would come out as a traceback, or vanish.)
* From the command's first step on it raises KeyboardInterrupt as usual (`begin`). A process that ignores SIGINT, or
  handles it in its own way, keeps doing so.

A file of its own, with the fewest imports possible: it is imported before all others.
"""

from __future__ import annotations

import os
import signal

INTERRUPTED = 128 + signal.SIGINT


def _end(*_: object) -> None:
    os._exit(INTERRUPTED)


def until_begun() -> None:
    """Have Ctrl-C end the process until `begin`. For the main thread."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def begin() -> None:
    """Have Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
