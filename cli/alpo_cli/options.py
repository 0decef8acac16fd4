"""Options that all commands of the cluster take, before or after the command.

`--servers`, `--config`, `--timeout`, `--json` and those of TLS are parameters of the root, of each group and of each
command; the innermost value counts. A flag overrides the file, the file overrides ALPO_SERVERS, and that overrides
127.0.0.1:7100.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast
from unicodedata import category

import typer

from alpo._version import version_of
from alpo.addresses import SERVER_DEFAULT, AddressError, parse_address, parse_dialled, parse_servers
from alpo.errors import TlsError, Unavailable
from alpo.tls import NAME_DEFAULT, tls_given

from .exits import Unreached, UsageProblem, guarded, reason
from .frame import App
from .output import print_json, say, table

TIMEOUT_S_DEFAULT = 10.0
_LOOK_S = 0.5
PANEL = "Cluster and output"
#: Options of TLS, in the order of `alpo.tls.tls_given`.
TLS_OPTIONS = ("ca", "cert", "key", "tls_name")
#: Every option that all commands of the cluster take.
SHARED = ("servers", "config", "log", "timeout", "json", *TLS_OPTIONS)

Servers = Annotated[str | None, typer.Option(
    "--servers", metavar="HOST[:PORT],…", rich_help_panel=PANEL,
    help=f"Servers to talk to, any of them. Default: the environment's ALPO_SERVERS, else {SERVER_DEFAULT}.")]
ConfigFile = Annotated[Path | None, typer.Option(
    "--config", metavar="FILE", rich_help_panel=PANEL,
    help="Take the servers from the member list of an alpod configuration file.")]
TLS_PANEL = "TLS"
Ca = Annotated[Path | None, typer.Option("--ca", metavar="FILE", rich_help_panel=TLS_PANEL,
                                         help="The CA of the servers' certificates. Default: the environment's"
                                              " ALPO_CA.")]
Cert = Annotated[Path | None, typer.Option("--cert", metavar="FILE", rich_help_panel=TLS_PANEL,
                                           help="The certificate to show. Default: ALPO_CERT.")]
Key = Annotated[Path | None, typer.Option("--key", metavar="FILE", rich_help_panel=TLS_PANEL,
                                          help="The key of that certificate. Default: ALPO_KEY.")]
TlsName = Annotated[str | None, typer.Option("--tls-name", metavar="NAME", rich_help_panel=TLS_PANEL,
                                             show_default=NAME_DEFAULT,
                                             help="The cluster's name in certificates. Default: ALPO_TLS_NAME.")]
LogName = Annotated[str | None, typer.Option(
    "--log", metavar="NAME", rich_help_panel=PANEL,
    help="The log to talk to, of those that the servers keep. Default: the environment's ALPO_LOG, else the first.")]
Timeout = Annotated[float | None, typer.Option("--timeout", metavar="SECONDS", rich_help_panel=PANEL, show_default="10",
                                               help="Give up a request after so long without progress.")]
Json = Annotated[bool, typer.Option("--json", rich_help_panel=PANEL, help="One JSON object a line on stdout.")]


def version_option(command: str) -> Any:
    """Option ``--version`` for the root of ``command``."""
    def show(wanted: bool) -> None:
        if wanted:
            print(version_of(command))
            raise typer.Exit

    return typer.Option("--version", "-V", callback=show, is_eager=True, show_default=False,
                        help="Print the version and exit.")


@dataclass(frozen=True, slots=True)
class Target:
    """Servers, time limit and output form of a command. ``servers``: HOST:PORT each."""

    servers: tuple[str, ...]
    timeout_s: float
    json: bool

    def tell(self, fields: Mapping[str, Any], text: str) -> None:
        """Print what was done: the fields on stdout with `--json`, else ``text`` for people."""
        if self.json:
            print_json(dict(fields))
        else:
            say(text)

    def show(
        self, found: Iterable[Mapping[str, Any]], columns: list[str], rows: list[list[str]], title: str = ""
    ) -> None:
        """Print what was found: a JSON line each with `--json`, else a table."""
        if not self.json:
            table(title, columns, rows)
            return
        for fields in found:
            print_json(dict(fields))


def remember(
    ctx: typer.Context, servers: Servers = None, config: ConfigFile = None, log: LogName = None,
    timeout: Timeout = None, json: Json = False, ca: Ca = None, cert: Cert = None, key: Key = None,
    tls_name: TlsName = None,
) -> None:
    """Keep the options before the command, as defaults for `with_target`."""
    given = ctx.ensure_object(dict)
    given.update(_given(
        servers=servers, config=config, log=log, timeout=timeout, json=json, ca=ca, cert=cert, key=key,
        tls_name=tls_name,
    ))


def root(command: str, names: tuple[str, ...] = SHARED) -> Callable[..., None]:
    """The callback of a root ``command``: it takes the options ``names`` and `--version` before the command."""
    def callback(ctx: typer.Context, version: bool, **given: Any) -> None:
        remember(ctx, **given)

    version = Annotated[bool, version_option(command)]
    last = inspect.Parameter("version", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=version)
    _take(callback, names, [], [last])
    return callback


def group(purpose: str, *examples: str) -> App:
    """A group of commands, which takes the shared options before the command."""
    return App(callback=remember, help="\n    ".join([f"{purpose}\n\nExamples:", *examples]))


def given_so_far(ctx: typer.Context) -> dict[str, Any]:
    """The shared options in a command line that is not complete yet, for `resolve`; the innermost counts."""
    outer = given_so_far(cast(typer.Context, ctx.parent)) if ctx.parent is not None else {}
    return outer | _given(**{name: ctx.params.get(name) for name in SHARED})


def _given(**values: Any) -> dict[str, Any]:
    """The options that were really given, so that outer values stay in force otherwise."""
    return {name: value for name, value in values.items() if value is not None and value is not False}


def resolve(given: dict[str, Any], needs_servers: bool = True) -> Target:
    """Make the `Target`, with servers if they are needed. Raises UsageProblem for a wrong value."""
    timeout_s = float(given.get("timeout", TIMEOUT_S_DEFAULT))
    if not 0 < timeout_s <= 86_400:
        raise UsageProblem(f"--timeout {timeout_s:g}: seconds, more than 0 and at most 86400")
    if needs_servers or any(name in given for name in TLS_OPTIONS):
        _use_tls(given)
    if "log" in given or (needs_servers and os.environ.get("ALPO_LOG")):
        _use_log(given.get("log"), needs_servers)
    return Target(_servers(given) if needs_servers else (), timeout_s, bool(given.get("json", False)))


def _use_tls(given: dict[str, Any]) -> None:
    """Put what is to be shown and trusted into the environment, for every connection of this process and of those that
    it starts. Raises UsageProblem if it is incomplete."""
    named = {name: str(given[name]) for name in TLS_OPTIONS if name in given}
    if "config" in given:
        named = _tls_of_file(given["config"]) | named
    try:
        tls = tls_given(os.environ, *(named.get(name) for name in TLS_OPTIONS))
    except TlsError as error:
        raise UsageProblem(str(error)) from error
    if tls is not None:
        os.environ |= dict(zip(("ALPO_CA", "ALPO_CERT", "ALPO_KEY"), tls.files, strict=True))
        os.environ["ALPO_TLS_NAME"] = tls.name


def _use_log(name: str | None, needs_servers: bool) -> None:
    """Put the log's name into the environment, as `_use_tls` does; None: it is there. Raises UsageProblem."""
    from alpo.client.servers import given_log

    if not needs_servers:
        raise UsageProblem("--log means nothing to this command: a log's files are in DATA/logs/NUMBER")
    try:
        os.environ["ALPO_LOG"] = given_log(name)
    except ValueError as error:
        raise UsageProblem(f"--log or ALPO_LOG: {error}") from error


