"""Checks of the directory, and of what servers do by it, against the first log as it is guaranteed. A file of its own:
operators of logs need it, and it knows of no world."""

from __future__ import annotations

from alpo.core.directory import Listing, changed
from alpo.core.entries import Entry, Kind, parse_body
from alpo.core.members import MemberList
from alpo.core.replica import Replica

from ..checks import Broken
from ..checks.members import list_of

_LOGS, _MEMBERS = int(Kind.LOGS), int(Kind.MEMBERS)


class DirectoryChecks:
    """The directory as all guaranteed entries make it, and checks of each server's. Told of each entry, in order."""

    def __init__(self) -> None:
        self.listings: list[tuple[int, Listing]] = [(0, Listing())]
        self._members: MemberList | None = None
        self._last_number = 1
        self._founded: dict[int, bytes] = {}

    @property
    def now(self) -> Listing:
        return self.listings[-1][1]

    def taken(self, entry: Entry, first: MemberList | None) -> None:
        """Take the next entry of the one first log; ``first``: the list that it began with, once known."""
        self._members = self._members or first
        if entry.kind == _MEMBERS:
            self._members = list_of(entry)
        elif entry.kind == _LOGS:
            fields = parse_body(entry)
            self._last_number = max(self._last_number, fields["number"])
            try:
                self.listings.append((entry.id, changed(self.now, fields)))
            except ValueError as error:
                raise Broken("directory", f"entry {entry.id} makes no sense: {error}") from error
            if self.now.next_number != self._last_number + 1:
                raise Broken("founding", f"after entry {entry.id} the next number is {self.now.next_number} again")
            if fields["op"] == "found":
                self._check_found(fields["number"], MemberList.from_plain(fields["members"]))

    def _check_found(self, number: int, first: MemberList) -> None:
        if self._members is not None and len(first.voters) < self._members.majority:
            raise Broken("founding", f"log {number} is founded by {[m.id for m in first.voters]} alone")
        if number in self._founded or first.digest() in self._founded.values():
            raise Broken("founding", f"log {number} is founded twice, or has the id of another one")
        self._founded[number] = first.digest()

    def compare(self, replica: Replica) -> None:
        """Check that a server's guaranteed directory is that of the one log."""
        upto_id = max(replica.guaranteed_id, replica.applied_id)
        wanted = next(listing for id, listing in reversed(self.listings) if id <= upto_id)
        if replica.directory.guaranteed != wanted:
            self._differs(replica, wanted)

    def _differs(self, replica: Replica, wanted: Listing) -> None:
        raise Broken("directory", f"server {replica.me.id}'s directory as of entry {replica.guaranteed_id} is "
                     f"{replica.directory.guaranteed}, the log's is {wanted}")

    def may_move(self, id: int, number: int) -> None:
        """Check that the store of a log may be moved away."""
        if not self.now.lacks(number):
            raise Broken("files", f"server {id} moves the store of log {number} away, which is not deleted")
