"""`alpo cluster`: real alpod processes on loopback, for development."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

import alpo
from alpo.core.directory import FIRST_NAME

from ..exits import Failed, UsageProblem, refuse
from ..inputs import a_new_directory
from ..local_cluster import LocalCluster, LocalServer, leader_within, statuses
from ..options import Target, group, local, with_target
from ..output import counted, print_json, say
from ..running import ask, run, unless_interrupted

SIZE_DEFAULT = 3
BASE_PORT_DEFAULT = 7100
LEADER_WITHIN_S = 30.0

app = group("A cluster of real alpod processes on this machine, for development; and the first start of any cluster.",
            "alpo cluster start --dir /tmp/demo")

Dir = Annotated[Path, typer.Option("--dir", metavar="DIR",
                                   help="Where the cluster lives: data directories, logs, cluster.json.")]


@app.command()
@local
def start(
    target: Target, dir: Dir,
    size: Annotated[int | None, typer.Option("--size", show_default=str(SIZE_DEFAULT),
                                             help="How many servers.")] = None,
    base_port: Annotated[int | None, typer.Option("--base-port", metavar="PORT", show_default=str(BASE_PORT_DEFAULT),
                                                  help="The first server's port; the others take the next.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return when a leader exists; the servers go on.")] = False,
    tls: Annotated[bool, typer.Option("--tls", help="Make certificates, and speak TLS alone.")] = False,
    http: Annotated[bool, typer.Option("--http",
                                       help="Serve a page of the cluster, 80 ports above each server's own.")] = False,
) -> None:
    """Start a cluster, or start the servers of one again; prints the --servers string on stdout.

    Without --detach it stays in the foreground and stops the servers on Ctrl-C. With --tls it says which variables let
    clients in, with --http the address of a page to look at.

    Examples:
        alpo cluster start --dir /tmp/demo --size 5
        export ALPO_SERVERS=$(alpo cluster start --dir /tmp/demo --detach)
    """
    cluster = lay_out(dir, size, base_port, tls)
    cluster.http = cluster.http or http
    cluster.wait_for_killed()
    fresh = [server for server in cluster.servers if not server.running()]
    if not fresh and not detach:
        raise Failed(f"the cluster in {dir} is running already (stop it: alpo cluster stop --dir {dir})")
    if all(server.lost_data for server in cluster.servers):
        say(f"no server of {dir} has its data any more: the cluster begins anew, with an empty log")
    keep = False
    try:
        cluster.spawn(fresh)
        interrupted = run(_serve, target, cluster, detach)
        keep = detach and not interrupted
    finally:
        if not keep:
            begun = [server for server in cluster.servers if server.process is not None]
            _say_killed(LocalCluster(cluster.directory, begun).stop())
    if interrupted and detach:
        raise KeyboardInterrupt


async def _serve(target: Target, cluster: LocalCluster, detach: bool) -> bool:
    """Wait for a leader, print the addresses, and unless detached stay until Ctrl-C; True if that came."""

    async def body() -> None:
        await leader_within(cluster, LEADER_WITHIN_S)
        async with alpo.connect(cluster.addresses, log=FIRST_NAME) as log:
            for line in outsiders(cluster, await statuses(log)):
                say(line)
        if target.json:
            print_json({"servers": cluster.addresses} | cluster.client_environment)
        else:
            print(cluster.addresses, flush=True)
            if cluster.tls is not None:
                say(f"clients: export {shlex.join(f'{k}={v}' for k, v in cluster.client_environment.items())}")
        if cluster.http:
            say(f"page: {cluster.page}")
        if not detach:
            say(f"running: {counted(len(cluster.servers), 'server')}; Ctrl-C stops all."
                f" Logs: {cluster.directory}/server-N.log")
            await _say_who_ends([server for server in cluster.servers if server.process is not None])
            raise Failed("no server is left")

    return await unless_interrupted(body)


def outsiders(cluster: LocalCluster, rows: list[dict[str, Any]]) -> list[str]:
    """A line for each server that runs here and is no longer a member, by the most advanced status in ``rows``."""
    told: list[str] = []
    knows = max((row for row in rows if row.get("members")), key=lambda row: int(row["guaranteed_id"]), default=None)
    if knows is None:
        return told
    listed = {member["id"]: member["address"] for member in knows["members"] if member["role"] != "GONE"}
    for server in cluster.servers:
        where = listed.get(server.id)
        if where != server.address:
            other = f" (server {server.id} is at {where} now)" if where else ""
            told.append(f"server {server.id} at {server.address} is no member any more{other}: stop it")
    return told


def lay_out(dir: Path, size: int | None, base_port: int | None, tls: bool = False) -> LocalCluster:
    """Load the cluster of an existing directory, or lay out a new one. Raises UsageProblem if the flags contradict
    it."""
    if not LocalCluster.exists(dir):
        a_new_directory(dir, "--dir")
        return LocalCluster.create(
            dir, SIZE_DEFAULT if size is None else size, BASE_PORT_DEFAULT if base_port is None else base_port,
            tls,
        )
    cluster = LocalCluster.load(dir)
    refuse(tls and cluster.tls is None, f"--tls: the cluster in {dir} was made without certificates")
    if size not in (None, len(cluster.servers)):
        raise UsageProblem(f"--size {size}: the cluster in {dir} has {counted(len(cluster.servers), 'server')}")
    if base_port not in (None, cluster.servers[0].port):
        raise UsageProblem(f"--base-port {base_port}: the cluster in {dir} begins at {cluster.servers[0].port}")
    return cluster


async def _say_who_ends(servers: list[LocalServer]) -> None:
    """Report servers that end by themselves or are stopped from elsewhere, until the last one has."""
    import anyio

    known = list(servers)
    while known:
        for server in [server for server in known if not server.running()]:
            known.remove(server)
            say(f"server {server.id} has ended; its log ends:\n{server.log_tail(4)}")
        await anyio.sleep(0.5)


def _say_killed(ids: list[int]) -> None:
    for id in ids:
        say(f"server {id} did not stop within 10 s and was killed")


@app.command()
@local
def stop(target: Target, dir: Dir) -> None:
    """Stop the servers of a cluster: SIGTERM, and SIGKILL to what is still there after 10 s.

    Examples:
        alpo cluster stop --dir /tmp/demo
    """
    cluster = LocalCluster.load(dir)
    running = [server.id for server in cluster.servers if server.running()]
    killed = cluster.stop()
    _say_killed(killed)
    target.tell({"stopped": running, "killed": killed},
                f"stopped {counted(len(running), 'server')}" if running else "no server was running")


@app.command("list")
@local
def list_(target: Target, dir: Dir) -> None:
    """List the servers of a cluster: address, process, data, log.

    Examples:
        alpo cluster list --dir /tmp/demo
    """
    cluster = LocalCluster.load(dir)
    found = [{"id": s.id, "address": s.address, "pid": s.pid if s.running() else None, "data": str(s.data),
              "log": str(s.log)} for s in cluster.servers]
    target.show(found, list(found[0]), [[str(value or "not running") for value in each.values()] for each in found])


@app.command()
@with_target
def init(target: Target) -> None:
    """Found the cluster: the first start of a list of one, or of servers started with --no-auto-init.

    Once in a cluster's life, told to any one of its servers.

    Examples:
        alpo cluster init --servers 127.0.0.1:7100
    """
    ask(target, lambda log: log.init(), FIRST_NAME)
    target.tell({"founded": True}, "the cluster is founded")
