"""Command line of `alpo append`; module `append` of the parent package does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from alpo.core.entries import INT_MAX

from ..exits import UsageProblem
from ..options import Target, check_client, check_new_client, with_target
from ..running import run


@with_target
def append(
    target: Target,
    text: Annotated[list[str] | None, typer.Argument(metavar="TEXT", show_default=False,
                                                     help="Payloads. Without any: lines of stdin.")] = None,
    file: Annotated[Path | None, typer.Option("--file", metavar="FILE", show_default=False,
                                              help="Read from FILE instead of stdin.")] = None,
    null: Annotated[bool, typer.Option("--null", show_default=False,
                                       help="Payloads end with NUL, not with a line end.")] = False,
    whole: Annotated[bool, typer.Option("--whole", show_default=False,
                                        help="All of the input is one payload.")] = False,
    batch: Annotated[int | None, typer.Option("--batch", metavar="N", min=1, show_default=False,
                                              help="Atomic batches of N payloads.")] = None,
    atomic: Annotated[bool, typer.Option("--atomic", show_default=False,
                                         help="Everything given is one atomic batch.")] = False,
    expect_last: Annotated[int | None, typer.Option("--expect-last", metavar="LSN", min=0, max=INT_MAX,
                                                    show_default=False,
                                                    help="Append only if LSN is the log's last one.")] = None,
    client: Annotated[str | None, typer.Option("--client", metavar="NAME", show_default=False,
                                               help="Append as this named client.")] = None,
    serial: Annotated[int | None, typer.Option("--serial", metavar="N", min=1, max=INT_MAX, show_default=False,
                                               help="Retry what was sent under this serial (needs --client).")] = None,
    epoch: Annotated[int | None, typer.Option("--epoch", metavar="E", min=0, max=INT_MAX, show_default=False,
                                              help="The epoch it was sent under (needs --serial).")] = None,
    wait: Annotated[Literal["everyone"] | None, typer.Option("--wait", metavar="everyone", show_default=False,
                                                             help="Wait until every member has it.")] = None,
) -> None:
    """Append payloads: each TEXT, or each line of stdin.

    Prints the LSN of each TEXT; with --json one line an append. Exit code 3 means that the outcome is not known: the
    message gives --client, --serial and --epoch, with which the same payloads can be sent again, at most once in the
    log. A retry of several payloads takes the serials from --serial on.

    An append that is answered is on a majority's disks. With --wait everyone the command ends once all that it has
    appended is on every member's; if that takes longer than --timeout, it says who lacks it and ends with 1.

    With --expect-last LSN one payload, or one atomic batch, is appended right behind that LSN, or refused (1).

    Examples:

        alpo append hello

        alpo append --file access.log --batch 100

        tail -f access.log | alpo append --client web-1 --json

        alpo append hello --client web-1 --serial 17 --epoch 4

        alpo append "web-2 leads" --expect-last 41 --wait everyone
    """
    _check_append(bool(text), file, null, whole, batch, atomic, client, serial, epoch)
    _check_expect(expect_last, atomic or whole or (len(text or ()) == 1 and batch is None))
    from .. import append as work

    plan = work.Plan(
        words=tuple(text or ()), file=file, separator=b"\0" if null else b"\n", whole=whole,
        batch=0 if atomic else batch or 1, client=client, serial=serial, epoch=epoch,
        everyone=wait is not None, expect_last=expect_last,
    )
    run(work.append_by_hand if serial is not None else work.append_all, target, plan)


def _check_expect(expect_last: int | None, one: bool) -> None:
    if expect_last is not None and not one:
        raise UsageProblem("--expect-last is for one append: one TEXT, --whole or --atomic")


def _check_append(
    words: bool, file: Path | None, null: bool, whole: bool, batch: int | None, atomic: bool,
    client: str | None, serial: int | None, epoch: int | None,
) -> None:
    if words and (file is not None or null or whole):
        raise UsageProblem("TEXT does not go with --file, --null or --whole")
    if null and whole:
        raise UsageProblem("--null does not go with --whole")
    if atomic and batch is not None:
        raise UsageProblem("--atomic does not go with --batch")
    if serial is not None and client is None:
        raise UsageProblem("--serial needs --client")
    if epoch is not None and serial is None:
        raise UsageProblem("--epoch needs --serial")
    if client is not None:
        (check_new_client if serial is None else check_client)(client, "--client")
