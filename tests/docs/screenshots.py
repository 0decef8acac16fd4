"""Pictures of the page for the docs: `make screenshots` runs this. Needs Chromium.

Three real servers under load: all well; a member that was killed; a narrow window in the dark scheme.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import trio

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "cluster"), str(TESTS / "node")]
#: Expressions in the page: its first sentence, readers, and how many seconds its curve shows.
STATE = "document.querySelector('#state').innerText"
CURSORS = "document.querySelector('#cursors').innerText"
SECONDS = "document.querySelector('.spark polyline').points.length"
IMAGES = TESTS.parent / "docs" / "img"


async def main() -> None:
    """Take all pictures."""
    from browser import browser
    from harness import cluster

    import alpo

    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        async with cluster(home, proxied=False, http=True) as running, browser(home) as tab:
            leader = await running.leader()
            seen_by = running.others(leader)[0]
            url = f"http://{running.servers[seen_by].visited}/"
            async with alpo.connect(running.addresses) as log, trio.open_nursery() as nursery:
                async def append_on() -> None:
                    number = 0
                    while True:
                        for handle in [log.append_nowait(b"%d" % (number + one)) for one in range(300)]:
                            await handle
                        number += 300
                        await trio.sleep(0.02 * (1 + number // 9000 % 5))

                nursery.start_soon(append_on)
                await tab.look(url, 1280, 860)
                await tab.until(f"{SECONDS} > 30")
                await log.set_cursor("billing", 1000)
                await tab.until(f"{CURSORS}.includes('billing') && {STATE}.includes('All 3 members answer')")
                await tab.picture(IMAGES / "page-well.png")
                running.servers[leader].kill()
                await tab.until(f"{STATE}.includes('2 of 3 members answer') && {SECONDS} > 45")
                await tab.look(url, 1280, 900)
                await tab.picture(IMAGES / "page-member-down.png")
                running.start(leader)
                await tab.until(f"{STATE}.includes('All 3 members answer')")
                await tab.look(url, 390, 900, dark=True)
                await tab.picture(IMAGES / "page-narrow.png")
                nursery.cancel_scope.cancel()
    print(f"pictures are in {IMAGES}")


if __name__ == "__main__":
    trio.run(main)
