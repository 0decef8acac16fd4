"""Founding the cluster, changes of its members and settings, who leads, and which members have a payload on disk.

Laws:

* A leader that has taken a change may need a while for it: it is not asked again meanwhile.
* A setting's value that can be seen to be wrong without asking a server raises ValueError, and is never sent.
* Settings have here the names of ``[settings]`` in a configuration, and times in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, cast

import anyio

from alpo.addresses import parse_dialled
from alpo.client.arguments import need_int, need_str
from alpo.client.connection import Connection
from alpo.client.pages import out_of_range
from alpo.client.servers import Servers
from alpo.core import requests as q
from alpo.core import settings as setting_rules
from alpo.core.members import MemberList
from alpo.core.requests import Code
from alpo.core.settings import Settings as CoreSettings
from alpo.errors import (
    AlpoError,
    NotEverywhere,
    Overloaded,
    ProtocolError,
    Refused,
    Unavailable,
)
from alpo.wire import requests as w

from .asking import Asking, answered, ask, at_leader, no_answer, probe_read, until_answered

#: Longest wait of one `wait_everyone` request at the leader.
_WAIT_MS = 500
#: Seconds, the last of a change's timeout, that are kept for asking what the change waits for.
_TOLD_S = 0.5


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """One member of the list. ``role``: "VOTER", "LEARNER" or "GONE"."""

    id: int
    address: str
    priority: int
    role: str


@dataclass(frozen=True, slots=True)
class Leadership:
    """The leadership of a cluster: server ``leader`` leads, in ``term``."""

    leader: int
    term: int


class MemberCalls(Asking):
    """The calls of a `Log` about the members of the cluster. Asking again for what was done does no harm."""

    async def init(self, timeout_s: float | None = None) -> None:
        """Found the cluster, by any one of its servers. Raises `Refused` (why it cannot be), `Unavailable`."""
        servers = self._servers
        await until_answered(
            lambda: servers.any(None), servers, lambda there: answered(servers, there, q.Initialise, w.Done),
            self._seconds(timeout_s),
        )

    async def add_member(
        self, id: int, address: str, *, priority: int = 0, timeout_s: float | None = None
    ) -> list[MemberInfo]:
        """Take the server that waits at ``address`` into the cluster; returns the new member list, guaranteed.

        The server is a LEARNER at first, and becomes a VOTER by itself once it has caught up. Raises `Refused` (why it
        cannot be), `Unavailable` when no answer came: the change may still be made.
        """
        return await self._change_member(q.MemberStep.ADD, id, address, priority, timeout_s)

    async def remove_member(self, id: int, timeout_s: float | None = None) -> list[MemberInfo]:
        """Take a server out of the cluster; returns the new member list, guaranteed. Raises as `add_member`."""
        return await self._change_member(q.MemberStep.REMOVE, id, "", 0, timeout_s)

    async def replace_member(self, id: int, address: str, timeout_s: float | None = None) -> list[MemberInfo]:
        """Have the server that waits at ``address``, with an empty disk, take member ``id``'s place.

        Returns the new member list, guaranteed. Raises as `add_member`.
        """
        return await self._change_member(q.MemberStep.REPLACE, id, address, 0, timeout_s)

    async def _change_member(
        self, step: q.MemberStep, id: int, address: str, priority: int, timeout_s: float | None
    ) -> list[MemberInfo]:
        """Change one member (R27). Raises `alpo.addresses.AddressError`, a ValueError, unless others can dial
        ``address`` ("" to remove a member); the message of `Unavailable` says what the leader waits for, if that can be
        told."""
        servers, seconds = self._servers, self._seconds(timeout_s)
        need_int(id=id, priority=priority)
        need_str(address=address)
        if step is not q.MemberStep.REMOVE:
            parse_dialled(address)
        told_s = min(_TOLD_S, seconds / 4)
        patience_s = seconds - told_s  # a leader that has taken a change may need a while: it is not asked again
        try:
            changed = await ask(
                servers, lambda number: q.ChangeMember(number, step, id, address, priority), q.MembersChanged,
                patience_s, attempt_s=patience_s,
            )
        except ProtocolError:
            raise
        except Unavailable as error:
            why = await _under_way(servers, told_s)
            if not why:
                raise no_answer(servers, seconds) from error
            raise Unavailable(f"no answer within {seconds:g} s: {why}") from error
        return _infos(changed.members)

    async def transfer(self, target: int, timeout_s: float | None = None) -> Leadership:
        """Have server ``target`` lead. Raises `Refused` (why it cannot), `Unavailable`."""
        need_int(target=target)
        seconds = self._seconds(timeout_s)
        found = await ask(
            self._servers, lambda number: q.Transfer(number, target), q.HandedOver, seconds, attempt_s=seconds
        )
        if found.leader != target:
            raise Unavailable(f"server {found.leader} leads now, in term {found.term}, not server {target}: ask again")
        return Leadership(found.leader, found.term)

    async def wait_everyone(self, lsn: int, timeout_s: float | None = None) -> None:
        """Wait until every member has payload ``lsn``, which was appended, on its disk.

        Raises ValueError, `OutOfRange` for an LSN that is not in the log yet, `NotEverywhere` at the deadline.
        """
        need_int(lsn=lsn)
        if lsn < 1:
            raise ValueError(f"an LSN is 1 or more, not {lsn}")
        behind: tuple[int, ...] | None = None  # as last heard

        async def attempt(connection: Connection) -> None:
            nonlocal behind
            while True:
                replicated = await answered(
                    self._servers, connection, lambda number: w.AwaitReplicated(number, lsn, _WAIT_MS), w.Replicated
                )
                if replicated.done:
                    return
                if behind is None:
                    page = await answered(self._servers, connection, probe_read, w.Page)
                    if lsn > page.end_lsn:
                        raise out_of_range(f"LSN {lsn} is", f"{page.first_lsn},{page.end_lsn}")
                behind = replicated.behind

        try:
            await at_leader(self._servers, attempt, self._seconds(timeout_s))
        except (Unavailable, Overloaded) as error:
            raise NotEverywhere(_behind(lsn, behind, error), lsn=lsn, behind=behind or ()) from error


async def _under_way(servers: Servers, timeout_s: float) -> str:
    """The change that the leader is making, and what it waits for; "" if nobody tells."""
    try:
        found = (await ask(servers, w.Status, w.StatusAnswer, timeout_s)).fields.get("member_change")
    except AlpoError:
        return ""
    return f"the leader is still at it, {found}" if found else ""


def _infos(plain: list[list[Any]]) -> list[MemberInfo]:
    try:
        members = MemberList.from_plain(plain).members
    except ValueError as error:
        raise ProtocolError(f"not a member list: {error}") from error
    return [MemberInfo(m.id, m.address, m.priority, m.role.name) for m in members]


def _behind(lsn: int, behind: tuple[int, ...] | None, error: AlpoError) -> str:
    """The message of `NotEverywhere`."""
    if behind is None:
        why = f"nobody tells: {error}"
    elif behind:
        why = f"not yet on {'server' if len(behind) == 1 else 'servers'} {', '.join(map(str, behind))}"
    else:
        why = "a change of the members is under way"
    return f"LSN {lsn} is guaranteed, but not known to be on every member: {why}"


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
    """Check a setting's value. Raises ValueError for an unknown name (lists those known) or a value out of bounds."""
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
    """Users' names and units, out of the core's. A server of another version may have more settings, or fewer."""
    return cast(Settings, {_TTL_S if name == _TTL_MS else name: value / 1000 if name == _TTL_MS else value
                           for name, value in values.items()})


