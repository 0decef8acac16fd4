"""A real browser without a screen, for the page: Chromium, spoken to over a pipe (its DevTools protocol)."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from probe import until

NAMES = ("chromium", "chromium-browser", "google-chrome")
_WAIT_S = 60.0
#: Program that becomes another one, which finds two descriptors as 3 and 4: there it reads commands, and answers.
_ARRANGED = """
import os, sys
read, write = os.dup(int(sys.argv[1])), os.dup(int(sys.argv[2]))
while min(read, write) < 5: read, write = os.dup(read), os.dup(write)
os.dup2(read, 3), os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def program() -> str | None:
    """The path of the browser; None if there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Tab:
    """One tab. ``complaints``: what the browser had to say about the page, such as what its policy forbids."""

    def __init__(self, write: trio.lowlevel.FdStream, read: trio.lowlevel.FdStream) -> None:
        self._write, self._read = write, read
        self._number, self._session, self._rest = 0, "", b""
        self.complaints: list[str] = []

    async def open(self) -> None:
        target = await self._call("Target.createTarget", url="about:blank")
        attached = await self._call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            await self._call(f"{domain}.enable")

    async def look(self, url: str, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Show a page in a window of this size."""
        await self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self._call("Emulation.setEmulatedMedia", features=[scheme])
        await self._call("Page.navigate", url=url)
        await self.until(f"document.readyState == 'complete' && location.href == {json.dumps(url)}")

    async def scripts(self, on: bool) -> None:
        """Allow the page's scripts, or not."""
        await self._call("Emulation.setScriptExecutionDisabled", value=not on)

    async def value(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = await self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until the expression is true."""
        await until(lambda: self.value(expression))

    async def picture(self, path: Path) -> None:
        """Save the whole page as a PNG file."""
        found = await self._call("Page.captureScreenshot", captureBeyondViewport=True)
        await trio.Path(path).write_bytes(base64.b64decode(found["data"]))

    async def _call(self, method: str, **params: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        with trio.fail_after(_WAIT_S):
            await self._write.send_all(json.dumps(message).encode() + b"\0")
            while True:
                answer = await self._message()
                if answer.get("id") == self._number:
                    assert "error" not in answer, answer
                    return answer["result"]

    async def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = await self._read.receive_some(1 << 16)
            assert data, "the browser has ended"
            self._rest += bytes(data)
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if message.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
            self.complaints.append(str(message["params"]))
        return message


@asynccontextmanager
async def browser(home: Path) -> AsyncIterator[Tab]:
    """A browser with one tab; its files are under ``home``."""
    found = program()
    assert found is not None
    to_read, write = os.pipe()
    read, to_write = os.pipe()
    as_3_and_4 = [sys.executable, "-S", "-c", _ARRANGED, str(to_read), str(to_write)]
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
    process = subprocess.Popen(  # noqa: ASYNC220 (it returns at once)
        [*as_3_and_4, found, *options, "--remote-debugging-pipe", f"--user-data-dir={home / 'browser'}", "about:blank"],
        pass_fds=(to_read, to_write), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(to_write)
    try:
        async with trio.lowlevel.FdStream(write) as out, trio.lowlevel.FdStream(read) as back:
            tab = Tab(out, back)
            await tab.open()
            yield tab
    finally:
        process.kill()
        process.wait()
