"""kill -9 at every step of a catch-up, of the learner and of its leader: before each write, and after it."""

from __future__ import annotations

import pytest
from session_leader import random_id
from test_members import clean, same_logs, started, votes

from alpo_sim.host import Host

ENTRIES, CLEANED = 60, 20
LARGE, LARGE_BYTES = 40, 100_000
DOWN_S, APPEND_EVERY_S = 0.05, 0.02


class CatchUp:
    """A disk is lost while appends go on; the ``step``th write of a server since then is the last of its process."""

    def __init__(self, step: int, who: str, when: str) -> None:
        self.cluster = cluster = started(seed=step, entries=ENTRIES)
        for _ in range(LARGE):
            cluster.append(random_id(cluster.count), 1, bytes(LARGE_BYTES))
        leads = cluster.elect().me.id
        self.lost = next(id for id in (1, 2, 3) if id != leads)
        cluster.run(1.0)
        clean(cluster, CLEANED)
        cluster.run(0.5)
        self.left = step
        self._victim = self.lost if who == "learner" else leads
        self._when = when
        self._over = False
        cluster.stalls = self._dies

    def _dies(self, host: Host, count: int) -> bool:
        if host.id != self._victim:
            return False
        self.left -= 1
        if self.left != 0:
            return False
        self.cluster.crash(host.id, count if self._when == "after" else 0)
        self.cluster.later(DOWN_S, lambda: self.cluster.boot(host.id))
        return True

    def _append_on(self) -> None:
        cluster = self.cluster
        if not self._over:
            if cluster.leader is not None:
                cluster.append(random_id(cluster.count), 1, b"meanwhile")
            cluster.later(APPEND_EVERY_S, self._append_on)

    def run(self) -> bool:
        """Replace the lost disk, with a kill at one step; then all logs are equal. True if that step was reached."""
        cluster = self.cluster
        cluster.wipe(self.lost)
        cluster.boot(self.lost)
        self._append_on()
        cluster.run_until(lambda: votes(cluster, self.lost))
        died = self.left <= 0
        self._over = True
        self.left = -1
        cluster.run(1.0)
        same_logs(cluster, 1, 2, 3)
        assert cluster.replica(self.lost).log.base_id == CLEANED
        return died


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.soak), "after"])
@pytest.mark.parametrize("who", ["learner", "leader"])
def test_killed_at_any_step_of_catching_up_it_is_whole(who: str, when: str) -> None:
    step = 1
    while CatchUp(step, who, when).run():
        step += 1
    assert step > 5
