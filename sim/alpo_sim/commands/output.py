"""Files that commands write: one that cannot be written is a line on stderr and exit code 2, not a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alpo_cli.exits import UsageProblem


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises UsageProblem if ``path`` or anything beneath it turns out not to be writable."""
    try:
        yield
    except OSError as error:
        raise UsageProblem(f"{path}: cannot be written: {error.strerror}") from error


