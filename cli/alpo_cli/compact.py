"""`alpo compact`: have servers give the free space of their data files back to the file system, while they serve."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass

import trio

from alpo.client.compacting import FileSpace, watch
from alpo.client.servers import Servers
from alpo.client.status import members_of
from alpo.errors import AlpoError

from .checks import size
from .exits import Failed
from .options import Target
from .output import print_json, say
from .progress import Step, slow_progress


@dataclass(frozen=True, slots=True)
class Wanted:
    """``server`` None: every member, one after the other. ``wait``: until all is given back."""

    server: int | None
    wait: bool


def run(target: Target, wanted: Wanted) -> None:
    """Do it, and say of each server how large its file was and is."""
    with slow_progress() as step:
        trio.run(_compact, target, wanted, step)


async def _compact(target: Target, wanted: Wanted, step: Step) -> None:
    servers = Servers(target.servers)
    try:
        if wanted.server is not None:
            await _one(servers, wanted.server, target, wanted.wait, step)
            return
        members = [id for id, _ in await members_of(servers, target.timeout_s) if id is not None]
        if not members:
            raise Failed(f"none of {', '.join(target.servers)} could be reached")
        failed = 0
        for id in members:
            try:
                await _one(servers, id, target, wanted.wait, step)
            except AlpoError as error:
                failed += 1
                say(f"server {id}: {error}")
        if failed:
            raise Failed(f"{failed} of {len(members)} servers gave nothing, or not all, back")
    finally:
        servers.close()


async def _one(servers: Servers, id: int, target: Target, wait: bool, step: Step) -> None:
    seen: list[FileSpace] = []
    async with aclosing(watch(servers, id, target.timeout_s)) as looks:  # type: ignore[type-var]
        async for now in looks:
            seen = [*seen[:1], now]
            step(f"server {id}", seen[0].free_bytes - now.free_bytes, seen[0].free_bytes)
            if len(seen) > 1 and not wait:
                break
    _tell(target, *seen)


def _tell(target: Target, before: FileSpace, now: FileSpace) -> None:
    if target.json:
        print_json({"server": now.server, "disk_bytes_before": before.disk_bytes, "disk_bytes": now.disk_bytes,
                    "free_bytes": now.free_bytes, "done": not now.giving_back})
    elif now.giving_back and now.free_bytes:
        say(f"server {now.server}: gives {size(now.free_bytes)} of {size(now.disk_bytes)} back")
    else:
        say(f"server {now.server}: {size(before.disk_bytes)} before, {size(now.disk_bytes)} now")
