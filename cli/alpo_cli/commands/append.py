"""`alpo append`, and `alpo outcome`: what became of an append. See `appending` for the order of results and errors.

Law: with --wait everyone, appends are answered before the waiting begins: their lines are printed even if the waiting
fails.
"""

from __future__ import annotations

import io
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import alpo
from alpo.core.entries import INT_MAX

from ..exits import Failed, Unknown, UsageProblem, message_of, reason, refuse
from ..options import Target, check_client, check_new_client, with_target
from ..output import Sink, json_line, keep_line, print_json, say
from ..running import ask, complete_clients, connected, run, unless_interrupted

if TYPE_CHECKING:
    from alpo.client.handle import Handle

    from ..appending import Append, Run

_WORDS = {"not_appended": "not appended", "too_old": "too old to tell"}


@dataclass(frozen=True, slots=True)
class Plan:
    """The command line's request. ``batch``: payloads in an append, 0: all in one."""

    words: tuple[str, ...]
    file: Path | None
    separator: bytes
    whole: bool
    batch: int
    client: str | None
    serial: int | None
    epoch: int | None
    everyone: bool = False
    expect_last: int | None = None

    async def appends(self) -> AsyncIterator[list[Append]]:
        """Yield the appends in order, in groups as they were read."""
        from ..appending import Batcher, Splitter, Whole, from_stream, from_words

        batcher = Batcher(self.batch)
        async with AsyncExitStack() as stack:
            if self.words:
                source = from_words(self.words)
            else:
                splitter = Whole() if self.whole else Splitter(self.separator)
                source = from_stream(self._open(stack), splitter)
            async for parts in source:
                if full := list(batcher.feed(parts)):
                    yield full
        if rest := batcher.take():
            yield [rest]

    def _open(self, stack: AsyncExitStack) -> io.RawIOBase:
        if self.file is None or str(self.file) == "-":
            from ..appending import hint_on_terminal

            hint_on_terminal("one payload" if self.whole else "lines" if self.separator == b"\n" else "payloads")
            return io.FileIO(sys.stdin.fileno(), closefd=False)
        try:
            return stack.enter_context(io.FileIO(self.file))
        except OSError as error:
            raise UsageProblem(f"--file {self.file}: {reason(error)}") from error


class _After:
    """Appends that expect ``expect_last`` to be the log's last LSN; a command makes one."""

    def __init__(self, log: alpo.Log, expect_last: int) -> None:
        from alpo.client.log import append_after

        self._append = partial(append_after, log, expect_last=expect_last)

    def append_nowait(self, payload: bytes) -> Handle:
        return self._append([payload])

    def append_batch_nowait(self, payloads: list[bytes]) -> Handle:
        return self._append(payloads)


async def append_all(target: Target, plan: Plan) -> None:
    """Append as the plan says. Raises by the laws above; KeyboardInterrupt if nothing is in doubt after Ctrl-C."""
    from ..appending import Run, line_of

    show_results = target.json or bool(plan.words)
    run: Run | None = None
    lacking: alpo.NotEverywhere | None = None

    async def body() -> None:
        nonlocal run, lacking
        async with alpo.connect(",".join(target.servers), client=plan.client, timeout_s=target.timeout_s) as log:
            appends = log if plan.expect_last is None else _After(log, plan.expect_last)
            run = Run(appends, Sink() if show_results else None, target.json)
            await run.see_through(plan.appends, lambda: keep_line(lambda: _progress(log, run)))
            if plan.everyone and run.failure() is None and run.last_lsn is not None:
                try:
                    await log.wait_everyone(run.last_lsn)
                except alpo.NotEverywhere as error:
                    lacking = error
            await run.part()

    interrupted = await unless_interrupted(body)
    failure = run.failure() if run is not None else None
    if failure is not None:
        if run is not None and run.payloads:
            say(f"{run.summary()} before that:")
        if isinstance(failure, alpo.NotGuaranteed) and target.json:
            await Sink().write(line_of(None, 1, failure, None, as_json=True).encode())
        await _tell_conflict(failure, target)
        raise _with_condition(failure, plan)
    if run is not None and not show_results and (plan.everyone or not interrupted):
        say(run.summary())
    if interrupted:
        raise KeyboardInterrupt
    if lacking is not None:
        raise lacking


