"""`Variable`, and the conditions and operations that a `State.commit` is made of."""

from __future__ import annotations

import json as _json
import math
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from alpo.client.arguments import json_payload
from alpo.errors import TooLarge
from alpo.rsm.machine import time_of
from alpo.rsm.payloads import ID_BYTES

from .codec import INT_MAX, INT_MIN, NAME_BYTES_MAX, By, Do, Guard, Op, valid_name
from .machine import Cell

#: Largest value of one variable, in bytes.
VALUE_BYTES_MAX = 7 << 20
#: Values as callers give them: text is kept as UTF-8.
Value: TypeAlias = bytes | bytearray | memoryview | str
#: Default of arguments that may be None.
UNSET: Any = object()


class Variable(NamedTuple):
    """One variable as of some LSN; it never changes.

    ``value``: bytes, or None if it is not there. ``version``: LSN of its last write (0: not there); ``created``: of the
    write that made it, the same through all later ones; ``time``: of the write, or of the last `State.keep`;
    ``lease_s``: seconds from then on after which it is gone (None: stays).
    """

    name: str
    value: bytes | None = None
    version: int = 0
    created: int = 0
    time: datetime | None = None
    lease_s: float | None = None

    @property
    def json(self) -> Any:
        """The value as JSON; None if it is not there. Raises ValueError if it is no JSON, or nested too deeply."""
        try:
            return None if self.value is None else _json.loads(self.value)
        except RecursionError as error:
            raise ValueError(f"the value of {self.name!r} is nested too deeply") from error

    @property
    def text(self) -> str:
        """The value as UTF-8 text, "" if it is not there. Raises UnicodeDecodeError."""
        return (self.value or b"").decode()

    def mutate(self, value: Value = UNSET, *, json: object = UNSET, lease_s: float | None = UNSET) -> Variable:
        """A copy with another value (bytes or text, or ``json``), to be stored; ``lease_s``: as it was, if not given.

        Raises TypeError, ValueError, `TooLarge`.
        """
        lease_s = self.lease_s if lease_s is UNSET else lease_s
        lease_ms(lease_s)
        return self._replace(value=value_bytes(value, json), lease_s=lease_s)


def variable_of(name: str, cell: Cell | None) -> Variable:
    """The variable that a cell of the fold holds; None: it is not there."""
    if cell is None:
        return Variable(name)
    lease_s = cell.lease_ms / 1000 if cell.lease_ms else None
    return Variable(name, cell.value, cell.version, cell.created, time_of(cell.time_ms), lease_s)


