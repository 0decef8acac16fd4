"""A writer's record of its batches in its checkpoint: ``<checkpointLocation>/alpo``.

    writer              the writer to which the checkpoint belongs, and the cluster
    runs/1, 2, …        the runs of the writer; only the last one may write
    staged/             partitions too large for a message, each named after its batch
    commits/BATCH       the manifest of a batch: its payloads, their order, their division into entries
    commits/BATCH.done  all of it is in the log (a hint that saves work; not needed)
    unplanned           the last run that was warned that Spark's plans cannot be read

Laws:

* The first manifest of a batch is final: a replay of the batch uses it, whatever the plan produces this time.
* A manifest's staged files live as long as it does.
* Everything read is checked; damage is reported, never guessed around.
"""

from __future__ import annotations

import hashlib
import json
import logging
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from alpo.errors import Fenced

from . import staging
from .origin import SourceError
from .staging import Part, Tag, check

#: Logging of the standard library: its handlers fail no write, whatever became of stdout and stderr.
logger = logging.getLogger("alpo")

#: Runs that are remembered. An older zombie counts as a new run, which is harmless (see `committing`).
RUNS_KEPT = 100
_FORMAT = "alpo-manifest-1"
_DONE = ".done"


@dataclass(frozen=True)
class Manifest:
    """Content of one batch: the parts in this order, in entries of up to ``limit`` bytes each. ``plan``: as of
    `Ledger.plan`."""

    batch: int
    limit: int
    parts: tuple[Part, ...]
    plan: str = ""


def staged_folder(checkpoint: str) -> Path:
    """Directory in which tasks stage files."""
    return Path(checkpoint) / "alpo" / "staged"


