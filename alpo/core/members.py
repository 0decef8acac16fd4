"""Membership: identities, roles, member lists, and those lists that are not guaranteed yet (rules.md#r27)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

from .entries import Entry, Kind, json_body, parse_body
from .machine.cursors import Versions
from .settings import Settings

INCARNATION_BYTES = 16
UNKNOWN_INCARNATION = b""
#: Entries that a voter may be behind the guaranteed mark and still count as caught up.
CAUGHT_UP_ENTRIES = 10_000


class Identity(NamedTuple):
    """A server: its id, and its ``incarnation`` of 16 bytes (b"" while that is not known, in a first start only)."""

    id: int
    incarnation: bytes


class Role(IntEnum):
    """The role of a member in a list. GONE: removed, kept so that its incarnations stay refused."""

    VOTER = 1
    LEARNER = 2
    GONE = 3


class Member(NamedTuple):
    """One member in a list; ``retired``: incarnations of its id that are refused for ever (R30)."""

    id: int
    address: str
    priority: int
    incarnation: bytes
    role: Role
    retired: tuple[bytes, ...] = ()

    @property
    def identity(self) -> Identity:
        return Identity(self.id, self.incarnation)

    @property
    def all_incarnations(self) -> tuple[bytes, ...]:
        """The retired incarnations, then the present one unless it is among them."""
        return self.retired if self.incarnation in self.retired else (*self.retired, self.incarnation)


@dataclass(frozen=True)
class MemberList:
    """The members, ordered by id. Immutable; a change makes a new list. Derived properties are computed once."""

    members: tuple[Member, ...]

    @staticmethod
    def of(members: Iterable[Member]) -> MemberList:
        return MemberList(tuple(sorted(members, key=lambda m: m.id)))

    @cached_property
    def _by_id(self) -> dict[int, Member]:
        return {m.id: m for m in reversed(self.members)}

    def get(self, id: int) -> Member | None:
        """Member ``id``, also a removed one; None if it never was in the list."""
        return self._by_id.get(id)

    def identity_of(self, id: int) -> Identity | None:
        """The (id, incarnation) of member ``id``, also of a removed one."""
        member = self.get(id)
        return member.identity if member is not None else None

    def holds(self, who: Identity) -> bool:
        """True if this very incarnation is listed and not removed."""
        member = self._by_id.get(who.id)
        return member is not None and member.incarnation == who.incarnation and member.role != Role.GONE

    def is_replica(self, id: int) -> bool:
        """True if server ``id`` is listed and not removed."""
        member = self.get(id)
        return member is not None and member.role != Role.GONE

    def is_voter(self, who: Identity) -> bool:
        """True if this very incarnation is a voter."""
        member = self.get(who.id)
        return member is not None and member.incarnation == who.incarnation and member.role == Role.VOTER

    @cached_property
    def voters(self) -> tuple[Member, ...]:
        return tuple(m for m in self.members if m.role == Role.VOTER)

    @cached_property
    def learners(self) -> tuple[Member, ...]:
        return tuple(m for m in self.members if m.role == Role.LEARNER)

    @cached_property
    def replicas(self) -> tuple[Member, ...]:
        """The voters and learners: all members that hold a copy of the log (R18)."""
        return tuple(m for m in self.members if m.role != Role.GONE)

    @cached_property
    def majority(self) -> int:
        """The number of voters that are a majority."""
        return len(self.voters) // 2 + 1

    def with_member(self, member: Member) -> MemberList:
        """A list in which ``member`` is added, or replaces the one with its id."""
        return MemberList.of([m for m in self.members if m.id != member.id] + [member])

    def to_plain(self) -> list[list[Any]]:
        """The plain form, ready for JSON: [id, address, priority, incarnation hex, role, [retired hex …]] for each
        member.
        """
        return [
            [m.id, m.address, m.priority, m.incarnation.hex(), int(m.role), [r.hex() for r in m.retired]]
            for m in self.members
        ]

    @staticmethod
    def from_plain(plain: Any) -> MemberList:
        """The list that `to_plain` made ``plain`` of. Raises ValueError on anything of another shape."""
        try:
            return MemberList.of(
                Member(int(i), str(a), int(p), bytes.fromhex(inc), Role(r), tuple(bytes.fromhex(x) for x in old))
                for i, a, p, inc, r, old in plain
            )
        except (TypeError, ValueError, OverflowError) as error:  # JSON has infinite numbers
            raise ValueError(f"not a member list: {error}") from error

    def digest(self) -> bytes:
        """The digest of the list, 16 bytes; the first list's is the cluster id for ever (R29)."""
        text = json.dumps(self.to_plain(), separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16, person=b"cluster").digest()


