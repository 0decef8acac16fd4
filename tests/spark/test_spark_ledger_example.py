"""The audit of the ledger in examples/ledger: SQL over the log, a replay, and a replica agree; or it says so."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import audit
import pytest
from alpo_command import Alpo
from ledger import NAME, Ledger, Refused, opening, transfer

import alpo.rsm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Wrong(Ledger):
    """A ledger that keeps a cent of each transfer."""

    def _move(self, source: str, target: str, cents: int) -> dict[str, int]:
        balances = super()._move(source, target, cents)
        self.accounts[target] -= 1
        return balances


@pytest.mark.soak  # `test_example_ledger` runs in the quick tests: there the example and its replay agree
def test_the_audit(alpo: Alpo, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(alpo.servers) as ledger:
        for account in ("a", "b", "ü"):
            ledger.run(opening(account, 100))
        for number in range(3):
            for source, target in (("a", "b"), ("b", "ü"), ("a", "nobody")):
                with suppress(Refused):
                    ledger.run(transfer(source, target, 40 + number, f'the "{number}"th'))
            if number == 0:
                found = audit.audit(spark, alpo.servers)
                assert found.sound and found.sql == ledger.machine.accounts and sum(found.sql.values()) == 300
            info = ledger.snapshot(trim=True)
        assert info.first_lsn > 5, "the next audit begins in the middle"
        ledger.run(transfer("ü", "a", 1))
        with monkeypatch.context() as patched:
            patched.setattr(audit, "Ledger", Wrong)
            found = audit.audit(spark, alpo.servers)
        assert not found.sound and found.sql == found.replay == ledger.machine.accounts != found.replica


def connected(servers: str) -> alpo.rsm.SyncReplica[Ledger]:
    return alpo.rsm.connect_sync(Ledger, servers, name=NAME)
