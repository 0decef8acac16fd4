"""The pages of payloads: the last ones, and one by its LSN, as JSON or text, and as bytes.

Laws:

* Every value goes through `html.escape`: whoever may append chooses what stands here.
* Bounded: `LISTED` payloads a list, `READ_BYTES` for one page of a read, `SHOWN_BYTES` and `DUMPED_BYTES` of a payload,
  `INDENTED_CHARS` of JSON: the server's event loop makes them, and nested lists take a thousand times their bytes.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple
from urllib.parse import parse_qs

from alpo.core.entries import INT_MAX, split_payloads
from alpo.node.threads import in_thread
from alpo.wire.requests import Page, Read

from .page import document, printable, shown_name

LISTED = 20
READ_BYTES = 1 << 20
SHOWN_BYTES, INDENTED_CHARS, DUMPED_BYTES, PREVIEW_CHARS = 64 << 10, 256 << 10, 1 << 10, 160
_NO_LINE = str.maketrans({"\n": "⏎", "\r": "⏎", "\t": " "})

Look = Callable[[Read], Awaitable[Page]]


class Payload(NamedTuple):
    """One payload, and the entry that holds it."""

    lsn: int
    id: int
    term: int
    time_ms: int
    client: str
    serial: int
    data: bytes

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.time_ms / 1000, UTC)


class Wanted(NamedTuple):
    """The request of a visitor: payload ``lsn``, or else the last ones before ``before``; 0: not given."""

    lsn: int = 0
    before: int = 0

    @staticmethod
    def of(query: str) -> Wanted:
        """The request in a query. Raises ValueError for what is no LSN."""
        given = parse_qs(query, max_num_fields=4)
        return Wanted(*(_lsn(given[name][-1]) if name in given else 0 for name in ("lsn", "before")))


def _lsn(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) <= INT_MAX):
        raise ValueError(f"an LSN is a number from 1 to {INT_MAX}")
    return int(text)


async def payloads_page(wanted: Wanted, look: Look, server: int) -> str:
    """The page, made of what ``look`` finds: pages of this server's own copy. Raises as that does."""
    if wanted.lsn:
        found, first_lsn, end_lsn = await _between(look, wanted.lsn, wanted.lsn)
        body = _one(found[0], first_lsn, end_lsn) if found else _list([], first_lsn, end_lsn)
        title = f"payload {wanted.lsn:,}"
    else:
        end_lsn = (await look(_ask(0, 0, 1))).end_lsn
        last = min(wanted.before - 1, end_lsn) if wanted.before else end_lsn
        found, first_lsn, end_lsn = await _between(look, max(1, last - LISTED + 1), last)
        body, title = _list(found, first_lsn, end_lsn), "payloads"
    form = (
        '<form action="/log" method="get"><label>LSN <input name="lsn" inputmode="numeric" size="12" required></label> '
        "<button>show</button></form>"
    )
    head = (
        f'<header><h1>{title}</h1><span class="dim">server {server} has {first_lsn:,} to {end_lsn:,}</span>'
        '<a href="/">the cluster</a> <a href="/log">the last payloads</a></header>'
    )
    return document(f"ALPO: {title}", f"{head}<main>{form}{body}</main>", live=False)


def _ask(start: int, end: int, last: int = 0) -> Read:
    return Read(0, start, end, last, 0, READ_BYTES, False, 0, "")


async def _between(look: Look, first: int, last: int) -> tuple[list[Payload], int, int]:
    """The payloads that there are from ``first`` to ``last``, and the LSNs that the server has."""
    found: list[Payload] = []
    page = await look(_ask(0, 0, 1))  # tells what there is
    first, last = max(first, page.first_lsn), min(last, page.end_lsn)
    while first <= last:
        page = await look(_ask(first, last))
        for id, term, time_ms, client, serial, lsn, count, body in page.entries:
            each = [body] if count == 1 else await in_thread(split_payloads, count, body)  # a batch may hold a million
            begin = max(0, first - lsn)
            for one, data in enumerate(each[begin : last + 1 - lsn], lsn + begin):
                found.append(Payload(one, id, term, time_ms, client, serial, data))
        first = max(page.next_lsn, first + 1)
    return found, page.first_lsn, page.end_lsn


