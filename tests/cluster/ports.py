"""Ports for servers that tests start."""

from __future__ import annotations

import itertools
import os

from alpo_cli.local_cluster import port_free

#: Below those that the system hands out by itself, above those that `alpo demo` takes; so many for each of pytest's
#: workers.
_FIRST, _EACH, _WORKERS_MAX = 15_000, 1_000, 17
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS_MAX
_offsets = itertools.count(os.getpid() * 37)


def free_port(size: int = 1) -> int:
    """The first of ``size`` neighbouring ports on which nobody listens. No two workers of a run are given the same, nor
    is one given again soon, because a server listens only a moment later."""
    while True:
        offsets = [next(_offsets) % _EACH for _ in range(size)]
        base = _FIRST + _worker * _EACH + offsets[0]
        if offsets[-1] == offsets[0] + size - 1 and all(map(port_free, range(base, base + size))):
            return base
