"""Work of `alpo log show`, `verify` and `diff`.

Law: a damaged entry is reported in its place, and later entries follow; the command then ends with 1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from alpo.core.entries import DamagedEntry, Entry, Kind, parse_body, parts, serials_of, split_payloads
from alpo.offline import Found, Source, open_source, tell
from alpo.offline import verify as audit

from .backup import store_errors
from .exits import Failed
from .options import Target
from .output import counted, escape, escape_bytes, json_line, payload_fields, print_json, rfc3339_ms, say
from .progress import slow_progress


def show(
    target: Target, where: Path, start: int | None, stop: int | None, limit: int | None, kinds: frozenset[int]
) -> None:
    """Print a line for each entry. Raises Failed, at the end, if any was damaged."""
    damaged = 0
    with store_errors(), open_source(where) as source:
        summary = source.summary()
        for what in summary.damage:
            say(what)
        last_id = min(stop or summary.end_id, summary.end_id)
        shown = 0
        for found in source.walk(max(start or 1, summary.first_id), last_id):
            if shown == limit:
                break
            if kinds and not found.damage and found.entry is not None and found.entry.kind not in kinds:
                continue
            shown += 1
            damaged += found.damage != ""
            print(json_line(_fields(found)) if target.json else _line(found))
        sys.stdout.flush()
    if damaged or summary.damage:
        raise Failed(f"{where} is damaged: alpo log verify")


def _fields(found: Found) -> dict[str, Any]:
    """JSON keys of an entry; for ids that cannot be read ``id`` is the first, ``last_id`` the last."""
    entry = found.entry
    if entry is None:
        return {"id": found.first_id, "last_id": found.last_id, "damage": found.damage}
    try:
        kind = Kind(entry.kind).name
        time = rfc3339_ms(entry.time_ms)
    except (ValueError, OverflowError, OSError):  # of a damaged entry
        kind, time = str(entry.kind), ""
    fields: dict[str, Any] = {
        "id": entry.id, "term": entry.term, "kind": kind, "time": time,
        "client": escape(entry.client) if found.damage else entry.client, "serial": entry.serial,
        "epoch": entry.epoch, "lsn": entry.lsn, "count": entry.count,
    }
    if found.damage:
        return {**fields, "damage": found.damage}
    if entry.kind == Kind.DATA:
        return {**fields, "payloads": _payloads(entry)}
    try:
        return {**fields, "body": parse_body(entry)}
    except DamagedEntry:
        return {**fields, "body": escape_bytes(entry.body)}


def _payloads(entry: Entry) -> list[dict[str, Any]]:
    """JSON keys of each payload; of a run (R32) with the serial of each."""
    if serials_of(entry.digest) == 1:
        return [payload_fields(payload) for payload in split_payloads(entry.count, entry.body)]
    return [
        {"serial": part.serial, **payload_fields(payload)}
        for part in parts(entry) for payload in split_payloads(part.count, part.body)
    ]


def _line(found: Found) -> str:
    """Line of text for an entry: id, term, kind, time, then its content."""
    if found.entry is None:
        ids = str(found.first_id) if found.first_id == found.last_id else f"{found.first_id} to {found.last_id}"
        return f"{ids}  DAMAGED  {escape(found.damage)}"
    fields, entry = _fields(found), found.entry
    head = f"{entry.id}  {entry.term}  {fields['kind']:7}  {fields['time']}"
    if found.damage:
        return f"{head}  DAMAGED  {escape(found.damage)}"
    if entry.kind != Kind.DATA:
        who = f"  {escape(entry.client)}" if entry.client else ""
        return f"{head}{who}  {escape_bytes(entry.body)}"
    lsns, serials = _numbers(entry.lsn, entry.count), _numbers(entry.serial, serials_of(entry.digest))
    payloads = "  ".join(escape_bytes(payload) for payload in split_payloads(entry.count, entry.body))
    return f"{head}  LSN {lsns}  {escape(entry.client)} {serials}  {payloads}"


def _numbers(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}-{first + count - 1}"


def verify(target: Target, where: Path) -> None:
    """Print a line for each fault, then the verdict. Raises Failed if there were faults."""
    with slow_progress() as step, store_errors(), open_source(where) as source:
        verdict = audit(source, lambda id, end_id: step("checking", id, end_id))
    faults = len(verdict.faults) + verdict.faults_more
    if target.json:
        print_json({
            "sound": not faults, "first_id": verdict.first_id, "last_id": verdict.last_id,
            "first_lsn": verdict.first_lsn, "last_lsn": verdict.last_lsn, "entries": verdict.entries,
            "payloads": verdict.payloads, "guaranteed_id": verdict.guaranteed_id, "faults_more": verdict.faults_more,
            "faults": [{"first_id": f.first_id, "last_id": f.last_id, "what": f.what} for f in verdict.faults],
        })
    else:
        for fault in verdict.faults:
            print(escape(tell(fault)))
        if verdict.faults_more:
            print(f"and {verdict.faults_more} more")
        if not faults:
            entries, payloads = counted(verdict.entries, "entry"), counted(verdict.payloads, "payload")
            print(f"sound: {entries} ({verdict.first_id} to {verdict.last_id}), {payloads}"
                  f" (LSN {verdict.first_lsn} to {verdict.last_lsn}), guaranteed up to entry {verdict.guaranteed_id}")
    if faults:
        raise Failed(f"{where} is damaged: {counted(faults, 'fault')}")


def diff(target: Target, a: Path, b: Path) -> None:
    """Compare two logs and print the verdict. Raises Failed if guaranteed entries differ or one is damaged."""
    with slow_progress() as step, store_errors(), open_source(a) as one, open_source(b) as other:
        of_a, of_b = one.summary(), other.summary()
        first_id, last_id = max(of_a.first_id, of_b.first_id), min(of_a.end_id, of_b.end_id)
        if of_a.hard is not None and of_b.hard is not None and of_a.hard.cluster != of_b.hard.cluster:
            say(f"these are of different clusters: {of_a.hard.cluster.hex()} and {of_b.hard.cluster.hex()}")
        damage = [*(f"{a}: {what}" for what in of_a.damage), *(f"{b}: {what}" for what in of_b.damage)]
        differs = None
        for left, right in _pairs(one, other, first_id, last_id):
            damage += [f"{where}: entry {found.first_id}: {found.damage}"
                       for where, found in ((a, left), (b, right)) if found.damage]
            if not left.damage and not right.damage and left.entry != right.entry:
                differs = left.first_id
                break
            step("comparing", left.last_id - first_id, last_id - first_id)
    mark = min(of_a.guaranteed_id, of_b.guaranteed_id)
    diverged = differs is not None and differs <= mark
    verdict = "damaged" if damage else "diverged" if diverged else "equal" if differs is None else "suffix"
    if target.json:
        print_json({
            "verdict": verdict, "first_difference": differs, "first_id": first_id, "last_id": last_id,
            "last_id_a": of_a.end_id, "last_id_b": of_b.end_id,
            "guaranteed_id_a": of_a.guaranteed_id, "guaranteed_id_b": of_b.guaranteed_id, "damage": damage,
        })
    else:
        for what in damage:
            print(escape(what))
        print(escape(_compared(first_id, last_id, differs, diverged, mark, bool(damage))))
        for where, summary, end_id in ((a, of_a, last_id), (b, of_b, last_id)):
            if summary.end_id > end_id:
                print(escape(f"{where} goes on to entry {summary.end_id}, guaranteed up to {summary.guaranteed_id}"))
    if diverged or damage:
        raise Failed(f"{a} and {b}: {verdict}")


def _compared(
    first_id: int, last_id: int, differs: int | None, diverged: bool, mark: int, damage: bool
) -> str:
    if differs is None:
        other = "all other entries from" if damage else "entries"
        return f"{other} {first_id} to {last_id} are equal" if last_id >= first_id else "they have no entries in common"
    if diverged:
        return f"DIVERGED: entry {differs} differs, and both say that it is guaranteed (up to {mark})"
    return f"entry {differs} differs, beyond what both know to be guaranteed (up to {mark}): one will expunge it"


def _pairs(one: Source, other: Source, first_id: int, last_id: int) -> Iterator[tuple[Found, Found]]:
    """Yield both logs' content for each id. Ranges that one cannot read are passed in both."""
    lefts, rights = one.walk(first_id, last_id), other.walk(first_id, last_id)
    left, right = next(lefts, None), next(rights, None)
    while left is not None and right is not None:
        if left.last_id >= right.first_id and right.last_id >= left.first_id:
            yield left, right
        ahead = left.last_id - right.last_id
        left = next(lefts, None) if ahead <= 0 else left
        right = next(rights, None) if ahead >= 0 else right


