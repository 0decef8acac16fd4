"""The distance that a stream advances with each trigger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from spark_kit import CLUSTER, FileLog, options

from alpo.spark.origin import SourceError
from alpo.spark.source import Follower

LOG = CLUSTER.hex()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[FileLog]:
    log = FileLog(tmp_path / "data")
    log.append([[b"%03d" % n] for n in range(10)])
    yield log
    log.close()


def at(lsn: int) -> dict[str, object]:
    return {"log": LOG, "lsn": lsn}


def test_it_begins_where_the_options_say(log: FileLog) -> None:
    assert Follower(options(True, path=log.path)).initial() == at(11)
    assert Follower(options(True, path=log.path, startingLsn="earliest")).initial() == at(1)
    assert Follower(options(True, path=log.path, startingLsn=4)).initial() == at(4)
    assert Follower(options(True, path=log.path, startingTimestamp=log.entries[5].time_ms)).initial() == at(6)


def test_a_beginning_at_the_end_stays_where_it_was(log: FileLog) -> None:
    """Spark asks for it again after it has planned how far the first trigger reads."""
    follower = Follower(options(True, path=log.path))
    start = follower.initial()
    log.append([[b"more"]])
    assert follower.latest(start, 0, 0) == at(12)
    log.append([[b"and more"]])
    assert follower.initial() == start == at(11)


def test_a_beginning_that_is_not_there_yet_is_refused(log: FileLog) -> None:
    assert Follower(options(True, path=log.path, startingLsn=11)).initial() == at(11)
    with pytest.raises(SourceError, match="ends at LSN 10, and startingLsn is 12"):
        Follower(options(True, path=log.path, startingLsn=12)).initial()


def test_limits(log: FileLog) -> None:
    follower = Follower(options(True, path=log.path))
    assert follower.latest(at(3), 0, 0) == at(11)
    assert follower.latest(at(3), 4, 0) == at(7)
    assert follower.latest(at(9), 4, 0) == at(11)
    assert follower.latest(at(11), 4, 0) == at(11)
    assert follower.latest(at(1), 0, 9) == at(4)
    assert follower.latest(at(1), 0, 10) == at(4)
    assert follower.latest(at(1), 0, 1) == at(2), "one at least"
    assert follower.latest(at(1), 0, 1000) == at(11)


def test_what_comes_is_seen_and_it_never_goes_back(log: FileLog) -> None:
    follower = Follower(options(True, path=log.path))
    log.append([[b"more"], [b"and", b"more"]])
    assert follower.latest(at(11), 0, 0) == at(14)
    assert follower.latest(at(20), 0, 0) == at(20)
    assert follower.reported() == at(14)


def test_an_end_that_is_fixed_stays(log: FileLog) -> None:
    follower = Follower(options(True, path=log.path))
    follower.fix_end()
    log.append([[b"later"]])
    assert follower.latest(at(1), 6, 0) == at(7)
    assert follower.latest(at(7), 6, 0) == at(11)
    assert follower.latest(at(11), 6, 0) == at(11)


def test_few_records_wait_for_more_but_not_for_ever(log: FileLog) -> None:
    now = [100.0]
    given = options(True, path=log.path, minRecordsPerTrigger=5, maxTriggerDelay="10s")
    follower = Follower(given, lambda: now[0])
    assert follower.latest(at(5), 0, 0) == at(11)
    assert follower.latest(at(8), 0, 0) == at(8)
    now[0] += 9
    assert follower.latest(at(8), 0, 0) == at(8)
    now[0] += 1
    assert follower.latest(at(8), 0, 0) == at(11)
    assert follower.latest(at(9), 0, 0) == at(9), "and waits again"
    follower.fix_end()
    assert follower.latest(at(9), 0, 0) == at(11)


def test_another_log_is_refused(log: FileLog) -> None:
    with pytest.raises(SourceError, match=r"ALPO_OTHER_LOG.*new checkpoint"):
        Follower(options(True, path=log.path)).latest({"log": "ab" * 16, "lsn": 3}, 0, 0)


def test_a_limit_begins_at_what_is_left(log: FileLog) -> None:
    log.clean(4)
    follower = Follower(options(True, path=log.path, failOnDataLoss=False))
    assert follower.latest(at(1), 3, 0) == at(8)
