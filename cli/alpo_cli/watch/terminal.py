"""A terminal that is drawn on and whose keys are read one by one; given back as it was found.

Laws:

* Whatever ends or stops the program, but kill -9, first shows the terminal's own screen and cursor and sets its own
  modes.
* In the background the terminal is another's: nothing is drawn, read or set there.
* Nothing waits for a terminal that takes no more output, but the thread that writes.
"""

from __future__ import annotations

import io
import os
import select
import signal
import termios
import threading
import tty
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import anyio
from rich.console import Console
from rich.live import Live

from alpo.threads import in_thread

from .drawing import Frame

_KEYS_BYTES = 1024
_NO_SIZE = (80, 24)
#: Seconds between two looks whether the process is in the foreground again.
LOOK_S = 0.2
#: Seconds that a frame which is being written has to be whole, at the end.
_GRACE_S = 0.5


class Terminal:
    """The terminal of this process: ``out`` draws, ``keys`` reads; None: there are none to read."""

    def __init__(self, out: int, keys: int | None, encoding: str) -> None:
        self._out = out
        self._keys = keys
        self._encoding = encoding
        self._buffer = io.StringIO()
        self._console = Console(file=self._buffer, force_terminal=True, markup=False, emoji=False, highlight=False)
        self._live = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._modes: list[Any] | None = None
        self._drawing = False
        self._written = threading.Event()
        self._written.set()

    def enter(self) -> None:
        """Take the terminal; may be repeated, to take it anew. Only for the foreground.

        Raises OSError once the terminal is gone.
        """
        if self._keys is not None:
            try:
                if self._modes is None:
                    self._modes = termios.tcgetattr(self._keys)
                tty.setcbreak(self._keys, termios.TCSANOW)
            except termios.error as error:
                raise OSError(*error.args) from error
        if self._drawing:
            self._live.stop()
            self._taken()
        self._live.start()
        self._drawing = True
        self._write(self._taken())

    def leave(self) -> None:
        """Give the terminal back, if it is still there."""
        modes, self._modes = self._modes, None
        drawing, self._drawing = self._drawing, False
        self._live.stop()
        told = self._taken()
        if not self.foreground():
            return  # the shell has set its own modes
        with suppress(OSError):
            if drawing and self._written.wait(_GRACE_S) and select.select([], [self._out], [], 0)[1]:
                self._write(told)
        if modes is not None and self._keys is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSANOW, modes)

    def stop(self) -> None:
        """Give the terminal back, and stop as Ctrl-Z does; returns once continued."""
        self.leave()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # the signal does nothing where no shell would continue the process
        signal.signal(signal.SIGTSTP, handler)

    async def draw(self, frame: Frame) -> None:
        """Draw a frame. Raises OSError once the terminal is gone."""
        self._console.size = self._size()
        self._live.update(frame, refresh=True)
        drawn = self._taken()
        if self.foreground():  # drawing takes long enough for a shell to take the terminal
            self._written.clear()
            await in_thread(self._write, drawn)  # left to itself if cancelled

    async def keys(self) -> AsyncIterator[bytes]:
        """Keys as they are pressed; ends when the terminal is gone."""
        while self._keys is not None:
            await anyio.wait_readable(self._keys)
            if not self.foreground():  # the keys are another's
                await anyio.sleep(LOOK_S)
                continue
            if not select.select([self._keys], [], [], 0)[0]:
                continue  # another has read it meanwhile
            try:
                pressed = os.read(self._keys, _KEYS_BYTES)
            except OSError:
                return
            if not pressed:
                return
            yield pressed

    def _taken(self) -> bytes:
        """Bytes drawn since the last call."""
        text = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        return text.encode(self._encoding, "replace")

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                try:
                    rest = rest[os.write(self._out, rest) :]
                except BlockingIOError:
                    select.select([], [self._out], [])
        finally:
            self._written.set()

    def _size(self) -> tuple[int, int]:
        try:
            width, height = os.get_terminal_size(self._out)
        except OSError:
            return _NO_SIZE
        return (width or _NO_SIZE[0], height or _NO_SIZE[1])

    def foreground(self) -> bool:
        """True unless the terminal is another job's, as the shell has it."""
        try:
            return os.tcgetpgrp(self._out) == os.getpgrp()
        except OSError:  # the terminal does not control this process: nobody else takes it
            return True
