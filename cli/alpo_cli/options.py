"""The options that every command of the cluster's takes, before the command or after it.

`--servers`, `--config`, `--timeout`, `--json` are parameters of the root, of each group and of each command; the
innermost that was given wins. A flag wins over the file, the file over ALPO_SERVERS.
"""

from __future__ import annotations

import inspect
import os
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from alpo import __version__
from alpo.client.ids import NAME_BYTES_MAX
from alpo.core.client_ids import created_ms

from .exits import UsageProblem, guarded, reason

TIMEOUT_S_DEFAULT = 10.0
PANEL = "Cluster and output"

Servers = Annotated[
    str | None,
    typer.Option("--servers", metavar="HOST:PORT,…", rich_help_panel=PANEL, show_default=False,
                 help="Servers to talk to, any of them. Default: the environment's ALPO_SERVERS."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", rich_help_panel=PANEL, show_default=False,
                 help="Take the servers from the member list of an alpod configuration file."),
]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", rich_help_panel=PANEL, show_default="10",
                 help="Give up a request after so long without progress."),
]
Json = Annotated[
    bool,
    typer.Option("--json", rich_help_panel=PANEL, show_default=False, help="One JSON object a line on stdout."),
]


def version_option(command: str) -> Any:
    """``--version`` of the root of ``command``."""
    def show(wanted: bool) -> None:
        if wanted:
            print(f"{command} {__version__}")
            raise typer.Exit

    return typer.Option("--version", callback=show, is_eager=True, show_default=False,
                        help="Print the version and exit.")



@dataclass(frozen=True, slots=True)
class Target:
    """Whom a command talks to and how it prints. ``servers``: each HOST:PORT."""

    servers: tuple[str, ...]
    timeout_s: float
    json: bool


def remember(
    ctx: typer.Context, servers: Servers = None, config: ConfigFile = None, timeout: Timeout = None, json: Json = False
) -> None:
    """Keep what stands before the command, for `with_target` to fall back on."""
    given = ctx.ensure_object(dict)
    given.update(_given(servers, config, timeout, json))


def _given(
    servers: str | None = None, config: Path | None = None, timeout: float | None = None, json: bool = False
) -> dict[str, Any]:
    """Only what was really given, so that an outer value shows through an inner silence."""
    given: dict[str, Any] = {"servers": servers, "config": config, "timeout": timeout, "json": json or None}
    return {key: value for key, value in given.items() if value is not None}


def resolve(given: dict[str, Any], needs_servers: bool = True) -> Target:
    """Find the servers. Raises UsageProblem when they are needed and not given, or a value cannot be right."""
    timeout_s = float(given.get("timeout", TIMEOUT_S_DEFAULT))
    if not 0 < timeout_s <= 86_400:
        raise UsageProblem(f"--timeout {timeout_s:g}: seconds, more than 0 and at most 86400")
    return Target(_servers(given) if needs_servers else (), timeout_s, bool(given.get("json", False)))


def _servers(given: dict[str, Any]) -> tuple[str, ...]:
    if "servers" in given:
        return split_servers(given["servers"], "--servers")
    if "config" in given:
        return _servers_of_file(given["config"])
    if os.environ.get("ALPO_SERVERS"):
        return split_servers(os.environ["ALPO_SERVERS"], "ALPO_SERVERS")
    raise UsageProblem("no servers: give --servers HOST:PORT,… or --config FILE, or set ALPO_SERVERS")


def split_servers(text: str, where: str) -> tuple[str, ...]:
    """``HOST:PORT,HOST:PORT``; IPv6 in brackets. Raises UsageProblem naming ``where`` it was given."""
    servers = tuple(part.strip() for part in text.split(",") if part.strip())
    if not servers:
        raise UsageProblem(f"{where}: no servers in {text!r}; accepted: HOST:PORT,…")
    for server in servers:
        check_address(server, where)
    return servers


