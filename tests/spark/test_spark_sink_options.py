"""The options and the payloads of a write: what is taken, and what the user is told otherwise."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from alpo.spark import staging
from alpo.spark.options import WriteOptions
from alpo.spark.origin import SourceError
from alpo.spark.staging import Part, Tag, stage

SERVERS = {"servers": "h:1,i:2"}


def of(streaming: bool = False, **given: str) -> WriteOptions:
    return WriteOptions.of(SERVERS | given, streaming=streaming)


def test_what_is_given_in_any_case() -> None:
    assert of(True, CheckpointLocation="file:///a/b", TIMEOUT="5s") == WriteOptions(
        ("h:1", "i:2"), "/a/b", timeout_s=5, repeat="last"
    )
    assert of(True, mode="Direct").direct and not of(mode="exactlyOnce").direct
    assert of(txnAppId="a", txnVersion="0") == WriteOptions(("h:1", "i:2"), app="a", version=0)
    assert of(checkpointLocation="c").directory == str(Path("c").absolute())


@pytest.mark.parametrize(("streaming", "given", "said"), [
    (True, {}, "give checkpointLocation"),
    (True, {"checkpointLocation": "hdfs://name/a"}, "a local path, NFS"),
    (True, {"checkpointLocation": "s3a:/a"}, "a local path, NFS"),
    (True, {"checkpointLocation": "/a", "txnAppId": "a", "txnVersion": "1"}, "for a batch write"),
    (False, {"txnAppId": "a"}, "go together"),
    (False, {"txnVersion": "1"}, "go together"),
    (False, {"txnAppId": "a", "txnVersion": "-1"}, "from 0 to 8796093022207"),
    (False, {"txnAppId": "a", "txnVersion": str(1 << 43)}, "from 0 to 8796093022207"),
    (False, {"txnAppId": "a" * 123, "txnVersion": "1"}, "1 to 122 bytes"),
    (False, {"txnAppId": "", "txnVersion": "1"}, "1 to 122 bytes"),
    (False, {"txnRepeat": "same"}, "goes with txnAppId"),
    (False, {"txnAppId": "a", "txnVersion": "1", "txnRepeat": "never"}, "one of any, last, same"),
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
        assert list(staging.payloads(part(["ä", ""], kind), None)) == [["ä".encode(), b""]]
    assert list(staging.payloads(part([b"\xff"], pa.large_binary()), None)) == [[b"\xff"]]
    with pytest.raises(SourceError, match="NULL"):
        part([b"a", None], pa.binary())
    with pytest.raises(SourceError, match="int64"):
        part([1], pa.int64())
