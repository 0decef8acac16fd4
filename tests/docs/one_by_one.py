"""Append each line of a file by itself, so that each is an entry of its own, and print what `alpo append --json`
prints: docs/spark.md counts entries."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import alpo

with alpo.connect_sync() as log:
    for serial, line in enumerate(Path(sys.argv[1]).read_bytes().splitlines(), 1):
        lsn = log.append(line)
        told = {"lsn": lsn, "count": 1, "client": log.client, "serial": serial, "epoch": 0, "duplicate": False}
        print(json.dumps(told))
