"""Lines of a scenario file as words: quoting, comments, numbers, times, and requests to servers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, get_type_hints

from alpo.core import ready, requests
from alpo.core.entries import DamagedEntry, join_payloads, split_payloads
from alpo.core.members import Identity
from alpo.core.messages import Room
from alpo.core.ready import Input
from alpo.core.requests import MemberStep
from alpo.core.settings import Settings

from .scenario import party_of, with_origin

_WORD = re.compile(
    r"""\s* (?: (?P<comment>\#.*) | (?P<quoted>"(?:[^"\\]|\\.)*") | (?P<mark>[()]) | (?P<bare>[^\s"()\#]+) )""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r'\\(x[0-9a-f]{2}|.)?')


class ScenarioError(Exception):
    """Mistake in a scenario's text. ``line``: its number, from 1; ``message``: what is wrong, and what is accepted."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line
        self.message = message


class Words:
    """Words of one line, taken from the left; a quoted word keeps its quotes. Mistakes raise `ScenarioError`."""

    def __init__(self, text: str, number: int) -> None:
        self.number = number
        self._words: list[str] = []
        at = 0
        while at < len(text.rstrip()):
            found = _WORD.match(text, at)
            if found is None:
                raise self.error(f"a quote that does not end: {text[at:].strip()}")
            at = found.end()
            if found.lastgroup != "comment":
                self._words.append(found[found.lastgroup or 0])

    def error(self, message: str) -> ScenarioError:
        """Make an error at this line, to be raised."""
        return ScenarioError(self.number, message)

    def __bool__(self) -> bool:
        return bool(self._words)

    @property
    def first(self) -> str:
        return self._words[0] if self._words else ""

    def drop_last(self, word: str) -> bool:
        """Take ``word`` off the end. Returns False if it is not the last one."""
        last = bool(self._words) and self._words[-1] == word
        if last:
            self._words.pop()
        return last

    def take(self, what: str) -> str:
        """Take the next word. ``what``: its name in error messages, in all methods."""
        if not self._words:
            raise self.error(f"{what} is missing at the end")
        return self._words.pop(0)

    def rest(self) -> str:
        """Take all words that are left."""
        words, self._words = self._words, []
        return " ".join(words)

    def end(self) -> None:
        """Demand that no word is left."""
        if self._words:
            raise self.error(f"nothing is expected after that, but there is {self.rest()!r}")

    def whole(self, what: str) -> int:
        """Take a number of digits."""
        word = self.take(what)
        if not word.isascii() or not word.isdigit():
            raise self.error(f"{what} must be a whole number, not {word!r}")
        return int(word)

    def ms(self, what: str) -> int:
        """Take milliseconds with up to three decimals. Returns microseconds."""
        return self.us_of(self.take(what), what)

    def us_of(self, word: str, what: str) -> int:
        """The microseconds of a word of milliseconds with up to three decimals."""
        found = re.fullmatch(r"([0-9]+)(?:\.([0-9]{1,3}))?", word, re.ASCII)
        if found is None:
            raise self.error(f"{what} must be milliseconds with up to three decimals, such as 512.345, not {word!r}")
        return int(found[1]) * 1000 + int((found[2] or "").ljust(3, "0"))

    def one_of(self, what: str, known: object) -> str:
        """Take one of the words ``known``."""
        names = list(known)  # type: ignore[call-overload]
        word = self.take(what)
        if word not in names:
            raise self.error(f"{word!r} is no {what}; there are: {', '.join(names)}")
        return word

    def pairs(self, known: object, what: str) -> list[tuple[str, str]]:
        """Take all next words of the form name=value, each name once and one of ``known``. Returns pairs."""
        names = list(known)  # type: ignore[call-overload]
        found: list[tuple[str, str]] = []
        while self._words and "=" in self._words[0] and self._words[0][0] != '"':
            name, _, value = self._words.pop(0).partition("=")
            if name not in names:
                raise self.error(f"{name!r} is no {what}; there are: {', '.join(names) or 'none'}")
            if name in dict(found):
                raise self.error(f"{name} is given twice")
            found.append((name, value))
        return found

    def integer(self, what: str, word: str) -> int:
        """The integer, possibly negative, of a word."""
        if re.fullmatch(r"-?[0-9]+", word, re.ASCII) is None:
            raise self.error(f"{what} must be a whole number, not {word!r}")
        return int(word)

    def integer_pairs(self, known: object, what: str) -> dict[str, int]:
        """Take name=integer words, as `pairs` does. Returns name -> integer."""
        return {name: self.integer(name, value) for name, value in self.pairs(known, what)}

    def whole_pairs(self, known: object, what: str) -> dict[str, int]:
        """Take name=digits words, as `pairs` does. Returns name -> number."""
        pairs = dict(self.pairs(known, what))
        for name, value in pairs.items():
            if not value.isascii() or not value.isdigit():
                raise self.error(f"{name} must be a whole number, not {value!r}")
        return {name: int(value) for name, value in pairs.items()}


def ms_text(us: int) -> str:
    """Microseconds as milliseconds with up to three decimals."""
    whole, part = divmod(us, 1000)
    return f"{whole}.{part:03}".rstrip("0") if part else str(whole)


def quote(raw: bytes) -> str:
    r"""``raw`` in double quotes, with \xNN for all that is not printable ASCII."""
    def one(byte: int) -> str:
        return chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02x}"

    return '"' + "".join(map(one, raw)) + '"'


def unquote(words: Words, word: str) -> bytes:
    """The bytes of a word in double quotes; characters beyond ASCII stand for their UTF-8."""
    if word[:1] != '"':
        raise words.error(f"{word!r} must stand in double quotes")

    def one(found: re.Match[str]) -> str:
        code = found[1] or ""
        if code[:1] == "x" and len(code) == 3:
            return chr(0xDC00 + int(code[1:], 16))
        if code in ('"', "\\"):
            return code
        raise words.error(rf"in quotes a backslash is followed by xNN, a backslash or a quote, not by {code!r}")

    text = _ESCAPE.sub(one, word[1:-1])
    return b"".join(bytes([ord(c) - 0xDC00]) if 0xDC00 <= ord(c) < 0xDD00 else c.encode() for c in text)


_BARE = re.compile(r"[A-Za-z0-9_.-]+")


class Names:
    """Short names for the long ids of random clients. ``short``: short name -> id."""

    def __init__(self, short: dict[str, str] | None = None) -> None:
        self.short = short or {}
        self._of = {client: name for name, client in self.short.items()}

    def add(self, client: str) -> None:
        """Give a random client's id a short name, if it has none."""
        if client[:1] == "~" and client not in self._of:
            at = len(self._of)
            name = chr(ord("A") + at % 26) + (str(at // 26) if at >= 26 else "")
            self._of[client] = name
            self.short[name] = client

    def shorten(self, text: str) -> str:
        """Replace all ids in ``text`` by their short names."""
        for name, client in self.short.items():
            text = text.replace(client, name)
        return text

    def write(self, client: str) -> str:
        """The word for a client: its short name, its name, or its name in double quotes."""
        if client in self._of:
            return self._of[client]
        if _BARE.fullmatch(client) and client not in self.short:
            return client
        return quote(client.encode(errors="surrogatepass"))

    def read(self, words: Words) -> str:
        """Take the word for a client. Returns the client's id or name."""
        word = words.take("a client")
        if word[0] == '"':
            return _text(words, word)
        if not _BARE.fullmatch(word):
            raise words.error(f"the client {word!r} must stand in double quotes, or be named in the header")
        return self.short.get(word, word)


class _Form(NamedTuple):
    """Writer and reader of the fields of one kind of request, which stand behind the word for the kind."""

    kind: type
    write: Callable[[Any, Names], str]
    read: Callable[[Words, Names], Input]


def write_ask(request: Input, names: Names) -> str:
    """The words of a request; if its origin names who asks, "by=…" stands before them."""
    party = party_of(request)
    word = _WORDS[type(request)]
    return " ".join(filter(None, (f"by={party}" if party else "", word, _FORMS[word].write(request, names))))


def read_ask(words: Words, names: Names) -> Input:
    """Take the words of a request, whose origin is who asks; "" if no word says that. Raises `ScenarioError`."""
    party = dict(words.pairs(("by",), "word before a request")).get("by", "")
    request = _FORMS[words.one_of("request", _FORMS)].read(words, names)
    if party and not hasattr(request, "origin"):
        raise words.error("by= goes with what clients ask")
    return with_origin(request, party)


# -- requests whose words follow from their fields ----------------------------------------------------------

#: Field -> its name in a file, if that is another.
_LABELS = {
    "before_lsn": "before", "upto_id": "upto", "time_ms": "time", "next_lsn": "next-lsn", "target": "to",
}
#: Defaults of fields that a file leaves out, where the default is not 0, false or empty.
_DEFAULTS = {"next_lsn": 1}


def _of_fields(kind: Any, what: str = "", *, but: str = "") -> _Form:
    """Make the form of a kind of request from its fields: names of clients or cursors, numbers, bytes and flags.

    ``what``: name of the request in error messages; ``but``: a field that no file contains.
    """
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name not in ("origin", but)}
    named = {name: hint for name, hint in hints.items() if hint is not str}
    labels = {_LABELS.get(name, name): name for name in named}

    def write(request: Any, names: Names) -> str:
        parts = [names.write(getattr(request, name)) for name in hints if name not in named]
        for label, name in labels.items():
            value = getattr(request, name)
            if named[name] is not bool or value:
                parts.append(f"{label}={value.hex() if named[name] is bytes else int(value)}")
        return " ".join(parts)

    def read(words: Words, names: Names) -> Input:
        fields: dict[str, Any] = {name: names.read(words) for name in hints if name not in named}
        fields |= {name: _DEFAULTS.get(name, hint()) for name, hint in named.items()}
        for label, value in words.pairs(labels, f"field of {what}") if labels else ():
            hint = named[labels[label]]
            fields[labels[label]] = _hex(words, label, value) if hint is bytes else hint(words.integer(label, value))
        if "origin" in kind._fields:
            fields["origin"] = ""
        return kind(**fields)  # type: ignore[no-any-return]

    return _Form(kind, write, read)


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


# -- the others ---------------------------------------------------------------------------------------------


def _write_append(run: requests.AppendRun, names: Names) -> str:
    parts = [names.write(run.client), f"serial={run.serial}"]
    parts += [f"epoch={run.epoch}"] if run.epoch else []
    parts += [f"expect={run.expect_last}"] if run.expect_last is not None else []
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


def _read_append(words: Words, names: Names) -> Input:
    client = names.read(words)
    numbers = words.integer_pairs(("serial", "epoch", "expect"), "field of an append")
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
    return requests.AppendRun(
        "", client, numbers.get("epoch", 0), numbers["serial"], bodies, sparse, by_hand, numbers.get("expect")
    )


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


def _write_member(x: requests.ChangeMember, names: Names) -> str:
    parts = [f"{x.step.name.lower()} id={x.id}"]
    parts += [f"priority={x.priority}"] if x.priority else []
    return " ".join(parts + ([quote(x.address.encode())] if x.address else []))


def _read_space(words: Words, names: Names) -> Input:
    room = words.one_of("room", [room.name.lower() for room in Room])
    return ready.Space(Room[room.upper()], words.integer_pairs(("free",), "field of space").get("free", 0))


def _read_damage(words: Words, names: Names) -> Input:
    ids: list[int] = []
    while words.first:
        ids.append(words.whole("a damaged entry's id"))
    return ready.DamageFound(tuple(ids))


def _read_member(words: Words, names: Names) -> Input:
    step = words.one_of("change of the member list", [step.name.lower() for step in MemberStep])
    fields = words.integer_pairs(("id", "priority"), "field of a member")
    address = _text(words, words.take("")) if words.first[:1] == '"' else ""
    return requests.ChangeMember("", MemberStep[step.upper()], fields.get("id", 0), address, fields.get("priority", 0))


def _write_hello(x: ready.PeerAddress, names: Names) -> str:
    return f"{x.peer} {quote(x.address.encode())} incarnation={x.incarnation.hex()}"


def _read_hello(words: Words, names: Names) -> Input:
    peer = words.whole("the peer")
    address = _text(words, words.take("its address, in double quotes,"))
    fields = dict(words.pairs(("incarnation",), "field of a hello"))
    return ready.PeerAddress(peer, _hex(words, "incarnation", fields.get("incarnation", "")), address)


def _write_gone(x: ready.PeerGone, names: Names) -> str:
    return f"{x.peer.id} incarnation={x.peer.incarnation.hex()}"


def _read_gone(words: Words, names: Names) -> Input:
    peer = words.whole("the peer")
    fields = dict(words.pairs(("incarnation",), "field of a process"))
    return ready.PeerGone(Identity(peer, _hex(words, "incarnation", fields.get("incarnation", ""))))


def _write_moving(x: ready.Moving, names: Names) -> str:
    return f"{'from' if x.incoming else 'to'} {x.who.id} incarnation={x.who.incarnation.hex()}"


def _read_moving(words: Words, names: Names) -> Input:
    way = words.take("from or to")
    if way not in ("from", "to"):
        raise words.error(f"from or to is expected, not {way!r}")
    who = words.whole("the other server")
    fields = dict(words.pairs(("incarnation",), "field of a process"))
    return ready.Moving(Identity(who, _hex(words, "incarnation", fields.get("incarnation", ""))), way == "from")


def _write_change(x: requests.ChangeSettings, names: Names) -> str:
    return " ".join(f"{name}={old}:{wanted}" for name, old, wanted in x.changes)


def _read_change(words: Words, names: Names) -> Input:
    changes = []
    for name, value in words.pairs(tuple(Settings().values()), "setting"):
        old, colon, wanted = value.partition(":")
        if not colon:
            raise words.error(f"{name} must be OLD:NEW, not {value!r}")
        changes.append((name, words.integer(name, old), words.integer(name, wanted)))
    return requests.ChangeSettings("", tuple(changes))


#: Word for a kind of request -> the kind's form.
_FORMS = {
    "append": _Form(requests.AppendRun, _write_append, _read_append),
    "open": _of_fields(requests.OpenSession, "an open"),
    "drop": _of_fields(requests.DropSession, "a drop"),
    "sessions": _of_fields(requests.ListSessions),
    "read": _of_fields(requests.ReadIndex),
    "outcome": _of_fields(requests.Outcome, "an outcome", but="epoch"),
    "cursor": _of_fields(requests.SetCursor, "a cursor"),
    "forget": _of_fields(requests.DropCursor, "a cursor", but="why"),
    "cursors": _of_fields(requests.ListCursors),
    "settings": _of_fields(requests.ShowSettings),
    "change": _Form(requests.ChangeSettings, _write_change, _read_change),
    "init": _of_fields(requests.Initialise),
    "hello": _Form(ready.PeerAddress, _write_hello, _read_hello),
    "gone": _Form(ready.PeerGone, _write_gone, _read_gone),
    "moving": _Form(ready.Moving, _write_moving, _read_moving),
    "trim": _of_fields(requests.Trim, "a trim"),
    "clean": _of_fields(ready.Clean, "a cleaning"),
    "space": _Form(ready.Space, lambda x, names: f"{x.room.name.lower()} free={x.free_bytes}", _read_space),
    "damage": _Form(ready.DamageFound, lambda x, names: " ".join(map(str, x.ids)), _read_damage),
    "stop": _of_fields(ready.Stop),
    "member": _Form(requests.ChangeMember, _write_member, _read_member),
    "transfer": _of_fields(requests.Transfer, "a transfer"),
}
_WORDS = {form.kind: word for word, form in _FORMS.items()}
