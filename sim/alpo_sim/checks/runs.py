"""Checks of runs as leaders make them: their size, and what they add to what is in flight (R21, R32)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from alpo.core.entries import RUN_BYTES_MAX, Entry, Kind, parse_body, parts, serials_of
from alpo.core.ranks import State
from alpo.core.ready import Input, Ready

from ..broken import Broken
from ..host import Host
from ..stage import Watcher

_DATA, _SESSION, _SETTINGS = int(Kind.DATA), int(Kind.SESSION), int(Kind.SETTINGS)


class RunChecks(Watcher):
    """Check *bounds*: of the size of runs, and of the number of serials in flight."""

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        if ready.write is not None and host.running.state is State.LEADER:
            self._check_appended(host, ready.write.entries)

    def _check_appended(self, host: Host, entries: Sequence[Entry]) -> None:
        """Check the entries that a leader has just appended."""
        for entry in entries:
            if serials_of(entry.digest) > 1 and sum(len(part.body) for part in parts(entry)) > RUN_BYTES_MAX:
                raise Broken("bounds", f"entry {entry.id} is a run of more than {RUN_BYTES_MAX} bytes")
        if all(entry.kind != _DATA for entry in entries):
            return
        settings, flying = host.running.settings, self._flying(host)
        if flying is None:
            return
        if flying.total() > settings.window_total:
            raise Broken("bounds", f"leader {host.id} has {flying.total()} serials in flight")
        for client in {entry.client for entry in entries if entry.kind == _DATA}:
            if flying[client] > settings.window:
                raise Broken("bounds", f"leader {host.id} has {flying[client]} serials of {client} in flight")

    def _flying(self, host: Host) -> Counter[str] | None:
        """Count the serials of each client that a server holds and does not know as guaranteed; None if the window
        changes there: a smaller one may forget what is in flight."""
        replica = host.running
        flying: Counter[str] = Counter()
        known_id = max(replica.guaranteed_id, replica.applied_id)  # entries in its table on disk are guaranteed
        for id in range(known_id + 1, replica.log.last_id + 1):
            entry = replica.log.entry(id) or host.store.read_entries(id, id, 1)[0]
            if entry.kind == _DATA:
                flying[entry.client] += serials_of(entry.digest)
            elif entry.kind == _SESSION and parse_body(entry).get("op") == "drop":
                del flying[entry.client]  # its serials are no longer remembered
            elif entry.kind == _SETTINGS:
                return None
        return flying
