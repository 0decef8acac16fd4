"""Waiting for a local cluster: until someone leads, until a server has caught up."""

from __future__ import annotations

from typing import Any

import anyio

import alpo
from alpo.errors import AlpoError

from .exits import Failed
from .local_cluster import LocalCluster

#: Entries that a server may be behind under load and still count as level.
LEVEL_ENTRIES = 5_000
_POLL_S = 0.03
_ANSWER_WITHIN_S = 1.0


async def statuses(log: alpo.Log) -> list[dict[str, Any]]:
    """The members that answer at this moment."""
    try:
        return [dict(member) for member in await log.status(timeout_s=_ANSWER_WITHIN_S) if member.get("reachable")]
    except AlpoError:
        return []


async def leader_within(cluster: LocalCluster, timeout_s: float) -> int:
    """Wait until a server leads; its id. A cluster of one that was never started is founded.

    Raises Failed with the end of a log when a server that was started has ended, or after ``timeout_s``.
    """
    with anyio.move_on_after(timeout_s):
        async with alpo.connect(cluster.addresses) as log:
            while True:
                for server in cluster.servers:
                    if not server.running():
                        raise Failed(f"server {server.id} did not start; its log ends:\n{server.log_tail()}")
                members = await statuses(log)
                for member in members:
                    if member["state"] == "leader":
                        return int(member["id"])
                if len(cluster.servers) == 1 and members and members[0]["status"] in ("EMPTY", "STARTING"):
                    await log.init()
                await anyio.sleep(_POLL_S)
    tail = cluster.servers[0].log_tail()
    raise Failed(f"no leader within {timeout_s:g} s; the log of server {cluster.servers[0].id} ends:\n{tail}")


async def caught_up_within(cluster: LocalCluster, timeout_s: float, steady: bool = True) -> int:
    """Wait until every server answers, one leads, and all stand level; the leader's id. Raises Failed.

    Level means that the copies end at the same payload, each on its own disk; without ``steady`` (appends go on
    meanwhile) that they are at most LEVEL_ENTRIES apart.
    """
    apart_max = 0 if steady else LEVEL_ENTRIES
    with anyio.move_on_after(timeout_s):
        async with alpo.connect(cluster.addresses) as log:
            while True:
                members = await statuses(log)
                marks = [member["guaranteed_id"] for member in members]
                leaders = [member["id"] for member in members if member["state"] == "leader"]
                if len(members) == len(cluster.servers) and len(leaders) == 1:
                    level = max(marks) - min(marks) <= apart_max
                    if steady:  # a mark may be ahead of the server's own disk
                        level = level and len({member["last_lsn"] for member in members}) == 1
                    if level:
                        return int(leaders[0])
                await anyio.sleep(_POLL_S)
    raise Failed(f"the servers were not all there and level within {timeout_s:g} s")