def _tls_of_file(path: Path) -> dict[str, str]:
    """The files and the name in the ``[tls]`` table of an alpod's configuration."""
    table = _parsed(path).get("tls")
    if not isinstance(table, dict) or table.get("mode") == "off":
        return {}
    found = {name: str(path.parent / str(table[name])) for name in ("ca", "cert", "key") if name in table}
    return found | ({"tls_name": str(table["name"])} if "name" in table else {})


def _servers(given: dict[str, Any]) -> tuple[str, ...]:
    if "servers" in given:
        return split_servers(given["servers"], "--servers")
    if "config" in given:
        return _servers_of_file(given["config"])
    if os.environ.get("ALPO_SERVERS"):
        return split_servers(os.environ["ALPO_SERVERS"], "ALPO_SERVERS")
    return (SERVER_DEFAULT,)


def _hint(given: dict[str, Any], targets: list[Target], error: BaseException) -> str:
    """Hint for a user who named no servers, if nothing listens at the default address; else ""."""
    named = {"servers", "config"} & given.keys() or os.environ.get("ALPO_SERVERS")
    if named or not targets or not targets[0].servers or not isinstance(error, Unavailable | Unreached):
        return ""
    import socket

    try:
        socket.create_connection(parse_address(SERVER_DEFAULT), _LOOK_S).close()
    except OSError:
        return (
            f" (no server at {SERVER_DEFAULT}, the default: name the cluster's with --servers or ALPO_SERVERS; one for"
            " a trial on this machine: alpo cluster start --dir DIR)"
        )
    return ""


def split_servers(text: str, where: str) -> tuple[str, ...]:
    """Parse ``HOST[:PORT],HOST[:PORT]`` (see `parse_servers`). Raises UsageProblem that names ``where``."""
    try:
        return parse_servers(text)
    except AddressError as error:
        raise UsageProblem(f"{where}: {error}") from error


