"""alpod: one ALPO server. Exit codes: 0 stopped by a signal; 1 it cannot run, or had to stop; 2 wrong configuration.

Law: the command line is read before anything of a server is imported, so that --version, --help, --print-config and
--print-unit answer at once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn

from alpo._version import version_of
from alpo.node.log_sink import LEVELS, free_stderr, told_on_stdout

_EXAMPLES = """
examples:
  alpod --print-config > alpod.toml        # every key, its default and its danger: edit it, then
  alpod --config alpod.toml --check-config
  alpod --config alpod.toml
  alpod --id 1 --data /var/lib/alpo --listen 127.0.0.1:7100 \\
        --member 1=127.0.0.1:7100 --member 2=127.0.0.1:7101 --member 3=127.0.0.1:7102
  alpod --id 4 --data /var/lib/alpo --listen 127.0.0.1:7103 --join 127.0.0.1:7100,127.0.0.1:7101
  ALPOD_ID=2 ALPOD_LISTEN=127.0.0.1:7101 alpod --config alpod.toml
  alpod --print-unit > /etc/systemd/system/alpod.service

environment: ALPOD_KEY for each key of the file, ALPOD_TABLE_KEY for one in a table (ALPOD_LIMITS_HELLO_TIMEOUT_S=2),
ALPOD_MEMBER=1=HOST:PORT,2=HOST:PORT; what is empty counts as not set. A flag wins over the environment, the environment
over the file.

signals: SIGTERM, SIGINT stop it; SIGHUP reads the configuration anew ([limits], [retention], log_level)

exit codes: 0 stopped by SIGTERM or SIGINT; 1 it cannot run (the reason is on stderr); 2 wrong configuration
"""


class _WrongUse(ValueError):
    """The command line cannot be read. The message is one line for the operator."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _WrongUse(f"command line: {message} (see alpod --help)")

    def _print_message(self, message: str, file: Any = None) -> None:
        print(message, end="", file=file)  # argparse's own says nothing if that fails


class _Print(argparse.Action):
    """Option that prints a file shipped with alpod and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        shipped = files("alpo").joinpath("samples", str(self.const))  # a wheel has it; else this is a checkout
        sample = shipped if shipped.is_file() else Path(__file__).parents[1] / "config" / str(self.const)
        print(sample.read_text("utf-8"), end="")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="alpod", description="One server of an ALPO cluster.", epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file; alpod --print-config prints one")
    parser.add_argument("--id", type=int, metavar="N", help="this server's id, one of the members'")
    parser.add_argument("--data", metavar="DIR", help="where alpo.db is kept; made if missing")
    parser.add_argument("--listen", metavar="HOST:PORT", help="for clients and the other servers alike")
    parser.add_argument(
        "--advertise", metavar="HOST:PORT", help="where the others reach it, if not at --listen: behind NAT or a proxy"
    )
    parser.add_argument(
        "--member", action="append", metavar="ID=HOST:PORT",
        help="one for each server, this one too; only seeds the first start, then the list in the log wins",
    )
    parser.add_argument(
        "--join", metavar="HOST:PORT,…",
        help="instead of --member: a newcomer to the cluster there; it waits for `alpo member add`",
    )
    parser.add_argument(
        "--cluster", metavar="ID", help="refuse a data directory of any other cluster, and to join any other"
    )
    parser.add_argument(
        "--no-auto-init", dest="auto_init", action="store_const", const=False,
        help="wait for `alpo cluster init` at the first start",
    )
    parser.add_argument(
        "--insecure", action="store_const", const=True, help="listen on a non-loopback address without TLS"
    )
    parser.add_argument(
        "--http", metavar="HOST:PORT",
        help="for people, probes and Prometheus: /, /log, /status, /metrics, /healthz, /readyz",
    )
    parser.add_argument("--log-format", choices=("auto", "console", "json"), help="auto: console on a terminal")
    parser.add_argument("--log-level", choices=tuple(LEVELS), help="log nothing below this (default: info)")
    parser.add_argument(
        "--check-config", action="store_true",
        help="print what would be in force and from where, or what is wrong (exit code 2); starts and touches nothing",
    )
    parser.add_argument(
        "--print-config", action=_Print, nargs=0, const="alpod.toml", help="print a sample with every key, explained"
    )
    parser.add_argument("--print-unit", action=_Print, nargs=0, const="alpod.service", help="print a unit for systemd")
    parser.add_argument("-V", "--version", action="version", version=version_of("alpod"))
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run alpod's command line; always ends with SystemExit, but for a bug."""
    free_stderr()
    words = sys.argv[1:] if argv is None else argv
    try:
        with told_on_stdout():
            flags: dict[str, Any] = vars(_parser().parse_args(words))
    except _WrongUse as error:
        from alpo.server import refuse

        refuse(words, error)
    from alpo.server import run

    run(words, flags)


if __name__ == "__main__":
    main()
