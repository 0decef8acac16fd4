"""Entry point of `alpo`. `main` imports everything else, so that Ctrl-C is handled before that begins."""

from __future__ import annotations

import sys

from .early import until_begun


def main() -> None:
    """Run the command that the command line names; always ends with SystemExit."""
    until_begun()
    from .output import stand_in_for_closed_streams

    stand_in_for_closed_streams()
    try:
        if sys.argv[1:] in (["--version"], ["-V"], ["version"]):  # scripts ask for it: import nothing else
            from alpo import __version__

            from .exits import guarded

            sys.exit(guarded(lambda: print(f"alpo {__version__}")))
        from .app import app

        app(prog_name="alpo")
    except SystemExit as ending:
        # Typer ends like this when a reader has gone (`alpo --help | head -1`): no error here either, see `exits`. If
        # the BrokenPipeError has a context of its own, the pipe broke while an error was reported, and that remains
        # one.
        pipe = ending.__context__
        if isinstance(pipe, BrokenPipeError) and pipe.__context__ is None:
            sys.exit(0)
        raise


if __name__ == "__main__":
    main()
