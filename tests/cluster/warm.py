"""Start `alpo` and `alpod` in tests without starting Python: as forks of a process that has imported both.

A start costs a quarter to half a second of CPU in imports, a fork a hundredth, and a run of all tests has thousands.
After `install`, `subprocess.Popen` of `ALPO` or `ALPOD`, and so `subprocess.run` and `trio.run_process`, asks the *warm
process* of this pytest worker for a fork. That is a process like any other: a child of the caller with a pid, a command
line, an environment, streams, limits and signals of its own, which ends as Python ends. The kernel kills it when its
parent dies.

Python is started all the same if a variable differs that Python itself reads, or if the caller wants anything but
streams, a directory, an environment or a session. A test whose subject is the start spells the command another way: the
installed script (`INSTALLED`), or ``-c``.

`shims` is for shells: a folder with a command `alpo`, a tiny process that stands for the forked one.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import io
import marshal
import os
import pkgutil
import re
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

ALPO = [sys.executable, "-m", "alpo_cli.main"]
ALPOD = [sys.executable, "-m", "alpo.daemon"]
#: The command as a user has it: always a real start.
INSTALLED = [str(Path(sys.executable).with_name("alpo"))]

#: Prefixes of environment variables that matter before a program's first line.
_EARLY = ("PYTHON", "LANG", "LC_", "LD_")
_PDEATHSIG, _SUBREAPER = 1, 36
#: Bytes of a command line, and of an environment, that ``/proc`` can show of a forked process.
_ROOM = 16_384
_LENGTH = struct.Struct("!I")
_ENDED = struct.Struct("!i")
_start: Callable[..., None] = getattr(subprocess.Popen, "_execute_child")  # noqa: B009 (mypy does not know it)
_one_at_a_time = threading.Lock()

_SHIM = """#!{python} -IS
import _signal, _socket, marshal, posix, sys
try:
    for number in range(3):
        posix.fstat(number)
except OSError:  # a closed stream cannot be handed over
    posix.execv({installed!r}, [{installed!r}, *sys.argv[1:]])
warm = _socket.socket(_socket.AF_UNIX)
warm.connect({path!r})
for number in (_signal.SIGHUP, _signal.SIGINT, _signal.SIGTERM):
    if _signal.getsignal(number) != _signal.SIG_IGN:
        _signal.signal(number, lambda number, _: warm.send(bytes([number])))
