"""The member list as a function of the log: in force from acceptance, undone by expunge (R27)."""

from __future__ import annotations

from .entries import Entry, json_body, parse_body
from .members import Identity, Member, MemberList, Role


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
