"""Who is a member: identities, roles, lists, and the stack of lists that are not guaranteed yet (rules.md#r27)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

from .entries import Entry, json_body, parse_body
from .settings import Settings

INCARNATION_BYTES = 16
UNKNOWN_INCARNATION = b""


class Identity(NamedTuple):
    """Who speaks or is spoken to. ``incarnation`` is 16 bytes, or b"" while it is not known (R29 only)."""

    id: int
    incarnation: bytes


class Role(IntEnum):
    """A member's standing in a list."""

    VOTER = 1
    LEARNER = 2
    GONE = 3


class Member(NamedTuple):
    """One line of a member list; ``retired`` are incarnations that are refused for ever (R30)."""

    id: int
    address: str
    priority: int
    incarnation: bytes
    role: Role
    retired: tuple[bytes, ...] = ()

    @property
    def identity(self) -> Identity:
        return Identity(self.id, self.incarnation)


@dataclass(frozen=True)
class MemberList:
    """The members, ordered by id. Immutable; a change makes a new list. What follows from it is worked out once: it is
    asked for in every step."""

    members: tuple[Member, ...]

    @staticmethod
    def of(members: Iterable[Member]) -> MemberList:
        return MemberList(tuple(sorted(members, key=lambda m: m.id)))

    @cached_property
    def _by_id(self) -> dict[int, Member]:
        return {m.id: m for m in reversed(self.members)}

    def get(self, id: int) -> Member | None:
        return self._by_id.get(id)

    def identity_of(self, id: int) -> Identity | None:
        """Also of one who is gone."""
        member = self.get(id)
        return member.identity if member is not None else None

    def holds(self, who: Identity) -> bool:
        """Is this very incarnation listed (and not gone)?"""
        member = self.get(who.id)
        return member is not None and member.incarnation == who.incarnation and member.role != Role.GONE

    def is_voter(self, who: Identity) -> bool:
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
        """Voters and learners: everyone who holds a copy (R18)."""
        return tuple(m for m in self.members if m.role != Role.GONE)

    @cached_property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def with_member(self, member: Member) -> MemberList:
        return MemberList.of([m for m in self.members if m.id != member.id] + [member])

    def to_plain(self) -> list[list[Any]]:
        """JSON-ready: [id, address, priority, incarnation hex, role, [retired hex …]] a member."""
        return [
            [m.id, m.address, m.priority, m.incarnation.hex(), int(m.role), [r.hex() for r in m.retired]]
            for m in self.members
        ]

    @staticmethod
    def from_plain(plain: Any) -> MemberList:
        """The inverse of `to_plain`. Raises ValueError on anything of another shape."""
        try:
            return MemberList.of(
                Member(int(i), str(a), int(p), bytes.fromhex(inc), Role(r), tuple(bytes.fromhex(x) for x in old))
                for i, a, p, inc, r, old in plain
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"not a member list: {error}") from error

    def digest(self) -> bytes:
        """16 bytes; of the first list for ever: the cluster id (R29)."""
        text = json.dumps(self.to_plain(), separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16, person=b"cluster").digest()


class Configured(NamedTuple):
    """One line of the configured list (what a server was started with): no incarnation yet."""

    id: int
    address: str
    priority: int = 0


def configured_digest(configured: Iterable[Configured], settings: Settings) -> bytes:
    """16 bytes over (ids, addresses, priorities, settings): equal on all before a first start (R29)."""
    plain = [[c.id, c.address, c.priority] for c in sorted(configured)]
    text = json.dumps([plain, settings.to_plain()], sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16, person=b"configured").digest()


class Members:
    """The lists that may be in force: the newest known guaranteed, and every later one.

    ``latest`` and what is derived from it are kept ready: they are asked for in every step.
    """

    def __init__(self, me: Identity) -> None:
        self.me = me
        self._stack: list[tuple[int, MemberList]] = [(0, MemberList(()))]
        self._derive()

    def restore(self, members: MemberList, id: int) -> None:
        """Begin from the list that entry ``id`` made (0: the first list)."""
        self._stack = [(id, members)]
        self._derive()

    def accept(self, entry: Entry) -> None:
        """A MEMBERS entry is in our log. Raises `DamagedEntry` or ValueError on a body of another shape."""
        self._stack.append((entry.id, MemberList.from_plain(parse_body(entry).get("members"))))
        self._derive()

    def expunge(self, from_id: int) -> None:
        while self._stack[-1][0] >= from_id and len(self._stack) > 1:
            self._stack.pop()
        self._derive()

    def guaranteed(self, id: int) -> None:
        """Lists before the newest guaranteed one are history."""
        if len(self._stack) == 1 or self._stack[1][0] > id:
            return
        while len(self._stack) > 1 and self._stack[1][0] <= id:
            del self._stack[0]
        self._derive()

    def at(self, id: int) -> tuple[int, MemberList]:
        """(entry id, list) in force at ``id``, which is not below the newest list known guaranteed."""
        return next(item for item in reversed(self._stack) if item[0] <= id)

    @property
    def latest_id(self) -> int:
        """The entry that made the latest list (0: the first list)."""
        return self._stack[-1][0]

    def other_voters(self) -> tuple[Member, ...]:
        return self._other_voters

    def other_replicas(self) -> tuple[Member, ...]:
        return self._other_replicas

    def identity(self, id: int) -> Identity:
        """How to address ``id``: its incarnation of the latest list, b"" if that names none."""
        member = self.latest.get(id)
        return member.identity if member is not None else Identity(id, b"")

    @property
    def standing(self) -> str:
        """What the latest list makes of us, as status shows it (rules.md#status)."""
        mine = self.latest.get(self.me.id)
        if mine is None or mine.role is Role.GONE:
            return "GONE"
        if mine.incarnation != self.me.incarnation:
            return "RETIRED" if self.me.incarnation in mine.retired else "GONE"
        if mine.role is Role.LEARNER:
            return "RECOVERING" if mine.retired else "LEARNER"
        return "VOTING"

    def _derive(self) -> None:
        self.latest = self._stack[-1][1]
        self.i_vote = self.latest.is_voter(self.me)
        # A leader that removed itself and crashed must still be able to stand, or nobody may (R27).
        self.may_stand = any(members.is_voter(self.me) for _, members in self._stack)
        self._other_voters = tuple(m for m in self.latest.voters if m.id != self.me.id)
        self._other_replicas = tuple(m for m in self.latest.replicas if m.id != self.me.id)


def members_body(members: MemberList) -> bytes:
    """The body of a MEMBERS entry."""
    return json_body(members=members.to_plain())


class StartStatus(IntEnum):
    """How far a server's first start is (R29); durable."""

    EMPTY = 1
    STARTING = 2
    STARTED = 3
