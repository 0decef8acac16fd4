"""Work of `alpo state lock`: a command that runs only while a lock is held; and of `alpo state elect`.

Laws:

* The command runs only once the lock is ours, and its whole process group is ended as soon as we know that it is not.
* It has a process group of its own, so signals reach it through us alone; and the terminal, if we have that.
* Whatever happens, the lock is given back, and its exit code says what did.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskStatus

from alpo.client.reasons import LASTING
from alpo.errors import Unavailable
from alpo.state import LockLost, State, Variable
from alpo.state.recipes import Election, Lock
from alpo.threads import in_thread

from .exits import Failed, Unknown
from .options import Target
from .output import Sink, escape, escape_bytes, json_line, print_json, say
from .running import run, unless_interrupted
from .state_open import need_settled, opened, unknown_told, value_fields

#: Time that a command has to end, once the lock is lost, before it is killed.
GRACE_S = 5.0
#: Longest time until a lock that is lost is noticed.
_LOOK_S = 0.1
NOT_FOUND, NOT_RUNNABLE = 127, 126
#: Place of the special keys among a terminal's modes.
_KEYS = 6
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True, slots=True)
class Plan:
    """The command line's request. ``wait_s`` 0: try once; None: for ever."""

    name: str
    command: tuple[str, ...]
    ttl_s: float
    wait_s: float | None


class Child:
    """The command, in a process group of its own. ``code``: its exit code as a shell tells it, None until it has
    ended."""

    def __init__(self, command: tuple[str, ...], environment: dict[str, str]) -> None:
        """Start it. Raises OSError."""
        self._process = subprocess.Popen(command, env={**os.environ, **environment}, process_group=0)
        self.code: int | None = None

    def send(self, number: int) -> None:
        """Send a signal to the whole group, while there is one."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    @property
    def gone(self) -> bool:
        """True once nobody is left in the group."""
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return self.code is not None
        except PermissionError:
            pass
        return False

    def wait(self) -> None:
        """Wait until it has ended."""
        code = self._process.wait()
        self.code = 128 - code if code < 0 else code

    @contextmanager
    def having_terminal(self) -> Iterator[None]:
        """Lend it the terminal, if that is ours, so that it can read what is typed. Ctrl-Z is without effect then: it
        would stop the command, and nobody would tell the shell."""
        try:
            terminal = sys.stdin.fileno()
            owner, modes = os.tcgetpgrp(terminal), termios.tcgetattr(terminal)
        except (OSError, ValueError, termios.error):
            owner, modes = 0, []
        if owner != os.getpgrp():
            yield
            return
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        try:
            keys = list(modes[_KEYS])
            keys[termios.VSUSP] = b"\0"
            _set_modes(terminal, [*modes[:_KEYS], keys])
            self._give_terminal(self._process.pid)
            self.send(signal.SIGCONT)  # the command may have tried to read before
            yield
        finally:
            self._give_terminal(owner)
            _set_modes(terminal, modes)
            signal.signal(signal.SIGTTOU, before)

    def _give_terminal(self, group: int) -> None:
        with suppress(OSError):  # the command has ended, or the terminal is gone
            os.tcsetpgrp(sys.stdin.fileno(), group)


def _set_modes(terminal: int, modes: list[Any]) -> None:
    with suppress(termios.error):  # the terminal is gone
        termios.tcsetattr(terminal, termios.TCSADRAIN, modes)


@dataclass(slots=True)
class Story:
    """Events so far: ``holder`` has the lock instead of us; ``code`` is the exit code that the command ended with;
    ``released``: False if nobody can tell whether the lock was given back."""

    holder: str = ""
    token: int | None = None
    child: Child | None = None
    code: int | None = None
    lost: bool = False
    interrupted: bool = False
    released: bool = True
    state: State | None = None


def hold(target: Target, plan: Plan) -> int:
    """Run the command while the lock is held; returns the exit code. Raises Failed, Unknown, KeyboardInterrupt and the
    library's errors."""
    program = plan.command[0]
    if shutil.which(program) is None:  # fail now, not after an hour's wait for the lock
        return _not_run(program, FileNotFoundError if not Path(program).exists() else PermissionError)
    story = Story()
    try:
        run(_hold, target, plan, story)
    finally:
        if target.json:
            print_json({
                "name": plan.name, "token": story.token, "obtained": story.token is not None, "lost": story.lost,
                "code": story.code,
            })
    if not story.released:
        say(f"alpo: nobody can tell whether the lock {escape(plan.name)} was given back:"
            f" it is free in {plan.ttl_s:g} s at the latest")
    if story.interrupted:
        if story.state is not None:
            need_settled(target, story.state)
        raise KeyboardInterrupt
    if story.token is None:
        raise Failed(f"{escape(story.holder)} has the lock {escape(plan.name)}: the command was not run")
    if story.lost:
        raise Unknown(f"the lock {escape(plan.name)} was lost while the command ran, and the command was ended")
    assert story.code is not None
    return story.code


def _not_run(program: str, error: type[OSError]) -> int:
    """Say why a command cannot be started; returns a shell's exit code for that."""
    found = not issubclass(error, FileNotFoundError)
    say(f"alpo: {escape(program)}: {'cannot be run' if found else 'command not found'}")
    return NOT_RUNNABLE if found else NOT_FOUND