class Configured(NamedTuple):
    """One server in the configured list, which a server is started with; its incarnation is not known yet."""

    id: int
    address: str
    priority: int = 0


def configured_digest(configured: Iterable[Configured], settings: Settings) -> bytes:
    """The digest of a configured list and settings, 16 bytes: a first start wants it equal on all servers (R29)."""
    plain = [[c.id, c.address, c.priority] for c in sorted(configured)]
    text = json.dumps([plain, settings.to_plain()], sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16, person=b"configured").digest()


class Members(Versions[MemberList]):
    """The member lists that may be in force: the newest one known guaranteed, and every later one.

    ``latest``: the newest of all, by which this server acts (R27); ``i_vote``: True if that list has this server as a
    voter; ``may_stand``: True if any list here has; ``latest_id``: the id of the entry that made the latest list, 0 for
    the first one. All are computed when lists change.
    """

    UNSOUND = "is no member list"

    def __init__(self, me: Identity) -> None:
        self.me = me
        super().__init__(MemberList(()))

    def accept(self, entry: Entry) -> None:
        """Take the list of an entry that was appended, if it is a MEMBERS entry. Raises `DamagedEntry` or ValueError on
        a body of another shape."""
        if entry.kind == Kind.MEMBERS:
            self.add(entry.id, MemberList.from_plain(parse_body(entry).get("members")))

    def other_voters(self) -> tuple[Member, ...]:
        """The voters of the latest list but this server."""
        return self._other_voters

    def other_replicas(self) -> tuple[Member, ...]:
        """The voters and learners of the latest list but this server."""
        return self._other_replicas

    def identity(self, id: int) -> Identity:
        """The identity by which to address server ``id``: with its incarnation in the latest list, b"" if not
        listed."""
        member = self.latest.get(id)
        return member.identity if member is not None else Identity(id, b"")

    @property
    def standing(self) -> str:
        """This server's standing in the latest list, as `alpo status` shows it (rules.md#status)."""
        mine = self.latest.get(self.me.id)
        if mine is None or mine.role is Role.GONE:
            return "GONE"
        if mine.incarnation != self.me.incarnation:
            return "RETIRED" if self.me.incarnation in mine.retired else "GONE"
        if mine.role is Role.LEARNER:
            return "RECOVERING" if mine.retired else "LEARNER"
        return "VOTING"

    def _derive(self) -> None:
        self.latest_id, self.latest = self._stack[-1]
        self.i_vote = self.latest.is_voter(self.me)
        # A leader that removed itself and crashed must be able to stand: perhaps no other server may (R27).
        self.may_stand = any(members.is_voter(self.me) for _, members in self._stack)
        self._other_voters = tuple(m for m in self.latest.voters if m.id != self.me.id)
        self._other_replicas = tuple(m for m in self.latest.replicas if m.id != self.me.id)


def members_body(members: MemberList) -> bytes:
    """The body of a MEMBERS entry."""
    return json_body(members=members.to_plain())


class StartStatus(IntEnum):
    """The steps of a server's first start (R29); durable. STARTED: it belongs to a cluster, for ever."""

    EMPTY = 1
    STARTING = 2
    STARTED = 3
