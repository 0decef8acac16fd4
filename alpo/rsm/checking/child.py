"""A process in which `alpo.rsm.check` folds: it imports the machine's class, and answers what it is asked."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import mmap
import os
import select
import socket
import struct
import sys
import threading
import traceback
from types import ModuleType
from typing import Any

import msgpack  # type: ignore[import-untyped]

from .ways import fold_in_all_ways
from .world import world

#: Position of a fold, in memory shared with the parent: the way of folding, the method that was called, the command.
POSITION = struct.Struct("<IIq")
LENGTH = struct.Struct("<I")
#: The name under which a program is imported again, so that what it guards by ``__name__`` does not run.
MAIN_AGAIN = "__alpo_main__"


def imported(target: dict[str, Any]) -> Any:
    """The class of the target: its ``module`` by name, or else by its ``file``. Raises whatever the module does."""
    name, file = target["module"], target["file"]
    module = sys.modules.get(MAIN_AGAIN if target["main"] else name)
    if module is None:
        if target["main"]:
            module = sys.modules["__main__"] = _from_file(MAIN_AGAIN, file)
        else:
            module = _by_name(name, file) or _from_file(name, file)
        gc.collect()
        gc.freeze()
    found: Any = module
    for part in target["qualname"].split("."):
        found = getattr(found, part)
    return found


def _by_name(name: str, file: str | None) -> ModuleType | None:
    """The module as the import system finds it; None if it finds none of that file."""
    top = name.partition(".")[0]
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if file is None or error.name is None or not (error.name == top or name.startswith(error.name)):
            raise
        return None
    same = file is None or getattr(module, "__file__", None) in (None, file)
    return module if same else None


def _from_file(name: str, file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no module of Python's")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _end_with_the_parent(line: socket.socket) -> None:
    """End this process when the other side is gone, whatever it is doing."""
    poll = select.poll()
    poll.register(line.fileno(), 0)
    while not any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll()):
        pass
    os._exit(0)


def main(given: dict[str, Any]) -> None:
    """Answer requests until the parent is gone. ``line``, ``position``: file descriptors."""
    line = socket.socket(fileno=given["line"])
    threading.Thread(target=_end_with_the_parent, args=(line,), daemon=True).start()
    position = mmap.mmap(given["position"], POSITION.size)

    stream = line.makefile("rwb")
    while head := stream.read(LENGTH.size):
        request = msgpack.unpackb(stream.read(*LENGTH.unpack(head)), strict_map_key=False)
        packed: bytes = msgpack.packb(_answered(request, position))
        stream.write(LENGTH.pack(len(packed)) + packed)
        stream.flush()


def _answered(request: dict[str, Any], position: mmap.mmap) -> dict[str, Any]:
    try:
        machine = imported(request["target"])
    except BaseException as error:
        return {"unimportable": "".join(traceback.format_exception(error))[-4000:]}
    if request["commands"] is None:
        return {}
    world.enter(*request["world"])
    try:
        return fold_in_all_ways(machine, request, world, lambda *place: POSITION.pack_into(position, 0, *place))
    finally:
        world.leave()
