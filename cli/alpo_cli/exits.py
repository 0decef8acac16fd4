"""Exit codes: the one place where errors become what the shell sees.

Laws:

* 0 done; 1 the cluster refused, could not be reached, or the outcome is a known failure; 2 wrong usage or input; 3 the
  outcome of an append is unknown. No others, and reads never end with 3.
* Every ending but 0 says why on stderr, in one message, with control characters escaped.
* A reader that has gone (`alpo read | head`) is no error: nothing is printed, 0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from shlex import quote

from alpo.errors import AlpoError, BackupFailed, NotGuaranteed, SessionExpired, TlsError, TooLarge

from .early import begin
from .output import lead_nowhere, say

DONE = 0
FAILED = 1
USAGE = 2
UNKNOWN = 3


class UsageProblem(Exception):
    """The command line or its input is wrong (exit 2)."""


def refuse(wrong: object, why: str) -> None:
    """Raise UsageProblem with the text ``why`` if what is given is ``wrong``."""
    if wrong:
        raise UsageProblem(why)


class Failed(Exception):
    """The command could not do its work, and nothing is in doubt (exit 1)."""


class Unreached(Failed):
    """None of the servers named, or of the default ones, could be used. ``problems``: the reasons, "ADDRESS: why"."""

    def __init__(self, servers: Iterable[str], problems: Iterable[str] = ()) -> None:
        named, told = list(servers), list(dict.fromkeys(problems))
        whys = {text.removeprefix(f"{address}: ") for text in told for address in named if text.startswith(address)}
        if len(whys) == 1 and len(told) == len(named):  # the same of all
            told = list(whys)
        super().__init__(f"none of {', '.join(named)} could be reached{': ' if told else ''}{'; '.join(told)}")


class Unknown(Failed):
    """The outcome of appends is unknown (exit 3); the message says what to do."""


def code_of(error: BaseException) -> int:
    """Exit code for a planned error that is no group."""
    if isinstance(error, NotGuaranteed | SessionExpired | Unknown):
        return UNKNOWN
    if isinstance(error, UsageProblem | TooLarge | TlsError):
        return USAGE
    return FAILED


def message_of(error: BaseException) -> str:
    """Text of the error for stderr."""
    if isinstance(error, NotGuaranteed):
        return f"{error}\noutcome unknown; retry with {retry_flags(error)}"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {reason(error)}"
    if isinstance(error, OSError):
        return reason(error)
    return str(error) or type(error).__name__


def reason(error: OSError) -> str:
    """The system's text for an error, without its number."""
    return error.strerror or str(error) or type(error).__name__


def retry_flags(error: NotGuaranteed) -> str:
    """Flags of `alpo append`, quoted for a shell, that name the append whose outcome is unknown.

    The epoch of a named client is left out if unknown: the recorded one is used then.
    """
    epoch = "" if error.epoch == 0 and not error.client.startswith("~") else f" --epoch {error.epoch}"
    return f"--client {quote(error.client)} --serial {error.serial}{epoch}"


@contextmanager
def store_errors() -> Iterator[None]:
    """Turn a store's errors into Failed."""
    from alpo.offline import StoreError

    try:
        yield
    except (BackupFailed, StoreError) as error:
        raise Failed(str(error)) from error


def leaves(error: BaseException) -> list[BaseException]:
    """The errors inside groups, however deep; a plain error is returned by itself."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


def worst(error: BaseException) -> BaseException:
    """The error of a group that decides the exit code: a bug first, then an unknown outcome, then the rest."""
    planned = (AlpoError, UsageProblem, Failed, TlsError, OSError, KeyboardInterrupt)
    found = leaves(error)
    unplanned = [e for e in found if not isinstance(e, planned)]
    return unplanned[0] if unplanned else max(found, key=code_of)


def _no_hint(error: BaseException) -> str:
    return ""


def guarded(
    body: Callable[[], None], program: str = "alpo", hint: Callable[[BaseException], str] = _no_hint
) -> int:
    """Run a command's body, report an error on stderr, and return the exit code. Bugs pass through with their
    traceback.

    ``program``: name that begins the message. ``hint``: function that returns a text to add.
    """
    begin()
    try:
        body()
        sys.stdout.flush()
        return DONE
    except (AlpoError, UsageProblem, Failed, TlsError, OSError, KeyboardInterrupt, BaseExceptionGroup) as raised:
        error = worst(raised)
        if isinstance(error, BrokenPipeError):
            lead_nowhere(1)
            return DONE
        if not isinstance(error, AlpoError | UsageProblem | Failed | TlsError | OSError | KeyboardInterrupt):
            raise
        try:
            sys.stdout.flush()
        except OSError:
            lead_nowhere(1)
        say(f"{program}: {message_of(error)}{hint(error)}")
        return code_of(error)
