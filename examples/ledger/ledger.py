"""A ledger: accounts, and transfers between them, the same in every program that opens it.

    python ledger.py open alice 100
    python ledger.py move alice bob 30
    python ledger.py total
    python ledger.py --help

The commands are in a log, and every program folds them by itself: kill any of them with `kill -9`, or the leader of the
log, and no cent is lost, made, or moved twice.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Self

import trio

import alpo
import alpo.rsm
from alpo.rsm import At, Replica

NAME, VERSION = "ledger", 1
#: A command is short: nothing that anybody appends costs the others much.
COMMAND_BYTES_MAX = 500


class Refused(Exception):
    """The reason why a command has changed nothing."""


# -- the machine: what is said below is all that processes have to agree upon ------------------------------------------


class Ledger:
    """Accounts, each with what is on it, in cents. A command is JSON: `opening` or `transfer`."""

    def __init__(self, accounts: dict[str, int] | None = None) -> None:
        self.accounts: dict[str, int] = {} if accounts is None else accounts

    @property
    def total(self) -> int:
        """The sum over all accounts: transfers do not change it."""
        return sum(self.accounts.values())

    def apply(self, command: bytes, at: At) -> object:
        """Carry out a command: where it is in the log, and what is now on the accounts that it touched. Raises
        `Refused`. First all is checked, then all is written."""
        match _parsed(command):
            case ["open", str(account), int(cents)]:
                return {"lsn": at.lsn, "balances": self._open(account, cents)}
            case ["move", str(source), str(target), int(cents), str()]:
                return {"lsn": at.lsn, "balances": self._move(source, target, cents)}
        raise Refused("this is no command")

    def _open(self, account: str, cents: int) -> dict[str, int]:
        if account in self.accounts:
            raise Refused(f"there is an account {account} already")
        if not account or cents < 0:
            raise Refused("an account has a name, and 0 or more on it")
        self.accounts[account] = cents
        return {account: cents}

    def _move(self, source: str, target: str, cents: int) -> dict[str, int]:
        for account in (source, target):
            if account not in self.accounts:
                raise Refused(f"there is no account {account}")
        if source == target or cents <= 0:
            raise Refused("a transfer is of a cent at least, to another account")
        if self.accounts[source] < cents:
            raise Refused(f"{source} has {self.accounts[source]}, not {cents}")
        self.accounts[source] -= cents
        self.accounts[target] += cents
        return {source: self.accounts[source], target: self.accounts[target]}

    def items(self) -> Iterator[bytes]:
        """An item for each account, for snapshots."""
        for account in sorted(self.accounts):
            yield json.dumps([account, self.accounts[account]]).encode()

    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        """The ledger that gave these items."""
        return cls(dict(json.loads(item) for item in items))

    def freeze(self) -> Self:
        """A copy, for a snapshot that is written while this one goes on."""
        return type(self)(dict(self.accounts))


def _parsed(command: bytes) -> Any:
    """The JSON of a command. Raises `Refused`: anybody can append anything."""
    if len(command) > COMMAND_BYTES_MAX:
        raise Refused(f"a command has {COMMAND_BYTES_MAX} bytes at most")
    try:
        parsed = json.loads(command)
    except ValueError as error:
        raise Refused("this is no JSON") from error
    if isinstance(parsed, list) and any(isinstance(each, bool) for each in parsed):
        raise Refused("true and false are no sums")  # they are integers to Python
    return parsed


def opening(account: str, cents: int) -> bytes:
    """The command for a new account with so much on it."""
    return json.dumps(["open", account, cents]).encode()


def transfer(source: str, target: str, cents: int, reference: str = "") -> bytes:
    """The command that moves so much; ``reference``: what it is for."""
    return json.dumps(["move", source, target, cents, reference]).encode()


# -- the program -------------------------------------------------------------------------------------------------------


def say(**fields: Any) -> None:
    """Print a JSON line."""
    print(json.dumps(fields), flush=True)


async def run(ledger: Replica[Ledger], command: bytes) -> None:
    """Run a command, and say what was answered."""
    try:
        say(**await ledger.run(command))
    except Refused as error:
        sys.exit(f"refused: {error}")


async def show(ledger: Replica[Ledger], options: argparse.Namespace) -> None:
    """Say what the ledger is, as new as every command that was answered before."""
    if options.command == "total":
        total, accounts = await ledger.read(lambda machine: (machine.total, len(machine.accounts)))
        say(total=total, accounts=accounts, lsn=ledger.lsn)
    else:
        for account, cents in await ledger.read(lambda machine: sorted(machine.accounts.items())):
            say(account=account, cents=cents)


async def work(ledger: Replica[Ledger], options: argparse.Namespace) -> None:
    """Make random transfers, several at a time, and say what became of each: for a trial of what happens when this
    program is killed."""
    rng = random.Random(options.seed)
    accounts = [f"account-{number}" for number in range(options.accounts)]
    references = iter(f"{options.worker}/{number}" for number in range(1, options.number + 1))

    async def clerk() -> None:
        for reference in references:
            source, target = rng.sample(accounts, 2)
            await told(ledger, transfer(source, target, rng.randint(1, 80), reference))

    for account in accounts:
        await told(ledger, opening(account, 100))
    async with trio.open_nursery() as nursery:
        for _ in range(options.clerks):
            nursery.start_soon(clerk)


async def told(ledger: Replica[Ledger], command: bytes) -> None:
    """Run a command, and say what became of it."""
    about = {"command": json.loads(command)}
    try:
        say(**about, **await ledger.run(command))
    except Refused as error:
        say(**about, refused=str(error))
    except (alpo.ProtocolError, alpo.TlsMismatch):
        raise  # the servers are another cluster's, as after a restore: begin anew
    except alpo.NotGuaranteed:
        say(**about, unknown=True)
        # The command is in the log, or never will be: wait until that is known, and do not send it again.
        while not await settled(ledger):
            pass
    except alpo.Unavailable as error:
        say(**about, undone=str(error))


async def settled(ledger: Replica[Ledger]) -> bool:
    """Wait until all outcomes are known; False if that took too long."""
    try:
        await ledger.settle()
    except alpo.Unavailable:
        return False
    return True


async def snapshot(ledger: Replica[Ledger]) -> None:
    """Put all accounts into the log, and let go what came before the last snapshot: programs do so by themselves, when
    much has come since the last one."""
    say(**(await ledger.snapshot(trim=True))._asdict())


async def main(options: argparse.Namespace) -> None:
    """Do what the command line says."""
    snapshots: Any = "auto" if options.command == "work" else "off"
    async with alpo.rsm.connect(
        Ledger, options.servers, name=NAME, version=VERSION, snapshots=snapshots
    ) as ledger:
        match options.command:
            case "open":
                await run(ledger, opening(options.account, options.cents))
            case "move":
                await run(ledger, transfer(options.source, options.target, options.cents, options.reference))
            case "work":
                await work(ledger, options)
            case "snapshot":
                await snapshot(ledger)
            case _:
                await show(ledger, options)


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    servers = argparse.ArgumentParser(add_help=False)
    servers.add_argument("--servers", metavar="HOST:PORT,…", help="default: the environment's ALPO_SERVERS")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, help: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=help, parents=[servers])

    new = command("open", "a new account")
    new.add_argument("account")
    new.add_argument("cents", type=int)
    move = command("move", "a transfer")
    move.add_argument("source")
    move.add_argument("target")
    move.add_argument("cents", type=int)
    move.add_argument("--reference", default="", help="what it is for")
    command("accounts", "what is on each")
    command("total", "what is on all together")
    command("snapshot", "keep the log short")
    trial = command("work", "random transfers, for a trial")
    trial.add_argument("worker", help="a name, for references")
    trial.add_argument("--number", type=int, default=1_000_000, help="transfers")
    trial.add_argument("--accounts", type=int, default=10)
    trial.add_argument("--clerks", type=int, default=4, help="transfers at a time")
    trial.add_argument("--seed", type=int, default=None)
    return parser.parse_args(words)


if __name__ == "__main__":
    trio.run(main, parsed())
