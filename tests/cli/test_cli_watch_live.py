"""`alpo watch` on a real terminal, against real servers: what it shows, how it ends, and what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from alpo_command import COMMAND, Alpo, read_line
from probe import until
from watch_rig import Terminal, terminal

pytestmark = pytest.mark.trio
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it, and hands that on

WELL = "All 3 members answer"
NOBODY = "127.0.0.1:1"
#: Sets a colour.
COLOUR = re.compile(rb"\x1b\[[0-9;]*3[0-7][0-9;]*m")


async def begun(shown: Terminal) -> None:
    await until(lambda: shown.taken and shown.cbreak and shown.shows())


@asynccontextmanager
async def below_a_shell() -> AsyncIterator[Terminal]:
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("no bash")
    with terminal(NOBODY, shell, "--norc", "--noprofile", "--noediting", PS1="ready> ") as shown:
        await until(lambda: b"ready> " in shown.drawn)
        shown.press(f"{COMMAND[0]} -m {COMMAND[2]} watch\n")
        yield shown


async def test_keys_turn_the_pages(alpo: Alpo) -> None:
    with terminal(alpo.servers) as shown:
        await until(lambda: shown.shows(WELL, "round trip", alpo.servers.split(",")[2]))
        shown.press("e")
        await until(lambda: shown.shows("Newest events", "wins term"))
        shown.press("2")
        await until(lambda: shown.shows("Server 2", "to server 1", alpo.servers.split(",")[1]))
        assert "Newest events" not in shown.frame
        shown.press("?")
        await until(lambda: shown.shows("one server in full"))
        shown.press("\x1b")
        await until(lambda: shown.shows("round trip") and "one server in full" not in shown.frame)
        shown.press("\x1b[Axyz7")  # a cursor key, and keys without a meaning
        await until(lambda: shown.shows("There is no server of this id"))
        shown.press("7")
        await until(lambda: shown.shows("round trip"))
        shown.press("q")
        assert shown.ends() == 0
        await until(lambda: shown.given_back)
        assert COLOUR.search(shown.drawn)


async def test_a_paused_view_stands_still_and_goes_on(alpo: Alpo) -> None:
    with terminal(alpo.servers) as shown:
        await until(lambda: shown.shows(WELL, "last LSN"))
        shown.press("p")
        await until(lambda: shown.shows("paused at"))
        paused = shown.frame
        last = alpo.out("append", "x", "y").split()[-1]
        before = len(shown.frames)
        await until(lambda: len(shown.frames) >= before + 3)
        await until(lambda: shown.frame == paused)
        shown.press("p")
        await until(lambda: shown.shows(f"last LSN {last} ") and "paused" not in shown.frame)


async def test_it_fits_every_size(alpo: Alpo) -> None:
    with terminal(alpo.servers) as shown:
        await until(lambda: shown.shows(WELL, "round trip"))
        for size in ((80, 24), (40, 12), (20, 5), (3, 2), (1, 1), (300, 80), (132, 30)):
            shown.resize(*size)
            await until(partial(fits, shown, *size))
        await until(lambda: shown.shows(WELL, "round trip"))
        assert shown.process.poll() is None


def fits(shown: Terminal, width: int, height: int) -> bool:
    lines = shown.frame.split("\n")
    return len(lines) == height and all(len(line) == width for line in lines)


@pytest.mark.parametrize("how", ["q", "\x03", signal.SIGINT, signal.SIGTERM])
async def test_it_ends_and_gives_the_terminal_back(how: str | signal.Signals) -> None:
    with terminal(NOBODY) as shown:
        await begun(shown)
        if isinstance(how, str):
            shown.press(how)
        else:
            shown.process.send_signal(how)
        assert shown.ends() == 0
        await until(lambda: shown.given_back)


async def test_it_stops_and_goes_on_as_a_job_of_a_shell() -> None:
    async with below_a_shell() as shown:
        for _ in range(2):
            await begun(shown)
            shown.press("\x1a")
            await until(lambda: shown.given_back and b"Stopped" in shown.drawn)
            shown.press("echo $((6 * 7))\n")
            await until(lambda: b"42\r\n" in shown.drawn)
            shown.drawn = b""
            shown.press("bg; sleep 1.5; jobs\n")  # there it waits for the terminal
            await until(lambda: b"Running" in shown.drawn)
            assert shown.given_back
            shown.press("fg\n")
        await begun(shown)
        shown.press("q")
        await until(lambda: shown.given_back)
        shown.press("echo code $?\n")
        await until(lambda: b"code 0\r\n" in shown.drawn)


@pytest.mark.parametrize("how", [signal.SIGTSTP, signal.SIGSTOP])
async def test_in_the_background_it_ends_and_touches_nothing(how: signal.Signals) -> None:
    async with below_a_shell() as shown:
        await until(lambda: shown.shows("reconnecting"))
        os.killpg(shown.in_front, how)
        await until(lambda: b"Stopped" in shown.drawn and not shown.cbreak)
        modes, screens, frames = shown.modes_now, shown.drawn.count(b"\x1b[?"), len(shown.frames)
        shown.press("bg; sleep 1.5; kill %1; wait %1; echo code $?\n")
        await until(lambda: b"code 0\r\n" in shown.drawn)
        assert (shown.modes_now, shown.drawn.count(b"\x1b[?")) == (modes, screens)
        assert len(shown.frames) - frames <= (how == signal.SIGSTOP)  # the frame that was being written, if any


async def test_where_no_shell_would_continue_it_nothing_stops_it() -> None:
    with terminal(NOBODY) as shown:
        await begun(shown)
        before = shown.drawn.count(b"\x1b[?1049h")
        shown.press("\x1a")
        await until(lambda: shown.drawn.count(b"\x1b[?1049h") > before)
        await begun(shown)


async def test_continued_after_sigstop_it_takes_the_terminal_again() -> None:
    with terminal(NOBODY) as shown:
        await begun(shown)
        shown.process.send_signal(signal.SIGSTOP)
        await until(lambda: os.waitid(os.P_PID, shown.process.pid, os.WSTOPPED | os.WNOWAIT | os.WNOHANG))
        shown.modes(shown.modes_before)
        assert not shown.cbreak
        shown.process.send_signal(signal.SIGCONT)
        await begun(shown)
        shown.press("q")
        assert shown.ends() == 0
        await until(lambda: shown.given_back)


async def test_a_terminal_that_takes_no_more_does_not_hold_it() -> None:
    with terminal(NOBODY, width=500, height=200) as shown:
        await begun(shown)
        shown.reading.clear()
        shown.press("?")  # what the reader waits for already
        for _ in range(20):
            shown.press("?")
        shown.process.send_signal(signal.SIGTERM)
        assert shown.ends() == 0
        assert not shown.cbreak


async def test_colours_are_left_out_where_they_are_not_wanted(alpo: Alpo) -> None:
    with terminal(alpo.servers, NO_COLOR="1") as shown:
        await until(lambda: shown.shows(WELL))
        assert not COLOUR.search(shown.drawn)


@pytest.mark.parametrize("words", [("--count", "2"), ("--json",)])
async def test_lines_on_a_terminal(words: tuple[str, ...], alpo: Alpo) -> None:
    with terminal(alpo.servers, *COMMAND, "watch", *words) as shown:
        await until(lambda: shown.drawn.count(b"\r\n") >= 2)
        assert b"\x1b" not in shown.drawn and WELL.encode() in shown.drawn


async def test_a_terminal_that_cannot_be_drawn_on_gets_lines() -> None:
    with terminal(NOBODY, TERM="dumb") as shown:
        await until(lambda: shown.drawn.count(b"\r\n") >= 2)
        assert b"\x1b" not in shown.drawn and b"reconnecting" in shown.drawn


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, None])
async def test_lines_in_a_pipe_end_well(how: signal.Signals | None, alpo: Alpo) -> None:
    with alpo.under_way("watch") as process:
        line = read_line(process)
        assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z  (ok|warn|bad) +Server \d leads since term \d+\. Append", line), line
        assert process.stdout is not None and process.stderr is not None
        if how is None:
            process.stdout.close()
        else:
            process.send_signal(how)
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


async def test_json_lines(alpo: Alpo) -> None:
    with alpo.under_way("watch", "--json") as process:
        first, second = json.loads(read_line(process)), json.loads(read_line(process))
    assert (first["appends_per_s"], second["appends_per_s"]) == (None, 0.0)
    assert first["leader"] in (1, 2, 3) and first["term"] >= 1
    assert [(member["id"], member["silent_s"]) for member in first["members"]] == [(1, None), (2, None), (3, None)]


async def test_a_count_ends_it(alpo: Alpo) -> None:
    assert len(alpo.lines("watch", "--count", "2")) == 2
    nobody = Alpo(NOBODY).run("watch", "--count", "1", code=1)
    assert b"No server answers" in nobody.stdout
    assert nobody.stderr == b"alpo: none of 127.0.0.1:1 could be reached: connection refused\n"