class Ledger:
    """One writer's directory, as seen by one of its runs. All methods raise `SourceError` for damaged files."""

    def __init__(self, checkpoint: str) -> None:
        self.staged = staged_folder(checkpoint)
        self._root = self.staged.parent
        self._commits = self._root / "commits"
        self._runs = self._root / "runs"
        for folder in (self.staged, self._commits, self._runs):
            staging.make_directory(folder)

    # -- whose it is ------------------------------------------------------------------------------------------

    def cluster(self, client: str) -> str:
        """The cluster (hex) that ``client`` has written to with this checkpoint; "" if none yet."""
        writer = self._writer()
        if writer["client"] not in ("", client):
            raise SourceError(
                f"ALPO_OTHER_WRITER: {self._root} belongs to {writer['client']}, and this is {client}: another query "
                "(its checkpoint was made anew around this directory?). Use a new checkpointLocation"
            )
        return str(writer["cluster"])

    @property
    def client(self) -> str:
        """The client that has written with this checkpoint; "" if none yet."""
        return str(self._writer()["client"])

    def _writer(self) -> dict[str, Any]:
        path = self._root / "writer"
        return _json(path, path.read_bytes()) if path.exists() else {"client": "", "cluster": ""}

    def bind(self, client: str, cluster: str) -> None:
        """Record that this checkpoint belongs to ``client`` in ``cluster``. Raises `SourceError` if it belongs to
        another."""
        staging.make(self._root / "writer", [json.dumps({"client": client, "cluster": cluster}).encode()])
        if self.cluster(client) != cluster:
            raise SourceError(f"ALPO_OTHER_LOG: this checkpoint's log is not that of cluster {cluster}")

    def claim(self, run: str) -> None:
        """Make ``run``, on its first claim, the only run that may write. Raises `Fenced` if another claimed later."""
        runs = self._known_runs()
        if run in runs.values():
            return self.hold(run)
        staging.make(self._runs / str(max(runs, default=0) + 1), [json.dumps({"run": run}).encode()])
        for number in sorted(runs)[: -RUNS_KEPT]:
            (self._runs / str(number)).unlink(missing_ok=True)
        self.hold(run)

    def hold(self, run: str) -> None:
        """Raise `Fenced` unless ``run`` was the last one to claim."""
        runs = self._known_runs()
        if not runs or runs[max(runs)] != run:
            raise Fenced("a newer run of this query writes in its place: this one is over")

    def _known_runs(self) -> dict[int, str]:
        found = {}
        for path in self._runs.iterdir():
            if path.name.isdecimal():
                with suppress(FileNotFoundError):  # another run deletes old ones
                    found[int(path.name)] = str(_json(path, path.read_bytes())["run"])
        return found

    # -- what its batches are ---------------------------------------------------------------------------------

    def plan(self, batch: int, run: str) -> str:
        """Digest of what Spark has planned for a batch of the query to which the checkpoint belongs. Spark writes it
        once, before the batch, and a repetition finds it as it was. "" if it cannot be read: a warning says so, once in
        each run."""
        path = self._root.parent / "offsets" / str(batch)
        try:
            return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
        except OSError as error:
            self._warn_unplanned(batch, run, f"{path}: {error.strerror}")
            return ""

    def _warn_unplanned(self, batch: int, run: str, why: str) -> None:
        """Warn that a plan is not known, unless this run was warned already: each batch has a process of its own."""
        warned = self._root / "unplanned"
        if warned.exists() and warned.read_text("utf-8") == run:
            return
        warned.write_text(run, "utf-8")
        logger.warning(
            "batch %d: what Spark has planned for it cannot be read (%s). So it is not checked whether a batch that "
            "comes again is the one that the log has: where Spark's files of the checkpoint are lost or restored, a "
            "new batch may be taken for the last one, and its rows are lost. checkpointLocation must be the checkpoint "
            "of this query, in a file system of this machine. If Spark's fs.defaultFS is another file system, give it "
            "as file://%s (docs/spark-writing.md, Limits)", batch, why, self._root.parent,
        )

    def manifest(self, batch: int) -> Manifest | None:
        """The manifest of a batch, checked with all its files; None if there is none."""
        path = self._commits / str(batch)
        return _read(path, self.staged) if path.exists() else None

    def fix(self, manifest: Manifest) -> None:
        """Write the manifest; an existing one of this batch stays."""
        for part in manifest.parts:
            check(part, self.staged)
        staging.make(self._commits / str(manifest.batch), _bytes(manifest))

    def unfinished(self, batch: int) -> list[int]:
        """Batches up to this one, ascending, that are fixed and not known to be in the log."""
        names = {path.name for path in self._commits.iterdir()}
        return sorted(
            int(name) for name in names if name.isdecimal() and int(name) <= batch and name + _DONE not in names
        )

    def finish(self, batch: int) -> None:
        """Note that all of this batch is in the log."""
        (self._commits / f"{batch}{_DONE}").touch()

    # -- tidying up -------------------------------------------------------------------------------------------

    def discard(self, parts: Iterable[Part], batch: int) -> None:
        """Delete what was staged for a failed batch, unless the batch is fixed."""
        if (self._commits / str(batch)).exists():
            return
        for part in parts:
            if part.name:
                (self.staged / part.name).unlink(missing_ok=True)

    def discard_run(self, run: str) -> None:
        """Delete all that a run has staged."""
        for path in self.staged.glob(f"*-{run}-*"):
            path.unlink(missing_ok=True)

    def clean(self, before: int) -> None:
        """Delete the files of batches below ``before``."""
        for folder, ends in ((self._commits, "."), (self.staged, "-")):
            for path in folder.iterdir():
                batch = path.name.split(ends)[0]
                if batch.isdecimal() and int(batch) < before:
                    path.unlink(missing_ok=True)


def _bytes(manifest: Manifest) -> list[bytes]:
    """Encode a manifest: header with CRC, description, and the bytes of parts that are in no file."""
    parts = [vars(part) | {"tag": vars(part.tag), "data": None} for part in manifest.parts]
    fields = {"batch": manifest.batch, "limit": manifest.limit, "plan": manifest.plan, "parts": parts}
    text = json.dumps(fields).encode() + b"\n"
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
    return Manifest(fields["batch"], fields["limit"], tuple(parts), fields.get("plan", ""))


def _json(path: Path, text: bytes) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise SourceError(f"{path} is damaged: {error}") from error
    return fields
