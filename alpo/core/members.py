"""Who is a member, and the settings that every server must compute alike (R27, R29).

A member is (id, incarnation): a disk that was lost and replaced is another member, whatever its id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

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


@dataclass(frozen=True, slots=True)
class Settings:
    """Replicated settings: every server computes with the same (rules.md#settings). The first start has those of the
    configuration; an entry of the log changes them while the servers run."""

    session_ttl_ms: int = 7 * 24 * 3600 * 1000
    window: int = 1024
    window_total: int = 200_000
    sessions_max: int = 100_000
    names_max: int = 10_000
    payload_bytes_max: int = 1 << 20
    batch_bytes_max: int = 8 << 20

    def to_plain(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @staticmethod
    def from_plain(plain: Any) -> Settings:
        """Raises ValueError on unknown keys or values that are not positive integers."""
        names = {f.name for f in fields(Settings)}
        if not isinstance(plain, dict) or set(plain) - names:
            raise ValueError("not settings")
        if any(type(v) is not int or v <= 0 for v in plain.values()):
            raise ValueError("settings are positive integers")
        return Settings(**plain)


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
