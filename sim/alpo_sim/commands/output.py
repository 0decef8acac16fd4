"""Files that commands write: one that cannot be written is a line on stderr and exit code 2, not a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Says so, and exits with 2, if ``path`` or anything beneath it turns out not to be writable."""
    try:
        yield
    except OSError as error:
        typer.echo(f"{path}: cannot be written: {error.strerror}", err=True)
        raise typer.Exit(2) from error


def check_folder_of(path: Path) -> None:
    """Before long work: raises `typer.BadParameter` if ``path`` has no place to be in, or is a folder itself."""
    if not path.parent.is_dir():
        raise typer.BadParameter(f"there is no directory {path.parent}", param_hint="--output")
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a directory", param_hint="--output")
