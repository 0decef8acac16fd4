"""Cursors on every server, held against the one log: equal at equal ids, and nothing cleaned that one of them needs."""

from __future__ import annotations

from collections.abc import Sequence

from alpo.core.disk import Write
from alpo.core.inputs import Input
from alpo.core.messages import Envelope
from alpo.core.ready import Ready

from ..broken import Broken
from ..host import Host
from .kept import Kept
from .safety import Safety

EVERY_IDS = 8


class Held:
    """One watcher for all servers. ``kept``: an account of our own; ``safety`` knows how far the one log goes."""

    def __init__(self, kept: Kept, safety: Safety) -> None:
        self._kept, self._safety = kept, safety
        self._compared: dict[int, int] = {}

    def booted(self, host: Host) -> None:
        self._compare(host)

    def sent(self, host: Host, envelope: Envelope) -> None:
        return

    def committing(self, host: Host, writes: Sequence[Write]) -> None:
        return

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        replica = host.replica
        if ready.write is None or replica is None:
            return
        base = ready.write.base
        if base is not None:
            for name, lsn in self._kept.cursors_at(max(replica.guaranteed_id, replica.applied_id)):
                if lsn < base.next_lsn:
                    raise Broken("cursors", f"server {host.id} cleans up to LSN {base.next_lsn - 1}; the cursor {name} "
                                 f"needs LSN {lsn}")
        if replica.guaranteed_id // EVERY_IDS != self._compared.get(host.id, 0) // EVERY_IDS:
            self._compare(host)

    def _compare(self, host: Host) -> None:
        replica = host.replica
        if replica is None or replica.guaranteed_id > len(self._safety.guaranteed):
            return
        if replica.applied_id > replica.guaranteed_id:  # what came with a base is ahead of its log
            return
        id = self._compared[host.id] = replica.guaranteed_id
        if replica.cursors.at(id) != self._kept.cursors_at(id):
            raise Broken("cursors", f"server {host.id} has {replica.cursors.at(id)} at entry {id}; the log says "
                         f"{self._kept.cursors_at(id)}")
