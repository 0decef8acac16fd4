"""`alpo state lock`: a command runs while a lock is held; it ends when the lock is lost, and gets our signals."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import pytest
from alpo_command import COMMAND, Alpo, environment, read_line, until

from alpo.state.recipes import Lock
from alpo_cli import state_lock
from alpo_cli.options import Target
from alpo_cli.state_lock import Plan, Story

#: Script that prints its process group and then waits: a shell and a process of its own, in one group.
WAITER = "echo $$; sleep 1000; true"


@contextmanager
def running(alpo: Alpo, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`alpo state lock`, run as from a terminal: no signal is ignored. Its command is killed with it."""
    heeding = ["env", "--default-signal=HUP,INT,QUIT,TERM"]
    process = subprocess.Popen([*heeding, *COMMAND, "state", "lock", *words], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(alpo.servers))
    try:
        yield process
    finally:
        with suppress(OSError):
            for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                os.killpg(int(child), signal.SIGKILL)
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):  # a command that lives on has them, too
            if stream is not None:
                stream.close()


def free(alpo: Alpo, name: str) -> bool:
    return alpo.run("state", "get", name, code=None).returncode == 1


def sleeps(group: int) -> bool:
    """True once the shell's own command runs."""
    children = Path(f"/proc/{group}/task/{group}/children").read_text().split()
    return [Path(f"/proc/{child}/comm").read_text() for child in children] == ["sleep\n"]


def group_is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -10 $$", 138)])
def test_the_exit_code_is_the_commands(alpo: Alpo, script: str, code: int) -> None:
    said = alpo.run("state", "lock", "code", "--", "sh", "-c", script, code=code)
    assert (said.stdout, said.stderr) == (b"", b"")
    assert free(alpo, "code")


def test_the_command_knows_the_lock(alpo: Alpo) -> None:
    show = ["--", "sh", "-c", "cat; echo $ALPO_LOCK_NAME $ALPO_LOCK_TOKEN"]
    first = alpo.out("state", "lock", "a name", *show, stdin=b"from stdin\n").splitlines()
    assert first[0] == "from stdin" and first[1].startswith("a name ")
    (told,) = alpo.lines("state", "lock", "a name", "--json", "--", "true")
    assert list(told) == ["name", "token", "obtained", "lost", "code"]
    assert told == {"name": "a name", "token": told["token"], "obtained": True, "lost": False, "code": 0}
    assert told["token"] > int(first[1].split()[-1])


