"""The data source's options: accepted values, and errors for others."""

from __future__ import annotations

import math
import re

import pytest
from printed import ROOT
from spark_kit import options

from alpo.spark.options import EARLIEST, LATEST, READS, WRITES, ReadOptions
from alpo.spark.origin import SourceError


def test_defaults() -> None:
    batch = options(path="/data")
    assert (batch.starting, batch.ending, batch.fail_on_data_loss, batch.read_from) == (EARLIEST, LATEST, True, "any")
    assert options(True, servers="h:1").starting == LATEST


def test_names_are_in_any_case_and_texts_are_understood() -> None:
    given = ReadOptions.of({
        "SERVERS": "a:1, b:2", "startinglsn": "7", "failOnDataLoss": "False", "maxTriggerDelay": "2m",
        "minRecordsPerTrigger": "10", "maxBytesPerTrigger": "1000", "readFrom": "3", "timeout": "500ms",
    }, streaming=True)
    assert given.servers == ("a:1", "b:2") and given.starting == 7 and not given.fail_on_data_loss
    assert (given.delay_s, given.records_min, given.bytes_max, given.read_from) == (120.0, 10, 1000, "3")
    assert given.timeout_s == 0.5


@pytest.mark.parametrize(
    ("text", "time_ms"), [("1700000000000", 1_700_000_000_000), ("2023-11-14T22:13:20.0005Z", 1_700_000_000_001),
                          ("2023-11-14T23:13:20+01:00", 1_700_000_000_000)],
)
def test_times(text: str, time_ms: int) -> None:
    assert options(path="/data", startingTimestamp=text).since_ms == time_ms


@pytest.mark.parametrize(
    ("streaming", "given", "words"), [
        (False, {}, "option servers .* or option path"),
        (False, {"servers": "h:1", "path": "/data"}, "one of them"),
        (False, {"servers": "nowhere:"}, "option servers is 'nowhere:'"),
        (False, {"path": "/data", "startingLsn": "0"}, "option startingLsn is '0': it must be an LSN"),
        (False, {"path": "/data", "startingLsn": "-3"}, "it must be an LSN"),
        (False, {"path": "/data", "endingLsn": "earliest"}, "option endingLsn"),
        (False, {"path": "/data", "startingLsn": "1", "startingTimestamp": "5"}, "say where to begin"),
        (False, {"path": "/data", "startingTimestamp": "2023-11-14T22:13:20"}, "time with its zone"),
        (False, {"path": "/data", "maxRecordsPerTrigger": "5"}, "is for a stream"),
        (True, {"path": "/data", "endingLsn": "5"}, "a stream has no end"),
        (True, {"path": "/data", "maxRecordsPerTrigger": "5", "maxBytesPerTrigger": "5"}, "only one of them can limit"),
        (True, {"path": "/data", "minRecordsPerTrigger": "9", "maxTriggerDelay": "5"}, "500ms, 10s"),
        (False, {"path": "/data", "failOnDataLoss": "yes"}, "true or false"),
        (False, {"servers": "h:1", "readFrom": "everybody"}, "any, leader"),
        (False, {"path": "/data", "recordsPerPartition": "0"}, "1 or more"),
        (False, {"path": "/data", "startingTimestamp": "5", "startingTimestampStrategy": "never"}, "error, latest"),
        (False, {"path": "/data", "endingLsn": "earliest"}, r"an LSN \(1 or more\), latest$"),
        (False, {"path": "/data", "endingLsn": "1", "endingTimestamp": "5"}, "endingLsn does not go with ending"),
        (False, {"path": "/data", "startingTimestamp": "6", "endingTimestamp": "5"}, "comes before startingTimestamp"),
        (True, {"path": "/data", "endingTimestamp": "5"}, "endingTimestamp does not go with spark.readStream"),
        (False, {"path": "/data", "state": "true", "endingTimestamp": "5"}, "does not go with state=true"),
        (True, {"path": "/data", "minRecordsPerTrigger": "6", "maxRecordsPerTrigger": "5"}, "is 6, more than max.*: 5"),
        (False, {"path": "/data", "startingTimestamp": "1795633383667000000"}, "Timestamp .*milliseconds since"),
        (False, {"path": "/data", "startingTimestamp": "9999-12-31T23:59:59-23:00"}, "Timestamp .*the years 1 to"),
        (False, {"path": "/data", "endingTimestamp": "0001-01-01T00:00:00+23:00"}, "endingTimestamp .*the years 1 to"),
        (False, {"path": "/data", "startingTimestamp": "-1"}, "Timestamp .*milliseconds since"),
        (False, {"servers": "h:1", "timeout": "0s"}, "option timeout is '0s': it must be more than 0"),
        (True, {"path": "/data", "cursor": "nightly"}, "option cursor goes only with servers"),
        (False, {"servers": "h:1", "cursor": "nightly"}, "cursor goes only with spark.readStream"),
        (True, {"servers": "h:1", "cursor": ""}, "option cursor is '': a cursor's name"),
        (True, {"servers": "h:1", "startingLsns": "earliest"}, "no option startinglsns: did you mean startingLsn"),
        (True, {"servers": "h:1", "startingOffsets": "earliest"}, "did you mean startingLsn"),
        (True, {"servers": "h:1", "maxRecordPerTrigger": "1"}, "did you mean maxRecordsPerTrigger"),
        (True, {"servers": "h:1", "maxOffsetsPerTrigger": "1"}, "did you mean .*maxRecordsPerTrigger"),
        (False, {"servers": "h:1", "failOnDataLos": "false"}, "did you mean failOnDataLoss"),
        (False, {"server": "h:1"}, "did you mean servers"),
        (False, {"servers": "h:1", "zzz": "1"}, "no option zzz: the options are servers, path"),
        (False, {"servers": "h:1", "log": "Billing"}, "option log is 'Billing': a log's name is 1 to 63"),
        (False, {"archivePath": "/archive", "log": "billing"}, "option log goes only with servers or path"),
        (False, {"servers": "h:1", "txnAppId": "a"}, "no option txnappid"),
        (False, {"servers": "h:1", "provider": "alpo", "owner": "me", "option.servers": "h:1"}, "TEMPORARY VIEW"),
    ],
)
def test_what_is_wrong_is_said(streaming: bool, given: dict[str, str], words: str) -> None:
    with pytest.raises(SourceError, match=words):
        ReadOptions.of(given, streaming=streaming)


@pytest.mark.parametrize(("chapter", "known"), [("Reading", READS), ("Writing", WRITES)])
def test_the_page_lists_every_option(chapter: str, known: tuple[str, ...]) -> None:
    text = (ROOT / "docs" / "spark.md").read_text("utf-8").partition(f"\n## {chapter}\n")[2]
    (rows,) = re.findall(r"^\| option \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)[:1]
    listed = {name for row in rows.splitlines() for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert listed == set(known)


def test_without_a_delay_it_waits_for_ever() -> None:
    assert options(True, path="/data", minRecordsPerTrigger=5).delay_s == math.inf
