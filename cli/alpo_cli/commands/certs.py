"""`alpo certs`: certificates for TLS, made by `certificates`.

A file of its own: trial clusters make certificates without a command line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from alpo.tls import NAME_DEFAULT

from ..certificates import client_leaf, make, server_leaf
from ..exits import refuse
from ..inputs import a_new_directory
from ..options import Target, group, only_json
from ..output import print_json, say

DAYS_DEFAULT = 90

app = group("Certificates for TLS: a CA of your own, for development and small installations.",
            "alpo certs make --dir certs --server 1=127.0.0.1 --client admin:me")


@app.command("make")
@only_json
def make_(
    target: Target,
    dir: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where the CA and all files are; made if missing.")],
    server: Annotated[list[str] | None, typer.Option("--server", metavar="ID=HOST[,HOST]",
                                                     help="A server's certificate; can be given again.")] = None,
    client: Annotated[list[str] | None, typer.Option("--client", metavar="ROLE:NAME",
                                                     help="A client's certificate: append, read or admin, in some logs"
                                                          " append/LOG or append/LO*, or several joined by commas; can"
                                                          " be given again.")] = None,
    name: Annotated[str, typer.Option("--name", metavar="NAME",
                                      help="The cluster's name in certificates.")] = NAME_DEFAULT,
    days: Annotated[int, typer.Option("--days", help="How long they are good for.")] = DAYS_DEFAULT,
) -> None:
    """Make a CA, unless DIR has one, and certificates with their keys; prints the new files.

    No file is overwritten: a second call adds certificates. Whoever can read ca.key can make any certificate: keep it
    away from the servers.

    Examples:
        alpo certs make --dir certs --server 1=10.0.0.1 --server 2=10.0.0.2 --server 3=10.0.0.3
        alpo certs make --dir certs --client append:billing --client admin:ops
    """
    refuse(not server and not client, "nothing to make: give --server or --client")
    refuse(not 1 <= days <= 3_652, f"--days {days}: 1 to 3652")
    a_new_directory(dir, "--dir")
    leaves = [*map(server_leaf, server or ()), *map(client_leaf, client or ())]
    made = make(dir, name, leaves, days)
    for path in made:
        if target.json:
            print_json({"file": str(path)})
        else:
            print(path)
    if any(path.name == "ca.key" for path in made):
        say(f"keep {dir / 'ca.key'} away from the servers: whoever reads it can make any certificate")
