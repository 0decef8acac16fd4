"""`alpo state`: versioned variables in the log, counters, lists, changes as they come; `state_lock` does the work of
`lock` and `elect`.

Laws:

* Values are written as they are, and printed so, where that is no terminal. There, and in lines of several fields,
  control characters are escaped.
* A conditional write that fails has written nothing, and says what is there (exit 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from alpo.core.entries import INT_MAX

from ..exits import Failed, UsageProblem, refuse
from ..options import Target, group, with_target
from ..output import Sink, counted, escape, escape_bytes, json_line, print_json, rfc3339
from ..running import completing, run

if TYPE_CHECKING:
    from alpo.state import SnapshotInfo, State, StateStatus, Variable

app = group("State: versioned variables that are kept in the log, counters, locks.",
            "alpo state set motd hello", "alpo state get motd")


async def _names(target: Target, incomplete: str) -> Iterable[tuple[str, str]]:
    from ..state_open import opened

    async with opened(target) as state:
        return [(name, "") for name in await state.names(incomplete)]


complete_names = completing(_names)
Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_names, help="1 to 512 bytes of UTF-8.")]
Prefix = Annotated[str, typer.Argument(metavar="PREFIX", autocompletion=complete_names,
                                       help="What their names begin with.")]
Ttl = Annotated[float, typer.Option("--ttl", metavar="SECONDS", min=0.1, max=1e6,
                                    help="A holder that is not heard for so long has lost it.")]
Version = Annotated[int | None, typer.Option("--if-version", metavar="V", min=0, max=INT_MAX,
                                             help="Only if the variable is at this version.")]


@app.command()
@with_target
def get(
    target: Target, name: Name,
    local: Annotated[bool, typer.Option("--local", help="As a server has it, without asking the leader.")] = False,
    at_least: Annotated[int | None, typer.Option("--at-least", metavar="LSN", min=0, max=INT_MAX,
                                                 help="Not older than a version that somebody told.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="The bytes as they are, without a line end.")] = False,
) -> None:
    """Print the value of a variable.

    If it is not there, the exit code is 1. On a terminal control characters are escaped.

    Examples:
        alpo state get limits/t7
        alpo state get limits/t7 --json | jq .version
        alpo state get logo --raw > logo.png
    """
    from ..state_open import check_name, opened, variable_fields

    check_name(name)
    refuse(local and at_least is not None, "--local does not go with --at-least")
    refuse(raw and target.json, "--raw does not go with --json")

    async def body() -> None:
        async with opened(target, local=local) as state:
            variable = await state.fetch(name, local=local, at_least=at_least)
        if variable.value is None:
            raise Failed(f"there is no variable {escape(name)}")
        if target.json:
            print_json(variable_fields(variable))
            return
        sink = Sink()
        shown = escape_bytes(variable.value).encode() if sink.terminal and not raw else variable.value
        await sink.write(shown if raw else shown + b"\n")

    run(body)


@app.command("set")
@with_target
def set_(
    target: Target, name: Name,
    value: Annotated[str | None, typer.Argument(help="The value. Without it: all of stdin, as it is.")] = None,
    file: Annotated[Path | None, typer.Option("--file", metavar="FILE", help="Take FILE instead of stdin.")] = None,
    if_version: Version = None,
    absent: Annotated[bool, typer.Option("--absent", help="Only if it is not there, as --if-version 0.")] = False,
    lease: Annotated[float | None, typer.Option("--lease", metavar="SECONDS", min=0.001, max=1e9,
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
    from alpo.state import Changed, If, Put

    from ..state_open import changed, check_name, value_of, write

    check_name(name)
    refuse(value is not None and file is not None, "VALUE does not go with --file")
    refuse(absent and if_version, "--absent does not go with --if-version")
    put = Put(name, run(value_of, value, file), lease_s=lease)
    guards = [If(name, version=0)] if absent else [] if if_version is None else [If(name, version=if_version)]
    fields: dict[str, Any] = {"name": name, "version": None, "changed": None}

    async def step(state: State) -> int:
        try:
            return await state.commit(guards, [put])
        except Changed as error:
            raise changed(target, error) from error

    fields["version"] = run(write(target, fields, step))
    _tell(target, fields, "version")


def _tell(target: Target, fields: dict[str, Any], key: str) -> None:
    """Print the fields with `--json`, else that of ``key``."""
    if target.json:
        print_json(fields)
    else:
        print(fields[key])


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
    from alpo.state import Add

    from ..state_open import check_name, write

    if name.startswith("-"):  # taken for a name, as a negative number is taken for N
        raise UsageProblem(f"add has no option {name}")
    check_name(name)
    fields: dict[str, Any] = {"name": name, "version": None, "value": None}
    operations = [Add(name, number).plain()]

    async def step(state: State) -> tuple[int, int]:
        result = await (await state.command([], operations)).result()
        return result.lsn, result.sums[0]

    fields["version"], fields["value"] = run(write(target, fields, step))
    _tell(target, fields, "value")


@app.command()
@with_target
def rm(target: Target, name: Name, if_version: Version = None) -> None:
    """Take a variable away.

    If it is not there, or not at the version given, the exit code is 1.

    Examples:
        alpo state rm motd
        alpo state rm limits/t7 --if-version 12
    """
    from alpo.state import Changed, Expunge, If

    from ..state_open import changed, check_name, write

    check_name(name)
    refuse(if_version == 0, "--if-version must be at least 1: what is not there cannot be taken away")
    fields: dict[str, Any] = {"name": name, "version": None, "changed": None}

    async def step(state: State) -> int:
        while True:
            wanted = if_version or (await state.fetch(name)).version
            try:
                return await state.commit([If(name, version=wanted or 1)], [Expunge(name)])
            except Changed as error:
                if if_version is not None or error.version == 0:
                    raise changed(target, error) from error

    fields["version"] = run(write(target, fields, step, create=False))
    target.tell(fields, f"{escape(name)} is gone")


@app.command()
@with_target
def names(
    target: Target, prefix: Prefix = "",
    rows: Annotated[str | None, typer.Option("--rows", metavar="OWNER",
                                             help="The rows of this variable instead.")] = None,
) -> None:
    """List the names of the variables, sorted, one a line.

    Examples:
        alpo state names
        alpo state names limits/ --json
        alpo state names --rows agents
    """
    from ..state_open import check_name, opened

    if rows is not None:
        check_name(rows, "--rows")

    async def body() -> None:
        sink = Sink()
        async with opened(target) as state:
            of = state if rows is None else state.rows(rows)
            found = [name for name in await of.names() if name.startswith(prefix)]
            lines = found
            if target.json:
                versions = [(name, (await of.fetch(name, local=True)).version) for name in found]
                lines = [json_line({"name": name, "version": version}) for name, version in versions if version]
            elif sink.terminal:
                lines = [escape(name) for name in found]
        await sink.write("".join(f"{line}\n" for line in lines).encode())

    run(body)


@app.command()
@with_target
def watch(
    target: Target, prefix: Prefix = "",
    every: Annotated[bool, typer.Option("--every", help="Every change, or exit 1: none left out.")] = False,
) -> None:
    """Print the variables as they are now, and then whenever they change; Ctrl-C ends it.

    A line is name, version and value, with tabs between them; of a variable that is gone: name and "gone". Of changes
    that come faster than they are read, only the latest of each variable is printed.

    Examples:
        alpo state watch limits/
        alpo state watch --json | jq --unbuffered 'select(.gone) | .name'
    """
    from ..state_open import opened

    async def body() -> None:
        sink = Sink()
        async with opened(target) as state, state.watch(prefix, every=every) as changes:
            async for variable in changes:
                await sink.write(_change_line(target, variable).encode())

    with suppress(KeyboardInterrupt):
        run(body)


def _change_line(target: Target, variable: Variable) -> str:
    from ..state_open import variable_fields

    gone = variable.value is None
    if target.json:
        return json_line({**variable_fields(variable), "gone": gone}) + "\n"
    shown = "" if variable.value is None else escape_bytes(variable.value)
    return f"{escape(variable.name)}\t{'gone' if gone else variable.version}\t{shown}".rstrip("\t") + "\n"


@app.command()
@with_target
def lock(
    target: Target, name: Name,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND …", help="What to run, after --.")],
    ttl: Ttl = 10.0,
    wait: Annotated[float | None, typer.Option("--wait", metavar="SECONDS", min=0, max=1e9, show_default="for ever",
                                               help="Give up if it is not free within this time.")] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Give up if somebody has it now.")] = False,
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
    refuse(no_wait and wait is not None, "--no-wait does not go with --wait")
    if code := hold(target, Plan(name, tuple(command), ttl, 0 if no_wait else wait)):
        raise typer.Exit(code)


@app.command()
@with_target
def elect(
    target: Target, name: Name,
    value: Annotated[str | None, typer.Argument(show_default="HOST:PID",
                                                help="What tells all others who it is.")] = None,
    ttl: Ttl = 10.0,
    observe: Annotated[bool, typer.Option("--observe",
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
    refuse(observe and value is not None, "VALUE does not go with --observe")
    if observe:
        work.observe(target, name)
    else:
        work.elect(target, name, value, ttl)


@app.command()
@with_target
def txn(
    target: Target,
    file: Annotated[Path | None, typer.Argument(show_default="stdin", help="The transaction, as JSON.")] = None,
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
    from alpo.state import Changed

    from ..state_open import changed, transaction, value_of, write

    guards, operations = transaction(run(value_of, None, file))
    fields: dict[str, Any] = {"version": None, "changed": None, "sums": None}

    async def step(state: State) -> tuple[int, list[int]]:
        try:
            command = await state.command([guard.plain() for guard in guards], [each.plain() for each in operations])
            result = await command.result()
        except Changed as error:
            raise changed(target, error) from error
        return result.lsn, list(result.sums)

    fields["version"], fields["sums"] = run(write(target, fields, step))
    _tell(target, fields, "version")


@app.command()
@with_target
def status(target: Target) -> None:
    """Show what the log holds of the state.

    Its id, how many variables and bytes, its last two snapshots, and what in the log is not the state's.

    Examples:
        alpo state status
        alpo state status --json | jq .variables
    """
    from ..state_open import opened

    async def ask() -> StateStatus:
        async with opened(target) as state:
            return await state.status(local=True)

    found = run(ask)
    target.show([{**found._asdict(), "time": rfc3339(found.time)}], ["field", "value"], _status_rows(found))


def _status_rows(found: StateStatus) -> list[list[str]]:
    def span(snapshot: tuple[int, int] | None) -> str:
        return "-" if snapshot is None else f"LSN {snapshot[0]}, written up to {snapshot[1]}"

    return [
        ["state", found.state], ["LSN", str(found.lsn)], ["time", rfc3339(found.time)],
        ["variables", str(found.variables)], ["bytes", str(found.bytes)], ["invalid payloads", str(found.invalid)],
        ["last payload of others", str(found.foreign_lsn or "-")], ["snapshot", span(found.snapshot)],
        ["the one before", span(found.previous)], ["bytes since", str(found.bytes_since)],
    ]


@app.command()
@with_target
def snapshot(
    target: Target,
    trim: Annotated[bool, typer.Option("--trim", help="Give up what is older than the snapshot before it.")] = False,
) -> None:
    """Put the whole state into the log now, so that a newcomer needs nothing older.

    Programs do so by themselves. If one does at this moment, the exit code is 1. With --trim the log lets go what is
    older than the snapshot before this one, unless it holds payloads that are not the state's.

    Examples:
        alpo state snapshot
        alpo state snapshot --trim --json
    """
    from alpo.state import SnapshotInfo

    from ..state_open import write

    async def step(state: State) -> SnapshotInfo:
        return await state.snapshot(trim=trim)

    nothing = dict.fromkeys(SnapshotInfo._fields)
    done = run(write(target, nothing, step, create=False))
    size = counted(done.bytes, "byte")
    where = f"is in the log up to LSN {done.end}\nthe log begins at LSN {done.first_lsn}"
    target.tell(done._asdict(), f"a snapshot of LSN {done.begin}, {size} in {counted(done.parts, 'part')}, {where}")