def check_address(address: str, where: str) -> None:
    """Raises UsageProblem unless ``address`` is HOST:PORT."""
    host, colon, port = address.rpartition(":")
    bare_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    port_fits = port.isascii() and port.isdigit() and 1 <= int(port) <= 65_535
    if not (host and colon and port_fits) or bare_ipv6:
        raise UsageProblem(f"{where}: {address!r} is not HOST:PORT (port 1 to 65535; IPv6 in brackets)")


def check_client(name: str, where: str) -> None:
    """Raises UsageProblem for what no client's name can be, random ids included."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:  # bytes of the command line that are no UTF-8
        size = 0
    if not 1 <= size <= NAME_BYTES_MAX:
        raise UsageProblem(f"{where}: a name is 1 to {NAME_BYTES_MAX} bytes of UTF-8")
    if name.startswith("~") and created_ms(name) < 0:
        raise UsageProblem(f"{where}: a random client's id is ~ and a UUIDv7, as in the message of exit 3")


def _servers_of_file(path: Path) -> tuple[str, ...]:
    try:
        parsed = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageProblem(f"--config {path}: {reason(error)}") from error
    except ValueError as error:
        raise UsageProblem(f"--config {path}: {error}") from error
    members = parsed.get("member")
    tables = [table for table in members if isinstance(table, dict)] if isinstance(members, list) else []
    addresses = [str(table["address"]) for table in tables if "address" in table]
    if not addresses:
        raise UsageProblem(f"--config {path}: no [[member]] tables with an address")
    return split_servers(",".join(addresses), f"--config {path}")


def with_target(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the shared options: it gets them as a `Target`, its first parameter. Ends by exit code."""
    return _with_shared_options(command, lambda given: [resolve(given)])


def without_servers(command: Callable[..., None]) -> Callable[..., None]:
    """The same for a command that knows its servers by itself: ``servers`` of its `Target` is empty."""
    return _with_shared_options(command, lambda given: [resolve(given, needs_servers=False)])


def with_servers_if_given(command: Callable[..., None]) -> Callable[..., None]:
    """The same for a command that may do without: ``servers`` of its `Target` is empty unless a flag named them."""
    return _with_shared_options(command, lambda given: [resolve(given, bool({"servers", "config"} & given.keys()))])


def local(command: Callable[..., None]) -> Callable[..., None]:
    """For commands that talk to no cluster: the shared options are taken and mean nothing. Ends by exit code."""
    return _with_shared_options(command, lambda given: [])


def only_json(command: Callable[..., None]) -> Callable[..., None]:
    """For commands that have no servers at all, and may have another `--servers`: of the shared options they take
    `--json` alone."""
    return _with_shared_options(command, lambda given: [resolve(given, needs_servers=False)], ("json",))


def _with_shared_options(
    command: Callable[..., None], first: Callable[[dict[str, Any]], list[Target]],
    names: tuple[str, ...] = ("servers", "config", "timeout", "json"),
) -> Callable[..., None]:
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.annotation is not Target]

    def run(ctx: typer.Context, **values: Any) -> None:
        given = {**ctx.ensure_object(dict), **_given(**{name: values.pop(name) for name in names})}
        if code := guarded(lambda: command(*first(given), **values)):
            raise typer.Exit(code)

    context, *shared = inspect.signature(remember, eval_str=True).parameters.values()
    shared = [p for p in shared if p.name in names]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own + shared]
    context = context.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in [context, *parameters]}
    run.__name__, run.__module__ = command.__name__, command.__module__
    run.__doc__ = unwrapped(command.__doc__ or "")
    return run


def unwrapped(text: str) -> str:
    """Help text with each paragraph on one line, for the terminal to wrap; indented ones (examples) as they are."""
    first, *others = inspect.cleandoc(text).split("\n\n")
    paragraphs = [p if p.startswith(" ") else " ".join(p.split("\n")) for p in (first, *others)]
    # Typer dedents all below the first paragraph by what its second line onwards have in common: an empty one has none.
    return "\n\n".join([paragraphs[0], "", *paragraphs[1:]])
