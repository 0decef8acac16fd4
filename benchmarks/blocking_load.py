"""Load of the client without an event loop: one append after the other through `alpo.connect_sync`.

    python benchmarks/blocking_load.py --servers HOST:PORT,… [--payload 100] [--seconds 5]

Prints a JSON line with ``ops_per_s``, ``p50_ms``, ``p99_ms``, ``errors``, as `alpo bench append --json` does. The clock
starts after the first append.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import alpo


def main() -> None:
    """Append for so many seconds; print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--payload", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    payload, latencies_s, errors, clock = os.urandom(given.payload), [], 0, time.perf_counter
    with alpo.connect_sync(given.servers) as log:
        log.append(payload)
        now_s = started_s = clock()
        while now_s < started_s + given.seconds:
            begun_s = now_s
            try:
                log.append(payload)
            except alpo.AlpoError:
                errors += 1
                now_s = clock()
                continue
            now_s = clock()
            latencies_s.append(now_s - begun_s)
    latencies_s.sort()
    at = [round(latencies_s[int(len(latencies_s) * part)] * 1000, 3) for part in (0.5, 0.99)] if latencies_s else [0, 0]
    rate = round(len(latencies_s) / (now_s - started_s), 1)
    print(json.dumps({"ops_per_s": rate, "p50_ms": at[0], "p99_ms": at[1], "errors": errors}))


if __name__ == "__main__":
    main()
