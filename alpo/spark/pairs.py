"""Options that do not go together: a table for each kind of query, and one rule that reads it.

What an option would do beside another must not be left out without a word: such a pair is an error.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

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
