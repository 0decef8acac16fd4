"""The clocks, chance, place and memory of a process in which `alpo.rsm.check` folds, as they are told.

It is loaded there before anything of ALPO, by the path of this file: what a user's module takes from ``time``,
``datetime``, ``random`` or ``os`` by name is then ours already.
"""

from __future__ import annotations

import datetime as datetime_module
import gc
import os
import random
import time
from collections.abc import Callable
from typing import Any

_BASE_NS = 1_790_000_000 * 10**9 + 123_456_789
_DAY_NS = 86_400 * 10**9
#: Days by which the clocks differ: of the log's times some are in the past of all, some in the future.
_DAYS = (0, 397, -9_000, 9_000)
_JUNK_MAX = 400

#: Clocks as they are, for the child itself.
monotonic_s = time.monotonic
_ZONES = ("UTC0", "ALPO-11:30")


class World:
    """Things that differ from process to process, as a machine sees them. Each is a number; 0: as in the first process.

    ``clock``: 0 stands still, others begin at another time and run. ``chance``: the seed of `random` and of
    `os.urandom`. ``place``: the working directory and the time zone. ``memory``: what lies there besides, and when
    garbage is collected. ``inside``: this process is such a child.
    """

    def __init__(self) -> None:
        self.clock = self.chance = self.place = self.memory = 0
        self.active = self.inside = False
        self.home = -1  # a file descriptor: the folder may be gone
        self._calls = 0
        self._bytes = random.Random(0)
        self._moves = random.Random(0)
        self._junk: list[object] = []

    def enter(self, clock: int, chance: int, place: int, memory: int) -> None:
        """Be this from now on, until `leave`."""
        self.clock, self.chance, self.place, self.memory = clock, chance, place, memory
        os.environ["TZ"] = _ZONES[bool(place)]
        time.tzset()
        os.chdir("/" if place else self.home)
        gc.disable()  # else it runs at moments that come from all else in the process
        self.active = True
        self.begin()

    def begin(self) -> None:
        """Begin a way of folding: clocks and chance are where they were when the last one began."""
        self._calls = 0
        random.seed(self.chance)
        self._bytes.seed(self.chance)
        self._moves.seed(self.memory)
        gc.collect()

    def leave(self) -> None:
        """Be the world as it is."""
        self.active = False
        gc.enable()
        self._junk.clear()
        os.chdir(self.home)

    def now_ns(self) -> int:
        """Every clock there is, in nanoseconds since 1970."""
        self._calls += 1
        return _BASE_NS + _DAYS[self.clock % 4] * _DAY_NS + self.clock * self._calls * 7_261_001_000_700

    def urandom(self, size: int) -> bytes:
        """Bytes in the place of the system's."""
        return self._bytes.randbytes(size)

    def stir(self) -> None:
        """Move what is made next to other addresses, and collect garbage now and then. Called before each command."""
        if self.memory:
            self._junk.extend(bytearray(self._moves.randrange(600)) for _ in range(self._moves.randrange(4)))
            self._junk.append([object() for _ in range(self._moves.randrange(6))])
            if len(self._junk) > _JUNK_MAX:
                del self._junk[:: 1 + self._moves.randrange(3)]
            if self._moves.randrange(8) == 0:
                gc.collect(2 if self._moves.randrange(8) == 0 else 0)


world = World()


def install() -> None:
    """Put clocks and chance that `world` governs in the place of the standard library's."""
    world.inside, world.home = True, os.open(".", os.O_RDONLY)
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
        setattr(time, name, _told(getattr(time, name), lambda *_: world.now_ns() / 1e9))
        setattr(time, f"{name}_ns", _told(getattr(time, f"{name}_ns"), lambda *_: world.now_ns()))
    setattr(time, "clock_gettime", _told(time.clock_gettime, lambda *_: world.now_ns() / 1e9))  # noqa: B010
    setattr(time, "clock_gettime_ns", _told(time.clock_gettime_ns, lambda *_: world.now_ns()))  # noqa: B010
    for name in ("localtime", "gmtime", "ctime"):
        setattr(time, name, _of_now(getattr(time, name), 0, lambda: world.now_ns() / 1e9))
    localtime = time.localtime
    for name, place in (("asctime", 0), ("strftime", 1)):
        setattr(time, name, _of_now(getattr(time, name), place, localtime))
    _install_datetime()
    urandom = _told(os.urandom, world.urandom)
    setattr(os, "urandom", urandom)  # noqa: B010
    setattr(random, "_urandom", urandom)  # noqa: B010 - `random.SystemRandom` and `secrets` have it from here


def _told(real: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: ours(*given) if world.active else real(*given)


def _of_now(real: Callable[..., Any], place: int, now: Callable[[], Any]) -> Callable[..., Any]:
    """The function with the present time as its argument no. ``place`` where it is called without."""
    def called(*given: Any) -> Any:
        without = len(given) <= place or given[place] is None
        return real(*given[:place], now()) if world.active and without else real(*given)

    return called


def _install_datetime() -> None:
    """Put a class with our clock in the place of `datetime`: that cannot be changed. `date` asks `time.time`."""
    real = datetime_module.datetime
    like = type("Like", (type,), {
        "__instancecheck__": lambda _, value: isinstance(value, real),
        "__subclasscheck__": lambda _, kind: issubclass(kind, real),
    })

    def now(cls: Any, tz: Any = None) -> Any:
        if world.active:
            return cls.fromtimestamp(world.now_ns() / 1e9, tz)
        return cls.fromtimestamp(real.now().timestamp(), tz)

    def utcnow(cls: Any) -> Any:
        return now(cls, datetime_module.timezone.utc).replace(tzinfo=None)  # noqa: UP017 - UTC is no class's name

    said: Callable[..., str] = real.__repr__
    body: dict[str, Any] = {"__module__": "datetime", "__qualname__": "datetime", "__slots__": ()}
    body |= {name: classmethod(method) for name, method in (("now", now), ("utcnow", utcnow), ("today", now))}
    made = like("datetime", (real,), body | {"__repr__": lambda self: f"datetime.{said(self)}"})
    setattr(datetime_module, "datetime", made)  # noqa: B010
