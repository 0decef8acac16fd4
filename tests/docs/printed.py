"""The docs' examples, run: commands with what they print, in a shell of their own for each page.

A page's `$ command` lines run in order, in one bash on a terminal, in an empty folder. What a page prints below a
command is what must come, but for

* what varies from run to run: times, durations, sizes, rates, random ids (`MASKS`), and widths of columns;
* `…`: anything up to the end of the line; on a line of its own: any lines;
* what the page itself says varies.

Comments of a page, which no reader sees, say what an example needs:

    <!-- hidden: COMMANDS -->         run before what follows, and must succeed
    <!-- varies: REGEX -->            from here on what matches is equal to whatever matches; an empty one ends all
    <!-- may come: REGEX -->          from here on lines in which it is found may come or not; an empty one ends all
    <!-- any order -->                the lines of the next block may come in any order
    <!-- not run: WHY -->             the next block is not run

An output that ends with the line `^C` is that of a command that is interrupted once all before has come. Ports 7100 to
7999 of a page are ports that are free. What Java says as Spark starts is left out.

`python tests/docs/printed.py PAGE …` writes what is printed now into pages whose examples print something else.
"""

from __future__ import annotations

import codecs
import itertools
import os
import pty
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
#: Far longer than any example takes, one that starts Spark on a busy machine too.
ENDS_WITHIN_S = 240.0
COLUMNS = 132
_PORTS = re.compile(r"\b7[1-9]\d\d\b")
_NUMBER = r"\d[\d,.]*"
MASKS = [(re.compile(pattern), name) for pattern, name in (
    (r"\d{8}T\d{6}\.\d{6}Z", "<time>"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\b)", "<time>"),
    (r"\b\d\d:\d\d:\d\d\.\d+Z?", "<clock>"),
    (r"~[0-9a-f]{8}-[0-9a-f-]{27}", "<client>"),
    (r"\b[0-9a-f]{32}\b", "<id>"),
    (rf"\b{_NUMBER} ?(ms|µs|s|min|h)\b", "<duration>"),
    (rf"\b{_NUMBER} ?(B|KiB|MiB|GiB|bytes|KB|MB|GB)\b", "<size>"),
    (rf"\b{_NUMBER} ?%", "<share>"),
    (rf'"(\w*(_ms|_s|bytes|_per_s))": (-?{_NUMBER}(e-?\d+)?|null)', r'"\1": <figure>'),
)]
_BORDER = re.compile(r"[━─]+[━─┳┯┬┴╇┼┻┷┓┐┩┤┛┘]*|[┳┬╇┼┴]+")


_JAVA = re.compile(r"WARNING: Using incubator modules|Setting default log level|To adjust logging level use|^\[Stage ")


class Example(NamedTuple):
    """A command and what the page prints below it. ``where``: PAGE:LINE; ``below``: the page's lines before it."""

    where: str
    command: str
    output: list[str]
    below: int = 0
    indent: str = ""
    varies: tuple[str, ...] = ()
    may_come: tuple[str, ...] = ()
    any_order: bool = False


class Hidden(NamedTuple):
    """Commands that no reader sees."""

    where: str
    command: str


class Page(NamedTuple):
    """A page's examples and hidden commands, ``steps``, in order; ``not_run``: (where, why)."""

    steps: list[Example | Hidden]
    not_run: list[tuple[str, str]]


def read_page(path: Path) -> Page:
    """The examples of a page. A block without a command (no `$`) is no example."""
    steps: list[Example | Hidden] = []
    not_run: list[tuple[str, str]] = []
    varies: list[str] = []
    may_come: list[str] = []
    why = ""
    any_order = False
    for number, kind, lines, indent in _pieces(path.read_text("utf-8").splitlines()):
        where = f"{path.name}:{number}"
        if kind == "comment":
            word, _, rest = "\n".join(lines).strip().partition(":")
            if word == "hidden":
                steps.append(Hidden(where, rest.strip()))
            elif word == "varies":
                varies = [*varies, rest.strip()] if rest.strip() else []
            elif word == "may come":
                may_come = [*may_come, rest.strip()] if rest.strip() else []
            elif word == "not run":
                why = rest.strip()
                assert why, f"{where}: says not why"
            elif word == "any order":
                any_order = True
        elif any(line.startswith("$ ") for line in lines):
            if why:
                not_run.append((where, why))
            else:
                told = Example(path.name, "", [], 0, indent, tuple(varies), tuple(may_come), any_order)
                steps += _examples(told, number, lines)
            why, any_order = "", False
    return Page(steps, not_run)


