"""What a writer's checkpoint remembers of its batches: ``<checkpointLocation>/alpo``.

    writer              whose checkpoint this is, and of which cluster
    runs/1, 2, …        the runs of the writer; the last one alone may write
    staged/             partitions that are too large for a message, each named after its batch
    commits/BATCH       the manifest of a batch: which payloads it has, in which order, cut how
    commits/BATCH.done  all of it is in the log (a hint that saves work; not needed)

Laws:

* The first manifest of a batch is the only one ever: a replay of the batch takes it, whatever the plan gives this time.
* A manifest's staged files live as long as it does.
* What is read is checked; what is damaged is told, never guessed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from alpo.errors import Fenced

from . import durable
from .origin import SourceError
from .staging import Part, Tag, check

#: Runs that are remembered. An older zombie counts as a new run: a nuisance, no danger (`committing`).
RUNS_KEPT = 100
_FORMAT = "alpo-manifest-1"
_DONE = ".done"


@dataclass(frozen=True)
class Manifest:
    """The payloads of one batch: the parts in this order, in entries of up to ``limit`` bytes each."""

    batch: int
    limit: int
    parts: tuple[Part, ...]


def staged_folder(checkpoint: str) -> Path:
    """Where tasks stage."""
    return Path(checkpoint) / "alpo" / "staged"


class Ledger:
    """One writer's directory, as one run of it sees it. All methods raise `SourceError` for what is damaged."""

    def __init__(self, checkpoint: str) -> None:
        self.staged = staged_folder(checkpoint)
        self._root = self.staged.parent
        self._commits = self._root / "commits"
        self._runs = self._root / "runs"
        for folder in (self.staged, self._commits, self._runs):
            durable.make_directory(folder)

    # -- whose it is ------------------------------------------------------------------------------------------

    def cluster(self, client: str) -> str:
        """The cluster (hex) that ``client`` has written to with this checkpoint; "" before it has."""
        writer = self._writer()
        if writer["client"] not in ("", client):
            raise SourceError(
                f"ALPO_OTHER_WRITER: {self._root} belongs to {writer['client']}, and this is {client}: another query "
                "(its checkpoint was made anew around this directory?). Use a new checkpointLocation"
            )
        return str(writer["cluster"])

    @property
    def client(self) -> str:
        """Who has written with this checkpoint; "" for nobody yet."""
        return str(self._writer()["client"])

    def _writer(self) -> dict[str, Any]:
        path = self._root / "writer"
        return _json(path, path.read_bytes()) if path.exists() else {"client": "", "cluster": ""}

    def bind(self, client: str, cluster: str) -> None:
        """From now on this is the checkpoint of ``client`` in ``cluster``."""
        durable.make(self._root / "writer", [json.dumps({"client": client, "cluster": cluster}).encode()])
        if self.cluster(client) != cluster:
            raise SourceError(f"ALPO_OTHER_LOG: this checkpoint's log is not that of cluster {cluster}")

    def claim(self, run: str) -> None:
        """Make ``run`` the one that may write, unless it has been that before. Raises `Fenced`."""
        runs = self._known_runs()
        if run in runs.values():
            return self.hold(run)
        durable.make(self._runs / str(max(runs, default=0) + 1), [json.dumps({"run": run}).encode()])
        for number in sorted(runs)[: -RUNS_KEPT]:
            (self._runs / str(number)).unlink(missing_ok=True)
        self.hold(run)

    def hold(self, run: str) -> None:
        """Raises `Fenced` unless ``run`` is the one that claimed last."""
        runs = self._known_runs()
        if not runs or runs[max(runs)] != run:
            raise Fenced("a newer run of this query writes in its place: this one is over")

    def _known_runs(self) -> dict[int, str]:
        found = {}
        for path in self._runs.iterdir():
            if path.name.isdecimal():
                with suppress(FileNotFoundError):  # another run tidies up
                    found[int(path.name)] = str(_json(path, path.read_bytes())["run"])
        return found

    # -- what its batches are ---------------------------------------------------------------------------------

    def manifest(self, batch: int) -> Manifest | None:
        """What was fixed for this batch, checked with all its files; None if nothing was."""
        path = self._commits / str(batch)
        return _read(path, self.staged) if path.exists() else None

    def fix(self, manifest: Manifest) -> None:
        """Fix a batch, so or as it was fixed before."""
        for part in manifest.parts:
            check(part, self.staged)
        durable.make(self._commits / str(manifest.batch), _bytes(manifest))

    def unfinished(self, batch: int) -> list[int]:
        """Batches up to this one that are fixed and not known to be in the log, in order."""
        names = {path.name for path in self._commits.iterdir()}
        return sorted(
            int(name) for name in names if name.isdecimal() and int(name) <= batch and name + _DONE not in names
        )

    def finish(self, batch: int) -> None:
        """All of this batch is in the log."""
        (self._commits / f"{batch}{_DONE}").touch()

    # -- tidying up -------------------------------------------------------------------------------------------

    def discard(self, parts: Iterable[Part], batch: int) -> None:
        """The batch failed: drop what was staged for it, unless it is fixed already."""
        if (self._commits / str(batch)).exists():
            return
        for part in parts:
            if part.name:
                (self.staged / part.name).unlink(missing_ok=True)

    def discard_run(self, run: str) -> None:
        """Drop all that a run has staged, finished or not."""
        for path in self.staged.glob(f"*-{run}-*"):
            path.unlink(missing_ok=True)

    def clean(self, before: int) -> None:
        """Forget the batches below ``before``."""
        for folder, ends in ((self._commits, "."), (self.staged, "-")):
            for path in folder.iterdir():
                batch = path.name.split(ends)[0]
                if batch.isdecimal() and int(batch) < before:
                    path.unlink(missing_ok=True)


def _bytes(manifest: Manifest) -> list[bytes]:
    """Head, description, and the parts' bytes that are in no file."""
    parts = [vars(part) | {"tag": vars(part.tag), "data": None} for part in manifest.parts]
    text = json.dumps({"batch": manifest.batch, "limit": manifest.limit, "parts": parts}).encode() + b"\n"
    body = [text, *(part.data for part in manifest.parts)]
    crc = 0
    for piece in body:
        crc = zlib.crc32(piece, crc)
    return [f"{_FORMAT} {crc:08x}\n".encode(), *body]


def _read(path: Path, staged: Path) -> Manifest:
    head, _, rest = path.read_bytes().partition(b"\n")
    if head != f"{_FORMAT} {zlib.crc32(rest):08x}".encode():
        raise SourceError(f"{path} is damaged: its CRC is not the one that it was written with")
    text, _, data = rest.partition(b"\n")
    fields = _json(path, text)
    parts, at = [], 0
    for row in fields["parts"]:
        part = Part(**row | {"tag": Tag(**row["tag"]), "data": b""})
        if not part.name:
            part = replace(part, data=data[at : at + part.length])
            at += part.length
        check(part, staged)
        parts.append(part)
    return Manifest(fields["batch"], fields["limit"], tuple(parts))


def _json(path: Path, text: bytes) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise SourceError(f"{path} is damaged: {error}") from error
    return fields
