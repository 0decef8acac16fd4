"""Pairs of options: every one is decided. Those that make no sense are refused, in words; all others are taken."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from alpo.spark.options import READS, RULES, SPARKS, WRITES, ReadOptions, WriteOptions
from alpo.spark.origin import SourceError

#: A value of each option that is right by itself.
READ = {
    "servers": "h:1", "path": "/data", "log": "billing", "archivePath": "/archive", "verifyArchive": "true",
    "startingLsn": "5",
    "startingTimestamp": "1000", "startingTimestampStrategy": "latest", "endingLsn": "9", "endingTimestamp": "2000",
    "recordsPerPartition": "100", "state": "true", "asOfLsn": "7", "readFrom": "leader", "failOnDataLoss": "false",
    "maxRecordsPerTrigger": "20", "maxBytesPerTrigger": "100", "minRecordsPerTrigger": "10", "maxTriggerDelay": "5s",
    "cursor": "nightly", "timeout": "5s", "tls.ca": "/a", "tls.cert": "/b", "tls.key": "/c", "tls.name": "prod",
}
WRITE = {
    "servers": "h:1", "log": "billing", "checkpointLocation": "/c", "txnAppId": "a", "txnVersion": "7",
    "txnRepeat": "last",
    "mode": "direct", "timeout": "5s", "queryName": "q", "tls.ca": "/a", "tls.cert": "/b", "tls.key": "/c",
    "tls.name": "prod",
}
TLS = ("tls.ca", "tls.cert", "tls.key")
#: Option -> the options that must stand beside it.
NEEDS: dict[str, tuple[str, ...]] = {
    "verifyArchive": ("archivePath",), "startingTimestampStrategy": ("startingTimestamp",), "asOfLsn": ("state",),
    "maxTriggerDelay": ("minRecordsPerTrigger",), "cursor": ("servers",), "readFrom": ("servers",),
    "timeout": ("servers",), "tls.name": ("servers", *TLS), **dict.fromkeys(TLS, ("servers", *TLS)),
    "txnAppId": ("txnVersion",), "txnVersion": ("txnAppId",), "txnRepeat": ("txnAppId", "txnVersion"),
}
PAYLOADS = ("startingLsn", "startingTimestamp", "endingLsn", "endingTimestamp", "recordsPerPartition")
STREAMS = ("maxRecordsPerTrigger", "maxBytesPerTrigger", "minRecordsPerTrigger", "maxTriggerDelay", "cursor")
#: Pairs that make no sense. All others do.
MEANINGLESS = {frozenset(pair) for pair in (
    ("servers", "path"), ("startingLsn", "startingTimestamp"), ("endingLsn", "endingTimestamp"),
    ("maxRecordsPerTrigger", "maxBytesPerTrigger"), ("state", "failOnDataLoss"),
    *(("state", name) for name in (*PAYLOADS, "startingTimestampStrategy")),
    ("mode", "txnAppId"), ("mode", "txnVersion"), ("mode", "txnRepeat"),
)}
#: Options that make no sense in a kind of query; and pairs that make none in this one alone.
ALONE: dict[str, tuple[str, ...]] = {
    "spark.read": STREAMS, "spark.readStream": ("endingLsn", "endingTimestamp", "state", "asOfLsn"),
    "df.write": ("queryName",), "df.writeStream": ("txnAppId", "txnVersion", "txnRepeat"),
}
IN_ONE = {"df.write": {frozenset(("mode", "checkpointLocation"))}}


def parse(kind: str, given: dict[str, str]) -> ReadOptions | WriteOptions:
    if kind.startswith("spark."):
        return ReadOptions.of(given, streaming=kind.endswith("Stream"))
    return WriteOptions.of(given, streaming=kind.endswith("Stream"))


def completed(kind: str, pair: tuple[str, ...]) -> set[str]:
    """The pair, with what each of the two needs, and a place to read or write."""
    names = set(pair)
    while more := {need for name in names for need in NEEDS.get(name, ())} - names:
        names |= more
    if kind.startswith("df."):
        names |= {"servers"} | ({"checkpointLocation"} if kind == "df.writeStream" else set())
    elif "log" in names and not names & {"servers", "path"}:
        names.add("servers")
    elif not names & {"servers", "path", "archivePath"}:
        names.add("archivePath")
    return names


@pytest.mark.parametrize("kind", RULES)
def test_every_pair_is_decided(kind: str) -> None:
    known = READ if kind.startswith("spark.") else WRITE
    assert set(known) == set(READS if known is READ else (*WRITES, *SPARKS))
    wrong = MEANINGLESS | IN_ONE.get(kind, set())
    for pair in combinations(known, 2):
        names = completed(kind, pair)
        refused = bool(names & set(ALONE[kind])) or any(one <= names for one in wrong)
        try:
            parse(kind, {name: known[name] for name in names})
        except SourceError as error:
            assert refused, (names, error)
            assert re.match(r"option \S+ (does not go|goes only) with .+: ", str(error)), error
        else:
            assert not refused, names


@pytest.mark.parametrize(("kind", "given"), [
    (kind, {name, *NEEDS[name]} - {need})
    for kind, known in (("spark.read", READ), ("spark.readStream", READ), ("df.write", WRITE))
    for name in known if name in NEEDS and name not in ALONE[kind] for need in NEEDS[name]
    if need != name and not (kind == "df.write" and need == "servers")
])
def test_an_option_that_lacks_what_it_needs_is_refused(kind: str, given: set[str]) -> None:
    known = READ if kind.startswith("spark.") else WRITE
    place = {} if given & {"archivePath", "servers"} or kind == "df.write" else {"path": "/data"}
    if kind == "df.write":
        place["servers"] = "h:1"
    with pytest.raises(SourceError, match=r"goes only with|tls\.ca"):
        parse(kind, {name: known[name] for name in given} | place)


@pytest.mark.parametrize(("kind", "given", "said"), [
    ("spark.read", {"servers": "h:1", "startingLsn": "5", "startingTimestamp": "6"},
     "option startingLsn does not go with startingTimestamp: only one of them can say where to begin"),
    ("spark.read", {"servers": "h:1", "startingLsn": "Latest", "endingLsn": "6"},
     "option endingLsn does not go with startingLsn=latest: there is nothing between"),
    ("spark.read", {"servers": "h:1", "STATE": " True", "failondataloss": "FALSE"},
     "option failOnDataLoss=false does not go with state=true"),
    ("spark.read", {"path": "/data", "tls.name": "prod"}, "option tls.name goes only with servers"),
    ("spark.read", {"servers": "h:1", "tls.name": "prod"}, r"option tls\.name goes only with tls\.ca, tls\.cert and"),
    ("df.write", {"servers": "h:1", "queryName": "q"}, "option queryName goes only with df.writeStream: .*txnAppId"),
    ("df.write", {"servers": "h:1", "Mode": "Direct", "checkpointLocation": "/c"}, "does not go with mode=direct"),
])
def test_it_is_said_why(kind: str, given: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ALPO_CA", "ALPO_CERT", "ALPO_KEY", "ALPO_TLS_NAME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SourceError, match=said):
        parse(kind, given)


def test_what_only_looks_like_a_pair_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options that are empty, or have the value that changes nothing; a cluster's name for the environment's files."""
    parse("spark.read", {"servers": "h:1", "path": "", "state": "false", "startingLsn": "1", "failOnDataLoss": "false"})
    parse("spark.read", {"servers": "h:1", "state": "true", "failOnDataLoss": "true"})
    parse("df.write", {"servers": "h:1", "mode": "exactlyOnce", "txnAppId": "a", "txnVersion": "1"})
    for name in TLS:
        monkeypatch.setenv(f"ALPO_{name[4:].upper()}", "/file")
    parse("spark.read", {"servers": "h:1", "tls.name": "prod"})