async def _hold(target: Target, plan: Plan, story: Story) -> None:
    """Obtain the lock, run the command, and give the lock back."""
    begun_s, timeout_s = anyio.current_time(), target.timeout_s
    if plan.wait_s:
        target = replace(target, timeout_s=min(timeout_s, plan.wait_s))
    async with anyio.create_task_group() as tasks:
        await tasks.start(_pass_signals_on, story, tasks.cancel_scope)
        async with opened(target, create=True) as state:
            story.state = state
            lock = Lock(state, plan.name, plan.ttl_s, _me())
            with unknown_told(target):
                if await _obtain(lock, plan.wait_s, begun_s, story):
                    story.token = lock.token
            state.timeout_s = timeout_s  # the renewals and the release have all their time
            if story.token is not None:
                try:
                    await _run(plan, story, lock)
                finally:
                    with anyio.CancelScope(shield=True):
                        story.released = await lock.release()
        tasks.cancel_scope.cancel()


async def _pass_signals_on(
    story: Story, waiting: anyio.CancelScope, *, task_status: TaskStatus[None]
) -> None:
    """Give the command the signals that we get; before it runs they end the waiting (a task)."""
    heeded = [number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
    with anyio.open_signal_receiver(*heeded) as signals:
        task_status.started()
        async for number in signals:
            if story.child is None:
                story.interrupted = True
                waiting.cancel()
            elif story.child.code is None:
                story.child.send(number)


async def _obtain(lock: Lock, wait_s: float | None, begun_s: float, story: Story) -> bool:
    """Take the lock; False if somebody else has it. Raises `Unavailable` ``wait_s`` after ``begun_s``, and as
    `Lock.acquire`."""
    if wait_s is None:
        await lock.acquire()
        return True
    if wait_s > 0:
        try:
            await lock.acquire(max(0.0, begun_s + wait_s - anyio.current_time()))
        except LASTING:
            raise
        except Unavailable as error:
            why = f": {error.__cause__}" if error.__cause__ is not None else ""
            raise Unavailable(f"the lock {lock.name!r} was not free within {wait_s:g} s{why}") from error
        return True
    taken = await lock.try_acquire()
    if not taken:
        story.holder = (await lock.holder()).text or "somebody"
    return taken


async def _run(plan: Plan, story: Story, lock: Lock) -> None:
    """Run the command to its end, or until the lock is lost; then end it."""
    named = {"ALPO_LOCK_NAME": plan.name, "ALPO_LOCK_TOKEN": str(lock.token)}
    try:
        child = story.child = Child(plan.command, named)
    except OSError as error:
        story.code = _not_run(plan.command[0], type(error))
        return
    try:
        with child.having_terminal():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_see_it_end, child, tasks.cancel_scope)
                while lock.held:
                    await anyio.sleep(min(_LOOK_S, plan.ttl_s / 20))
                tasks.cancel_scope.cancel()
        story.lost = child.code is None
    finally:
        if child.code is None:
            with anyio.CancelScope(shield=True):
                await _end(child)
        story.code = child.code


async def _see_it_end(child: Child, running: anyio.CancelScope) -> None:
    await in_thread(child.wait)
    running.cancel()


async def _end(child: Child) -> None:
    """End the command's process group: ask, and then insist."""
    child.send(signal.SIGTERM)
    child.send(signal.SIGCONT)
    with anyio.move_on_after(GRACE_S):
        while not child.gone:
            await anyio.sleep(_LOOK_S / 2)
    child.send(signal.SIGKILL)
    with anyio.move_on_after(GRACE_S):
        while child.code is None:
            await anyio.sleep(_LOOK_S / 2)


# -- elections ------------------------------------------------------------------------------------------


def _me() -> str:
    """The value by which others know this process, unless another is given."""
    return f"{os.uname().nodename}:{os.getpid()}"


def elect(target: Target, name: str, value: str | None, ttl_s: float) -> None:
    """Wait until this process leads, say so, and lead until Ctrl-C. Raises Unknown if leadership is lost,
    KeyboardInterrupt if Ctrl-C comes before it leads, and the library's errors."""
    led: list[int] = []

    async def lead() -> None:
        async with opened(target, create=True) as state:
            reign = Election(state, name, value if value is not None else _me(), ttl_s).lead()
            with unknown_told(target):
                async with reign:
                    led.append(reign.token)
                    fields = {"name": name, "token": reign.token, **value_fields((await reign.holder()).value)}
                    await Sink().write((json_line(fields) if target.json else str(reign.token)).encode() + b"\n")
                    await anyio.sleep_forever()

    try:
        interrupted = run(unless_interrupted, lead)
    except* LockLost as lost:
        raise Unknown(f"this process leads {escape(name)} no more: {lost.exceptions[0]}") from lost
    if interrupted and not led:
        raise KeyboardInterrupt


async def _observe(target: Target, name: str) -> None:
    sink = Sink()
    async with opened(target, create=True) as state:
        async for leader in Election(state, name).observe():
            await sink.write(_leader_line(target, leader).encode())


def _leader_line(target: Target, leader: Variable) -> str:
    if target.json:
        return json_line({"name": leader.name, "token": leader.created or None, **value_fields(leader.value)}) + "\n"
    if leader.value is None:
        return "nobody\n"
    return f"{leader.created}\t{escape_bytes(leader.value)}\n"


def observe(target: Target, name: str) -> None:
    """Print who leads, and who follows, until Ctrl-C, which is no error."""
    with suppress(KeyboardInterrupt):
        run(_observe, target, name)
