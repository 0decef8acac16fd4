"""Options of the worlds in which mutations show: small, short, and with faults of the kind that matters.

Further options of a mutation stand where the mutation is listed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from alpo.core.settings import Settings

from ..options import MS, SECOND, Load, Network, Options

#: Three servers, quick elections, a fault every 300 ms for twelve seconds.
_BASE: dict[str, Any] = {
    "servers": 3,
    "seconds": 12,
    "election_timeout_us": 150 * MS,
    "priorities": (),
    "auto_init": True,
    "network": Network((100, 3000), 0.01, SECOND, 0.01, 0.01, False),
    "load": Load(3, 1, 40 * MS, 8, 20, False, 300 * MS),
    "settings": Settings(),
    "limits": (),
    "fault_every_us": 300 * MS,
    "faults": ("crash", "cut", "isolate", "pause", "stall", "crash_all"),
    "wipes": 0,
    "drift": 0.01,
    "last_topology": "whole",
}


def world(**changed: Any) -> Callable[[int], Options]:
    """A function from a seed to the base world's options, with those given here in the place of the base's."""
    return lambda seed: Options(seed, **(_BASE | changed))


def planned(**changed: Any) -> Callable[[int], Options]:
    """A function as from `world`, of options without random faults: a plan makes the faults."""
    return world(fault_every_us=0, **changed)


#: Bounds by which a request has one entry and little is in flight: servers often hold only part of what was sent.
NARROW = (("request_bytes_max", 1), ("peer_inflight_bytes_max", 40), ("tail_bytes_max", 2000))
ONE_BY_ONE = (("request_bytes_max", 1), ("peer_inflight_bytes_max", 1), ("tail_bytes_max", 2000))
#: Bounds by which the session table is saved every few entries.
SAVING = (("table_save_entries", 5),)

#: Network in which no message is lost, copied or late; but some messages are damaged.
SOUND = Network((100, 3000), 0.0, SECOND, 0.0, 0.0, False)
#: Network like `SOUND`, with messages in order and undamaged.
ORDERED = Network((100, 3000), 0.0, SECOND, 0.0, 0.0, True, 0.0)
SLOW = Network((2 * MS, 25 * MS), 0.01, SECOND, 0.01, 0.01, False)
#: Network in which candidates often stand at the same time, and lose each other's messages.
COLLIDING = Network((2 * MS, 25 * MS), 0.01, SECOND, 0.2, 0.01, False)
LOSSY = Network((100, 5000), 0.1, SECOND, 0.01, 0.05, False)
#: Networks in which a third, or half, of all messages arrive much later, behind many that were sent since.
LATE = Network((100, 3000), 0.3, 2 * SECOND, 0.0, 0.1, False)
LATER = Network((100, 3000), 0.5, SECOND, 0.0, 0.1, False)

IDLE = Load(1, 0, SECOND)
BUSY = Load(6, 1, 10 * MS, 8, 20, False, 300 * MS)
READING = Load(3, 8, 20 * MS, 8, 20, False, 50 * MS)
#: Load of many quick writers under few names, which often die; many requests arrive twice, the second time late.
CROWD = Load(6, 1, 20 * MS, 8, 20, False, 300 * MS, copied=0.2, same_name=0.9, quits=0.02)
NEW_NAMES = Load(6, 1, 40 * MS, 8, 20, False, 300 * MS, same_name=0.0, quits=0.1)