def _pieces(lines: list[str]) -> Iterator[tuple[int, str, list[str], str]]:
    """(line number, "comment" or "block", lines without their indentation, the indentation)."""
    at = 0
    while at < len(lines):
        start, line = at, lines[at]
        if line.startswith("<!--"):
            while "-->" not in lines[at]:
                at += 1
            text = "\n".join(lines[start:at + 1])
            yield start + 1, "comment", text.removeprefix("<!--").partition("-->")[0].splitlines(), ""
        elif line.lstrip().startswith("```"):
            at += 1
            while not lines[at].lstrip().startswith("```"):
                at += 1
            yield start + 2, "block", lines[start + 1:at], ""
        elif line.startswith("    ") and line.strip() and (start == 0 or not lines[start - 1].strip()):
            while at + 1 < len(lines) and (lines[at + 1].startswith("    ") or not lines[at + 1].strip()):
                at += 1
            block = lines[start:at + 1]
            while block and not block[-1].strip():
                block.pop()
            yield start + 1, "block", [text[4:] for text in block], "    "
        at += 1


def _examples(told: Example, number: int, lines: list[str]) -> Iterator[Example]:
    """The examples of one block; ``told`` holds the fields that they share."""
    at = 0
    while at < len(lines):
        if not lines[at].startswith("$ "):
            at += 1
            continue
        start, command = at, lines[at][2:]
        at += 1
        while not _whole(command):
            command += "\n" + lines[at]
            at += 1
        output = list(itertools.takewhile(lambda line: not line.startswith("$ "), lines[at:]))
        yield told._replace(
            where=f"{told.where}:{number + start}", command=command, output=output, below=number - 1 + at)
        at += len(output)


def _whole(command: str) -> bool:
    done = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True, check=False)
    return not command.rstrip().endswith("\\") and "unexpected EOF" not in done.stderr


#: Version of `kill` that returns when the process is gone: one that a disk holds takes its time. Bash prints "Killed"
#: at any later moment about a job of its own, and nothing about a disowned one.
_KILL = """kill() {
    [ "$1" != -9 ] || disown "${@:2}" 2> /dev/null
    builtin kill "$@" || return
    [ "$1" = -9 ] || return 0
    for pid in "${@:2}"; do
        while grep -q . /proc/$pid/cmdline 2> /dev/null; do command sleep 0.01; done
    done
}"""


