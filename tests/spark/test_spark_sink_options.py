"""The options and the payloads of a write: accepted values, and errors for others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from alpo.spark import ledger
from alpo.spark.columns import arrow_schema
from alpo.spark.ledger import Part, Tag, stage
from alpo.spark.options import WriteOptions
from alpo.spark.origin import SourceError
from alpo.spark.source import AlpoDataSource, check_columns, columns_of

SERVERS = {"servers": "h:1,i:2"}


def of(streaming: bool = False, **given: str) -> WriteOptions:
    return WriteOptions.of(SERVERS | given, streaming=streaming)


def test_what_is_given_in_any_case() -> None:
    assert of(True, CheckpointLocation="file:///a/b", TIMEOUT="5s") == WriteOptions(
        ("h:1", "i:2"), "/a/b", timeout_s=5, repeat="last"
    )
    assert of(True, mode="Direct", queryName="q").direct and not of(mode="exactlyOnce").direct
    assert of(txnAppId="a", txnVersion="0") == WriteOptions(("h:1", "i:2"), app="a", version=0)
    assert of(checkpointLocation="c").directory == str(Path("c").absolute())


@pytest.mark.parametrize(("streaming", "given", "said"), [
    (True, {}, "give checkpointLocation"),
    (True, {"checkpointLocation": "hdfs://name/a"}, "a local path, NFS"),
    (True, {"checkpointLocation": "s3a:/a"}, "a local path, NFS"),
    (True, {"checkpointLocation": "/a", "txnAppId": "a", "txnVersion": "1"}, "for a batch write"),
    (False, {"txnAppId": "a"}, "txnAppId goes only with txnVersion"),
    (False, {"txnVersion": "1"}, "txnVersion goes only with txnAppId"),
    (False, {"txnAppId": "a", "txnVersion": "-1"}, "from 0 to 8796093022207"),
    (False, {"txnAppId": "a", "txnVersion": str(1 << 43)}, "from 0 to 8796093022207"),
    (False, {"txnAppId": "a" * 123, "txnVersion": "1"}, "1 to 122 bytes"),
    (False, {"txnAppId": "", "txnVersion": "1"}, "txnVersion goes only with txnAppId"),
    (False, {"txnAppId": ""}, "1 to 122 bytes"),
    (False, {"txnRepeat": "same"}, "goes only with txnAppId"),
    (False, {"txnAppId": "a", "txnVersion": "1", "txnRepeat": "never"}, "one of any, last, same"),
    (False, {"txnApp": "nightly", "txnVer": "7"}, "there is no option txn(app|ver): did you mean txn(AppId|Version)"),
    (False, {"checkPointDir": "/a"}, "did you mean checkpointLocation"),
    (False, {"path": "/a"}, "there is no option path"),
    (False, {"timeout": "0ms"}, "option timeout is '0ms': it must be more than 0"),
    (False, {"mode": "twice"}, "one of exactlyonce, direct"),
    (False, {"servers": ""}, "no servers"),
])
def test_what_cannot_be_is_told(streaming: bool, given: dict[str, str], said: str) -> None:
    with pytest.raises(SourceError, match=said):
        of(streaming, **given)


def test_a_write_needs_servers() -> None:
    with pytest.raises(SourceError, match="option servers"):
        WriteOptions.of({}, streaming=False)


def test_payloads_are_bytes_or_text_and_never_null() -> None:
    def part(values: list[object], kind: pa.DataType) -> Part:
        batch = pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["payload"])
        return stage([batch], Tag("q", "r", 0, 0, 0), None)

    for kind in (pa.string(), pa.large_string()):
        assert list(ledger.payloads(part(["ä", ""], kind), None)) == [["ä".encode(), b""]]
    assert list(ledger.payloads(part([b"\xff"], pa.large_binary()), None)) == [[b"\xff"]]
    with pytest.raises(SourceError, match="NULL"):
        part([b"a", None], pa.binary())
    with pytest.raises(SourceError, match="int64"):
        part([1], pa.int64())


def test_columns_have_any_case_no_null_and_come_once() -> None:
    """Columns are checked at once; Spark would report them late, in an executor, or as an error of Java."""
    columns = {"lsn bigint, PAYLOAD binary, Time timestamp": "", "lsn bigint not null": "leave NOT NULL out",
               "lsn bigint, LSN bigint": "lsn is named twice", "LSN string": "LSN is a bigint, not a string",
               "Topic string": "there is no column Topic"}
    for ddl, said in columns.items():
        fields = [text.split(" ", 2) for text in ddl.split(", ")]
        types = {"bigint": LongType(), "binary": BinaryType(), "timestamp": TimestampType(), "string": StringType()}
        schema = StructType([StructField(name, types[type], not rest) for name, type, *rest in fields])
        if said:
            with pytest.raises(SourceError, match=said):
                columns_of(schema)
        else:
            assert arrow_schema(columns_of(schema)).names == ["lsn", "PAYLOAD", "Time"]
    check_columns(StructType([StructField("Payload", BinaryType())]))


def test_a_stream_that_cannot_be_says_so_when_it_is_first_asked() -> None:
    """PySpark hides what is raised earlier: it stops a reader that it has not got."""
    source = AlpoDataSource({"servers": "h:1", "endingLsn": "5"})
    reader = source.streamReader(StructType([StructField("lsn", LongType())]))
    for call in (
        reader.initialOffset, reader.getDefaultReadLimit, reader.reportLatestOffset,
        lambda: reader.latestOffset({}, ReadAllAvailable()), lambda: reader.partitions({}, {}),
    ):
        with pytest.raises(SourceError, match="a stream has no end"):
            call()
    reader.stop()
