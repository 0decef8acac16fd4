"""An import that is killed and started anew: ``python importer.py ADDRESSES FIRST COUNT SEED``.

Payload N has serial N. The payloads from FIRST on are appended, in groups that SEED draws; how many are in the log is
printed now and then.
"""

from __future__ import annotations

import random
import sys

import trio

import alpo

NAME = "importer"


async def bring_in(addresses: str, first: int, count: int, seed: int) -> None:
    rng = random.Random(seed)
    async with alpo.connect(addresses, client=NAME) as log:
        if rng.random() < 0.5:
            vars(sys.modules["alpo.client.handle"])["CHUNK"] = rng.choice((3, 40, 512))
            payloads = (b"%d" % number for number in range(first, count + 1))
            await log.append_many(payloads, serial=first, progress=lambda done: print(first - 1 + done, flush=True))
            return
        while first <= count:
            upto = min(count, first + rng.choice((1, 7, 100, 800)) - 1)
            for handle in [log.append_nowait(b"%d" % number, serial=number) for number in range(first, upto + 1)]:
                await handle
            print(upto, flush=True)
            first = upto + 1


if __name__ == "__main__":
    first, count, seed = map(int, sys.argv[2:])
    trio.run(bring_in, sys.argv[1], first, count, seed)
