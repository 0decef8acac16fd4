"""Options of the data source, all checked on the driver; error texts say what would be right.

Spark passes options as text, with names in any case. A name that is not known is an error: a limit or a beginning that
was misspelt must not be left out without a word. What an option would do beside another must not be left out either: a
table for each kind of query holds the pairs that do not go together.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from alpo.addresses import parse_servers
from alpo.core.directory import FIRST_NAME, LOG_NAME_WANTED, valid_log
from alpo.core.entries import CLIENT_BYTES_MAX, valid_name
from alpo.core.machine.cursors import NAME_WANTED, valid_cursor
from alpo.errors import TlsError
from alpo.tls import Tls, tls_given

from .origin import SourceError

READ, READ_STREAM, WRITE, WRITE_STREAM = "spark.read", "spark.readStream", "df.write", "df.writeStream"
#: Values for which an option is in the tables under ``name=value`` (too).
VALUES = ("state=true", "failOnDataLoss=false", "startingLsn=latest", "mode=direct")


@dataclass(frozen=True)
class Rule:
    """``only``: each of ``options`` goes only where one of ``others`` is, too; otherwise only where none of them is.
    Both are names of options, values of `VALUES`, and kinds of query."""

    options: tuple[str, ...]
    only: bool
    others: tuple[str, ...]
    why: str


def only_with(options: str, others: str, why: str) -> Rule:
    """Rule for options that need one of others beside them; names with spaces between."""
    return Rule(tuple(options.split()), True, tuple(others.split()), why)


def not_with(options: str, others: str, why: str) -> Rule:
    """Rule for options that bear none of others beside them; names with spaces between."""
    return Rule(tuple(options.split()), False, tuple(others.split()), why)


_READS = (
    not_with("path", "servers", "one of them says where the log is"),
    only_with("log", "servers path", "it picks one of the logs there, and an archive is of one log"),
    not_with("startingLsn", "startingTimestamp", "only one of them can say where to begin"),
    not_with("endingLsn", "endingTimestamp", "only one of them can say where to end"),
    not_with("endingLsn endingTimestamp", READ_STREAM, "a stream has no end"),
    not_with("endingLsn endingTimestamp", "startingLsn=latest", "there is nothing between"),
    not_with("maxRecordsPerTrigger", "maxBytesPerTrigger", "only one of them can limit a trigger"),
    only_with(
        "maxRecordsPerTrigger maxBytesPerTrigger minRecordsPerTrigger maxTriggerDelay cursor", READ_STREAM,
        "it is for a stream, and a batch read takes everything at once",
    ),
    only_with("state=true", READ, "a state is read as of one LSN, which a stream has not"),
    only_with("asOfLsn", "state=true", "it is for reading a state, and payloads have endingLsn"),
    not_with(
        "startingLsn startingTimestamp startingTimestampStrategy endingLsn endingTimestamp recordsPerPartition",
        "state=true", "it is for reading payloads, and a state is made of all of them, up to option asOfLsn",
    ),
    not_with("failOnDataLoss=false", "state=true", "a state with losses would be a wrong one"),
    only_with("startingTimestampStrategy", "startingTimestamp", "it says what to do if nothing is that new"),
    only_with("maxTriggerDelay", "minRecordsPerTrigger", "it ends the wait for so many records"),
    only_with("verifyArchive", "archivePath", "it is the archive that is verified"),
    only_with("cursor", "servers", "a cursor is kept by servers"),
    only_with(
        "readFrom timeout tls.ca tls.cert tls.key tls.name", "servers", "it says how servers are reached"
    ),
)
_WRITES = (
    only_with("txnAppId", "txnVersion", "they say together who writes, and the number of this write"),
    only_with("txnVersion", "txnAppId", "they say together who writes, and the number of this write"),
    only_with("txnRepeat", "txnAppId", "it says which numbers of a numbered write may come again"),
    not_with("txnAppId txnVersion txnRepeat", WRITE_STREAM, "they are for a batch write, and a stream has its own"),
    not_with("txnAppId txnVersion txnRepeat", "mode=direct", "they are for a write that is to be done once"),
    only_with("queryName", WRITE_STREAM, "it names a streaming query, and a batch write is named by txnAppId"),
)
RULES = {
    READ: _READS, READ_STREAM: _READS, WRITE_STREAM: _WRITES,
    WRITE: (*_WRITES, not_with("checkpointLocation", "mode=direct", "a batch keeps nothing there in this mode")),
}


def check_pairs(kind: str, given: Set[str]) -> None:
    """Raise `SourceError` if two of these do not go together. ``given``: what the user said, as a `Rule` names it."""
    there = {*given, kind}
    for rule in RULES[kind]:
        for option in rule.options:
            if option not in there:
                continue
            found = [other for other in rule.others if other in there]
            if rule.only and not found:
                raise SourceError(f"option {option} goes only with {' or '.join(rule.others)}: {rule.why}")
            if found and not rule.only:
                raise SourceError(f"option {option} does not go with {found[0]}: {rule.why}")


T = TypeVar("T")

_TLS = ("tls.ca", "tls.cert", "tls.key", "tls.name")
#: Names of all options of a read, and of a write; `SPARKS` are Spark's own, which it shows to a sink.
READS = (
    "servers", "path", "log", "archivePath", "verifyArchive", "startingLsn", "startingTimestamp",
    "startingTimestampStrategy", "endingLsn", "endingTimestamp", "recordsPerPartition", "state", "asOfLsn", "readFrom",
    "failOnDataLoss", "maxRecordsPerTrigger", "maxBytesPerTrigger", "minRecordsPerTrigger", "maxTriggerDelay", "cursor",
    "timeout", *_TLS,
)
WRITES = ("servers", "log", "checkpointLocation", "txnAppId", "txnVersion", "txnRepeat", "mode", "timeout", *_TLS)
SPARKS = ("queryName",)

EARLIEST, LATEST = "earliest", "latest"
RECORDS_PER_PARTITION = 65_536
EXACTLY_ONCE, DIRECT = "exactlyonce", "direct"
#: Numbers of a writer that may come again: any up to the last one; the last one; the last one with the same rows.
ANY, LAST, SAME = "any", "last", "same"
#: Low bits of a serial that number the entries of a writer's batch; the bits above number the batch.
BATCH_BITS = 20
#: Advice to users of ``CREATE TABLE``.
NO_TABLES = "use CREATE TEMPORARY VIEW name USING alpo OPTIONS (…), or spark.read"
#: Prefix of the client name made of a query's or an application's id.
WRITER_PREFIX = "spark:"


@dataclass(frozen=True)
class ReadOptions:
    """Options of a read. ``starting``, ``ending``: an LSN, `EARLIEST` or `LATEST`; ``ending`` is included, the time
    ``until_ms`` is not. ``state``: read not the payloads, but the state that they make up to ``as_of``, an LSN or
    `LATEST`. ``log``: the log's name, "" for the first.

    ``read_from``: "any", "leader" or a server's id. ``cursor``: the name of the one that a stream moves, or "".
    Times in seconds; 0 and None: not restricted.
    """

    servers: tuple[str, ...] = ()
    path: str = ""
    archive: str = ""
    verify_archive: bool = False
    starting: int | str = EARLIEST
    ending: int | str = LATEST
    since_ms: int | None = None
    since_strategy: str = "error"
    until_ms: int | None = None
    records_max: int = 0
    bytes_max: int = 0
    records_min: int = 0
    delay_s: float = math.inf
    records_per_partition: int = RECORDS_PER_PARTITION
    fail_on_data_loss: bool = True
    read_from: str = "any"
    cursor: str = ""
    timeout_s: float = 30.0
    tls: Tls | None = None
    state: bool = False
    as_of: int | str = LATEST
    log: str = ""

    @staticmethod
    def of(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
        """Parse the user's options. Raises `SourceError`."""
        options = _Given(given, READS)
        check_pairs(READ_STREAM if streaming else READ, options.said())
        servers: tuple[str, ...] = options.take("servers", _servers, ())
        path = options.take("path", str, "")
        archive = options.take("archivePath", str, "")
        if not (servers or path or archive):
            raise SourceError(
                "say where to read: option servers (HOST:PORT,HOST:PORT,…) or option path (a data directory or a "
                "backup), one of them, with option archivePath or without; or archivePath alone"
                + ("" if given else f". (Spark shows no options of tables in its catalogue: {NO_TABLES})")
            )
        since_ms = options.take("startingTimestamp", _time_ms, None)
        until_ms = options.take("endingTimestamp", _time_ms, None)
        if since_ms is not None and until_ms is not None and until_ms < since_ms:
            raise SourceError("endingTimestamp comes before startingTimestamp")
        records_max = options.take("maxRecordsPerTrigger", _count, 0)
        records_min = options.take("minRecordsPerTrigger", _count, 0)
        if records_max and records_min > records_max:
            raise SourceError(f"minRecordsPerTrigger is {records_min}, more than maxRecordsPerTrigger: {records_max}")
        begin: int | str = LATEST if streaming else EARLIEST
        end: int | str = LATEST
        return ReadOptions(
            servers=servers, path=path, archive=archive,
            verify_archive=options.take("verifyArchive", _flag, False),
            starting=options.take("startingLsn", _place, begin),
            ending=options.take("endingLsn", _end, end),
            since_ms=since_ms,
            since_strategy=options.take("startingTimestampStrategy", _one_of("error", "latest"), "error"),
            until_ms=until_ms,
            records_max=records_max, bytes_max=options.take("maxBytesPerTrigger", _count, 0),
            records_min=records_min,
            delay_s=options.take("maxTriggerDelay", _seconds, math.inf),
            records_per_partition=options.take("recordsPerPartition", _count, RECORDS_PER_PARTITION),
            fail_on_data_loss=options.take("failOnDataLoss", _flag, True),
            read_from=options.take("readFrom", _read_from, "any"),
            cursor=options.take("cursor", _cursor, ""),
            timeout_s=options.take("timeout", _timeout, 30.0),
            tls=options.tls(), state=options.take("state", _flag, False), as_of=options.take("asOfLsn", _end, end),
            log=options.take("log", _log, ""),
        )


