"""One of several schedulers: the one that leads admits agents, removes those that are gone, and hands out jobs.

    python scheduler.py NAME [--servers HOST:PORT,…]

Everything that the next leader must know is in the state: kill this program at any line, and another one goes on.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import trio

import alpo
import alpo.state
from alpo.registry import Admit, Deposed, Readmit, Registry, Reject, Remove
from alpo.state import Changed, If, LockLost, Put, State, Variable
from alpo.state.recipes import Election, Lock

#: Seconds after which a silent leader has lost its reign.
REIGN_S = 3.0


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


async def run(name: str, servers: str | None) -> None:
    """Wait to lead, lead, and wait again if that is over."""
    async with alpo.state.connect(servers, timeout_s=3) as state:
        election = Election(state, "scheduler", value=name, ttl_s=REIGN_S)
        while True:
            try:
                async with election.lead() as reign:
                    say(event="leads", scheduler=name, token=reign.token)
                    await lead(state, reign, name)
            except (LockLost, Deposed, alpo.Closed) as error:
                say(event="leads no more", scheduler=name, why=str(error))
            except (alpo.ProtocolError, alpo.TlsMismatch):
                raise  # the servers are another cluster's, as after a restore: begin anew
            except (alpo.NotGuaranteed, alpo.Unavailable) as error:
                say(event="cannot reach the log", scheduler=name, why=str(error))


async def lead(state: State, reign: Lock, name: str) -> None:
    """Serve agents and jobs until the reign is over."""
    async with Registry(state, "agents", info={"scheduler": name}) as registry:
        say(event="recovered", scheduler=name, agents=sorted(registry.rows))
        here: set[str] = set()  # agents that are heard
        jobs: dict[str, Variable] = {}
        async with state.watch() as changes:
            settled = False
            async for change in changes:
                kind, _, id = change.name.partition("/")
                if kind == "agent":
                    await agent_changed(state, registry, id, change)
                    (here.add if change.version else here.discard)(id)
                elif kind == "job":
                    jobs[id] = change
                if not settled and change.version > registry.token:
                    settled = True  # all earlier variables have been seen: an agent without one is gone
                    for silent in set(registry.rows) - here:
                        await registry.apply(Remove(silent))
                await hand_out(state, reign, registry, here, jobs)


async def agent_changed(state: State, registry: Registry, id: str, change: Variable) -> None:
    """Admit an agent that is new, or remove one that is heard no more."""
    if not change.version:
        if await registry.apply(Remove(id)):
            say(event="removed", agent=id)
    elif id not in registry.rows:
        known = change.json["admitted_before"]
        try:
            admitted = await registry.apply(Readmit(id) if known else Admit(id, {"since": registry.token}))
        except Reject:
            return
        if admitted:
            say(event="admitted", agent=id)
        else:  # the agent was removed: what it still does counts no more
            say(event="refused", agent=id)
            await state.put(change.name, None)


async def hand_out(
    state: State, reign: Lock, registry: Registry, here: set[str], jobs: dict[str, Variable]
) -> None:
    """Give jobs that wait, and those of agents that are gone, to agents that are idle."""
    busy = {job.json["agent"] for job in jobs.values() if job.version and job.json["status"] == "running"}
    idle = sorted(id for id in here & set(registry.rows) if id not in busy)
    for id, job in sorted(jobs.items()):
        if not idle:
            return
        told = job.json or {"status": "gone"}
        orphaned = told["status"] == "running" and told["agent"] not in registry.rows
        if told["status"] != "waiting" and not orphaned:
            continue
        agent = idle.pop()
        given = {"status": "running", "agent": agent, "token": reign.token}
        try:
            # Hand it out only if nobody touched the job, and only while we lead.
            await state.commit(
                [If(job.name, version=job.version), If("scheduler", created=reign.token)], [Put(job.name, json=given)]
            )
        except Changed as error:
            if error.name == "scheduler":
                raise LockLost("another scheduler leads") from error
        else:
            jobs[id] = await state.fetch(job.name, local=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--servers")
    options = parser.parse_args()
    trio.run(run, options.name, options.servers)


if __name__ == "__main__":
    main()