def need_name(name: object) -> str:
    """``name``, once checked: it may name a variable. Raises TypeError, ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"a name is str, not {type(name).__name__}")
    if not valid_name(name):
        raise ValueError(
            f"a name is 1 to {NAME_BYTES_MAX} bytes of UTF-8 without control characters, not {_shown(name)}"
        )
    return name


def _shown(name: str) -> str:
    return repr(name) if len(name) <= 60 else f"{name[:40]!r}… ({len(name.encode(errors='replace'))} bytes)"


def value_bytes(value: Value | Any = UNSET, json: object = UNSET) -> bytes:
    """The bytes of a value given as bytes, as text, or as JSON. Raises TypeError, ValueError, `TooLarge`."""
    if (value is UNSET) == (json is UNSET):
        raise TypeError("a value is given either as it is, or as json=")
    if json is not UNSET:
        data = json_payload(json).item
        assert isinstance(data, bytes)
    elif isinstance(value, str):
        data = value.encode()
    elif isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
    else:
        raise TypeError(f"a value is bytes or str, or json=, not {type(value).__name__}")
    if len(data) > VALUE_BYTES_MAX:
        raise TooLarge(f"a value of {len(data)} bytes, where {VALUE_BYTES_MAX} is the most")
    return data


def lease_ms(lease_s: float | None) -> int:
    """A lease in whole milliseconds, rounded up; 0: none. Raises TypeError, ValueError."""
    if lease_s is None:
        return 0
    if isinstance(lease_s, bool) or not isinstance(lease_s, int | float):
        raise TypeError(f"lease_s is a number of seconds, not {type(lease_s).__name__}")
    if not 0 < lease_s <= 1e9:
        raise ValueError(f"lease_s is more than 0 and at most 1e9 seconds, not {lease_s}")
    return math.ceil(lease_s * 1000)


class If(NamedTuple):
    """A condition of a `commit`: ``version`` or ``created`` of a variable is that LSN (0: it is not there)."""

    name: str
    version: int | None = None
    created: int | None = None

    def plain(self) -> Guard:
        """The guard as it is logged. Raises TypeError, ValueError."""
        need_name(self.name)
        if (self.version is None) == (self.created is None):
            raise TypeError("If takes either version= or created=")
        by, lsn = (By.CREATED, self.created) if self.version is None else (By.VERSION, self.version)
        return int(by), self.name, _lsn(lsn)


def _lsn(lsn: object) -> int:
    if not isinstance(lsn, int) or isinstance(lsn, bool):
        raise TypeError(f"a version is an LSN, an int, not {type(lsn).__name__}")
    if not 0 <= lsn <= INT_MAX:
        raise ValueError(f"a version is an LSN, or 0 for none, not {lsn}")
    return lsn


class Put:
    """An operation of a `commit`: write a variable, whatever is there. Raises TypeError, ValueError, `TooLarge`."""

    __slots__ = ("_op",)

    def __init__(
        self, name: str, value: Value = UNSET, *, json: object = UNSET, lease_s: float | None = None
    ) -> None:
        self._op: Op = (int(Do.PUT), need_name(name), value_bytes(value, json), lease_ms(lease_s))

    def __repr__(self) -> str:
        _, name, value, lease = self._op
        shown = repr(value) if len(value) <= 40 else f"{value[:40]!r}… ({len(value):,} bytes)"
        return f"Put({name!r}, {shown}{f', lease_s={lease / 1000:g}' if lease else ''})"

    def plain(self) -> Op:
        """The operation as it is logged."""
        return self._op


class Expunge(NamedTuple):
    """An operation of a `commit`: take a variable away, if it is there."""

    name: str

    def plain(self) -> Op:
        """The operation as it is logged. Raises TypeError, ValueError."""
        return int(Do.EXPUNGE), need_name(self.name)


class Keep(NamedTuple):
    """An operation of a `commit`: let the lease of a variable, if it is there, begin anew; its version stays. Without
    ``lease_s`` it stays for good."""

    name: str
    lease_s: float | None = None

    def plain(self) -> Op:
        """The operation as it is logged. Raises TypeError, ValueError."""
        return int(Do.KEEP), need_name(self.name), lease_ms(self.lease_s)


class Add(NamedTuple):
    """An operation of a `commit`: add to a counter, which is 0 if it is not there."""

    name: str
    number: int = 1

    def plain(self) -> Op:
        """The operation as it is logged. Raises TypeError, ValueError."""
        if not isinstance(self.number, int) or isinstance(self.number, bool):
            raise TypeError(f"what is added is an int, not {type(self.number).__name__}")
        if not INT_MIN <= self.number <= INT_MAX:
            raise ValueError(f"what is added is a number of 64 bits, not {self.number}")
        return int(Do.ADD), need_name(self.name), self.number


Operation: TypeAlias = Put | Expunge | Keep | Add


def id_of(expect: str) -> bytes:
    """The bytes of a state's id. Raises TypeError, ValueError."""
    if not isinstance(expect, str):
        raise TypeError(f"expect is the id of a state, str, not {type(expect).__name__}")
    try:
        id = bytes.fromhex(expect)
    except ValueError:
        id = b""
    if len(id) != ID_BYTES:
        raise ValueError(f"the id of a state is {2 * ID_BYTES} hexadecimal digits, not {expect!r}")
    return id


def need(given: Any, kind: Any) -> Any:
    """``given``, once checked. Raises TypeError."""
    if not isinstance(given, kind):
        wanted = getattr(kind, "__name__", "Put, Expunge, Keep or Add")
        raise TypeError(f"this takes {wanted}, not {type(given).__name__}")
    return given


def need_variable(variable: object) -> None:
    """Check that this is a variable. Raises TypeError."""
    if not isinstance(variable, Variable):
        raise TypeError(f"this takes a Variable, as fetch gives it, not {type(variable).__name__}")


def value_of(variable: Variable) -> bytes:
    """The variable's value. Raises ValueError if it has none."""
    if variable.value is None:
        raise ValueError(f"{variable.name!r} has no value: expunge() takes a variable away")
    return variable.value
