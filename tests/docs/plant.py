"""Two copies of a backup that say something else, with every checksum made right: what docs/spark.md audits."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from alpo.core.entries import Entry, seal
from alpo.storage.tables import COLUMNS


def change(path: Path, id: int, **changed: object) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        before = Entry(*db.execute(f"SELECT {COLUMNS} FROM log WHERE id = ?", (id,)).fetchone())
        e = before._replace(**changed)  # type: ignore[arg-type]
        after = seal(e.id, e.term, e.kind, e.time_ms, e.lsn, e.body, e.client, e.serial, e.epoch, e.count)
        db.execute(f"UPDATE log SET {COLUMNS.replace(',', ' = ?,')} = ? WHERE id = ?", (*after, id))


def main() -> None:
    sound, altered, repeated = map(Path, sys.argv[1:])
    shutil.copy(sound, altered)
    shutil.copy(sound, repeated)
    change(altered, 2600, body=b"another payload")
    with closing(sqlite3.connect(altered)) as db, db:
        db.execute("DELETE FROM log WHERE id BETWEEN 2701 AND 2703")
    change(repeated, 3500, serial=2998)


if __name__ == "__main__":
    main()
