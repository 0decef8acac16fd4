"""The directory: the logs that a cluster keeps besides its first one, kept in the first one (rules.md#logs).

Laws:

* The directory is a function of the first log alone. LOGS entries change it, and an expunge undoes them.
* A server acts on the directory as of the guaranteed mark, never on what an expunge could take back; but it runs a log
  that has begun there before (`alpo.core.hosting`).
* Numbers go up by one, and neither a number nor the id of a log comes back.
* A log is founded once: its first member list, whose digest is the log's id for ever, is that of one guaranteed entry.
* Names are unique among logs that are not deleted. What is decided by a name is decided at the head of the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .entries import INT_MAX, Entry, Kind, json_body, parse_body
from .machine.cursors import Versions
from .members import INCARNATION_BYTES, MemberList
from .settings import Settings

#: Number and name of the first log, which holds the directory.
FIRST_NUMBER, FIRST_NAME = 1, "default"
#: Most logs besides the first that are not deleted: each costs every server work while it is idle.
LOGS_MAX = 64
#: Deleted logs that are remembered, so that a repeated request is told what became of it.
DELETED_MAX = 64
NONCE_BYTES = 16
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
#: The refusal of a name that is not a `valid_log`.
LOG_NAME_WANTED = (
    "a log's name is 1 to 63 characters of a-z, 0-9, '.', '_' and '-', begins with a letter or digit, and is not"
    f" {FIRST_NAME}, the first log's"
)


def valid_log(name: str) -> bool:
    """True if a log may bear this name; that of the first log is taken."""
    return _NAME.fullmatch(name) is not None and name != FIRST_NAME


class LogOptions(NamedTuple):
    """Options that operators choose for a log; 0: none. ``keep_ms``, ``keep_bytes``: how much of it is kept (0: as the
    servers are configured); ``bytes_max``: size beyond which appends are refused; ``lead``: id of the server that
    should lead it."""

    keep_ms: int = 0
    keep_bytes: int = 0
    bytes_max: int = 0
    lead: int = 0


class NamedLog(NamedTuple):
    """A log besides the first. ``nonce``: 16 bytes, of the request that created it; ``settings``: plain, those that it
    begins with; ``first_list``: plain, its first member list, None until it is founded; ``id``: the digest of that
    list, b"" until then."""

    number: int
    name: str
    nonce: bytes
    options: LogOptions
    settings: dict[str, int]
    first_list: list[list[Any]] | None = None
    id: bytes = b""


class DeletedLog(NamedTuple):
    """A log that was deleted, by the request with nonce ``ended``; the others as of `NamedLog`."""

    number: int
    name: str
    nonce: bytes
    ended: bytes
    first_list: list[list[Any]] | None = None
    id: bytes = b""


class Listing(NamedTuple):
    """The directory as of an entry: logs by number, the last deleted ones, oldest first, and the next new number."""

    logs: tuple[NamedLog, ...] = ()
    deleted: tuple[DeletedLog, ...] = ()
    next_number: int = FIRST_NUMBER + 1

    def named(self, name: str) -> NamedLog | None:
        """The log of this name, if it is not deleted."""
        return next((log for log in self.logs if log.name == name), None)

    def get(self, number: int) -> NamedLog | None:
        """The log of this number, if it is not deleted."""
        return next((log for log in self.logs if log.number == number), None)

    def lacks(self, number: int) -> bool:
        """True if this proves that log ``number`` is deleted: it was created, and is there no more."""
        return FIRST_NUMBER < number < self.next_number and self.get(number) is None

    def with_log(self, log: NamedLog) -> Listing:
        """The listing with ``log`` in place of the one of its number."""
        return self._replace(logs=tuple(log if each.number == log.number else each for each in self.logs))

    def to_plain(self) -> dict[str, Any]:
        """The plain form, ready for JSON."""
        return {
            "logs": [
                [log.number, log.name, log.nonce.hex(), list(log.options), log.settings, log.first_list]
                for log in self.logs
            ],
            "deleted": [
                [gone.number, gone.name, gone.nonce.hex(), gone.ended.hex(), gone.first_list] for gone in self.deleted
            ],
            "next": self.next_number,
        }

    @staticmethod
    def from_plain(plain: Any) -> Listing:
        """The listing that `to_plain` made ``plain`` of. Raises ValueError on anything of another shape."""
        try:
            logs = tuple(
                _log(number, name, nonce, options, settings, first)
                for number, name, nonce, options, settings, first in plain["logs"]
            )
            deleted = tuple(
                DeletedLog(_number(number), _name(name), _nonce(nonce), _nonce(ended), *_first(first))
                for number, name, nonce, ended, first in plain["deleted"]
            )
            listing = Listing(logs, deleted, _number(plain["next"]))
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a directory of logs: {error}") from error
        numbers = [log.number for log in logs]
        all_numbers = {*numbers, *(gone.number for gone in deleted)}
        if numbers != sorted(set(numbers)) or max(all_numbers, default=0) >= listing.next_number:
            raise ValueError("not a directory of logs: its numbers are not in order")
        if len(all_numbers) < len(logs) + len(deleted) or len({log.name for log in logs}) < len(logs):
            raise ValueError("not a directory of logs: a number or a name is there twice")
        return listing


def _number(value: Any) -> int:
    if type(value) is not int or not FIRST_NUMBER < value <= INT_MAX:
        raise ValueError(f"no number of a log: {value!r}")
    return value


def _name(value: Any) -> str:
    if type(value) is not str or not valid_log(value):
        raise ValueError(f"no name of a log: {value!r}")
    return value


def _nonce(value: Any) -> bytes:
    nonce = bytes.fromhex(value)
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"no nonce: {value!r}")
    return nonce


def _options(value: Any) -> LogOptions:
    sound = all(type(each) is int and 0 <= each <= INT_MAX for each in value)
    if not sound or len(value) != len(LogOptions._fields):
        raise ValueError(f"no options of a log: {value!r}")
    return LogOptions(*value)


def _log(number: Any, name: Any, nonce: Any, options: Any, settings: Any, first_list: Any) -> NamedLog:
    """A log of plain fields. Raises ValueError, TypeError, AttributeError."""
    plain = Settings.from_plain(settings).to_plain()
    return NamedLog(_number(number), _name(name), _nonce(nonce), _options(options), plain, *_first(first_list))


def _first(plain: Any) -> tuple[list[list[Any]] | None, bytes]:
    """A log's first list and id, of its plain list or None. Raises ValueError unless all in it are voters, each with an
    id and an incarnation of its own."""
    if plain is None:
        return None, b""
    first = MemberList.from_plain(plain)
    ids, incarnations = {m.id for m in first.members}, {m.incarnation for m in first.members}
    if not first.voters or not len(first.voters) == len(first.members) == len(ids) == len(incarnations):
        raise ValueError("a first list has voters alone, each once")
    if any(len(incarnation) != INCARNATION_BYTES for incarnation in incarnations):
        raise ValueError("a first list has a member without an incarnation")
    return first.to_plain(), first.digest()


# -- entries that change it -----------------------------------------------------------------------------------


def create_body(log: NamedLog) -> bytes:
    """The body of the LOGS entry that creates a log."""
    return json_body(
        op="create", number=log.number, name=log.name, nonce=log.nonce.hex(), options=list(log.options),
        settings=log.settings,
    )


def found_body(number: int, first: MemberList) -> bytes:
    """The body of the LOGS entry that founds a log with its first member list."""
    return json_body(op="found", number=number, members=first.to_plain())


def options_body(number: int, options: LogOptions) -> bytes:
    """The body of the LOGS entry that gives a log other options."""
    return json_body(op="set", number=number, options=list(options))


def rename_body(number: int, name: str) -> bytes:
    """The body of the LOGS entry that gives a log another name."""
    return json_body(op="rename", number=number, name=name)


def delete_body(number: int, nonce: bytes) -> bytes:
    """The body of the LOGS entry that deletes a log."""
    return json_body(op="delete", number=number, nonce=nonce.hex())


def _created(listing: Listing, fields: Mapping[str, Any]) -> Listing:
    log = _log(fields["number"], fields["name"], fields["nonce"], fields["options"], fields["settings"], None)
    if log.number != listing.next_number or len(listing.logs) >= LOGS_MAX:
        raise ValueError(f"{log.number} is not the next number of a log, or there are {LOGS_MAX} already")
    _free(listing, log.name)
    return listing._replace(logs=(*listing.logs, log), next_number=log.number + 1)


def _founded(listing: Listing, fields: Mapping[str, Any]) -> Listing:
    log = _there(listing, fields)
    first_list, id = _first(fields["members"])
    if log.first_list is not None or first_list is None:
        raise ValueError(f"log {log.number} was founded before, or with nobody")
    return listing.with_log(log._replace(first_list=first_list, id=id))


def _set(listing: Listing, fields: Mapping[str, Any]) -> Listing:
    return listing.with_log(_there(listing, fields)._replace(options=_options(fields["options"])))


def _renamed(listing: Listing, fields: Mapping[str, Any]) -> Listing:
    log, name = _there(listing, fields), _name(fields["name"])
    _free(listing, name)
    return listing.with_log(log._replace(name=name))


def _deleted(listing: Listing, fields: Mapping[str, Any]) -> Listing:
    log = _there(listing, fields)
    gone = DeletedLog(log.number, log.name, log.nonce, _nonce(fields["nonce"]), log.first_list, log.id)
    left = tuple(each for each in listing.logs if each is not log)
    return listing._replace(logs=left, deleted=(*listing.deleted, gone)[-DELETED_MAX:])


def _there(listing: Listing, fields: Mapping[str, Any]) -> NamedLog:
    """The log that an entry names by its number. Raises ValueError if there is none."""
    log = listing.get(_number(fields["number"]))
    if log is None:
        raise ValueError(f"there is no log {fields['number']}")
    return log


def _free(listing: Listing, name: str) -> None:
    """Raise ValueError if a log has this name."""
    if listing.named(name) is not None:
        raise ValueError(f"there is a log {name} already")


_CHANGES: dict[str, Callable[[Listing, Mapping[str, Any]], Listing]] = {
    "create": _created, "found": _founded, "set": _set, "rename": _renamed, "delete": _deleted,
}


def changed(listing: Listing, fields: Mapping[str, Any]) -> Listing:
    """The directory after a LOGS entry with these fields. Raises ValueError if the entry makes no sense there."""
    change = _CHANGES.get(str(fields.get("op")))
    if change is None:
        raise ValueError(f"no change of the directory: {fields!r}")
    try:
        return change(listing, fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a field of a change is missing or of another type: {error}") from error


class Directory(Versions[Listing]):
    """The directory of one replica. ``guaranteed``: the newest version known guaranteed, by which servers act."""

    UNSOUND = "does not change the directory of logs"

    def __init__(self, saved: Mapping[str, Any] | None) -> None:
        super().__init__(listing_of(saved))

    def accept(self, entry: Entry) -> None:
        """Take the effect of an entry that was appended, if it is a LOGS entry. Raises `DamagedEntry` or ValueError on
        a body that makes no sense."""
        if entry.kind == Kind.LOGS:
            self.add(entry.id, changed(self.head, parse_body(entry)))

    def plain_at(self, id: int) -> dict[str, Any] | None:
        """The plain form as of entry ``id``, which is not below the newest settled entry; None while no log was ever
        created."""
        listing = self.at(id)[1]
        return None if listing == Listing() else listing.to_plain()

    def _derive(self) -> None:
        self.guaranteed = self._stack[0][1]


def listing_of(saved: Mapping[str, Any] | None) -> Listing:
    """The listing of a plain form; None: no log was ever created. Raises ValueError."""
    return Listing() if saved is None else Listing.from_plain(saved)
