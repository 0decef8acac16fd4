"""Ctrl-C before there is anything to interrupt: while modules are imported and the command line is read.

Laws:

* It ends the process at once and without a word, by the code that a shell gives to Ctrl-C. (Raised as an exception in
  the middle of an import it would come out as a traceback, or vanish.)
* From the command's first step on it is an exception, as everywhere (`begin`). Who ignores SIGINT, or handles it in
  a way of its own, goes on doing so.

No imports but the smallest: this module stands before all others.
"""

from __future__ import annotations

import os
import signal

INTERRUPTED = 128 + signal.SIGINT


def _end(*_: object) -> None:
    os._exit(INTERRUPTED)


def until_begun() -> None:
    """From here to `begin` Ctrl-C ends the process. For the main thread."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def begin() -> None:
    """Ctrl-C is a KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
