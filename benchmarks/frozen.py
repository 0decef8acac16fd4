"""Write down what a change of the code's shape must leave as it is, to be compared with `diff -r`.

``python benchmarks/frozen.py BEFORE``, then the change, then ``python benchmarks/frozen.py AFTER; diff -r BEFORE
AFTER``. A file a kind, of text: hashes of simulated traces, sizes of the complete searches, what catches each mutation,
every command's help, the names of the public packages, a data file's tables, frames. Some ten minutes; ``--only`` takes
the names of some files. Figures of speed are not among them: `make bench` prints those.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import io
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import typer

from alpo.core.disk import TableSave, Write
from alpo.core.entries import Kind, seal
from alpo.storage.schema import DB_NAME
from alpo.storage.sqlite import SqliteStore

_ROOT = Path(__file__).parents[1]
_SEEDS = range(1, 201)
_SECONDS = 10
_PACKAGES = ("alpo", "alpo.state", "alpo.registry", "alpo.spark", "alpo.testing")
#: Modules with a `main`, and those with the commands of it.
_APPS = {
    "alpo_cli.main": "alpo_cli.app",
    "alpo_sim.main": "alpo_sim.main",
    "alpo_cli.pipeline.main": "alpo_cli.pipeline.app",
}


def _trace(seed: int) -> str:
    from alpo_sim.narrate import Tracer
    from alpo_sim.options import Options
    from alpo_sim.world import World, run_world

    world, text = World(Options.draw(seed, seconds=_SECONDS)), io.StringIO()
    world.stage.watchers.append(Tracer(world.stage, text))
    verdict = run_world(world)
    told = hashlib.sha256(text.getvalue().encode()).hexdigest()
    return f"{seed} {told} steps {verdict.steps} entries {verdict.entries} {verdict.invariant or 'ok'}"


def traces() -> Iterator[str]:
    """One line a seed."""
    with Pool() as pool:
        yield from pool.imap(_trace, _SEEDS)


def _ran(module: str, *args: str) -> str:
    command = [sys.executable, "-c", f"from {module} import main; main()", *args]
    environment = os.environ | {"COLUMNS": "100"}
    return subprocess.run(command, stdout=subprocess.PIPE, env=environment, text=True, check=False).stdout


#: A world, and bounds within which it is searched to its end in seconds; a replacement's takes minutes.
_SEARCHES = (
    "elections --terms 1 --timers 1 --entries 0 --crashes 0 --writes 0", "start --wipes 1",
    "sessions --terms 1 --requests 1", "reigns --terms 2",
)


def searches() -> Iterator[str]:
    """One line a world: its bounds, and the size of its space. Raises RuntimeError if a search does not end."""
    for wanted in _SEARCHES:
        found = json.loads(_ran("alpo_sim.main", "explore", "--json", "--limit-s", "120", "--world", *wanted.split()))
        if found["frontier"]:
            raise RuntimeError(f"the search of {wanted} has not come to its end")
        sizes = {key: found[key] for key in ("states", "transitions", "depth")}
        yield f"{found['world']} {found['bounds']} {sizes} broken: {found['broken']}"


def mutants() -> Iterator[str]:
    """One line a mutation."""
    for each in json.loads(_ran("alpo_sim.main", "mutants", "--json"))["mutations"]:
        yield f"{each['name']} {each['rule']} {each['invariant']} in {each['seeds']} ({each['title']})"


def _commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in sorted(getattr(group, "commands", {}).items()):
        yield from _commands(command, (*path, name))


def helps() -> Iterator[str]:
    """The ``--help`` text of every command."""
    yield _ran("alpo.daemon", "--help")
    for module, app in _APPS.items():
        group = typer.main.get_command(importlib.import_module(app).app)
        for path in _commands(group):
            yield f"$ {module} {' '.join(path)}\n" + _ran(module, *path, "--help")


def names() -> Iterator[str]:
    """``__all__`` and what `dir` shows, of each public package and of each class in it."""
    for package in _PACKAGES:
        module = importlib.import_module(package)
        yield f"{package}: {' '.join(module.__all__)}"
        for name in module.__all__:
            thing = getattr(module, name)
            if isinstance(thing, type):
                yield f"{package}.{name}: {' '.join(each for each in dir(thing) if not each.startswith('_'))}"


def data_file() -> Iterator[str]:
    """The tables of a data file with 100 entries."""
    entries = [seal(i, 1, int(Kind.DATA), i, i, b"x" * i, "~client", i, 0, 1) for i in range(1, 101)]
    table = TableSave(100, 0, [], [], [], 0, {})
    with tempfile.TemporaryDirectory() as directory:
        store = SqliteStore.open(Path(directory), 1)
        store.commit([Write(1, 1, 0, None, entries, [(1, 1)], 100, 100, table=table, bodies_bytes=5050, base=None)])
        store.close()
        with sqlite3.connect(Path(directory, DB_NAME)) as db:
            yield from (f"{name} {db.execute(f'PRAGMA {name}').fetchone()}" for name in ("user_version", "page_size"))
            yield from (line for line in db.iterdump() if 'INTO "hard"' not in line)  # its identity is random


def frames() -> Iterator[str]:
    """The golden frames."""
    yield (_ROOT / "tests" / "wire" / "golden_frames.txt").read_text("ascii")


KINDS: dict[str, Callable[[], Iterator[str]]] = {
    each.__name__: each for each in (names, helps, frames, data_file, traces, searches, mutants)
}


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    args = parser.parse_args()
    args.directory.mkdir(parents=True, exist_ok=True)
    for name in args.only:
        print(name, flush=True)
        (args.directory / f"{name}.txt").write_text("\n".join(KINDS[name]()) + "\n", "utf-8")


if __name__ == "__main__":
    main()
