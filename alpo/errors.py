"""What can go wrong for a user of the client library, split by what is known of the outcome.

`NotGuaranteed` alone means "unknown"; every other error of an append means that it is not in the log.
"""

from __future__ import annotations


class AlpoError(Exception):
    """The base of all errors that the library raises on purpose."""


class NotGuaranteed(AlpoError):
    """The outcome is unknown at the deadline; the request stays first in line (R24).

    ``too_old``: the cluster itself can no longer tell (R21). Retry with the same client, serial and epoch.
    """

    def __init__(self, message: str, *, client: str, serial: int, epoch: int, too_old: bool = False) -> None:
        super().__init__(message)
        self.client = client
        self.serial = serial
        self.epoch = epoch
        self.too_old = too_old


class Unavailable(AlpoError):
    """Nothing was sent, or all that was sent was refused unseen: repeating is safe. Also a read without an answer."""


class Skipped(AlpoError):
    """The serial was passed over by a sparse append and is refused for good (R21)."""


class Fenced(AlpoError):
    """A newer process has opened this client name (R22), or an operator dropped it: what raises this is not in the log.
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


class SessionExpired(AlpoError):
    """The random client id has ended (R22): whether an earlier transmission was appended cannot be told from here."""


class OutOfRange(AlpoError):
    """The LSN asked for is not (or no longer) in the log, which spans ``first_lsn`` … ``last_lsn``."""

    def __init__(self, message: str, *, first_lsn: int, last_lsn: int) -> None:
        super().__init__(message)
        self.first_lsn = first_lsn
        self.last_lsn = last_lsn


class NotEverywhere(AlpoError):
    """Payload ``lsn`` is guaranteed, but not yet on every member's disk. ``behind``: ids of those not known to have it
    (none: nobody could tell)."""

    def __init__(self, message: str, *, lsn: int, behind: tuple[int, ...]) -> None:
        super().__init__(message)
        self.lsn = lsn
        self.behind = behind


class NoSpace(AlpoError):
    """The servers' disks are too full to take appends."""


class Overloaded(AlpoError):
    """The server has as many clients as it takes."""


class Refused(AlpoError):
    """The cluster said no: a bad certificate, no right, too many names, or a request that can never be right."""


class TooLarge(AlpoError):
    """The payload or batch is over the limit. Nothing was sent."""


class ProtocolError(AlpoError):
    """The other side is no ALPO server, speaks another version, or belongs to another cluster."""
