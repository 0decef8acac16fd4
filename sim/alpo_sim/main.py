"""The entry point of `alpo-sim`."""

from __future__ import annotations

import errno
import os
import sys

import typer

from .commands.draw import draw
from .commands.elections import elections
from .commands.explore import explore
from .commands.mutants import mutants
from .commands.replay import replay
from .commands.run import run
from .commands.seeds import seeds
from .commands.shrink import shrink

app = typer.Typer(
    name="alpo-sim",
    help="Whole clusters of the real protocol core on virtual time, under random faults, each run from one seed.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run)
app.command()(seeds)
app.command()(mutants)
app.command()(draw)
app.command()(shrink)
app.command()(replay)
app.command()(elections)
app.command()(explore)


#: What writing comes to when there is no room, or the device is broken.
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main() -> None:
    """Run the command line. Output that cannot be written is a line on stderr and exit code 1, not a traceback."""
    try:
        app(prog_name="alpo-sim")
    except OSError as error:
        if error.errno not in _CANNOT_WRITE or error.filename is not None:
            raise
        # What Python still holds of it would be tried again, and complained of, on the way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        typer.echo(f"alpo-sim: stdout cannot be written: {error.strerror}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
