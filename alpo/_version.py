"""The version of ALPO, and which build runs, for whatever must tell it without importing the library.

A file of its own: whatever tells the version loads nothing else.
"""

import os
from importlib.machinery import ExtensionFileLoader, PathFinder

__version__ = "0.2.0"


def build() -> str:
    """The build that runs: "compiled" if core and wire format are machine code (`hatch_build.py`), else "pure"."""
    spec = PathFinder.find_spec("alpo.core.replica", [os.path.join(os.path.dirname(__file__), "core")])  # noqa: PTH118, PTH120
    return "compiled" if spec is not None and isinstance(spec.loader, ExtensionFileLoader) else "pure"


def version_of(command: str) -> str:
    """The line that ``command`` prints when it is asked for its version."""
    return f"{command} {__version__} ({build()})"