order = marshal.dumps((sys.argv[1:], posix.environ, posix.getcwd(), posix.getpid()))
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
warm.sendmsg([len(order).to_bytes(4, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
warm.sendall(order)
code = int.from_bytes(warm.recv(4), "big", signed=True)
if code < 0:
    _signal.signal(-code, _signal.SIG_DFL)
    posix.kill(posix.getpid(), -code)
posix._exit(code)
"""


class _Order(NamedTuple):
    """Order for a fork, from the process ``asked_by``. ``parent``: the fork's parent; 0: a shim asks, and receives the
    exit code."""

    words: list[str]
    environ: dict[bytes, bytes]
    folder: str
    asked_by: int
    program: str = "alpo"
    parent: int = 0
    session: bool = False


# -- in the process that starts others ------------------------------------------------------------------


def install() -> None:
    """Have `subprocess.Popen` fork `ALPO` and `ALPOD`; only Linux can."""
    if sys.platform == "linux":
        setattr(subprocess.Popen, "_execute_child", _execute)  # noqa: B010


def shims() -> Path:
    """A folder with a command `alpo`, to be first on a shell's PATH."""
    with _one_at_a_time:
        return _warm.path.parent


def _execute(popen: Any, args: Any, *given: Any) -> None:
    """Replacement for the method of `subprocess.Popen` that starts the process."""
    order = _wanted(args, given)
    if order is None:
        _start(popen, args, *given)
        return
    pipes = given[9:15]
    streams = [pipe if pipe != -1 else number for number, pipe in enumerate((pipes[0], pipes[3], pipes[5]))]
    with _one_at_a_time, socket.socket(socket.AF_UNIX) as asking:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(_SUBREAPER, 1)  # orphans become children of this process
        try:
            asking.connect(str(_warm.path))
            data = marshal.dumps(tuple(order))
            socket.send_fds(asking, [_LENGTH.pack(len(data))], streams)
            asking.sendall(data)
            popen.pid = _LENGTH.unpack(_received(asking, _LENGTH.size))[0]
            popen._child_created = True
            asking.recv(1)  # now the fork is our child, or has died
        finally:
            prctl(_SUBREAPER, 0)
    popen._close_pipe_fds(*pipes)


def _wanted(args: Any, given: tuple[Any, ...]) -> _Order | None:
    """The order for a fork; None: start Python. ``given``: what `subprocess.Popen._execute_child` is given, from its
    third argument on."""
    (executable, before, _, passed, folder, environ, _, _, shell, *_, gid, gids, uid, umask, session, group) = given
    if isinstance(args, str | bytes) or list(args[:3]) not in (ALPO, ALPOD):
        return None
    if executable or before or passed or shell or (gid, gids, uid, umask, group) != (None, None, None, -1, -1):
        return None
    variables = {os.fsencode(name): os.fsencode(value) for name, value in (environ or os.environ).items()}
    if _early(variables) != _early(dict(os.environb)):
        return None
    words = [os.fsdecode(word) for word in args[3:]]
    at = str(Path.cwd() / os.fsdecode(folder or ""))
    program = "alpo" if args[2] == ALPO[2] else "alpod"
    return _Order(words, variables, at, os.getpid(), program, os.getpid(), bool(session))


def _early(variables: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return {name: value for name, value in variables.items() if name.decode("latin-1").startswith(_EARLY)}


class _Warm:
    """The warm process of this one, started when it is first wanted; it ends when this one does."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def path(self) -> Path:
        """Path of its socket."""
        if self._path is None:
            folder = Path(tempfile.mkdtemp(prefix="alpo-warm-"))
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(str(folder / "socket"))
                listening.listen(64)
                words = [sys.executable, "-P", __file__, str(listening.fileno()), str(folder), "-" * _ROOM]
                self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                                 env=os.environ | {"ROOM": "-" * _ROOM}, pass_fds=[listening.fileno()])
            shim = _SHIM.format(python=sys.executable, installed=INSTALLED[0], path=str(folder / "socket"))
            (folder / "alpo").write_text(shim)
            (folder / "alpo").chmod(0o755)
            self._path = folder / "socket"
        return self._path


_warm = _Warm()


def _received(conn: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = conn.recv(size - len(data))
        if not more:
            raise EOFError("the warm process has ended")
        data += more
    return data


# -- in the warm process --------------------------------------------------------------------------------


def _serve(listening: socket.socket, folder: Path) -> Callable[[], None]:
    """Fork for each order, until the stdin ends; returns in each forked process, with what that is to run."""
    import alpo_cli

    programs = {
        "alpo": importlib.import_module("alpo_cli.main").main, "alpod": importlib.import_module("alpo.daemon").main,
    }
    for name in ("alpo.server", "anyio._backends._asyncio", "anyio._backends._trio", "rich.live", "rich.table"):
        importlib.import_module(name)
    for module in pkgutil.walk_packages(alpo_cli.__path__, "alpo_cli."):
        if "pipeline" not in module.name and "spark" not in module.name:
            importlib.import_module(module.name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for guardians
    gc.collect()
    gc.freeze()
    both: list[Any] = [listening, 0]
    while listening in select.select(both, [], [])[0]:
        conn, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            return _guard(conn, programs)
        conn.close()
    shutil.rmtree(folder, ignore_errors=True)
    sys.exit()


def _guard(conn: socket.socket, programs: dict[str, Callable[[], None]]) -> Callable[[], None]:
    """Fork what is wanted, and leave it to its new parent, or look after it for a shim."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, streams, _, _ = socket.recv_fds(conn, _LENGTH.size, 3)
    order = _Order(*marshal.loads(_received(conn, _LENGTH.unpack(head)[0])))
    pid = os.fork()
    if pid == 0:
        with conn:  # closing it reports that all is ready
            _become(order, streams, conn.fileno())
        setattr(subprocess.Popen, "_execute_child", _execute_here)  # noqa: B010
        return programs[order.program]
    if order.parent:
        conn.sendall(_LENGTH.pack(pid))
        os._exit(0)
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(pid)
    both: list[Any] = [conn, ended]
    while ended not in select.select(both, [], [])[0]:
        number = conn.recv(1)
        os.kill(pid, number[0] if number else signal.SIGKILL)
        if not number:
            break
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(OSError):
        conn.sendall(_ENDED.pack(code))
    os._exit(0)


def _become(order: _Order, streams: list[int], kept: int) -> None:
    """Make this process what a start of Python would have made of it, but keep one file open."""
    if order.session:
        os.setsid()
    while order.parent and os.getppid() != order.parent:
        time.sleep(0.0002)  # until the guardian is gone
    if order.parent:
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, kept)
    os.closerange(kept + 1, 1 << 20)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    for limit in {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}:
        wanted = resource.prlimit(order.asked_by, limit)
        if wanted != resource.getrlimit(limit):
            resource.setrlimit(limit, wanted)
    os.umask(int(re.findall(r"^Umask:\s*(\d+)", Path(f"/proc/{order.asked_by}/status").read_text(), re.M)[0], 8))
    os.chdir(order.folder)
    os.environb.clear()
    os.environb.update(order.environ)
    time.tzset()
    command = ALPO if order.program == "alpo" else ALPOD
    sys.argv = [sys.modules[command[2]].__file__ or "", *order.words]
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    _write_over(int(fields[45]), int(fields[46]), [os.fsencode(word) for word in (*command, *order.words)])
    _write_over(int(fields[47]), int(fields[48]), [b"=".join(item) for item in order.environ.items()])
    sys.stdin, sys.stdout, sys.stderr = _stream(0), _stream(1), _stream(2)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]


def _write_over(start: int, end: int, words: list[bytes]) -> None:
    """Show these in ``/proc``: they take the place of what this process was started with."""
    text = b"".join(word + b"\0" for word in words)[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _stream(number: int) -> io.TextIOWrapper:
    """A standard stream as Python makes it."""
    raw = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
    raw.name = ("<stdin>", "<stdout>", "<stderr>")[number]
    made = io.BufferedReader(raw) if number == 0 else io.BufferedWriter(raw)
    errors = _errors[number]
    return io.TextIOWrapper(made, _encoding, errors, newline="\n", line_buffering=number == 2 or raw.isatty())


def _execute_here(popen: Any, args: Any, *given: Any) -> None:
    """Fork `ALPOD` from this process, which has imported it too: it stays its child, and outlives it."""
    order = _wanted(args, given)
    if order is None or order.program != "alpod":
        _start(popen, args, *given)
        return
    pipes = given[9:15]
    streams = [pipe if pipe != -1 else number for number, pipe in enumerate((pipes[0], pipes[3], pipes[5]))]

    ready, done = os.pipe()

    def fork() -> None:
        popen.pid = os.fork()
        if popen.pid == 0:
            gc.freeze()  # inherited files and sockets must not be closed: their numbers mean other files now
            _become(order._replace(parent=0), streams, done)
            os.close(done)
            _end_as(sys.modules[ALPOD[2]].main)

    forking = threading.Thread(target=fork)  # a thread without an event loop, which this one may have
    forking.start()
    forking.join()
    popen._child_created = True
    os.close(done)
    os.read(ready, 1)
    os.close(ready)
    popen._close_pipe_fds(*pipes)


def _end_as(main: Callable[[], None]) -> NoReturn:
    """Run this and end as Python does, but for taking every module apart."""
    code: object = None
    try:
        main()
    except SystemExit as ending:
        code = ending.code
        if not isinstance(code, int | None):
            print(code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        code = 1
    getattr(threading, "_shutdown")()  # noqa: B009 (waits for threads; mypy does not know it)
    getattr(atexit, "_run_exitfuncs")()  # noqa: B009
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        print(f"Exception ignored in: {sys.stdout}\n{error!r}", file=sys.stderr)
        code = 120
    os._exit(code & 0xFF if isinstance(code, int) else code is not None)


if __name__ == "__main__":
    _encoding = sys.stdout.encoding
    _errors = [sys.stdin.errors, sys.stdout.errors, sys.stderr.errors]
    _end_as(_serve(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2])))