def test_what_cannot_be_run_takes_no_lock(alpo: Alpo, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("no program")
    (tmp_path / "odd").write_bytes(b"\x7fELF")
    (tmp_path / "odd").chmod(0o755)
    assert alpo.says("state", "lock", "x", "--", "no-such", code=127) == "alpo: no-such: command not found\n"
    assert alpo.says("state", "lock", "x", "--", tmp_path / "no", code=127).endswith("no: command not found\n")
    assert alpo.says("state", "lock", "x", "--", tmp_path / "plain", code=126).endswith("plain: cannot be run\n")
    assert free(alpo, "x")
    assert alpo.says("state", "lock", "x", "--", tmp_path / "odd", code=126).endswith("odd: cannot be run\n")
    assert free(alpo, "x")


def test_a_lock_that_somebody_has_is_waited_for_or_not(alpo: Alpo) -> None:
    with running(alpo, "taken", "--", "sh", "-c", "echo begun; read line; echo $line") as holder:
        assert read_line(holder) == "begun\n"
        refused = alpo.run("state", "lock", "taken", "--no-wait", "--json", "--", "echo", "run", code=1)
        assert json.loads(refused.stdout) == {
            "name": "taken", "token": None, "obtained": False, "lost": False, "code": None}
        holders = alpo.out("state", "get", "taken").strip()
        assert refused.stderr.decode() == f"alpo: {holders} has the lock taken: the command was not run\n"
        assert holders.endswith(f":{holder.pid}")
        late = alpo.run("state", "lock", "taken", "--wait", "0.5", "--", "echo", "run", code=1)
        assert (late.stdout, late.stderr) == (b"", b"alpo: the lock 'taken' was not free within 0.5 s\n")
        with running(alpo, "taken", "--", "echo", "mine") as waiter:
            assert holder.stdin is not None
            holder.stdin.write(b"done\n")
            holder.stdin.flush()
            assert (read_line(holder), holder.wait(60)) == ("done\n", 0)
            assert (read_line(waiter), waiter.wait(60)) == ("mine\n", 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_signals_are_passed_on_to_the_group(alpo: Alpo, number: int) -> None:
    with running(alpo, "signals", "--", "sh", "-c", WAITER) as holder:
        group = int(read_line(holder))
        assert group != holder.pid and os.getpgid(group) == group
        until(lambda: sleeps(group))  # a signal between a shell's fork and its child's exec is lost to the child
        holder.send_signal(number)
        assert holder.wait(60) == 128 + number
        until(lambda: group_is_gone(group))
    assert free(alpo, "signals")


def test_a_command_may_do_what_it_likes_with_a_signal(alpo: Alpo) -> None:
    script = 'trap "echo heard; exit 5" TERM; echo ready; while :; do sleep 0.1; done'
    with running(alpo, "heard", "--", "sh", "-c", script) as holder:
        assert read_line(holder) == "ready\n"
        holder.send_signal(signal.SIGTERM)
        assert (read_line(holder), holder.wait(60)) == ("heard\n", 5)


def test_a_signal_ends_the_waiting(alpo: Alpo) -> None:
    alpo.run("state", "set", "for-ever", "somebody", "--lease", "1000")
    for number in (signal.SIGINT, signal.SIGTERM):
        with running(alpo, "for-ever", "--", "echo", "run") as waiter:
            assert waiter.stdout is not None and waiter.stderr is not None
            until(lambda pid=waiter.pid: ends_by_itself(pid))  # type: ignore[misc]
            waiter.send_signal(number)
            assert waiter.wait(60) == 1
            assert (waiter.stdout.read(), waiter.stderr.read()) == (b"", b"alpo: interrupted\n")


def ends_by_itself(pid: int) -> bool:
    """True once `alpo` handles SIGTERM; Python itself has a handler for SIGINT from the first moment."""
    (caught,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_lock_that_is_lost_ends_the_commands_group(alpo: Alpo, stubborn: bool) -> None:
    """The holder is stopped for longer than the lease, and somebody else takes the lock."""
    script = f'trap "" TERM; {WAITER}' if stubborn else WAITER
    with running(alpo, "lost", "--ttl", "1", "--json", "--", "sh", "-c", script) as holder:
        assert holder.stdout is not None and holder.stderr is not None
        group = int(read_line(holder))
        holder.send_signal(signal.SIGSTOP)
        (next_,) = alpo.lines("state", "lock", "lost", "--json", "--", "true")
        assert not group_is_gone(group)
        holder.send_signal(signal.SIGCONT)
        assert holder.wait(60) == 3
        until(lambda: group_is_gone(group))
        told = json.loads(holder.stdout.read())
        assert (told["obtained"], told["lost"], told["code"]) == (True, True, 137 if stubborn else 143)
        assert told["token"] < next_["token"]
        assert holder.stderr.read() == (
            b"alpo: the lock lost was lost while the command ran, and the command was ended\n")


def test_a_short_wait_shortens_no_renewal(alpo: Alpo, monkeypatch: pytest.MonkeyPatch) -> None:
    given_s: list[float] = []

    async def run(plan: Plan, story: Story, lock: Lock) -> None:
        given_s.append(lock._state._folder.timeout_s)

    monkeypatch.setattr(state_lock, "_run", run)
    story = Story()
    anyio.run(state_lock._hold, Target((alpo.servers,), 40.0, False), Plan("brief", ("true",), 10.0, 20.0), story)
    assert given_s == [40.0] and story.token and story.released


def test_a_lock_whose_variable_was_taken_away_is_lost(alpo: Alpo) -> None:
    with running(alpo, "robbed", "--ttl", "1", "--", "sh", "-c", WAITER) as holder:
        group = int(read_line(holder))
        alpo.run("state", "rm", "robbed")
        assert holder.wait(60) == 3
        until(lambda: group_is_gone(group))


def test_the_lock_of_a_holder_that_was_killed_is_free_after_its_time(alpo: Alpo) -> None:
    with running(alpo, "killed", "--ttl", "1", "--", "sh", "-c", WAITER) as holder:
        group = int(read_line(holder))
        holder.kill()
        try:
            assert alpo.out("state", "lock", "killed", "--", "echo", "mine") == "mine\n"
            assert not group_is_gone(group)  # no process is left to end it: hence the token
        finally:
            os.killpg(group, signal.SIGKILL)


def test_the_command_has_the_terminal(alpo: Alpo) -> None:
    """The command reads what is typed and receives Ctrl-C, and Ctrl-Z does not leave the shell waiting."""
    ours, theirs = pty.openpty()
    script = 'trap "echo caught; exit 9" INT; read line; echo "got $line"; while :; do sleep 0.1; done'
    own = ["env", "--default-signal=INT", "setsid", "--ctty", "--wait"]
    words = ["state", "lock", "typed", "--", "sh", "-c", script]
    with subprocess.Popen([*own, *COMMAND, *words], stdin=theirs, stdout=theirs, stderr=theirs,
                          env=environment(alpo.servers)) as process:
        os.close(theirs)
        os.write(ours, b"hello\n")
        shown = seen(ours, b"got hello")
        os.write(ours, b"\x1a\x03")
        seen(ours, b"caught")
        assert process.wait(60) == 9, shown
    os.close(ours)


def seen(terminal: int, text: bytes) -> bytes:
    """Output that the terminal shows, up to ``text``."""
    shown = b""
    while text not in shown:
        shown += os.read(terminal, 4096)
    return shown
