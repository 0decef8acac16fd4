"""`alpo clock accept`: an operator's word that the members' clocks are right, though they have leapt ahead."""

from __future__ import annotations

from ..frame import App
from ..options import Target, remember, with_target
from ..output import print_json, say
from ..running import run

app = App(
    callback=remember,
    help="The log's clock: the time that entries are given."
         "\n\nExamples:\n\n    alpo clock accept",
)


@app.command()
@with_target
def accept(target: Target) -> None:
    """Believe the members' clocks, though they have leapt ahead.

    If the clocks of a majority leap ahead by more than an hour, the log's clock goes on as if they had not, because
    leases and sessions would end, and entries be cleaned as too old. Look at the clocks first (`alpo doctor`). If they
    are right, as after a pause of virtual machines, say so here; if they are wrong, set them right, and do nothing.

    Examples:

        alpo clock accept
    """
    async def believe() -> None:
        from alpo.client.operator.members import accept_clocks
        from alpo.client.servers import Servers, given_tls

        servers = Servers(target.servers, tls=given_tls(None))
        try:
            leapt_ms = await accept_clocks(servers, target.timeout_s)
        finally:
            servers.close()
        if target.json:
            print_json({"leapt_ms": leapt_ms})
        elif leapt_ms:
            say(f"the log's clock goes on {leapt_ms / 1000:.0f} s later")
        else:
            say("the clocks were believed already: nothing is changed")

    run(believe)
