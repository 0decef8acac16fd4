"""Which events are kept on disk, so that a server that repeats itself does not push out its own past.

Laws:

* Of the same event (name, and the fields of `_KEY`) a few a minute are kept; the first of all always is.
* Of one name at most `_NAME_MAX` a minute are kept, however they differ: clients choose the names of cursors.
* Those left out are counted in ``times`` of the next that is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

#: What makes two events of one name the same.
_KEY = ("term", "member", "peer", "remote", "what", "cursor", "ids")
#: So many of the same, in so many ms: by default, and of those that come with every bit of work.
_BUDGET = (3, 60_000)
_BUDGETS = {"clean": (1, 3_600_000), "slow_fsync": (3, 600_000), "address_change": (3, 600_000)}
_NAME_MAX = 30
_KNOWN_MAX = 256


class _Kind:
    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.kept = 0
        self.left_out = 0


class Recorder:
    """Judges events as they come. Times are of one clock, ms."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[tuple[Any, ...], _Kind] = OrderedDict()

    def judge(self, name: str, fields: Mapping[str, Any], now_ms: int) -> Mapping[str, Any] | None:
        """The fields to keep, or None: not this one."""
        most, span_ms = _BUDGETS.get(name, _BUDGET)
        same_name = self._kind((name,), now_ms, _BUDGET[1])
        if same_name.kept >= _NAME_MAX:
            same_name.left_out += 1
            return None
        same = self._kind((name, *(str(fields.get(part)) for part in _KEY)), now_ms, span_ms)
        if same.kept >= most:
            same.left_out += 1
            return None
        left_out = same_name.left_out + same.left_out
        for kind in (same_name, same):
            kind.kept += 1
            kind.left_out = 0
        return {**fields, "times": left_out + 1} if left_out else fields

    def _kind(self, key: tuple[Any, ...], now_ms: int, span_ms: int) -> _Kind:
        kind = self._kinds.setdefault(key, _Kind(now_ms))
        self._kinds.move_to_end(key)
        if len(self._kinds) > _KNOWN_MAX:
            self._kinds.popitem(last=False)
        if now_ms - kind.since_ms >= span_ms or now_ms < kind.since_ms:
            kind.since_ms, kind.kept = now_ms, 0
        return kind
