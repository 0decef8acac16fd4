"""The root of the `alpo` command: global options, the table of its commands, and --help and --version as commands."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from alpo._version import __version__, build, version_of

from .frame import App, Entry, Wrong, did_you_mean, lazy
from .options import Target, only_json, root
from .output import print_json

_DAILY, _LOOK, _KEEP = "Append and read", "Look at a cluster", "Look after the log"
_STATE = "State and locks"
_RUN, _FILES, _OTHER = "Run a cluster", "Files, benches, Spark", "Help"


def _entry(name: str, panel: str, help: str, place: str = "") -> Entry:
    return Entry(name, f"alpo_cli.commands.{place or f'{name}:{name}'}", panel, help)


#: Every command, in the order of the help. Each text is the first sentence of the command's own help.
TABLE = (
    _entry("append", _DAILY, "Append payloads: each TEXT, or each line of stdin"),
    _entry("read", _DAILY, "Read guaranteed payloads in order, one a line"),
    _entry("import", _DAILY, "Append each line of a file, or of stdin: the fastest way in, and one that can be gone on"
                             " with", "import_:import_"),
    _entry("outcome", _DAILY, "Tell what became of an append: appended at an LSN, not appended, or too old to tell",
           "append:outcome"),
    _entry("state", _STATE, "State: versioned variables that are kept in the log, counters, locks", "state:app"),
    _entry("registry", _STATE, "Registries: who is admitted, as one leading process decides it", "registry:app"),
    _entry("status", _LOOK, "Show every member: who leads, how far each log goes, who is behind"),
    _entry("watch", _LOOK, "Watch a cluster, live: who leads, what is wrong, how far each log goes, appends a second"),
    _entry("doctor", _LOOK,
           "Check disks, clocks, connections, space, versions and timers, in all logs, and say what to do"),
    _entry("explain", _LOOK, "Tell the story of the last election: who noticed, who won, how long nobody led, what was"
                             " expunged"),
    _entry("cluster", _RUN, "A cluster of real alpod processes on this machine, for development; and the first start"
                            " of any cluster", "cluster:app"),
    _entry("certs", _RUN, "Certificates for TLS: a CA of your own, for development and small installations",
           "certs:app"),
    _entry("member", _RUN, "Members: the servers that keep the log", "member:app"),
    _entry("transfer", _RUN, "Hand leadership over to a server of your choice", "member:transfer"),
    _entry("settings", _RUN, "Settings: limits that all servers share", "settings:app"),
    _entry("clock", _RUN, "The log's clock: the time that entries are given", "settings:clock"),
    _entry("trim", _KEEP, "Give up all payloads below an LSN, on all servers and for good"),
    _entry("compact", _KEEP, "Give the free space in servers' data files back to the file system, while they serve",
           "trim:compact"),
    _entry("cursor", _KEEP, "Cursors: named positions of readers", "cursor:app"),
    _entry("session", _KEEP, "Sessions: the clients that the cluster remembers", "session:app"),
    _entry("backup", _KEEP, "Copy one server's log while it serves, as far as it is guaranteed"),
    _entry("restore", _KEEP, "Make a backup the data directory of a new cluster of one member", "backup:restore"),
    _entry("recover", _KEEP, "The last resort when a majority of the members is lost for good: go on with what one"
                             " server has", "backup:recover"),
    _entry("log", _FILES, "The logs of a cluster; and the log in a data directory or a backup, read from outside: a"
                          " server that runs on it is not disturbed", "log:app"),
    _entry("bench", _FILES, "Load a cluster and measure it: appends, reads, failovers", "bench:app"),
    _entry("spark", _FILES, "The log in Apache Spark: is this machine ready for it?", "doctor:spark"),
    Entry("help", f"{__name__}:help_", _OTHER, "Show the help of a command"),
    Entry("version", f"{__name__}:print_version", _OTHER, "Print the version"),
)

app = App(name="alpo", cls=lazy(TABLE), add_completion=True)


app.callback(help="""
Append to, read and look after an ALPO cluster: a replicated append-only log.

Examples:
    alpo cluster start --dir /tmp/demo --detach
    alpo append hello
    alpo read --follow
""")(root("alpo"))


def help_(
    ctx: typer.Context,
    command: Annotated[list[str] | None, typer.Argument(help="A command, or a group and its command.")] = None,
) -> None:
    """Show the help of a command.

    Examples:
        alpo help append
        alpo help member add
    """
    here: Any = ctx.find_root()
    for word in command or ():
        names = here.command.list_commands(here) if isinstance(here.command, typer.core.TyperGroup) else []
        found = here.command.get_command(here, word) if word in names else None
        if found is None:
            raise Wrong(f"{here.command_path} has no command {word!r}{did_you_mean(word, names)}")
        here = typer.Context(found, info_name=word, parent=here)
    typer.echo(here.get_help())


@only_json
def print_version(target: Target) -> None:
    """Print the version.

    With it comes the build that runs: pure or compiled.

    Examples:
        alpo version
        alpo version --json | jq -r .version
    """
    if target.json:
        print_json({"version": __version__, "build": build()})
    else:
        print(version_of("alpo"))
