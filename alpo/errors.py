"""Errors of the client library, by what is known of the outcome.

`NotGuaranteed` alone means "unknown"; every other error of an append means that it is not in the log. Law: each error
survives pickling and copying, with all its fields.
"""

from __future__ import annotations

from typing import Any


class AlpoError(Exception):
    """Base of all errors that the library raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own method calls the class with the message alone, which classes with fields refuse.
        return _bare, (type(self), self.args), self.__dict__


def _bare(kind: type[AlpoError], args: tuple[object, ...]) -> AlpoError:
    """Make an error without its fields; unpickling fills them in."""
    return kind.__new__(kind, *args)


class NotGuaranteed(AlpoError):
    """The outcome of an append is unknown at its deadline; the request stays first in the queue (R24).

    ``too_old``: the cluster itself can no longer tell (R21). Retry with the same client, serial and epoch.
    """

    def __init__(self, message: str, *, client: str, serial: int, epoch: int, too_old: bool = False) -> None:
        super().__init__(message)
        self.client = client
        self.serial = serial
        self.epoch = epoch
        self.too_old = too_old


class Unavailable(AlpoError):
    """No server took the request: none was reached, or each refused it unseen. Repeating it is safe. Also a read
    without an answer."""


class Closed(AlpoError):
    """This log was closed, or belongs to the process that this one was forked from. Repeating never helps: connect
    again. An append that raises it is not in the log."""


class BackupFailed(AlpoError):
    """No backup was made: it cannot be written to its place, or what the server sent is damaged. A file that was there
    before is still what it was."""


class Skipped(AlpoError):
    """A sparse append passed over this serial, which is refused for good (R21)."""


class Fenced(AlpoError):
    """A newer process has opened this client name (R22), or an operator dropped it; the append is not in the log.
    ``epoch``: the current one (0: the name is not open)."""

    def __init__(self, message: str, *, epoch: int = 0) -> None:
        super().__init__(message)
        self.epoch = epoch


class SerialReused(AlpoError):
    """Another payload, or one of another epoch, is in the log under this serial (R21)."""


class SerialExpected(AlpoError):
    """The serial is above the next one; ``expected`` says which is next (R21)."""

    def __init__(self, message: str, *, expected: int) -> None:
        super().__init__(message)
        self.expected = expected


class Conflict(AlpoError):
    """The log's last LSN was not the one that a conditional append expected; ``last_lsn`` is. The append is not in the
    log."""

    def __init__(self, message: str, *, last_lsn: int) -> None:
        super().__init__(message)
        self.last_lsn = last_lsn


class SessionExpired(AlpoError):
    """The random client id has ended (R22): whether an earlier transmission was appended can no longer be told."""


class OutOfRange(AlpoError):
    """The LSN asked for is not (or no longer) in the log, which holds ``first_lsn`` … ``last_lsn``."""

    def __init__(self, message: str, *, first_lsn: int, last_lsn: int) -> None:
        super().__init__(message)
        self.first_lsn = first_lsn
        self.last_lsn = last_lsn


class NotEverywhere(AlpoError):
    """Payload ``lsn`` is guaranteed, but not yet on every member's disk. ``behind``: ids of members not known to have
    it (empty if no server could tell)."""

    def __init__(self, message: str, *, lsn: int, behind: tuple[int, ...]) -> None:
        super().__init__(message)
        self.lsn = lsn
        self.behind = behind


class NoSpace(AlpoError):
    """The servers' disks are too full to take appends."""


class Overloaded(AlpoError):
    """The server has as many clients as it takes."""


class Refused(AlpoError):
    """The cluster refused the request: a bad certificate, no permission, too many names, or a request that can never
    succeed."""


class NoSuchLog(Refused):
    """The cluster has no log of the name ``log``, or none any more."""

    def __init__(self, message: str, *, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class LogExists(Refused):
    """The cluster has a log of the name ``log`` already."""

    def __init__(self, message: str, *, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class TooLarge(AlpoError):
    """The payload or batch is over the limit. Nothing was sent."""


class ProtocolError(Unavailable):
    """No server will ever do as things are: what answers is not an ALPO server, speaks another version, or belongs to
    another cluster, as after a restore. Repeating never helps. Also an answer that makes no sense."""


class TlsMismatch(Unavailable, Refused):
    """No server will do before files are changed: one side speaks TLS and the other does not, or one does not take the
    other's certificate. Certificates that are renewed meanwhile count."""


class TlsError(ValueError):
    """Files or names given for TLS are wrong: an argument that can never be right. The message is one line for whoever
    gave them."""
