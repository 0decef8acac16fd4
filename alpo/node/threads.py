"""Work in a thread, in a process that may be out of threads for a while.

Laws:

* Work that no thread can be started for waits until one can: a server goes on without it, and does not end.
* An error of the work itself goes to the caller.
* The log says it once for each time that threads were lacking.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import structlog
import trio

log = structlog.get_logger()

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: Seconds until a thread is asked for again.
_AGAIN_S = 0.25


class _Lack:
    """Mark for a process that is known to be out of threads."""

    told = False


async def in_thread(
    work: Callable[[*Ts], T], *args: *Ts, abandon_on_cancel: bool = False, limiter: trio.CapacityLimiter | None = None
) -> T:
    """Run ``work(*args)`` in a thread, like `trio.to_thread.run_sync`, and return its result. Raises what it raises."""
    begun = False

    def run() -> T:
        nonlocal begun
        begun = True
        return work(*args)

    lacked = False
    while True:
        try:
            found = await trio.to_thread.run_sync(run, abandon_on_cancel=abandon_on_cancel, limiter=limiter)
        except RuntimeError as error:  # the system is out of threads
            if begun:
                raise
            lacked = True
            if not _Lack.told:
                _Lack.told = True
                log.warning("no_threads", why=str(error))
            await trio.sleep(_AGAIN_S)
        else:
            if lacked:  # else the thread may have been there already
                _Lack.told = False
            return found
