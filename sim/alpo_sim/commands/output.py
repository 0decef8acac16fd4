"""Common parts of commands: options, mutations by name, progress bars, files that are written.

A file of its own: the commands share it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from alpo_cli.exits import UsageProblem

if TYPE_CHECKING:
    from ..mutations import Mutation as BrokenRule

CORES = os.cpu_count() or 1
Jobs = Annotated[int, typer.Option("--jobs", min=1, help="Processes; by default one a core.")]
Servers = Annotated[
    int | None, typer.Option("--servers", min=1, max=9, help="How many servers; drawn from the seed if not given.")
]
Seconds = Annotated[
    int | None, typer.Option("--seconds", min=1, help="Virtual time under faults, before the heal; 60, or the "
                             "mutation's own, if not given.")
]
Mutation = Annotated[str | None, typer.Option("--mutation", help="Break a rule on purpose (see `mutants`).")]
MutationAndWorld = Annotated[
    str, typer.Option("--mutation", help="Break a rule on purpose, in the world in which that shows.")
]


def find_mutation(name: str) -> BrokenRule | None:
    """The mutation of that name; None for "". Raises `typer.BadParameter` for an unknown name."""
    if not name:
        return None
    from ..mutations import MUTATIONS

    if name not in MUTATIONS:
        raise typer.BadParameter(f"no mutation {name!r}; there are: {', '.join(MUTATIONS)}")
    return MUTATIONS[name]


def mutated(name: str) -> AbstractContextManager[None]:
    """A context in which the mutation of that name is in force, if any. Raises like `find_mutation`."""
    mutation = find_mutation(name)
    return nullcontext() if mutation is None else mutation.applied()


def flags(servers: int | None, seconds: int | None, mutation: str | None, logs: bool = False) -> str:
    """The options of a command line that name a world, each after a space; "" if none is given."""
    given = {"servers": servers, "seconds": seconds, "mutation": mutation or None}
    said = "".join(f" --{name} {value}" for name, value in given.items() if value is not None)
    return f"{said} --logs" if logs else said


def bar(time_column: ProgressColumn | None = None, console: Console | None = None) -> Progress:
    """A progress bar that disappears once the work is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, time_column or TimeRemainingColumn(), transient=True, console=console)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Context that raises `UsageProblem` if ``path``, or a file beneath it, cannot be written."""
    try:
        yield
    except OSError as error:
        raise UsageProblem(f"{path}: cannot be written: {error.strerror}") from error
