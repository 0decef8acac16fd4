"""What is asked of a server, as words of a scenario file."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from alpo.core.entries import DamagedEntry, join_payloads, split_payloads
from alpo.core.inputs import (
    AppendRun,
    ChangeMember,
    ChangeSettings,
    Clean,
    DamageFound,
    DropCursor,
    DropSession,
    Initialise,
    Input,
    ListCursors,
    ListSessions,
    MemberStep,
    OpenSession,
    Outcome,
    PeerAddress,
    ReadIndex,
    SetCursor,
    ShowSettings,
    Space,
    Stop,
    Transfer,
    Trim,
)
from alpo.core.messages import Room
from alpo.core.settings import Settings

from .scenario import party_of, with_origin
from .words import Words, quote, unquote

_BARE = re.compile(r"[A-Za-z0-9_.-]+")
ASKED = (
    AppendRun, OpenSession, DropSession, ListSessions, ReadIndex, Outcome, ShowSettings, ChangeSettings, SetCursor,
    DropCursor, ListCursors, Initialise,
    PeerAddress, Stop,
)


class Names:
    """Short names for the long ids of random clients."""

    def __init__(self, short: dict[str, str] | None = None) -> None:
        self.short = short or {}  # short name -> client id
        self._of = {client: name for name, client in self.short.items()}

    def add(self, client: str) -> None:
        if client[:1] == "~" and client not in self._of:
            at = len(self._of)
            name = chr(ord("A") + at % 26) + (str(at // 26) if at >= 26 else "")
            self._of[client] = name
            self.short[name] = client

    def shorten(self, text: str) -> str:
        """``text`` with short names for the ids in it."""
        for name, client in self.short.items():
            text = text.replace(client, name)
        return text

    def write(self, client: str) -> str:
        if client in self._of:
            return self._of[client]
        if _BARE.fullmatch(client) and client not in self.short:
            return client
        return quote(client.encode(errors="surrogatepass"))

    def read(self, words: Words) -> str:
        word = words.take("a client")
        if word[0] == '"':
            return _text(words, word)
        if not _BARE.fullmatch(word):
            raise words.error(f"the client {word!r} must stand in double quotes, or be named in the header")
        return self.short.get(word, word)


def write_ask(request: Input, names: Names) -> str:
    party = party_of(request)
    return (f"by={party} " if party else "") + _WRITE[type(request)](request, names)


def _write_append(run: AppendRun, names: Names) -> str:
    parts = ["append", names.write(run.client), f"serial={run.serial}"]
    parts += [f"epoch={run.epoch}"] if run.epoch else []
    parts += ["sparse"] if run.sparse else []
    parts += ["by-hand"] if run.by_hand else []
    return " ".join(parts + [_write_body(*body) for body in run.bodies])


def _write_body(count: int, body: bytes) -> str:
    if count == 1:
        return quote(body)
    try:
        return "(" + " ".join(map(quote, split_payloads(count, body))) + ")"
    except DamagedEntry as error:
        raise ValueError(f"a body that is no {count} payloads cannot be written: {error}") from error


_WRITE: dict[type, Callable[[Any, Names], str]] = {
    AppendRun: _write_append,
    OpenSession: lambda x, names: f"open {names.write(x.name)} replaces={x.replaces} nonce={x.nonce.hex()}",
    DropSession: lambda x, names: f"drop {names.write(x.name)} epoch={x.epoch}",
    ListSessions: lambda x, names: "sessions",
    ReadIndex: lambda x, names: "read",
    Outcome: lambda x, names: f"outcome {names.write(x.client)} serial={x.serial}",
    ShowSettings: lambda x, names: "settings",
    ChangeSettings: lambda x, names: " ".join(
        ["change", *(f"{name}={old}:{wanted}" for name, old, wanted in x.changes)]
    ),
    Initialise: lambda x, names: "init",
    PeerAddress: lambda x, names: f"hello {x.peer} {quote(x.address.encode())} incarnation={x.incarnation.hex()}",
    Stop: lambda x, names: "stop",
    DamageFound: lambda x, names: "damage" + "".join(f" {id}" for id in x.ids),
    Space: lambda x, names: f"space {x.room.name.lower()} free={x.free_bytes}",
    SetCursor: lambda x, names: f"cursor {names.write(x.name)} lsn={x.lsn}",
    DropCursor: lambda x, names: f"forget {names.write(x.name)} lsn={x.lsn}",
    ListCursors: lambda x, names: "cursors",
    Trim: lambda x, names: f"trim before={x.before_lsn}" + (" force=1" if x.force else ""),
    Clean: lambda x, names: f"clean upto={x.upto_id} time={x.time_ms} next-lsn={x.next_lsn}",
    ChangeMember: lambda x, names: _write_member(x),
    Transfer: lambda x, names: f"transfer to={x.target}",
}


def _write_member(x: ChangeMember) -> str:
    parts = [f"member {x.step.name.lower()} id={x.id}"]
    parts += [f"priority={x.priority}"] if x.priority else []
    return " ".join(parts + ([quote(x.address.encode())] if x.address else []))


def read_ask(words: Words, names: Names) -> Input:
    """Its origin is who asks, if that is said."""
    party = dict(words.pairs(("by",), "word before a request")).get("by", "")
    request = _READ[words.one_of("request", _READ)](words, names)
    if party and not hasattr(request, "origin"):
        raise words.error("by= goes with what clients ask")
    return with_origin(request, party)


def _read_append(words: Words, names: Names) -> Input:
    client = names.read(words)
    numbers = words.integer_pairs(("serial", "epoch"), "field of an append")
    if "serial" not in numbers:
        raise words.error("an append needs serial=NUMBER")
    sparse = by_hand = False
    while words.first in ("sparse", "by-hand"):
        if words.take("") == "sparse":
            sparse = True
        else:
            by_hand = True
    bodies: list[tuple[int, bytes]] = []
    while words.first and words.first[0] in '"(':
        bodies.append(_read_body(words))
    if not bodies:
        raise words.error('an append needs payloads: "one", or ("two" "in one batch")')
    return AppendRun("", client, numbers.get("epoch", 0), numbers["serial"], bodies, sparse, by_hand)


def _read_body(words: Words) -> tuple[int, bytes]:
    if words.first != "(":
        return 1, unquote(words, words.take("a payload"))
    words.take("(")
    payloads = []
    while words.first != ")":
        payloads.append(unquote(words, words.take("the bracket's end")))
    words.take(")")
    if len(payloads) < 2:
        raise words.error("a batch in brackets has at least two payloads")
    return len(payloads), join_payloads(payloads)


def _hex(words: Words, name: str, value: str) -> bytes:
    try:
        return bytes.fromhex(value)
    except ValueError:
        raise words.error(f"{name} must be pairs of hexadecimal digits, not {value!r}") from None


def _text(words: Words, word: str) -> str:
    try:
        return unquote(words, word).decode(errors="surrogatepass")
    except UnicodeDecodeError:
        raise words.error(f"{word} is not UTF-8") from None


def _read_hello(words: Words, names: Names) -> Input:
    """What a peer's hello said of its address."""
    peer = words.whole("the peer")
    address = _text(words, words.take("its address, in double quotes,"))
    fields = dict(words.pairs(("incarnation",), "field of a hello"))
    return PeerAddress(peer, _hex(words, "incarnation", fields.get("incarnation", "")), address)


