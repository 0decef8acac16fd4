"""The part of `alpo-pipeline replay` that folds a machine of the user's own (`alpo.rsm`): its class, as the command
line names it, the fold, and its items as a file of JSON lines.

Laws:

* The file appears whole, by a rename, once the machine is folded; the same replay makes the same bytes.
* Of what the user's module raises while it is imported, only what says that there is no such module or class is told as
  wrong usage; the rest comes with its traceback.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from alpo.rsm.hosted import Hosted, Made
from alpo.rsm.items import kind_of
from alpo.rsm.replica import made_of
from alpo.spark.folded import folded_at, upto_of
from alpo.spark.origin import Origin
from alpo.spark.reading import pinned

from ..exits import Failed, UsageProblem, reason


def made(text: str, name: str, version: int) -> Made[Any]:
    """The machine that ``--machine MODULE:CLASS`` names; modules are found as by `python -m`: in the working directory
    first. Raises UsageProblem."""
    module, _, path = text.partition(":")
    if not module or not path or module.startswith("."):
        raise UsageProblem(f"--machine {text}: accepted: MODULE:CLASS, for example ledger:Ledger")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = import_module(module)
    except ImportError as error:
        raise UsageProblem(f"--machine {text}: {error}") from error
    for each in path.split("."):
        if not hasattr(found, each):
            raise UsageProblem(f"--machine {text}: there is no {path} in {module}")
        found = getattr(found, each)
    try:
        return made_of(found, name, version)
    except (TypeError, ValueError) as error:
        raise UsageProblem(f"--machine {text}: {error}") from error


def replay(
    of: Made[Any], origin: Origin, upto_lsn: int | None, items: Path | None, told: Callable[[int, int], None]
) -> dict[str, Any]:
    """Fold the machine as of ``upto_lsn`` (None: the end now), write its items if a file is named, and describe it.
    ``told``: called with the LSN that was folded last, and the last one. Raises `SourceError`, `Diverged`, Failed."""
    extent = origin.extent()
    lsn = upto_of(origin, extent, upto_lsn)
    folded = folded_at(kind_of(of), pinned(origin, extent.cluster), extent, lsn, lambda done: told(done, lsn))
    machine: Hosted[Any] = folded.machine
    copied = machine.copied()
    number = 0
    with _new_file(items) as stream:
        for number, item in enumerate(copied.items(), 1):  # noqa: B007  # the number of all is told
            if stream is not None:
                stream.write(json.dumps(item_fields(item), ensure_ascii=False) + "\n")
    return {
        "machine": machine.name, "id": machine.state_id.hex(), "cluster": extent.cluster, "lsn": lsn,
        "version": machine.version, "digest": copied.digest().hex(), "items": number, "item_bytes": copied.bytes,
        "file": None if items is None else str(items), "from_lsn": folded.from_lsn, "payloads": folded.payloads,
        "folded": folded.own, "invalid": machine.invalid,
    }


def item_fields(item: bytes) -> dict[str, str]:
    """JSON keys of an item: ``item`` if it is UTF-8 text, else ``item_base64``."""
    try:
        return {"item": item.decode("utf-8")}
    except UnicodeDecodeError:
        return {"item_base64": base64.b64encode(item).decode("ascii")}


def rows(fields: dict[str, Any], took_s: float) -> list[list[str]]:
    """The lines of a table for people."""
    began = f"the snapshot at LSN {fields['from_lsn']}" if fields["from_lsn"] else "the first payload"
    file = [["written to", fields["file"]]] if fields["file"] else []
    return [
        ["the machine", f"{fields['machine']}, version {fields['version']}"],
        ["is the log up to", f"LSN {fields['lsn']}"],
        ["digest", fields["digest"]],
        ["items", f"{fields['items']:,}, of {fields['item_bytes']:,} bytes"],
        *file,
        ["went on from", began],
        ["payloads", f"{fields['payloads']:,}"],
        ["of the machine", f"{fields['folded']:,}"],
        ["took", f"{took_s:.1f} s"],
    ]


@contextmanager
def _new_file(path: Path | None) -> Iterator[IO[str] | None]:
    """A file to write, which gets its name once it is whole; None: none is wanted. Raises Failed."""
    if path is None:
        yield None
        return
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as stream:
            yield stream
        partial.replace(path)
    except OSError as error:
        raise Failed(f"{path} cannot be written: {reason(error)}") from error
    finally:
        partial.unlink(missing_ok=True)
