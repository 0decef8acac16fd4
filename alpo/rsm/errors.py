"""Errors of whatever is replicated through the log: a state, say. As with `alpo.errors`: each says what is known, and
survives pickling. A room of its own, below all others."""

from __future__ import annotations

from alpo.errors import AlpoError


class Unsettled(AlpoError):
    """A command is in the log at ``lsn``, and this process was stopped for so long that its effect cannot be told any
    more: it may have been done or refused."""

    def __init__(self, message: str, *, lsn: int) -> None:
        super().__init__(message)
        self.lsn = lsn


class NotFounded(AlpoError):
    """This log does not hold what was to be used, a state for example, and the caller asked for none to be made."""


class WrongState(AlpoError):
    """The log holds another state (or other machine) than the one expected: this is the wrong cluster, or a restored
    backup of an older one."""


class WrongMachine(WrongState):
    """The log holds another machine than the one expected, or a state: each needs a log of its own."""


class NewerVersion(AlpoError):
    """The machine is at ``version`` from LSN ``lsn`` on, and this program's code is made for an older one: its commands
    from there on were not applied."""

    def __init__(self, message: str, *, lsn: int, version: int) -> None:
        super().__init__(message)
        self.lsn = lsn
        self.version = version


class Unrecoverable(AlpoError):
    """The beginning of the log is gone, and it holds no whole snapshot: nobody can tell the state. ``first_lsn`` …
    ``last_lsn``: what was searched."""

    def __init__(self, message: str, *, first_lsn: int, last_lsn: int) -> None:
        super().__init__(message)
        self.first_lsn = first_lsn
        self.last_lsn = last_lsn


class NewerFormat(AlpoError):
    """Payload ``lsn`` is in a format of a later release: this process must not guess its meaning."""

    def __init__(self, message: str, *, lsn: int, format: int) -> None:
        super().__init__(message)
        self.lsn = lsn
        self.format = format


class Diverged(AlpoError):
    """The state in this process is not that of the others: a defect, or damaged memory. It must not be used."""


class Behind(AlpoError):
    """A watch that was to see every change has missed some: it took them up too slowly, or the log was trimmed."""


class Busy(AlpoError):
    """Another process is writing a snapshot at this moment."""


class Corrupt(AlpoError):
    """A file beside the log cannot be read or written. The log itself is not concerned."""
