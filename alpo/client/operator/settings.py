"""The replicated settings as users name them: those of ``[settings]`` in a configuration, times in seconds.

Law: a value that can be seen to be wrong without asking a server raises ValueError, and is never sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict, cast

import anyio

from alpo.client.connection import Connection
from alpo.client.servers import Servers
from alpo.core import requests as q
from alpo.core import settings as setting_rules
from alpo.core.requests import Code
from alpo.core.settings import Settings as CoreSettings
from alpo.errors import Refused
from alpo.wire import requests as w

from .asking import at_leader, unwelcome


class Settings(TypedDict):
    """The settings that all servers share; docs/operations.md says what each is for."""

    session_ttl_s: float
    window: int
    window_total: int
    sessions_max: int
    names_max: int
    payload_bytes_max: int
    batch_bytes_max: int
    quota_appends_per_s: int
    quota_bytes_per_s: int


#: The one setting that users know by another name, in another unit, than the core.
_TTL_S, _TTL_MS = "session_ttl_s", "session_ttl_ms"
NAMES = tuple(_TTL_S if name == _TTL_MS else name for name in setting_rules.BOUNDS)


def parse_setting(name: str, text: str) -> float:
    """The value of a setting, from its text on a command line. Raises ValueError."""
    _bounds(name)
    try:
        value: float = float(text) if name == _TTL_S else int(text)
    except ValueError as error:
        what = "a number of seconds" if name == _TTL_S else "a whole number"
        raise ValueError(f"{name} = {text!r} is not {what}") from error
    check_setting(name, value)
    return value


def check_setting(name: str, value: float) -> None:
    """Check a setting's value. Raises ValueError for an unknown name (lists the known ones) or a value out of bounds.
    """
    low, high = _bounds(name)
    kind = float | int if name == _TTL_S else int
    if not isinstance(value, kind) or isinstance(value, bool) or not low <= value <= high:  # NaN too
        raise ValueError(f"{name} = {value!r} is not from {low:g} to {high:.12g}")


def _bounds(name: str) -> tuple[float, float]:
    """The least and the greatest value of a setting. Raises ValueError for an unknown name."""
    if name not in NAMES:
        raise ValueError(f"no setting {name!r}; there are {', '.join(NAMES)}")
    if name == _TTL_S:
        low, high = setting_rules.BOUNDS[_TTL_MS]
        return low / 1000, high / 1000
    return setting_rules.BOUNDS[name]


def _to_core(values: Mapping[str, float]) -> dict[str, int]:
    """The core's names and units, out of users'."""
    return {_TTL_MS if name == _TTL_S else name: round(value * 1000) if name == _TTL_S else int(value)
            for name, value in values.items()}


def _from_core(values: dict[str, int]) -> Settings:
    # A server of another version may have more settings, or fewer.
    """Users' names and units, out of the core's."""
    return cast(Settings, {_TTL_S if name == _TTL_MS else name: value / 1000 if name == _TTL_MS else value
                           for name, value in values.items()})


async def settings(servers: Servers, timeout_s: float) -> Settings:
    """All settings, by name. Raises `Unavailable`."""
    async def attempt(connection: Connection) -> Settings:
        answer = await connection.ask(q.ShowSettings)
        if isinstance(answer, q.SettingsAre):
            return _from_core(answer.values)
        raise unwelcome(servers, answer)

    return await at_leader(servers, attempt, timeout_s)


async def change_settings(
    servers: Servers, wanted: Mapping[str, float] | Settings, expected: Mapping[str, float] | Settings | None,
    timeout_s: float,
) -> Settings:
    """Change settings, all of ``wanted`` or none; returns all settings as they are then. Repeating is safe.

    ``expected``: the values that the caller believes the changed ones have (None: read now); if one has another by
    then, nothing is changed. Raises ValueError for what can never be, `Refused` when one was changed meanwhile or
    cannot be changed now, `Unavailable` when no answer came (the change may have been made).
    """
    for given in (wanted, {} if expected is None else expected):
        if not isinstance(given, Mapping):
            raise TypeError(f"settings are a mapping, not {type(given).__name__}")
    changed = cast(Mapping[str, float], wanted)
    for name, value in changed.items():
        check_setting(name, value)
    if not changed:
        raise ValueError(f"no setting is named; there are {', '.join(NAMES)}")
    give_up_s = anyio.current_time() + timeout_s
    now = cast(Mapping[str, float], await settings(servers, timeout_s) if expected is None else expected)
    if missing := [name for name in changed if name not in now]:
        raise ValueError(f"expected says nothing of {', '.join(missing)}")
    if now.keys() >= set(NAMES) and (why := setting_rules.problem(CoreSettings(**_to_core({**now, **changed})))):
        raise ValueError(why)
    old, new = _to_core(now), _to_core(changed)
    changes = tuple((name, old[name], value) for name, value in new.items())

    async def attempt(connection: Connection) -> Settings:
        answer = await connection.ask(lambda number: q.ChangeSettings(number, changes))
        if isinstance(answer, q.SettingsAre):
            return _from_core(answer.values)
        if isinstance(answer, w.RequestRefused) and answer.code == Code.CHANGED:
            raise Refused(f"changed meanwhile, nothing was set: {answer.detail}")
        raise unwelcome(servers, answer)

    return await at_leader(servers, attempt, max(0.0, give_up_s - anyio.current_time()))


async def accept_clocks(servers: Servers, timeout_s: float) -> int:
    """Have the leader believe the members' clocks, though they have leapt ahead (rules.md#entry-time). Returns by how
    many ms they had; 0: they were believed already. Raises `Refused`, `Unavailable`."""
    async def attempt(connection: Connection) -> int:
        answer = await connection.ask(w.AcceptClocks)
        if isinstance(answer, w.Done):
            return answer.number
        raise unwelcome(servers, answer)

    return await at_leader(servers, attempt, timeout_s)
