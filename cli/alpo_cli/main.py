"""Entry point of `alpo`. `main` imports everything else, so that Ctrl-C is handled before that begins.

A file of its own, for it must begin before anything else is loaded.
"""

from __future__ import annotations

import atexit
import gc
import sys

from .early import until_begun


def main() -> None:
    """Run the command that the command line names; always ends with SystemExit."""
    until_begun()
    # A command ends before there is garbage worth its search, which took a quarter of its time.
    gc.set_threshold(50_000, 20, 50)
    atexit.register(gc.freeze)
    from .output import stand_in_for_closed_streams

    stand_in_for_closed_streams()
    if sys.argv[1:] in (["--version"], ["-V"], ["version"]):  # scripts ask for it: import nothing else
        from alpo._version import version_of

        from .exits import guarded

        sys.exit(guarded(lambda: print(version_of("alpo"))))
    from .app import app

    app(prog_name="alpo")


if __name__ == "__main__":
    main()