def _read_open(words: Words, names: Names) -> Input:
    name = names.read(words)
    fields = dict(words.pairs(("replaces", "nonce"), "field of an open"))
    nonce = _hex(words, "nonce", fields.get("nonce", ""))
    return OpenSession("", name, words.integer("replaces", fields.get("replaces", "0")), nonce)


def _read_drop(words: Words, names: Names) -> Input:
    name = names.read(words)
    return DropSession("", name, words.integer_pairs(("epoch",), "field of a drop").get("epoch", 0))


def _read_outcome(words: Words, names: Names) -> Input:
    client = names.read(words)
    return Outcome("", client, words.integer_pairs(("serial",), "field of an outcome").get("serial", 0))


def _read_change(words: Words, names: Names) -> Input:
    """NAME=OLD:NEW, for each setting."""
    changes = []
    for name, value in words.pairs(tuple(Settings().to_plain()), "setting"):
        old, colon, wanted = value.partition(":")
        if not colon:
            raise words.error(f"{name} must be OLD:NEW, not {value!r}")
        changes.append((name, words.integer(name, old), words.integer(name, wanted)))
    return ChangeSettings("", tuple(changes))


def _read_trim(words: Words, names: Names) -> Input:
    fields = words.integer_pairs(("before", "force"), "field of a trim")
    return Trim("", fields.get("before", 0), bool(fields.get("force", 0)))


def _read_cursor(words: Words, names: Names) -> Input:
    name = names.read(words)
    return SetCursor("", name, words.integer_pairs(("lsn",), "field of a cursor").get("lsn", 0))


def _read_forget(words: Words, names: Names) -> Input:
    name = names.read(words)
    return DropCursor("", name, words.integer_pairs(("lsn",), "field of a cursor").get("lsn", 0))


def _read_clean(words: Words, names: Names) -> Input:
    """What a server's retention lets go."""
    fields = words.integer_pairs(("upto", "time", "next-lsn"), "field of a cleaning")
    return Clean(fields.get("upto", 0), fields.get("time", 0), fields.get("next-lsn", 1))


def _read_space(words: Words, names: Names) -> Input:
    """What a server's own disk has room for."""
    room = words.one_of("room", [room.name.lower() for room in Room])
    return Space(Room[room.upper()], words.integer_pairs(("free",), "field of space").get("free", 0))


def _read_damage(words: Words, names: Names) -> Input:
    """Which entries on a server's own disk are damaged; none: all is sound."""
    ids: list[int] = []
    while words.first:
        ids.append(words.whole("a damaged entry's id"))
    return DamageFound(tuple(ids))


def _read_member(words: Words, names: Names) -> Input:
    """An operator's change of the member list."""
    step = words.one_of("change of the member list", [step.name.lower() for step in MemberStep])
    fields = words.integer_pairs(("id", "priority"), "field of a member")
    address = _text(words, words.take("")) if words.first[:1] == '"' else ""
    return ChangeMember("", MemberStep[step.upper()], fields.get("id", 0), address, fields.get("priority", 0))


def _read_transfer(words: Words, names: Names) -> Input:
    return Transfer("", words.integer_pairs(("to",), "field of a transfer").get("to", 0))


_READ: dict[str, Callable[[Words, Names], Input]] = {
    "append": _read_append,
    "open": _read_open,
    "drop": _read_drop,
    "sessions": lambda words, names: ListSessions(""),
    "read": lambda words, names: ReadIndex(""),
    "outcome": _read_outcome,
    "cursor": _read_cursor,
    "forget": _read_forget,
    "cursors": lambda words, names: ListCursors(""),
    "settings": lambda words, names: ShowSettings(""),
    "change": _read_change,
    "init": lambda words, names: Initialise(""),
    "hello": _read_hello,
    "trim": _read_trim,
    "clean": _read_clean,
    "space": _read_space,
    "damage": _read_damage,
    "stop": lambda words, names: Stop(),
    "member": _read_member,
    "transfer": _read_transfer,
}