async def _tell_conflict(failure: BaseException, target: Target) -> None:
    """Tell a conflict's last LSN to the reader of JSON."""
    if isinstance(failure, alpo.Conflict) and target.json:
        await Sink().write(f"{json_line({'lsn': None, 'last_lsn': failure.last_lsn})}\n".encode())


def _with_condition(failure: alpo.AlpoError | UsageProblem | OSError, plan: Plan) -> Exception:
    """The failure to report: of a conditional append whose outcome is unknown, a retry is to be conditional too."""
    if isinstance(failure, alpo.NotGuaranteed) and plan.expect_last is not None:
        return Unknown(f"{message_of(failure)} --expect-last {plan.expect_last}")
    return failure


async def append_by_hand(target: Target, plan: Plan) -> None:
    """Retry appends of another process: each under its own serial from ``plan.serial`` on, one after the other."""
    from ..appending import line_of

    assert plan.client is not None and plan.serial is not None
    sent = _Named(plan.client, plan.serial, plan.epoch)

    async def body() -> None:
        last_lsn = 0
        async with connected(target) as log:
            async for group in plan.appends():
                for payloads in group:
                    sent.under_way = True
                    try:
                        done = await log.append_by_hand(
                            payloads, client=sent.client, serial=sent.serial, epoch=sent.known_epoch,
                            expect_last=plan.expect_last,
                        )
                    except alpo.Conflict as error:
                        await _tell_conflict(error, target)
                        raise
                    except alpo.NotGuaranteed as error:
                        raise _with_condition(error, plan) from error
                    except alpo.SessionExpired as error:
                        # An earlier process had sent it, and the cluster no longer knows what became of it (R22).
                        raise _with_condition(sent.unknown(str(error)), plan) from error
                    except (alpo.Fenced, alpo.SerialReused) as error:
                        raise Failed(f"{error}{_epoch_hint(plan)}") from error
                    sent.under_way, sent.known_epoch = False, done.epoch
                    line = line_of(done.lsn, len(payloads), sent, done.duplicate, target.json)
                    await Sink().write(line.encode())
                    sent.serial += 1
                    last_lsn = max(last_lsn, done.lsn + len(payloads) - 1)
            if plan.everyone and last_lsn:
                await log.wait_everyone(last_lsn)

    if await unless_interrupted(body):
        raise _with_condition(sent.unknown("interrupted"), plan) if sent.under_way else KeyboardInterrupt


def _epoch_hint(plan: Plan) -> str:
    """Hint for a refused retry of a named client: perhaps not the payloads but the epoch is wrong. "" for others."""
    if plan.client is None or plan.client.startswith("~"):
        return ""
    asked = "the epoch on record (no --epoch was given)" if plan.epoch is None else f"--epoch {plan.epoch}"
    return f"\nretried under {asked}; if it was sent under another, retry with that: the message of exit 3 named it"


@dataclass(slots=True)
class _Named:
    """Identity that a retry is sent under. ``known_epoch`` None: the cluster's recorded one."""

    client: str
    serial: int
    known_epoch: int | None
    under_way: bool = False

    @property
    def epoch(self) -> int:
        return self.known_epoch or 0

    def unknown(self, why: str) -> alpo.NotGuaranteed:
        return alpo.NotGuaranteed(why, client=self.client, serial=self.serial, epoch=self.epoch)


def _progress(log: alpo.Log, run: Run) -> str:
    """Progress line: how far it is, and why it waits."""
    reason = log.reason
    return run.summary() if reason is None else f"{run.summary()}, waiting: {reason}"


