"""Command lines of `alpo backup`, `alpo restore`, `alpo recover`; module `backup` does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..completing import complete_ids
from ..exits import UsageProblem
from ..inputs import a_log, a_new_directory, a_new_file
from ..options import Target, check_dialled, with_target, without_servers

#: Highest server id; alpod has the same limit.
ID_MAX = 2**31 - 1


@with_target
def backup(
    target: Target,
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help="Where to; replaced if it exists.")],
    server: Annotated[int | None, typer.Option("--server", metavar="ID", min=1, show_default="the leader",
                                               autocompletion=complete_ids,
                                               help="Whose log; works without a leader too.")] = None,
) -> None:
    """Copy one server's log while it serves, as far as it is guaranteed.

    FILE appears when it is whole; until then there is only FILE.partial. It is an SQLite file: `alpo log`, sqlite3 and
    sqlite-utils read it, `alpo restore` makes a new cluster of it, and no server starts on it by mistake.

    Examples:

        alpo backup monday.alpo

        alpo backup --server 2 /backups/log.alpo --json
    """
    from .. import backup as work

    a_new_file(file, replaced=True, backup=True)
    work.back_up(target, file, server)


@without_servers
def restore(
    target: Target,
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help="A file of `alpo backup`.")],
    data: Annotated[Path, typer.Option("--data", metavar="DIR", show_default=False,
                                       help="The new data directory: empty, or not there yet.")],
    id: Annotated[int, typer.Option("--id", metavar="N", min=1, max=ID_MAX, show_default=False,
                                    help="The id of the new cluster's first member.")],
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", show_default=False,
                                        help="Where that member will listen.")],
) -> None:
    """Make a backup the data directory of a new cluster of one member.

    Payloads, LSNs and sessions are what they were; cluster id and incarnation are new. All of the backup is checked
    first. DIR holds all of it or is no data directory.

    Examples:

        alpo restore monday.alpo --data /var/lib/alpo --id 1 --listen 127.0.0.1:7100
    """
    from .. import backup as work

    check_dialled(listen, "--listen")
    a_log(file, backup=True)
    a_new_directory(data, "--data", of_server=True)
    work.make_of(target, file, data, id, listen)


@without_servers
def recover(
    target: Target,
    data: Annotated[Path, typer.Option("--data", metavar="DIR", show_default=False,
                                       help="The directory of a server that is stopped.")],
    force: Annotated[bool, typer.Option("--force-new-cluster", show_default=False,
                                        help="Say that this is meant: it can lose acknowledged appends.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", show_default=False, help="Do not ask.")] = False,
) -> None:
    """The last resort when a majority of the members is lost for good: go on with what one server has.

    Says what may be lost, asks, and makes the directory that of the only member of a new cluster. Acknowledged appends
    that this server does not hold are gone. While a majority can be brought back, do that instead.

    Examples:

        alpo recover --data /var/lib/alpo --force-new-cluster
    """
    from .. import backup as work

    if not force:
        raise UsageProblem("this can lose acknowledged appends; if that is meant, say --force-new-cluster")
    a_log(data, "--data")
    work.recover(target, data, yes)
