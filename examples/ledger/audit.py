"""An audit of the ledger by Spark: what is on each account, by SQL over the log, and not by the ledger's own code.

    python audit.py --servers 127.0.0.1:7100

Three ways must come to the same: the SQL below, over all commands that were answered as done; `alpo-pipeline replay`;
and a replica. No account may ever have had less than nothing. Where the log was trimmed, the SQL begins with what a
replay says was on the accounts there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from ledger import NAME, VERSION, Ledger
from pyspark.sql import DataFrame, SparkSession

import alpo.rsm
import alpo.spark
from alpo.rsm import SyncReplica

#: A command in the log is six bytes, of which the first four are always these (docs/wire-format.md), and its JSON.
COMMANDS = """
    SELECT lsn, from_json(decode(substring(payload, 7), 'UTF-8'), 'array<string>') AS words
    FROM {log} WHERE substring(payload, 1, 4) = X'C1520101' AND lsn > {since}
"""
BALANCES = """
    WITH made AS (SELECT lsn, words FROM {commands} JOIN {done} USING (lsn)),
    posting AS (
        SELECT 0 AS lsn, account, cents FROM {opening}
        UNION ALL SELECT lsn, words[1], CAST(words[2] AS BIGINT) FROM made WHERE words[0] = 'open'
        UNION ALL SELECT lsn, words[1], -CAST(words[3] AS BIGINT) FROM made WHERE words[0] = 'move'
        UNION ALL SELECT lsn, words[2], CAST(words[3] AS BIGINT) FROM made WHERE words[0] = 'move'
    ),
    running AS (SELECT *, sum(cents) OVER (PARTITION BY account ORDER BY lsn) AS balance FROM posting)
    SELECT account, sum(cents) AS cents, min(balance) AS lowest FROM running GROUP BY account
"""

Balances = dict[str, int]


class Audit(NamedTuple):
    """The sums on all accounts as of an LSN, as each way has them; ``overdrawn``: accounts that once had less than
    nothing."""

    lsn: int
    sql: Balances
    replay: Balances
    replica: Balances
    overdrawn: list[str]

    @property
    def sound(self) -> bool:
        return self.sql == self.replay == self.replica and not self.overdrawn


def audit(spark: SparkSession, servers: str) -> Audit:
    """Audit the ledger in the log of these servers."""
    with alpo.rsm.connect_sync(
        Ledger, servers, name=NAME, version=VERSION, create=False, snapshots="off"
    ) as ledger:
        replica, end = ledger.read(lambda machine: (dict(machine.accounts), ledger.lsn))
        log = spark.read.format("alpo").option("servers", servers).option("endingLsn", end).load()
        (first,) = log.selectExpr("min(lsn)").collect()[0]
        since = first if first > 1 else 0  # a trimmed log begins with a snapshot, which is as of there
        commands = spark.sql(COMMANDS, log=log, since=since).cache()
        done = spark.createDataFrame([(lsn,) for lsn in lsns_done(ledger, since, commands)], "lsn bigint")
    opening = list(replayed(servers, since).items()) if since else []
    rows = spark.sql(
        BALANCES, commands=commands, done=done, opening=spark.createDataFrame(opening, "account string, cents bigint")
    ).collect()
    return Audit(
        end, {row.account: row.cents for row in rows}, replayed(servers, end), replica,
        [row.account for row in rows if row.lowest < 0],
    )


def lsns_done(ledger: SyncReplica[Ledger], since: int, commands: DataFrame) -> list[int]:
    """LSNs of the commands that were answered as done; the others were refused."""
    (last,) = commands.selectExpr("max(lsn)").collect()[0]
    found: list[int] = []
    if last is not None:
        for at, answer in ledger.answers(since + 1):
            if not isinstance(answer, Exception):
                found.append(at.lsn)
            if at.lsn == last:
                break
    return found


def replayed(servers: str, lsn: int) -> Balances:
    """Sums on all accounts as of an LSN, as `alpo-pipeline replay` has them."""
    with tempfile.TemporaryDirectory() as directory:
        items = Path(directory) / "items.jsonl"
        subprocess.run([
            sys.executable, "-m", "alpo_cli.pipeline.main", "replay", "--machine", "ledger:Ledger", "--name", NAME,
            "--code-version", str(VERSION), "--servers", servers, "--upto", str(lsn), "--items", str(items), "--json",
        ], check=True, stdout=subprocess.DEVNULL, cwd=Path(__file__).parent)
        return dict(json.loads(json.loads(line)["item"]) for line in items.read_text("utf-8").splitlines())


def main() -> None:
    """Audit, print what was found, and end with exit code 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", metavar="HOST:PORT,…", required=True)
    servers = parser.parse_args().servers
    with alpo.spark.configure(SparkSession.builder.appName("audit")).getOrCreate() as spark:
        found = audit(spark, servers)
    print("account", "by SQL", "replay", "replica", sep="\t")
    for account in sorted({*found.sql, *found.replay, *found.replica}):
        ways = (each.get(account) for each in (found.sql, found.replay, found.replica))
        print(account, *ways, *["OVERDRAWN"] * (account in found.overdrawn), sep="\t")
    print(f"total {sum(found.sql.values())} as of LSN {found.lsn}: {'all agree' if found.sound else 'NOT the same'}")
    sys.exit(not found.sound)


if __name__ == "__main__":
    main()