@with_target
def append(
    target: Target,
    text: Annotated[list[str] | None, typer.Argument(help="Payloads. Without any: lines of stdin.")] = None,
    file: Annotated[Path | None, typer.Option("--file", metavar="FILE",
                                              help="Read from FILE instead of stdin.")] = None,
    null: Annotated[bool, typer.Option("--null", help="Payloads end with NUL, not with a line end.")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="All of the input is one payload.")] = False,
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="Atomic batches of N payloads.")] = None,
    atomic: Annotated[bool, typer.Option("--atomic", help="Everything given is one atomic batch.")] = False,
    expect_last: Annotated[int | None, typer.Option("--expect-last", metavar="LSN", min=0, max=INT_MAX,
                                                    help="Append only if LSN is the log's last one.")] = None,
    client: Annotated[str | None, typer.Option("--client", metavar="NAME", help="Append as this named client.")] = None,
    serial: Annotated[int | None, typer.Option("--serial", min=1, max=INT_MAX,
                                               help="Retry what was sent under this serial (needs --client).")] = None,
    epoch: Annotated[int | None, typer.Option("--epoch", metavar="E", min=0, max=INT_MAX,
                                              help="The epoch it was sent under (needs --serial).")] = None,
    wait: Annotated[Literal["everyone"] | None, typer.Option("--wait", metavar="everyone",
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
    plan = Plan(
        words=tuple(text or ()), file=file, separator=b"\0" if null else b"\n", whole=whole,
        batch=0 if atomic else batch or 1, client=client, serial=serial, epoch=epoch,
        everyone=wait is not None, expect_last=expect_last,
    )
    run(append_by_hand if serial is not None else append_all, target, plan)


def _check_expect(expect_last: int | None, one: bool) -> None:
    refuse(expect_last is not None and not one, "--expect-last is for one append: one TEXT, --whole or --atomic")


def _check_append(
    words: bool, file: Path | None, null: bool, whole: bool, batch: int | None, atomic: bool,
    client: str | None, serial: int | None, epoch: int | None,
) -> None:
    refuse(words and (file is not None or null or whole), "TEXT does not go with --file, --null or --whole")
    refuse(null and whole, "--null does not go with --whole")
    refuse(atomic and batch is not None, "--atomic does not go with --batch")
    refuse(serial is not None and client is None, "--serial needs --client")
    refuse(epoch is not None and serial is None, "--epoch needs --serial")
    if client is not None:
        (check_new_client if serial is None else check_client)(client, "--client")


@with_target
def outcome(
    target: Target,
    client: Annotated[str, typer.Argument(autocompletion=complete_clients, help="A name, or a random client's id.")],
    serial: Annotated[int, typer.Argument(min=1, max=INT_MAX, help="As the message of exit 3 gives it.")],
    epoch: Annotated[int, typer.Option("--epoch", metavar="E", min=0, max=INT_MAX, show_default="any",
                                       help="Of a name: the epoch that it was sent under, as that message gives"
                                            " it.")] = 0,
) -> None:
    """Tell what became of an append: appended at an LSN, not appended, or too old to tell.

    It is told as of now: what is still on its way to the cluster may be appended later. To make sure that the payloads
    are in the log, once, send them again: alpo append --client --serial --epoch.

    Examples:
        alpo outcome billing-7 42 --epoch 7
        alpo outcome '~01890a5d-ac96-774b-bcce-b302099a8057' 1 --json | jq -r .outcome
    """
    check_client(client, "CLIENT")
    found = ask(target, lambda log: log.outcome(client, serial, epoch=epoch))
    if target.json:
        print_json({"outcome": found.outcome, "lsn": found.lsn, "birth": found.birth})
    else:
        print(_WORDS.get(found.outcome, f"appended at LSN {found.lsn}"))
