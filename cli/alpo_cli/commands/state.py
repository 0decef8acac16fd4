"""`alpo state`: versioned variables in the log; modules `state` and `state_lock` of the parent package do the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from alpo.core.entries import INT_MAX

from ..completing import complete_names
from ..exits import UsageProblem
from ..frame import App
from ..options import Target, remember, with_target
from ..running import run

app = App(
    callback=remember,
    help="State: versioned variables that are kept in the log, counters, locks."
         "\n\nExamples:\n\n    alpo state set motd hello\n\n    alpo state get motd",
)

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False, autocompletion=complete_names,
                                     help="1 to 512 bytes of UTF-8.")]
Prefix = Annotated[str, typer.Argument(metavar="PREFIX", show_default=False, autocompletion=complete_names,
                                       help="What their names begin with.")]
Ttl = Annotated[float, typer.Option("--ttl", metavar="SECONDS", min=0.1, max=1e6,
                                    help="A holder that is not heard for so long has lost it.")]
Version = Annotated[
    int | None, typer.Option("--if-version", metavar="V", min=0, max=INT_MAX, show_default=False,
                             help="Only if the variable is at this version."),
]


@app.command()
@with_target
def get(
    target: Target, name: Name,
    local: Annotated[bool, typer.Option("--local", show_default=False,
                                        help="As a server has it, without asking the leader.")] = False,
    at_least: Annotated[int | None, typer.Option("--at-least", metavar="LSN", min=0, max=INT_MAX, show_default=False,
                                                 help="Not older than a version that somebody told.")] = None,
    raw: Annotated[bool, typer.Option("--raw", show_default=False,
                                      help="The bytes as they are, without a line end.")] = False,
) -> None:
    """Print the value of a variable.

    If it is not there, the exit code is 1. On a terminal control characters are escaped.

    Examples:

        alpo state get limits/t7

        alpo state get limits/t7 --json | jq .version

        alpo state get logo --raw > logo.png
    """
    from .. import state as work
    from ..state_open import check_name

    check_name(name)
    if local and at_least is not None:
        raise UsageProblem("--local does not go with --at-least")
    if raw and target.json:
        raise UsageProblem("--raw does not go with --json")
    run(work.get, target, name, local, at_least, raw)


@app.command("set")
@with_target
def set_(
    target: Target, name: Name,
    value: Annotated[str | None, typer.Argument(metavar="VALUE", show_default=False,
                                                help="The value. Without it: all of stdin, as it is.")] = None,
    file: Annotated[Path | None, typer.Option("--file", metavar="FILE", show_default=False,
                                              help="Take FILE instead of stdin.")] = None,
    if_version: Version = None,
    absent: Annotated[bool, typer.Option("--absent", show_default=False,
                                         help="Only if it is not there, as --if-version 0.")] = False,
    lease: Annotated[float | None, typer.Option("--lease", metavar="SECONDS", min=0.001, max=1e9, show_default=False,
                                                help="It is gone after so long without another write.")] = None,
) -> None:
    """Write a variable, and print its new version.

    With --if-version or --absent it is written only if nobody has written it since: else the exit code is 1, and the
    message says what it is at. Exit code 3 means that the outcome is not known.

    Examples:

        alpo state set motd hello

        alpo state set limits/t7 '{"rate": 5}' --if-version 12

        alpo state set logo --file logo.png

        alpo state set jobs/nightly "$HOSTNAME" --absent --lease 60
    """
    from .. import state as work
    from ..state_open import check_name

    check_name(name)
    if value is not None and file is not None:
        raise UsageProblem("VALUE does not go with --file")
    if absent and if_version:
        raise UsageProblem("--absent does not go with --if-version")
    data = run(work.value_of, value, file)
    work.set_(target, name, data, 0 if absent else if_version, lease)


# A negative number is no option.
@app.command(context_settings={"ignore_unknown_options": True})
@with_target
def add(
    target: Target, name: Name,
    number: Annotated[int, typer.Argument(metavar="N", min=-INT_MAX - 1, max=INT_MAX,
                                          help="What to add; may be negative.")] = 1,
) -> None:
    """Add to a counter, and print the sum.

    A variable that is not there counts as 0. Nobody's addition is lost, and none is done twice.

    Examples:

        alpo state add orders

        alpo state add stock/apples -3
    """
    from .. import state as work
    from ..state_open import check_name

    if name.startswith("-"):  # taken for a name, as a negative number is taken for N
        raise UsageProblem(f"add has no option {name}")
    check_name(name)
    work.add(target, name, number)


@app.command()
@with_target
def rm(target: Target, name: Name, if_version: Version = None) -> None:
    """Take a variable away.

    If it is not there, or not at the version given, the exit code is 1.

    Examples:

        alpo state rm motd

        alpo state rm limits/t7 --if-version 12
    """
    from .. import state as work
    from ..state_open import check_name

    check_name(name)
    if if_version == 0:
        raise UsageProblem("--if-version must be at least 1: what is not there cannot be taken away")
    work.remove(target, name, if_version)


@app.command()
@with_target
def names(
    target: Target, prefix: Prefix = "",
    rows: Annotated[str | None, typer.Option("--rows", metavar="OWNER", show_default=False,
                                             help="The rows of this variable instead.")] = None,
) -> None:
    """List the names of the variables, sorted, one a line.

    Examples:

        alpo state names

        alpo state names limits/ --json

        alpo state names --rows agents
    """
    from .. import state as work
    from ..state_open import check_name

    if rows is not None:
        check_name(rows, "--rows")
    run(work.names, target, prefix, rows)


@app.command()
@with_target
def watch(
    target: Target, prefix: Prefix = "",
    every: Annotated[bool, typer.Option("--every", show_default=False,
                                        help="Every change, or exit 1: none left out.")] = False,
) -> None:
    """Print the variables as they are now, and then whenever they change; Ctrl-C ends it.

    A line is name, version and value, with tabs between them; of a variable that is gone: name and "gone". Of changes
    that come faster than they are read, only the latest of each variable is printed.

    Examples:

        alpo state watch limits/

        alpo state watch --json | jq --unbuffered 'select(.gone) | .name'
    """
    from .. import state as work

    work.follow(target, prefix, every)


@app.command()
@with_target
def lock(
    target: Target, name: Name,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND …", show_default=False,
                                                 help="What to run, after --.")],
    ttl: Ttl = 10.0,
    wait: Annotated[float | None, typer.Option("--wait", metavar="SECONDS", min=0, max=1e9, show_default="for ever",
                                               help="Give up if it is not free within this time.")] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", show_default=False,
                                          help="Give up if somebody has it now.")] = False,
) -> None:
    """Run a command while holding a lock, which one process has at a time.

    The exit code is the command's; 128 + N if signal N ended it, 127 if there is no such command. It is 1 if the lock
    was not obtained: the command was not run. It is 3 if the lock was lost meanwhile: the command got SIGTERM, and
    SIGKILL 5 seconds later; or if nobody could tell, when Ctrl-C came, whether the lock was obtained. SIGINT, SIGTERM,
    SIGHUP and SIGQUIT are passed on to the command and its children.

    The command finds the lock's name in ALPO_LOCK_NAME, and in ALPO_LOCK_TOKEN a number that is higher with every
    holder: a system that refuses lower ones than it has seen is safe also where a holder was stopped for a while.

    Examples:

        alpo state lock nightly -- ./export.sh --all

        alpo state lock nightly --no-wait --ttl 30 -- sh -c 'publish --token "$ALPO_LOCK_TOKEN"'
    """
    from ..state_lock import Plan, hold
    from ..state_open import check_name

    check_name(name)
    if no_wait and wait is not None:
        raise UsageProblem("--no-wait does not go with --wait")
    if code := hold(target, Plan(name, tuple(command), ttl, 0 if no_wait else wait)):
        raise typer.Exit(code)


@app.command()
@with_target
def elect(
    target: Target, name: Name,
    value: Annotated[str | None, typer.Argument(metavar="VALUE", show_default="HOST:PID",
                                                help="What tells all others who it is.")] = None,
    ttl: Ttl = 10.0,
    observe: Annotated[bool, typer.Option("--observe", show_default=False,
                                          help="Print who leads, and each that follows; take no part.")] = False,
) -> None:
    """Lead: wait until nobody else does, print the token, and lead until Ctrl-C.

    A token is higher with every leader. If leadership is lost, as by a pause of the machine, the exit code is 3.
    With --observe a line is token and value, with a tab between them, or "nobody"; Ctrl-C ends it.

    Examples:

        alpo state elect scheduler "$HOSTNAME"

        alpo state elect scheduler --observe --json | jq --unbuffered .value
    """
    from .. import state_lock as work
    from ..state_open import check_name

    check_name(name)
    if observe and value is not None:
        raise UsageProblem("VALUE does not go with --observe")
    if observe:
        work.observe(target, name)
    else:
        work.elect(target, name, value, ttl)


@app.command()
@with_target
def txn(
    target: Target,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", show_default="stdin",
                                                help="The transaction, as JSON.")] = None,
) -> None:
    """Do several writes together, all of them or none, and print their version.

    FILE holds an object: "if" is a list of conditions, name and version (0: not there) or created; "do" is a list of
    operations: put (with value, value_json or value_base64, and lease_s), add (number), keep (lease_s) or expunge, each
    with the name of a variable. If a condition does not hold, nothing is written, and the exit code is 1.

    Examples:

        alpo state txn move.json

        echo '{"if": [{"name": "a", "version": 12}], "do": [{"expunge": "a"}]}' | alpo state txn

        echo '{"do": [{"add": "stock", "number": -1}, {"add": "sold"}]}' | alpo state txn --json | jq .sums
    """
    from .. import state as work

    work.transact(target, run(work.value_of, None, file))


@app.command()
@with_target
def status(target: Target) -> None:
    """Show what the log holds of the state.

    Its id, how many variables and bytes, its last two snapshots, and what in the log is not the state's.

    Examples:

        alpo state status

        alpo state status --json | jq .variables
    """
    from .. import state as work

    run(work.status, target)


@app.command()
@with_target
def snapshot(
    target: Target,
    trim: Annotated[bool, typer.Option("--trim", show_default=False,
                                       help="Give up what is older than the snapshot before it.")] = False,
) -> None:
    """Put the whole state into the log now, so that a newcomer needs nothing older.

    Programs do so by themselves. If one does at this moment, the exit code is 1. With --trim the log lets go what is
    older than the snapshot before this one, unless it holds payloads that are not the state's.

    Examples:

        alpo state snapshot

        alpo state snapshot --trim --json
    """
    from .. import state as work

    work.snapshot(target, trim)
