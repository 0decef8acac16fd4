"""Checks of what callers give: a wrong type raises TypeError, in the words of the argument's own name."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from numbers import Real
from typing import Any, NoReturn


def _wrong(name: str, wanted: str, value: object) -> NoReturn:
    raise TypeError(f"{name} {wanted}, not {type(value).__name__}")


def need_int(**given: object) -> None:
    """Each is an int (and no bool). Raises TypeError."""
    for name, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool):
            _wrong(name, "is an int", value)


def need_str(**given: object) -> None:
    """Each is a string. Raises TypeError."""
    for name, value in given.items():
        if not isinstance(value, str):
            _wrong(name, "is str", value)


def need_datetime(**given: object) -> None:
    """Each is a `datetime`. Raises TypeError."""
    for name, value in given.items():
        if not isinstance(value, datetime):
            _wrong(name, "is a datetime", value)


def need_seconds(timeout_s: Any, zero: bool = False) -> None:
    """A timeout is a number above 0; ``zero``: or 0. Raises TypeError, ValueError."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, Real):
        _wrong("timeout_s", "is a number of seconds", timeout_s)
    if not (timeout_s >= 0 if zero else timeout_s > 0):  # type: ignore[operator]  # NaN is neither
        raise ValueError("timeout_s must be positive")


def need_servers(servers: object) -> None:
    """Text, or addresses that are text. Raises TypeError."""
    if isinstance(servers, bytes | bytearray) or not isinstance(servers, Collection):
        _wrong("servers", "are HOST:PORT,… or a list of HOST:PORT", servers)
    for server in servers:
        if not isinstance(server, str):
            _wrong("a server", "is HOST:PORT", server)


def need_append(serial: object, timeout_s: object) -> None:
    """What goes with an append; None where it was not given. Raises TypeError, ValueError."""
    if serial is not None:
        need_int(serial=serial)
        if serial < 1:  # type: ignore[operator]
            raise ValueError(f"serials begin at 1, not {serial}")
    if timeout_s is not None:
        need_seconds(timeout_s)