def _list(found: Sequence[Payload], first_lsn: int, end_lsn: int) -> str:
    if not found:
        return '<p class="dim">There are no payloads here.</p>'
    rows = "".join(
        f'<tr><th scope="row"><a href="/log?lsn={one.lsn}">{one.lsn:,}</a></th><td data-h="time">{_time(one)}</td>'
        f'<td data-h="client">{shown_name(one.client)}</td><td data-h="bytes" class="n">{len(one.data):,}</td>'
        f'<td data-h="payload" class="ext"><code>{escape(_preview(one.data))}</code></td></tr>'
        for one in reversed(found)
    )
    heads = "".join(f'<th scope="col"{kind}>{name}</th>' for name, kind in (
        ("LSN", ""), ("time, UTC", ""), ("client", ""), ("bytes", ' class="n"'), ("payload", ""),
    ))
    older = f'<a href="/log?before={found[0].lsn}">older</a> ' if found[0].lsn > first_lsn else ""
    newer = f'<a href="/log?before={found[-1].lsn + LISTED + 1}">newer</a>' if found[-1].lsn < end_lsn else ""
    return f'<table class="members"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table><p>{older}{newer}</p>'


def _one(one: Payload, first_lsn: int, end_lsn: int) -> str:
    facts = (
        ("LSN", f"{one.lsn:,}"), ("time, UTC", _time(one)), ("client", shown_name(one.client)),
        ("serial", f"{one.serial:,}"), ("entry", f"{one.id:,}, term {one.term:,}"), ("bytes", f"{len(one.data):,}"),
    )
    rows = "".join(f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' for name, value in facts)
    kind, text = _told(one.data[:SHOWN_BYTES], whole=len(one.data) <= SHOWN_BYTES)
    told = f"<h2>{kind}</h2><pre>{escape(text)}</pre>" if kind else ""
    cut = f", the first {DUMPED_BYTES:,}" if len(one.data) > DUMPED_BYTES else ""
    ways = [f'<a href="/log?lsn={lsn}">{word}</a>' for lsn, word in ((one.lsn - 1, "before"), (one.lsn + 1, "next"))
            if first_lsn <= lsn <= end_lsn]
    dump = escape(_dump(one.data[:DUMPED_BYTES]))
    return f"<table><tbody>{rows}</tbody></table><p>{' '.join(ways)}</p>{told}<h2>Bytes{cut}</h2><pre>{dump}</pre>"


def _told(data: bytes, whole: bool) -> tuple[str, str]:
    """The payload as people read it: ("JSON", indented), ("Text", as it is), or ("", "") if it is neither."""
    try:
        text = data.decode() if whole else data.decode(errors="ignore")
    except UnicodeDecodeError:
        return "", ""
    if whole and text.lstrip()[:1] in ("{", "["):
        try:
            return "JSON", printable(_indented(text), kept="\n")
        except (ValueError, RecursionError):
            pass
    return f"Text{'' if whole else f', the first {SHOWN_BYTES:,} bytes'}", printable(text, kept="\n\t")


def _indented(text: str) -> str:
    """JSON, indented. Raises ValueError if it is none, or too long then; RecursionError."""
    parts: list[str] = []
    chars = 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(text)):
        parts.append(part)
        chars += len(part)
        if chars > INDENTED_CHARS:
            raise ValueError("too long")
    return "".join(parts)


def _dump(data: bytes) -> str:
    """Bytes as `hexdump -C` shows them."""
    lines = []
    for at in range(0, len(data), 16):
        part = data[at : at + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<47}  {shown}")
    return "\n".join(lines) or "none"


def _preview(data: bytes) -> str:
    text = data[: 4 * PREVIEW_CHARS].decode(errors="replace").translate(_NO_LINE)
    return printable(text if len(text) <= PREVIEW_CHARS else text[: PREVIEW_CHARS - 1] + "…")


def _time(one: Payload) -> str:
    return f'<time datetime="{one.at:%Y-%m-%dT%H:%M:%SZ}">{one.at:%Y-%m-%d %H:%M:%S}.{one.time_ms % 1000:03}</time>'
