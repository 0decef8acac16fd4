"""An agent: says that it is there, and runs the jobs that it is given, one after the other.

    python agent.py --home DIR [--servers HOST:PORT,…]

Its id is in DIR, which it keeps over restarts. It ends, with exit code 1, when it learns that it was removed.
"""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from pathlib import Path

import trio

import alpo
import alpo.state
from alpo.state import Changed, If, Put, State, Variable

#: Seconds after which a silent agent is gone, and between two signs of life.
LEASE_S, KEEP_S = 3.0, 0.5


async def run(home: Path, servers: str | None) -> int:
    """Live until removed."""
    file = home / "id"
    before = file.exists()
    if not before:
        file.write_text(f"a-{uuid.uuid4().hex[:8]}")
    id = file.read_text()
    async with alpo.state.connect(servers, timeout_s=3) as state:
        here = await come(state, id, before)
        print(json.dumps({"event": "here", "agent": id}), flush=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, state, id)
            await stay(state, here)
            nursery.cancel_scope.cancel()
    print(json.dumps({"event": "removed", "agent": id}), flush=True)
    return 1


async def come(state: State, id: str, before: bool) -> Variable:
    """Say that we are here, as soon as the servers can be reached."""
    while True:
        try:
            return await state.put(f"agent/{id}", json={"admitted_before": before}, lease_s=LEASE_S)
        except (alpo.ProtocolError, alpo.TlsMismatch):
            raise
        except (alpo.NotGuaranteed, alpo.Unavailable) as error:
            print(json.dumps({"event": "cannot reach the log", "agent": id, "why": str(error)}), flush=True)


async def stay(state: State, here: Variable) -> None:
    """Renew the lease; returns when the cluster has let go of us."""
    while True:
        await trio.sleep(KEEP_S)
        try:
            here = await state.keep(here)
        except Changed:
            return
        except (alpo.ProtocolError, alpo.TlsMismatch):
            raise  # the servers are another cluster's, as after a restore: begin anew
        except (alpo.NotGuaranteed, alpo.Unavailable):
            pass  # the lease may still hold: try again


async def work(state: State, id: str) -> None:
    """Run what is given to us."""
    async with state.watch("job/") as changes:
        async for job in changes:
            if not job.version or job.json["status"] != "running" or job.json["agent"] != id:
                continue
            await trio.sleep(0.05)  # the work itself
            done = {"status": "done", "agent": id, "token": job.json["token"]}
            while True:
                try:
                    await state.commit([If(job.name, version=job.version)], [Put(job.name, json=done)])
                except Changed:
                    pass  # given to another meanwhile, or a try of ours whose answer was lost was done
                except (alpo.ProtocolError, alpo.TlsMismatch):
                    raise
                except (alpo.NotGuaranteed, alpo.Unavailable):
                    continue
                break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--servers")
    options = parser.parse_args()
    options.home.mkdir(parents=True, exist_ok=True)
    sys.exit(trio.run(run, options.home, options.servers))


if __name__ == "__main__":
    main()