def check_dialled(address: str, where: str) -> None:
    """Raise UsageProblem unless ``address`` is HOST:PORT, and others can dial it."""
    try:
        parse_dialled(address)
    except AddressError as error:
        raise UsageProblem(f"{where}: {error}") from error


def check_client(name: str, where: str) -> None:
    """Raise UsageProblem if ``name`` cannot be a client's name or a random client's id."""
    from alpo.core.entries import CLIENT_BYTES_MAX, created_ms  # loads OpenSSL

    try:
        size = len(name.encode())
    except UnicodeEncodeError:  # bytes of the command line that are not UTF-8
        size = 0
    if not 1 <= size <= CLIENT_BYTES_MAX:
        raise UsageProblem(f"{where}: a name is 1 to {CLIENT_BYTES_MAX} bytes of UTF-8")
    if name.startswith("~") and created_ms(name) < 0:
        raise UsageProblem(f"{where}: a random client's id is ~ and a UUIDv7, as in the message of exit 3")


def check_new_client(name: str, where: str) -> None:
    """Raise UsageProblem if ``name`` should not be a new client's name. (Existing clients may have such names.)"""
    check_client(name, where)
    if name.startswith("~"):
        raise UsageProblem(f"{where}: names do not begin with ~ (a random client's append can only be retried)")
    if any(category(character) == "Cc" for character in name):
        raise UsageProblem(f"{where}: a name has no control characters, no line ends among them")


def _parsed(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageProblem(f"--config {path}: {reason(error)}") from error
    except ValueError as error:
        raise UsageProblem(f"--config {path}: {error}") from error


def _servers_of_file(path: Path) -> tuple[str, ...]:
    members = _parsed(path).get("member")
    tables = [table for table in members if isinstance(table, dict)] if isinstance(members, list) else []
    addresses = [str(table["address"]) for table in tables if "address" in table]
    if not addresses:
        raise UsageProblem(f"--config {path}: no [[member]] tables with an address")
    return split_servers(",".join(addresses), f"--config {path}")


def with_target(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator that adds the shared options: the command gets them as a `Target`, its first parameter. The command
    ends with an exit code."""
    return _with_shared_options(command, lambda given: [resolve(given)])


def without_servers(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator like `with_target`, for a command that finds its servers itself: ``servers`` of its `Target` is
    empty."""
    return _with_shared_options(command, lambda given: [resolve(given, needs_servers=False)])


def with_servers_if_given(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator like `with_target`, for a command that can do without servers: ``servers`` is empty unless a flag named
    them."""
    def first(given: dict[str, Any]) -> list[Target]:
        return [resolve(given, bool({"servers", "config"} & given.keys()))]

    return _with_shared_options(command, first)


def local(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator for commands on a local cluster. Of the shared options only `--json` is accepted: the others would mean
    nothing. The command ends with an exit code."""
    def first(given: dict[str, Any]) -> list[Target]:
        for name in ("servers", "config", "log", "timeout", *TLS_OPTIONS):
            if name in given:
                flag = "--" + name.replace("_", "-")
                raise UsageProblem(f"{flag} means nothing to this command: it works on what is in --dir")
        return [resolve(given, needs_servers=False)]

    return _with_shared_options(command, first)


def only_json(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator for commands without servers, which may have an option `--servers` of their own: of the shared options
    they take only `--json`."""
    return _with_shared_options(command, lambda given: [resolve(given, needs_servers=False)], ("json",))


def _with_shared_options(
    command: Callable[..., None], first: Callable[[dict[str, Any]], list[Target]],
    names: tuple[str, ...] = SHARED,
) -> Callable[..., None]:
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.annotation is not Target]
    names = tuple(name for name in names if name not in {p.name for p in own})  # a command's own option wins

    def run(ctx: typer.Context, **values: Any) -> None:
        given = {**ctx.ensure_object(dict), **_given(**{name: values.pop(name) for name in names})}
        program = ctx.find_root().info_name or "alpo"
        targets: list[Target] = []

        def body() -> None:
            targets.extend(first(given))
            command(*targets, **values)

        if code := guarded(body, program, lambda error: _hint(given, targets, error)):
            raise typer.Exit(code)

    _take(run, names, own)
    run.__name__, run.__module__ = command.__name__, command.__module__
    run.__doc__ = command.__doc__
    return run


def _take(
    function: Callable[..., None], names: tuple[str, ...], before: Sequence[inspect.Parameter],
    after: Sequence[inspect.Parameter] = (),
) -> None:
    """Have Typer see these parameters of a function: a context, those ``before``, the shared options ``names``, those
    ``after``."""
    context, *shared = inspect.signature(remember, eval_str=True).parameters.values()
    wanted = [*before, *(p for p in shared if p.name in names), *after]
    parameters = [context, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in wanted)]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {p.name: p.annotation for p in parameters}
