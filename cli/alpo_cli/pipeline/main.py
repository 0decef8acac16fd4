"""Entry point of `alpo-pipeline`: a module of its own, so that Ctrl-C is handled before the other imports begin."""

from __future__ import annotations

from ..early import until_begun


def main() -> None:
    """Run the job that the command line names; always ends with SystemExit."""
    until_begun()
    from ..output import stand_in_for_closed_streams
    from .app import app

    stand_in_for_closed_streams()
    app(prog_name="alpo-pipeline")


if __name__ == "__main__":
    main()
