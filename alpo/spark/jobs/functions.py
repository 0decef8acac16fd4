"""The user's functions: found by name, sent to the executors, and named in errors.

Laws:

* For ``FILE.py:NAME`` executors run the very text that the driver read; they need not have the file. It is a single
  file: what it imports must be installed where executors run, and so must the module of ``MODULE:NAME``.
* The digest covers that text, the whole file or module, and not what it imports.
* An error in the function becomes a `SourceError` that names the function and the line.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ..origin import SourceError

_DIGEST_BYTES = 16


class NoFunction(SourceError):
    """There is no such function; the message says why."""


@dataclass(frozen=True)
class Function:
    """A user's function. ``text``: as the user named it; ``name``: within ``source``, a file's text, or within
    ``module``."""

    text: str
    name: str
    source: bytes
    module: str = ""

    @property
    def digest(self) -> str:
        """Digest of the file or module text, in hex."""
        return hashlib.blake2b(self.source, digest_size=_DIGEST_BYTES).hexdigest()

    def load(self) -> Callable[..., Any]:
        """Import the function. Raises `NoFunction`."""
        return _loaded(self)

    def trouble(self, error: Exception, where: str) -> str:
        """Message for ``error``, which the function raised at ``where``."""
        frames = traceback.extract_tb(error.__traceback__)
        line = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
        return f"{self.text} raised {type(error).__name__} at {where}: {error}{line}"


def find_function(text: str) -> Function:
    """Find ``FILE.py:NAME`` or ``MODULE:NAME`` and import it. Raises `NoFunction`."""
    place, colon, name = text.rpartition(":")
    if not (colon and place and name.isidentifier()):
        raise NoFunction(f"{text!r} names no function: FILE.py:NAME, or MODULE:NAME")
    if place.endswith(".py"):
        try:
            function = Function(text, name, Path(place).read_bytes())
        except OSError as error:
            raise NoFunction(f"{place}: {error.strerror}") from error
    else:
        function = Function(text, name, _source_of(text, place), place)
    function.load()
    return function


def _source_of(text: str, module: str) -> bytes:
    try:
        return inspect.getsource(importlib.import_module(module)).encode()
    except Exception as error:  # a module may raise anything when imported
        raise NoFunction(f"{text}: {module} cannot be imported: {error!r} (of a file: FILE.py:NAME)") from error


@lru_cache(maxsize=16)
def _loaded(function: Function) -> Callable[..., Any]:
    try:
        module = importlib.import_module(function.module) if function.module else _module_of(function)
    except Exception as error:  # the user's own code
        raise NoFunction(function.trouble(error, "its import")) from error
    found = getattr(module, function.name, None)
    if not callable(found):
        own = [
            name for name, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        there = ", ".join(own) or "none"
        raise NoFunction(f"{function.text}: there is no function {function.name!r} (there are: {there})")
    return found  # type: ignore[no-any-return]


def _module_of(function: Function) -> ModuleType:
    """The file as a module, registered in sys.modules because dataclasses look their module up there."""
    module = ModuleType(f"alpo_function_{function.digest}")
    sys.modules[module.__name__] = module
    exec(compile(function.source, function.text.rpartition(":")[0], "exec"), module.__dict__)
    return module
