"""`alpo watch` on a pseudo-terminal, its frames taken apart."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from alpo_command import COMMAND, ENDS_WITHIN_S, environment

#: Makes the terminal on its stdin the session's own, and becomes the command.
_TAKE = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
_CODES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A terminal with a process on it. Made by `terminal`."""

    def __init__(self, process: subprocess.Popen[bytes], ours: int, theirs: int) -> None:
        self.process = process
        self.drawn = b""
        self.reading = threading.Event()
        self.reading.set()
        self._ours, self._theirs = ours, theirs
        self.modes_before = termios.tcgetattr(theirs)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):
            while self.reading.wait() and (data := os.read(self._ours, 65536)):
                self.drawn += data

    def press(self, keys: str) -> None:
        """Type these keys."""
        os.write(self._ours, keys.encode())

    def resize(self, width: int, height: int) -> None:
        """Change the terminal's size, which sends a signal to the process in the foreground."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    @property
    def frames(self) -> list[str]:
        """All frames drawn so far, the last one maybe in part."""
        return [_CODES.sub(b"", part).decode("utf-8", "replace").replace("\r", "")
                for part in self.drawn.split(b"\x1b[H")]

    @property
    def frame(self) -> str:
        """The last frame that was drawn as a whole."""
        return self.frames[-1]

    def shows(self, *texts: str) -> bool:
        """True if the last frame is complete (it has its last line) and holds these texts."""
        return "q quit" in self.frame and all(text in self.frame for text in texts)

    @property
    def taken(self) -> bool:
        """True if the process draws on the terminal: on the alternate screen, without a cursor."""
        drawn = self.drawn.rfind(b"\x1b[?1049h") > self.drawn.rfind(b"\x1b[?1049l")
        hidden = self.drawn.rfind(b"\x1b[?25l") > self.drawn.rfind(b"\x1b[?25h")
        assert drawn == hidden or self.process.poll() is None
        return drawn

    @property
    def cbreak(self) -> bool:
        """True if keys are read one by one, without echo."""
        return not termios.tcgetattr(self._theirs)[3] & (termios.ICANON | termios.ECHO)

    @property
    def modes_now(self) -> list[Any]:
        """The terminal's present modes."""
        return termios.tcgetattr(self._theirs)

    @property
    def in_front(self) -> int:
        """The process group in the foreground."""
        return os.tcgetpgrp(self._ours)

    def modes(self, wanted: list[Any]) -> None:
        """Set modes, as another process may."""
        termios.tcsetattr(self._theirs, termios.TCSANOW, wanted)

    @property
    def given_back(self) -> bool:
        """True if the terminal is as it was before the process took it."""
        return not self.taken and termios.tcgetattr(self._theirs) == self.modes_before

    def ends(self) -> int:
        """Wait for the process's end; its exit code."""
        return self.process.wait(ENDS_WITHIN_S)


@contextmanager
def terminal(servers: str, *words: str, width: int = 132, height: int = 30, **env: str) -> Iterator[Terminal]:
    """A terminal that runs ``words`` (`alpo watch` by default), killed at the end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", _TAKE, *(words or (*COMMAND, "watch"))], stdin=theirs, stdout=theirs, stderr=theirs,
        env=environment(servers) | {"TERM": "xterm-256color"} | env, start_new_session=True,
    )
    made = Terminal(process, ours, theirs)
    try:
        yield made
    except BaseException:
        print("\n=====\n".join(made.frames[-3:]), file=sys.stderr)
        raise
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
        os.close(theirs)  # ends the reader
        made.reading.set()
        made._reader.join(ENDS_WITHIN_S)
        os.close(ours)