class SettingCalls(Asking):
    """The calls of a `Log` about the settings that all servers share."""

    async def settings(self, timeout_s: float | None = None) -> Settings:
        """The settings that all servers share, by name. Raises `Unavailable`."""
        return _from_core((await self._ask(q.ShowSettings, q.SettingsAre, timeout_s)).values)

    async def change_settings(
        self, wanted: Settings | Mapping[str, float], *, expected: Settings | Mapping[str, float] | None = None,
        timeout_s: float | None = None,
    ) -> Settings:
        """Change settings, all of ``wanted`` or none; returns all settings as they are then.

        ``expected``: the values that the caller believes the changed ones have (None: read now); if one has another by
        then, nothing is changed. Repeating is safe. Raises ValueError for what can never be, `Refused` when one was
        changed meanwhile or cannot be changed now, `Unavailable` when no answer came (the change may have been made).
        """
        give_up_s = self._seconds(timeout_s) + anyio.current_time()
        for given in (wanted, {} if expected is None else expected):
            if not isinstance(given, Mapping):
                raise TypeError(f"settings are a mapping, not {type(given).__name__}")
        changed = cast(Mapping[str, float], wanted)
        for name, value in changed.items():
            check_setting(name, value)
        if not changed:
            raise ValueError(f"no setting is named; there are {', '.join(NAMES)}")
        now = cast(Mapping[str, float], await self.settings(timeout_s) if expected is None else expected)
        if missing := [name for name in changed if name not in now]:
            raise ValueError(f"expected says nothing of {', '.join(missing)}")
        if now.keys() >= set(NAMES) and (why := setting_rules.problem(CoreSettings(**_to_core({**now, **changed})))):
            raise ValueError(why)
        old, new = _to_core(now), _to_core(changed)
        changes = tuple((name, old[name], value) for name, value in new.items())
        made = await self._ask(
            lambda number: q.ChangeSettings(number, changes), q.SettingsAre,
            max(0.0, give_up_s - anyio.current_time()), {Code.CHANGED: _changed_meanwhile},
        )
        return _from_core(made.values)


def _changed_meanwhile(refused: w.RequestRefused) -> Refused:
    return Refused(f"changed meanwhile, nothing was set: {refused.detail}")


async def accept_clocks(servers: Servers, timeout_s: float) -> int:
    """Have the leader believe the members' clocks, though they have leapt ahead (rules.md#entry-time). Returns by how
    many ms they had; 0: they were believed already. Raises `Refused`, `Unavailable`."""
    return (await ask(servers, w.AcceptClocks, w.Done, timeout_s)).number
