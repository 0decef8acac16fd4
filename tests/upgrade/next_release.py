"""Made-up releases, as folders to import from: the next one, which is this one, changed where the next one will be; and
one from before there were other logs than the first.

The next one speaks one more version of the protocol, in which the LSNs of an `Appended` are always a packed list, an
`Outcome` has no epoch and an `AppendAnswer` no room; and its data file has one more schema, with an index of events.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TypeAlias

from alpo.storage import schema
from alpo.wire import requests as r

ROOT = Path(__file__).parents[2]
VERSION, VERSION_BEFORE = "99.0.0", "0.0.99"
SCHEMA = schema.VERSION + 1
_WAS, _IS = r.VERSION, r.VERSION + 1

#: File -> texts in it, each once, and what the next release has in their place.
Edits: TypeAlias = dict[str, list[tuple[str, str]]]
_EDITS: Edits = {
    "alpo/_version.py": [('__version__ = "', f'__version__ = "{VERSION}"\n_BEFORE = "')],
    "alpo/wire/requests.py": [(f"\nVERSION = {_WAS}\n", f"\nVERSION = {_IS}\n")],
    "alpo/storage/schema.py": [("\nVERSION = max(MIGRATIONS)\n", f"""
MIGRATIONS[{SCHEMA}] = lambda db: db.execute("CREATE INDEX event_names ON event_log (name)")
VERSION = max(MIGRATIONS)
""")],
    "alpo/wire/client_codec.py": [("\n\ndef encode(\n", f"""
_APPENDED = Shape(
    32, q.Appended, (s.client_id, s.positive, s.numbers(ITEMS_MAX), s.flag), forms=((2, lambda it: pack(list(it))),),
    kept=1,
)
_OUTCOME = _BY_CLASS[{_WAS}][q.Outcome]
_OUTCOME = _OUTCOME._replace(checks=_OUTCOME.checks[:-1])
_BY_CLASS[{_IS}] = _BY_CLASS[{_WAS}] | {{q.Appended: _APPENDED, q.Outcome: _OUTCOME}}
_BY_NUMBER_HELLO[{_IS}] = _BY_NUMBER_HELLO[{_WAS}]
_BY_NUMBER_REQUEST[{_IS}] = _BY_NUMBER_REQUEST[{_WAS}] | {{_OUTCOME.number: _OUTCOME}}
_BY_NUMBER_REPLY[{_IS}] = _BY_NUMBER_REPLY[{_WAS}] | {{_APPENDED.number: _APPENDED}}


def encode(
""")],
    "alpo/wire/codec.py": [("\n\ndef encode_entries(", f"""
_ANSWER = _BY_CLASS[{_WAS}][m.AppendAnswer]
_ANSWER = _ANSWER._replace(checks=_ANSWER.checks[:-1])
_BY_CLASS[{_IS}] = _BY_CLASS[{_WAS}] | {{m.AppendAnswer: _ANSWER}}
_BY_NUMBER[{_IS}] = _BY_NUMBER[{_WAS}] | {{_ANSWER.number: _ANSWER}}


def encode_entries(""")],
}

_EDITS_BEFORE: Edits = {
    "alpo/_version.py": [('__version__ = "', f'__version__ = "{VERSION_BEFORE}"\n_AFTER = "')],
    "alpo/wire/requests.py": [(f"\nVERSION = {_WAS}\n", f"\nVERSION = {r.LOGS_VERSION - 1}\n")],
    "alpo/node/host.py": [("        self._shelf = shelf\n", "        self._shelf = None\n")],
}


def make_next_release(folder: Path) -> Path:
    """Make the next release in ``folder``."""
    return _make(folder, _EDITS)


def make_release_before_logs(folder: Path) -> Path:
    """Make the release that knows no log but the first in ``folder``."""
    return _make(folder, _EDITS_BEFORE)


def _make(folder: Path, all_edits: Edits) -> Path:
    for source in ("alpo", "cli/alpo_cli"):
        shutil.copytree(ROOT / source, folder / Path(source).name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, edits in all_edits.items():
        text = (folder / name).read_text("utf-8")
        for old, new in edits:
            assert text.count(old) == 1, f"{name}: {old!r}"
            text = text.replace(old, new)
        (folder / name).write_text(text, "utf-8")
    return folder