class Shell:
    """A bash on a terminal, in an empty folder, with the project's commands on its PATH; ``commands``: a folder of
    commands that come first on that."""

    def __init__(self, folder: Path, commands: Path | None = None) -> None:
        before = f"{commands}:" if commands else ""
        self._ports: dict[str, str] = {}
        self._name = secrets.token_hex(16)
        self._numbers = itertools.count(1)
        inside, outside = pty.openpty()
        self._terminal = inside
        environment = {
            "PATH": f"{before}{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder), "LANG": "C.UTF-8",
            "TERM": "dumb", "COLUMNS": str(COLUMNS), "LINES": "60", "PYTHON": sys.executable, "ROOT": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONWARNINGS": "ignore", "STARTED_BY": self._name,
        }
        # A test run in the background ignores Ctrl-C, and would hand that on.
        bash = ["env", "--default-signal=INT", "bash", "--norc", "--noprofile"]
        self._process = subprocess.Popen(
            bash, stdin=subprocess.PIPE, stdout=outside, stderr=outside, cwd=folder,
            env=environment, start_new_session=True,
        )
        os.close(outside)
        self.run("set +m")
        self.run(_KILL)

    def run(self, command: str, until: Callable[[str], bool] | None = None) -> tuple[int, str]:
        """Run a command: its exit code, and its output on both streams. It is interrupted once ``until(output)`` holds.

        Raises AssertionError if the command does not end.
        """
        end = f"--- done {next(self._numbers)}"
        assert self._process.stdin is not None
        script = f"{{ {self._here(command)}\n}} < /dev/null; printf '\\n{end} %d\\n' $?\n"
        self._process.stdin.write(script.encode())
        self._process.stdin.flush()
        printed, decoder = "", codecs.getincrementaldecoder("utf-8")("replace")  # a read may end within a character
        deadline_s = time.monotonic() + ENDS_WITHIN_S
        while (found := re.search(rf"\n{end} (\d+)\n", printed)) is None:
            if not select.select([self._terminal], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
                raise AssertionError(f"{command!r} has not ended; it printed:\n{printed}")
            printed = (printed + decoder.decode(os.read(self._terminal, 65536))).replace("\r\n", "\n")
            if until is not None and until(self._there(printed)):
                self._interrupt()
                until = None
        return int(found[1]), self._there(printed[:found.start()])

    def close(self) -> None:
        """End the shell and all that it started: servers too, which are in sessions of their own."""
        mark = f"STARTED_BY={self._name}".encode()
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # it has ended meanwhile
                if mark in environment.read_bytes():
                    os.kill(int(environment.parent.name), signal.SIGKILL)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()
        os.close(self._terminal)

    def _interrupt(self) -> None:
        """Interrupt the command that runs, as Ctrl-C does."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        os.kill(max(map(int, children)), signal.SIGINT)

    def _here(self, text: str) -> str:
        """A page's ports as ports of this machine, those of a ten together."""
        def port(found: re.Match[str]) -> str:
            ten = found[0][:3]
            if ten not in self._ports:
                self._ports[ten] = str(free_ten(set(self._ports.values())))
            return self._ports[ten] + found[0][3:]
        text = re.sub(r"(alpo cluster start (?!.*--base-port))", r"\1--base-port 7100 ", text)
        return _PORTS.sub(port, text)

    def _there(self, text: str) -> str:
        for told, real in self._ports.items():
            text = re.sub(rf"\b{real}(\d)\b( *[│┃])", rf"{told}\1 \2", text)  # a column keeps its width
            text = re.sub(rf"\b{real}(\d)\b", rf"{told}\1", text)
        return text


def free_ten(taken: set[str]) -> int:
    """The first digits of ten ports on which nobody listens, of those that `tests/cluster/ports.py` gives a worker."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 17
    for offset in range(100):
        ten = 1500 + worker * 100 + (os.getpid() + offset) % 100
        if str(ten) in taken:
            continue
        try:
            for port in range(ten * 10, ten * 10 + 10):
                with socket.socket() as sock:
                    sock.bind(("127.0.0.1", port))
        except OSError:
            continue
        return ten
    raise AssertionError("no ten ports in a row are free")


def masked(line: str, varies: tuple[str, ...] = ()) -> str:
    """A line without what varies."""
    for number, pattern in enumerate(varies, 1):
        line = re.sub(pattern, f"<varies {number}>", line)
    for regex, name in MASKS:
        line = regex.sub(name, line)
    return re.sub(r" +", " ", _BORDER.sub("━", line)).rstrip()


def interrupted(example: Example) -> Callable[[str], bool] | None:
    """Condition to interrupt an example that ends with Ctrl-C: all output before it has come. None for the others."""
    if not example.output or example.output[-1] != "^C":
        return None
    before = example._replace(output=example.output[:-1])
    return lambda printed: not difference(before, printed)


def difference(example: Example, printed: str) -> str:
    """"" if ``printed`` is what the page says; else the first line that is not, in words."""
    told, real = (
        [masked(line, example.varies) for line in lines if not any(re.search(each, line) for each in example.may_come)]
        for lines in (example.output, _lines(printed))
    )
    while told and (not told[-1] or told[-1] == "^C"):
        told.pop()
    if example.any_order:
        told, real = sorted(told), sorted(real)
    if _same(told, real):
        return ""
    return f"{example.where}: $ {example.command}\n--- the page says\n" + "\n".join(told) + (
        "\n--- it prints\n" + "\n".join(real) + "\n--- in full\n" + printed.strip("\n"))


def _lines(printed: str) -> list[str]:
    shown = (line.rpartition("\x1b[K")[2].rstrip() for line in printed.split("\n"))
    kept = [line for line in shown if not _JAVA.search(line)]
    return "\n".join(kept).strip("\n").splitlines()


def _same(told: list[str], real: list[str]) -> bool:
    if not told:
        return not real
    if told[0] == "…":
        return any(_same(told[1:], real[skip:]) for skip in range(len(real) + 1))
    return bool(real) and _line_same(told[0], real[0]) and _same(told[1:], real[1:])


def _line_same(told: str, real: str) -> bool:
    if "…" not in told:
        return told == real
    return re.fullmatch(".*".join(re.escape(part) for part in told.split("…")), real) is not None


def rewrite(path: Path, folder: Path) -> None:
    """Run a page's examples, and write what they print now into it where it says something else."""
    lines = path.read_text("utf-8").splitlines()
    moved = 0
    shell = Shell(folder)
    try:
        for step in read_page(path).steps:
            code, printed = shell.run(step.command, interrupted(step) if isinstance(step, Example) else None)
            if isinstance(step, Hidden):
                assert code == 0, f"{step.where}: {step.command} ended with {code}:\n{printed}"
            elif difference(step, printed):
                print(difference(step, printed), end="\n\n", flush=True)
                new = [(step.indent + line).rstrip() for line in _lines(printed)]
                new += [""] * (len(step.output) - len("\n".join(step.output).rstrip().splitlines()))
                at = step.below + moved
                lines[at:at + len(step.output)] = new
                moved += len(new) - len(step.output)
    finally:
        shell.close()
        path.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as home:
            rewrite(Path(name), Path(home))
