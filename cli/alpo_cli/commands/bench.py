"""Command lines of `alpo bench append / read / failover`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..exits import UsageProblem, refuse
from ..inputs import a_new_file, ending_of
from ..local_cluster import LocalCluster
from ..options import Target, group, with_target, without_servers
from ..output import counted, say

if TYPE_CHECKING:
    from ..bench.load import Tally

app = group("Load a cluster and measure it: appends, reads, failovers.", "alpo bench append --outstanding 1000")

Payload = Annotated[int, typer.Option("--payload", metavar="BYTES", min=0, help="Size of each payload.")]
Outstanding = Annotated[int, typer.Option("--outstanding", metavar="N", min=1, help="Appends in flight, in all.")]
Connections = Annotated[int, typer.Option("--connections", metavar="C", min=1, max=900, help="Client connections.")]
Batch = Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Payloads an append (an atomic batch).")]
Seconds = Annotated[float, typer.Option("--seconds", metavar="S", min=0.1, help="How long.")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE.svg", help="Write the latency histogram as SVG.")]

_FAILOVER_SERVERS_MIN = 3


def _check_plot(plot: Path | None) -> None:
    """Raise UsageProblem if the plot cannot be written, before any load."""
    if plot is not None:
        ending_of(plot, (".svg",), "--plot")
        a_new_file(plot, "--plot")


@app.command()
@with_target
def append(
    target: Target, payload: Payload = 100, outstanding: Outstanding = 64, connections: Connections = 1,
    batch: Batch = 1, seconds: Seconds = 10.0, plot: Plot = None,
    yes: Annotated[bool, typer.Option("--yes", help="Also into a log that is not empty.")] = False,
) -> None:
    """Keep so many appends in flight and measure; an operation is one append (with --batch one batch).

    What it appends is in the log for good, between whatever else is: a log that is not empty is refused without --yes.
    Measure on a cluster of its own.

    Examples:
        alpo bench append --outstanding 1000 --connections 10
        alpo bench append --payload 1024 --batch 64 --seconds 30 --yes --json --plot append.svg
    """
    _check_plot(plot)
    refuse(outstanding < connections, f"--outstanding {outstanding} is less than --connections {connections}")
    import trio

    from ..bench.load import Load, append_load, last_lsn
    from ..bench.show import progress, show

    if not yes and (end_lsn := trio.run(last_lsn, ",".join(target.servers), target.timeout_s)):
        raise UsageProblem(
            f"the log is not empty, its last LSN is {end_lsn}: what a bench appends stays in it for good; if that is"
            " meant, say --yes"
        )

    load = Load(payload, outstanding, connections, batch, seconds)
    with progress("appending", seconds, target.json) as (bar, task):
        def on_progress(elapsed_s: float, tally: Tally) -> None:
            bar.update(task, completed=elapsed_s, note=f"{tally.done / elapsed_s:,.0f}/s")

        result, first_error = trio.run(append_load, ",".join(target.servers), load, target.timeout_s, on_progress)
    title = f"append: {payload} B, {outstanding} outstanding, {counted(connections, 'connection')}"
    show(title + (f", batches of {batch}" if batch > 1 else ""), result, target.json, plot)
    if first_error:
        say(f"{counted(result.errors, 'append')} failed; the first: {first_error}")


@app.command()
@with_target
def read(
    target: Target, payload: Payload = 100, outstanding: Outstanding = 64, connections: Connections = 1,
    batch: Batch = 64, seconds: Seconds = 10.0,
    local: Annotated[bool, typer.Option("--local", help="Servers' own copies.")] = False,
    plot: Plot = None,
) -> None:
    """Read the whole log again and again; an operation is one payload, a latency one page.

    An empty log is filled first: 20,000 payloads of --payload bytes, appended as --outstanding and --batch say.

    Examples:
        alpo bench read --connections 4
        alpo bench read --local --seconds 30 --json
    """
    _check_plot(plot)
    import trio

    from ..bench.load import fill_if_empty, read_load
    from ..bench.show import progress, show

    servers = ",".join(target.servers)
    if filled := trio.run(fill_if_empty, servers, payload, outstanding, batch, target.timeout_s):
        say(f"the log was empty: {counted(filled, 'payload')} of {payload} B appended")
    with progress("reading", seconds, target.json) as (bar, task):
        def on_progress(elapsed_s: float, records: int) -> None:
            bar.update(task, completed=elapsed_s, note=f"{records / elapsed_s:,.0f}/s")

        result = trio.run(read_load, servers, connections, seconds, local, target.timeout_s, on_progress)
    title = f"read: {counted(connections, 'connection')}, {'local' if local else 'linearizable'}"
    show(title, result, target.json, plot)


@app.command()
@without_servers
def failover(
    target: Target,
    dir: Annotated[Path, typer.Option("--dir", metavar="DIR",
                                      help="A running cluster of alpo cluster start --detach.")],
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=1000, help="How many leaders.")] = 10,
    signal_name: Annotated[str, typer.Option("--signal", metavar="KILL|TERM", help="What they are sent.")] = "KILL",
    payload: Payload = 100, outstanding: Outstanding = 1, connections: Connections = 1, batch: Batch = 1,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", min=0.1,
                                           help="Give up a round after so long.")] = 30.0,
    plot: Plot = None,
) -> None:
    """Kill the leader again and again; measure how long appends wait for the next one.

    Each server is started again before the next round. With --outstanding above 1 the other appends are kept in
    flight beside the one that is timed, over --connections.

    Examples:
        alpo bench failover --dir /tmp/demo
        alpo bench failover --dir /tmp/demo --signal TERM --rounds 5 --json
    """
    _check_plot(plot)
    if outstanding > 1 and outstanding - 1 < connections:
        raise UsageProblem(f"--outstanding {outstanding}: one is timed, and --connections {connections} needs one each")
    import trio

    from ..bench.load import Load
    from ..bench.load import failover as measure_failover
    from ..bench.show import progress, show, write_plot

    signals = {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM}
    refuse(signal_name.upper() not in signals, f"--signal {signal_name}: KILL or TERM")
    cluster = LocalCluster.load(dir)
    if len(cluster.servers) < _FAILOVER_SERVERS_MIN:
        raise UsageProblem(
            f"{dir} is a cluster of {len(cluster.servers)}: without its leader nobody is left to lead; it takes "
            f"{_FAILOVER_SERVERS_MIN} servers"
        )
    with progress("failing over", rounds, target.json) as (bar, task):
        def on_round(number: int, wait_s: float) -> None:
            bar.update(task, completed=number, note=f"{wait_s * 1000:.0f} ms")

        result, measured = trio.run(
            measure_failover, cluster, rounds, signals[signal_name.upper()],
            Load(payload, outstanding - 1, connections, batch, seconds), on_round,
        )
    rounds_ms = [round(wait_s * 1000, 1) for wait_s in measured.waits_s]
    extra = {"rounds": rounds, "median_ms": measured.median_ms, "rounds_ms": rounds_ms}
    title = f"failover: SIG{signal_name.upper()}, {counted(rounds, 'round')}, longest append of each"
    if target.json:
        show(title, result, True, plot, extra)
        return
    if plot is not None:
        write_plot(plot, title, result)
    errors = counted(result.errors, "error")
    print(f"{title}\n  median {measured.median_ms:g} ms, max {measured.max_ms:g} ms, {errors} beside it")
    print("  " + "  ".join(f"{wait_ms:g}" for wait_ms in rounds_ms))
