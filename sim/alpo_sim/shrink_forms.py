"""Simpler forms of a schedule, for shrinking: fewer servers, plainer requests, tidier times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, permutations

from alpo.core.entries import random_client
from alpo.core.ready import Input
from alpo.core.requests import AppendRun, ChangeMember, Transfer

from .actions import Ask, Configure, Link
from .host import WALL_ZERO_MS
from .scenario import Arrive, Line, Scenario, Seen, Tick, with_origin

_PERMUTED_MAX = 120


def retimed(scenario: Scenario, apart_us: int) -> Scenario:
    """``scenario`` with lines ``apart_us`` apart. Deadlines are at the time of the line before, to be waited for."""
    lines, now_us = [], 0
    for line in scenario.lines:
        now_us += 0 if isinstance(line.what, Tick) else apart_us
        lines.append(line._replace(what=line.what._replace(at_us=now_us)))
    return replace(scenario, lines=tuple(lines))


def plain_asks(scenario: Scenario) -> Scenario:
    """``scenario`` with every append as the first of a random client of its own, with one short payload."""
    lines: list[Line] = []
    count = 0
    for line in scenario.lines:
        what = line.what
        if isinstance(what, Ask) and isinstance(what.request, AppendRun):
            count += 1
            body = (1, _letters(count).encode())
            run = AppendRun("", random_client(WALL_ZERO_MS, count), 0, 1, [body])
            lines.append(line._replace(what=what._replace(request=run)))
        else:
            lines.append(line)
    return replace(scenario, lines=tuple(lines))


def anonymous(scenario: Scenario) -> Scenario:
    """``scenario`` with every request from a client with no other request."""
    lines = []
    for line in scenario.lines:
        what = line.what
        if isinstance(what, Ask):
            what = what._replace(request=with_origin(what.request, ""))
        lines.append(line._replace(what=what))
    return replace(scenario, lines=tuple(lines))


def _letters(count: int) -> str:
    """Name number ``count``, from 1, of a, b, … z, aa, ab, …"""
    text = ""
    while count:
        count, at = divmod(count - 1, 26)
        text = chr(ord("a") + at) + text
    return text


def without_servers(scenario: Scenario, gone: Sequence[int]) -> Scenario:
    """``scenario`` without the servers ``gone`` and lines about them; the others are renumbered in the same order."""
    kept = [id for id in range(1, scenario.servers + scenario.spares + 1) if id not in gone]
    return _renumbered(scenario, {id: at for at, id in enumerate(kept, 1)})


def permuted(scenario: Scenario) -> Iterator[Scenario]:
    """Variants of ``scenario`` with renumbered servers; in the first, by the order in which they first do something."""
    order: dict[int, None] = {}
    for line in scenario.lines:
        for id in _ids(line):
            order[id] = None
    spares = {id: id for id in range(scenario.servers + 1, scenario.servers + scenario.spares + 1)}
    order = {id: None for id in order if id not in spares} | dict.fromkeys(range(1, scenario.servers + 1))
    for numbers in islice(permutations(range(1, scenario.servers + 1)), _PERMUTED_MAX):
        yield _renumbered(scenario, dict(zip(order, numbers, strict=True)) | spares)


def _ids(line: Line) -> tuple[int, ...]:
    what = line.what
    return (what.source, what.target) if isinstance(what, (Seen, Arrive)) else (what.id,)


def _renumbered(scenario: Scenario, new: dict[int, int]) -> Scenario:
    """``scenario`` with servers renumbered by ``new``. Servers not in ``new``, and lines about them, are left out."""
    lines = []
    for line in scenario.lines:
        what = line.what
        about = (*_ids(line), what.peer) if isinstance(what, Link) else _ids(line)
        if any(id not in new for id in about):
            continue
        if isinstance(what, Link):
            moved = what._replace(id=new[what.id], peer=new[what.peer])
        elif isinstance(what, (Seen, Arrive)):
            moved = what._replace(source=new[what.source], target=new[what.target])  # type: ignore[assignment]
        elif isinstance(what, Ask):
            request = _of_others(what.request, new)
            if request is None:
                continue
            moved = what._replace(id=new[what.id], request=request)  # type: ignore[assignment]
        elif isinstance(what, Configure):
            members = tuple(sorted((new[id], priority) for id, priority in what.members if id in new))
            moved = what._replace(id=new[what.id], members=members)  # type: ignore[assignment]
        else:
            moved = what._replace(id=new[what.id])  # type: ignore[assignment]
        lines.append(line._replace(what=moved))
    by_number = {number: id for id, number in new.items()}
    servers = sum(id <= scenario.servers for id in new)
    priorities = tuple(scenario.priorities[by_number[n] - 1] for n in range(1, servers + 1) if scenario.priorities)
    return replace(
        scenario, servers=servers, spares=len(new) - servers, lines=tuple(lines), priorities=priorities
    )


def _of_others(request: Input, new: dict[int, int]) -> Input | None:
    """``request`` with the server that it names, if any, renumbered; None if that server is left out."""
    if isinstance(request, ChangeMember):
        return request._replace(id=new[request.id]) if request.id in new else None
    if isinstance(request, Transfer):
        return request._replace(target=new[request.target]) if request.target in new else None
    return request