def wants_state(given: Mapping[str, str]) -> bool:
    """True if these options ask for a state, not for payloads. Raises `SourceError`."""
    return _Given(given, READS).take("state", _flag, False)


@dataclass(frozen=True)
class WriteOptions:
    """Options of a write. ``directory``: the checkpoint's, or ""; ``app``, ``version``: "" and -1 if the user does not
    number the write; ``repeat``: as of `committing.Job`; ``log``: the log's name, "" for the first."""

    servers: tuple[str, ...]
    directory: str = ""
    app: str = ""
    version: int = -1
    direct: bool = False
    timeout_s: float = 60.0
    tls: Tls | None = None
    repeat: str = ANY
    log: str = ""

    @staticmethod
    def of(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
        """Parse the user's options. Raises `SourceError`."""
        options = _Given(given, (*WRITES, *SPARKS))
        check_pairs(WRITE_STREAM if streaming else WRITE, options.said())
        servers: tuple[str, ...] = options.take("servers", _servers, ())
        if not servers:
            raise SourceError("say where to write: option servers (HOST:PORT,HOST:PORT,…)")
        made = WriteOptions(
            servers,
            options.take("checkpointLocation", _directory, ""),
            options.take("txnAppId", _app, ""),
            options.take("txnVersion", _version, -1),
            options.take("mode", _one_of(EXACTLY_ONCE, DIRECT), EXACTLY_ONCE) == DIRECT,
            options.take("timeout", _timeout, 60.0),
            options.tls(),
            options.take("txnRepeat", _one_of(ANY, LAST, SAME), LAST if streaming else ANY),
            options.take("log", _log, ""),
        )
        if streaming and not made.direct and not made.directory:
            raise SourceError(
                "a stream is written exactly once with the help of its checkpoint: give checkpointLocation as an "
                "option of the query (that of the session is not shown to data sources)"
            )
        return made


class _Given:
    """The user's options by name, in any case; of ``known`` names only."""

    def __init__(self, given: Mapping[str, str], known: Sequence[str]) -> None:
        """Raises `SourceError` for a name that is not known."""
        self._given = {name.lower(): text for name, text in given.items()}
        self._names = names = {name.lower(): name for name in known}
        if "provider" in self._given:  # Spark adds this key, and others, when it makes a table
            raise SourceError(f"Spark could not read this table again, as it does not show its options: {NO_TABLES}")
        for name in self._given.keys() - names:
            near = [names[match] for match in get_close_matches(name, names, 2)]
            meant = f"did you mean {' or '.join(near)}?" if near else f"the options are {', '.join(known)}"
            raise SourceError(f"there is no option {name}: {meant}")

    def said(self) -> set[str]:
        """Names of the options that are not empty, and those values of theirs that `alpo.spark.options` tells apart."""
        texts = {self._names[name]: text.strip().lower() for name, text in self._given.items() if text.strip()}
        return {*texts, *(one for one in VALUES if texts.get(one.partition("=")[0]) == one.partition("=")[2])}

    def take(self, name: str, read: Callable[[str], T], default: T) -> T:
        text = self._given.get(name.lower())
        if text is None:
            return default
        try:
            return read(text.strip())
        except ValueError as error:
            raise SourceError(f"option {name} is {text!r}: {error}") from error

    def tls(self) -> Tls | None:
        """Certificates to show and trust: files that the driver and the executors see. Without options, those that the
        driver's environment names."""
        names = [self._given.get(name, "").strip() for name in _TLS]
        try:
            found = tls_given(os.environ, *names)
        except TlsError as error:
            raise SourceError(f"options tls.ca, tls.cert and tls.key: {error}") from error
        if found is None and names[-1]:
            raise SourceError("option tls.name goes only with tls.ca, tls.cert and tls.key: without these, no TLS")
        return found


def _servers(text: str) -> tuple[str, ...]:
    return parse_servers(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("it must be a whole number, 1 or more")
    return int(text)


def _place(text: str) -> int | str:
    return text.lower() if text.lower() in (EARLIEST, LATEST) else _lsn(text)


def _end(text: str) -> int | str:
    return LATEST if text.lower() == LATEST else _lsn(text, "latest")


def _lsn(text: str, words: str = "earliest or latest") -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"it must be an LSN (1 or more), {words}")
    return int(text)


def _cursor(text: str) -> str:
    if not valid_cursor(text):
        raise ValueError(NAME_WANTED)
    return text


def _log(text: str) -> str:
    if text not in ("", FIRST_NAME) and not valid_log(text):
        raise ValueError(LOG_NAME_WANTED)
    return "" if text == FIRST_NAME else text


def _directory(text: str) -> str:
    """Parse an absolute path in this machine's file system."""
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "file":
        text = "/" + rest.lstrip("/")
    elif colon and len(scheme) > 1 and "/" not in scheme:
        raise ValueError(
            "it must be a directory that the driver and the executors see as a file system (a local path, NFS): what "
            "fixes a batch is a file that is made exclusively, and synced"
        )
    if not text:
        raise ValueError("it must be a directory")
    return str(Path(text).absolute())


def _app(text: str) -> str:
    if not valid_name(WRITER_PREFIX + text) or not text:
        raise ValueError(f"it must be a name of 1 to {CLIENT_BYTES_MAX - len(WRITER_PREFIX)} bytes")
    return text


def _version(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 63 - BATCH_BITS:
        raise ValueError(f"it must be a whole number, from 0 to {(1 << 63 - BATCH_BITS) - 1}")
    return int(text)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return text.lower() == "true"


def _one_of(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(f"it must be one of {', '.join(allowed)}")
        return text.lower()

    return read


def _read_from(text: str) -> str:
    if text.lower() in ("any", "leader"):
        return text.lower()
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("it must be any, leader, or a server's id")
    return text


#: The last millisecond of the year 9999, the last one that Python's calendar has.
_TIME_MS_MAX = 253_402_300_799_999
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds(text: str) -> float:
    for unit in ("ms", "s", "m", "h"):
        number = text.removesuffix(unit).strip()
        if text.endswith(unit) and number.replace(".", "", 1).isdecimal():
            return float(number) * _UNITS_S[unit]
    raise ValueError("it must be a time such as 500ms, 10s, 5m or 1h")


def _timeout(text: str) -> float:
    seconds = _seconds(text)
    if not seconds:
        raise ValueError("it must be more than 0")
    return seconds


def _time_ms(text: str) -> int:
    """Parse milliseconds since the epoch, or RFC 3339 with a time zone."""
    if text.isdecimal():
        if int(text) > _TIME_MS_MAX:
            raise ValueError("it must be milliseconds since 1970, up to the year 9999; are these smaller units?")
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = datetime.min
    if time.tzinfo is None:
        raise ValueError("it must be milliseconds since 1970, or a time with its zone such as 2026-11-21T08:00:00Z")
    try:
        return math.ceil(time.astimezone(UTC).timestamp() * 1000)
    except OverflowError as error:
        raise ValueError("in UTC it must be a time of the years 1 to 9999") from error
