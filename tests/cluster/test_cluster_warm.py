"""A forked `alpo` or `alpod` is to its caller what a started one is."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import warm
from ports import free_port
from warm import ALPO, ALPOD, INSTALLED

NOBODY = ["--servers", "127.0.0.1:1", "--timeout", "60"]


def soon(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def words(pid: int, file: str) -> list[str]:
    return Path(f"/proc/{pid}/{file}").read_text().rstrip("\0").split("\0")


@pytest.mark.parametrize(("arguments", "code"), [
    (["version"], 0), (["help", "read"], 0), (["appent"], 2),
    (["append", *NOBODY[:2], "--timeout", "2", "é\udcff"], 1),
])
def test_it_prints_and_ends_as_if_started(arguments: list[str], code: int) -> None:
    forked, started = (subprocess.run([*which, *arguments], capture_output=True, check=False)
                       for which in (ALPO, INSTALLED))
    assert (forked.returncode, forked.stdout, forked.stderr) == (started.returncode, started.stdout, started.stderr)
    assert forked.returncode == code


def test_it_is_a_child_with_its_own_words_directory_and_surroundings(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    mask = os.umask(0o027)
    resource.setrlimit(resource.RLIMIT_FSIZE, (123_456, hard))
    try:
        process = subprocess.Popen([*ALPO, "append", *NOBODY], stdin=subprocess.PIPE, cwd=tmp_path,
                                   env={**os.environ, "WHO": "it"}, start_new_session=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        os.umask(mask)
    with process:
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
        assert (int(status["PPid"]), status["Umask"]) == (os.getpid(), "0027")
        assert words(process.pid, "cmdline") == [*ALPO, "append", *NOBODY] and "WHO=it" in words(process.pid, "environ")
        assert Path(f"/proc/{process.pid}/cwd").readlink() == tmp_path
        assert os.getsid(process.pid) == process.pid
        assert resource.prlimit(process.pid, resource.RLIMIT_FSIZE) == (123_456, hard)
        assert {"0", "1", "2"} <= {file.name for file in Path(f"/proc/{process.pid}/fd").iterdir()}
        process.kill()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signals_end_it(number: signal.Signals) -> None:
    ended = []
    for which in (ALPO, INSTALLED):
        with subprocess.Popen([*which, "append", *NOBODY], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            soon(lambda: len(list(Path(f"/proc/{process.pid}/task").iterdir())) > 1)  # it reads its stdin
            process.send_signal(number)
            assert process.stderr is not None
            ended.append((process.wait(60), process.stderr.read()))
    assert ended[0] == ended[1]


def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    port = free_port()
    program = (f"import subprocess, sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
               "import warm; warm.install()\n"
               f"command = [*warm.ALPOD, '--id', '1', '--data', {str(tmp_path)!r}, '--listen', '127.0.0.1:{port}',\n"
               f"           '--member', '1=127.0.0.1:{port}']\n"
               "process = subprocess.Popen(command, stderr=subprocess.PIPE)\n"
               "process.stderr.readline(); print(process.pid, flush=True); sys.stdin.read()")
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert words(pid, "cmdline")[:3] == ALPOD
        parent.kill()
    soon(lambda: not Path(f"/proc/{pid}").exists() or words(pid, "cmdline") == [""])


def test_a_shell_s_command_stands_for_it() -> None:
    script = """
        alpo appent; echo $?
        alpo --help | head -1; echo ${PIPESTATUS[0]}
        printf x | alpo append --servers 127.0.0.1:1 --timeout 2; echo $?
        alpo append --servers 127.0.0.1:1 --timeout 60 x & STARTED=$!
        kill -TERM $STARTED; wait $STARTED; echo $?
        alpo version >&-; echo $?
    """
    said = []
    for path in (str(warm.shims()), str(Path(INSTALLED[0]).parent)):
        environ = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, check=True, text=True)
        said.append((done.stdout, done.stderr))
    assert said[0] == said[1]
