"""Scenario files: `parse` and `write` are each other's inverse, apart from comments and spaces.

    # Whatever the reader should know.
    alpo-sim scenario 1
    servers 3
    founded

    575 tick 3
    576 deliver 3>2 CanvassRequest term=1 rank=0.0.0.3
    577 deliver 2>3 CanvassAnswer answer=YES
    expect ok
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from alpo.core.requests import AppendRun, DropSession, OpenSession
from alpo.core.settings import Settings

from .scenario import BREAKABLE, EXPECTS, INPUTS, Arrive, Deed, Expect, Line, Scenario, Tick, Times
from .shapes import FORMER_KINDS, KINDS
from .stage import Ask, Boot, Clock, Configure, Crash, Join, Link, Move, Persist, PutBack, Serve, Step, Wipe
from .words import Names, ScenarioError, Words, ms_text, read_ask, write_ask

FIRST_LINE = "alpo-sim scenario 1"
LIMITS = (
    "tail_bytes_max", "peer_inflight_bytes_max", "request_bytes_max", "table_save_entries", "part_slots_max",
)
_SETTINGS = [f.name for f in fields(Settings)]
_TIMES = [name.removesuffix("_us") for name in Times._fields]
SERVERS_MAX = 9

# -- writing ------------------------------------------------------------------------------------------------


def write(scenario: Scenario, comments: Sequence[str] = ()) -> str:
    """The text of a scenario's file. ``comments``: one for each line, to go behind it ("" for none)."""
    names = Names()
    for line in scenario.lines:
        if isinstance(line.what, Ask):
            names.add(_client(line.what.request))
    text = [f"# {note}".rstrip() for note in scenario.notes]
    text += _write_header(scenario)
    text += [f"client {name} {client}" for name, client in names.short.items()]
    text.append("")
    for at, line in enumerate(scenario.lines):
        words = _write_deed(line.what, names) + (" &" if line.more else "")
        comment = names.shorten(comments[at]) if at < len(comments) else ""
        text.append(f"{words:<60}  # {comment}" if comment else words)
    text.append("")
    text += [_write_expect(expect) for expect in scenario.expects]
    return "\n".join(text) + "\n"


def _client(request: object) -> str:
    if isinstance(request, AppendRun):
        return request.client
    return request.name if isinstance(request, (OpenSession, DropSession)) else ""


def _write_header(s: Scenario) -> list[str]:
    text = [FIRST_LINE, f"servers {s.servers}"]
    text += [f"spares {s.spares}"] if s.spares else []
    text += [f"seed {s.seed}"] if s.seed else []
    text += [f"mutation {s.mutation}"] if s.mutation else []
    if s.times != Times():
        pairs = zip(_TIMES, s.times, strict=True)
        text.append("timers " + " ".join(f"{name}={ms_text(us)}" for name, us in pairs))
    text += [f"priorities {' '.join(map(str, s.priorities))}"] if s.priorities else []
    if s.settings != Settings():
        changed = [(n, v) for n, v in s.settings.to_plain().items() if v != getattr(Settings(), n)]
        text.append("settings " + " ".join(f"{name}={value}" for name, value in changed))
    text += ["limits " + " ".join(f"{name}={value}" for name, value in s.limits)] if s.limits else []
    text += [] if s.auto_init else ["no-auto-init"]
    text += ["founded"] if s.founded else []
    return text + (["prompt"] if s.prompt else [])


def _write_arrive(x: Arrive, names: Names) -> str:
    parts = [f"{x.source}>{x.target} {x.kind}", *(f"{name}={value}" for name, value in x.fields)]
    parts += [f"nth={x.nth}"] if x.nth != 1 else []
    return " ".join(parts + (["copy"] if x.copy else []))


#: Word -> the deed that it names.
_DEEDS: dict[str, Any] = {
    "boot": Boot, "crash": Crash, "wipe": Wipe, "put-back": PutBack, "join": Join, "move": Move,
    "configure": Configure, "deliver": Arrive, "persist": Persist, "serve": Serve, "link": Link, "ask": Ask,
    "step": Step, "tick": Tick, "clock": Clock,
}
_WORDS = {kind: word for word, kind in _DEEDS.items()}
#: Kind of deed -> writer of the words after the deed's word, where those are more than the server's id.
_WRITE: dict[type, Callable[[Any, Names], str]] = {
    Crash: lambda x, names: f"{x.id}" + (f" kept={x.kept}" if x.kept else ""),
    Configure: lambda x, names: f"{x.id} " + (" ".join(f"{m}:{p}" for m, p in x.members) or "right"),
    Arrive: _write_arrive,
    Persist: lambda x, names: f"{x.id}" + (f" writes={x.count}" if x.count else ""),
    Link: lambda x, names: f"{x.id}>{x.peer} {'up' if x.up else 'down'}",
    Ask: lambda x, names: f"{x.id} {write_ask(x.request, names)}",
    Clock: lambda x, names: f"{x.id} rate={x.rate!r} jump={x.jump_ms:+d}ms",
}


def _write_deed(x: Deed, names: Names) -> str:
    write = _WRITE.get(type(x))
    about = write(x, names) if write is not None else x.id  # type: ignore[union-attr]
    return f"{ms_text(x.at_us)} {_WORDS[type(x)]} {about}"


def _write_expect(x: Expect) -> str:
    texts = {
        "broken": x.invariant, "leader": f"{x.server} term {x.number}", "passive": str(x.server),
        "guaranteed": str(x.number), "knows": f"{x.server} {x.number}", "last": f"{x.server} {x.number}",
    }
    return f"expect {x.what} {texts.get(x.what, '')}".rstrip()


# -- reading ------------------------------------------------------------------------------------------------


def parse(text: str) -> Scenario:
    """Read a scenario file's text. Raises `ScenarioError`."""
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), 1):
        reader.line(line.strip(), number)
    return reader.scenario()


class _Reader:
    def __init__(self) -> None:
        self._notes: list[str] = []
        self._begun = False
        self._number = 0
        self._header: dict[str, Any] = {}
        self._names = Names()
        self._lines: list[Line] = []
        self._expects: list[Expect] = []

    def line(self, text: str, number: int) -> None:
        self._number = number
        if not self._begun and text[:1] in ("", "#"):
            if text:
                self._notes.append(text[1:].strip())
            return
        words = Words(text, number)
        if not words:
            return
        if not self._begun:
            if words.rest() != FIRST_LINE:
                raise words.error(f"a scenario begins with the line {FIRST_LINE!r}, after comments")
            self._begun = True
        elif words.first == "expect":
            words.take("expect")
            self._expects.append(self._expect(words))
        elif words.first[0].isdigit():
            self._lines.append(self._deed(words))
        elif self._lines or self._expects:
            raise words.error(f"a line begins with its time in ms or with 'expect', not with {words.first!r}")
        else:
            self._header_line(words)

    def scenario(self) -> Scenario:
        if "servers" not in self._header:
            raise ScenarioError(max(1, self._number), "the header does not say how many servers there are: servers 3")
        if not self._expects:
            raise ScenarioError(self._number, "the file does not say what to expect; its last line may be: expect ok")
        return Scenario(
            **self._header, lines=tuple(self._lines), expects=tuple(self._expects), notes=tuple(self._notes)
        )

    # -- the header -------------------------------------------------------------------------------------

    def _header_line(self, words: Words) -> None:
        name = words.one_of("line of the header", (*_HEADER, "client"))
        if name == "client":
            short = words.take("a short name")
            self._names = Names(self._names.short | {short: words.take("the client's id")})
        else:
            key, read = _HEADER[name]
            if key in self._header:
                raise words.error(f"{name} is given twice")
            self._header[key] = read(self, words)
        words.end()

    def _servers(self, words: Words) -> int:
        count = words.whole("the number of servers")
        if not 1 <= count <= SERVERS_MAX:
            raise words.error(f"there are 1 to {SERVERS_MAX} servers, not {count}")
        return count

    def _spares(self, words: Words) -> int:
        count = words.whole("the number of spares")
        if not 1 <= count + self._header.get("servers", SERVERS_MAX) <= SERVERS_MAX:
            raise words.error(f"there are up to {SERVERS_MAX} servers with the spares, whose line follows theirs")
        return count

    def _times(self, words: Words) -> Times:
        pairs = words.pairs(_TIMES, "timer")
        return Times()._replace(**{f"{name}_us": words.us_of(value, name) for name, value in pairs})

    def _settings(self, words: Words) -> Settings:
        try:
            return Settings.from_plain(words.whole_pairs(_SETTINGS, "setting"))
        except ValueError as error:
            raise words.error(str(error)) from error

    def _priorities(self, words: Words) -> tuple[int, ...]:
        found = []
        while words:
            found.append(words.whole("a priority"))
        if len(found) != self._header.get("servers"):
            raise words.error("one priority a server is needed, after the line with the number of servers")
        return tuple(found)

    # -- what happens -----------------------------------------------------------------------------------

    def _deed(self, words: Words) -> Line:
        if "servers" not in self._header:
            raise words.error("the number of servers must be said before the first line: servers 3")
        more = words.drop_last("&")
        at_us = words.ms("the time")
        kind = _DEEDS[words.one_of("action", _DEEDS)]
        what = _READ[kind](self, at_us, words) if kind in _READ else kind(at_us, self._server(words))
        words.end()
        if more and not isinstance(what, INPUTS):
            raise words.error("only what a server takes in a step may be followed by &")
        return Line(what, more)

    def _server(self, words: Words) -> int:
        return self._id(words, words.take("a server"))

    def _id(self, words: Words, word: str) -> int:
        count: int = self._header["servers"] + self._header.get("spares", 0)
        if not word.isascii() or not word.isdigit() or not 1 <= int(word) <= count:
            raise words.error(f"{word!r} is no server; there are 1 to {count}")
        return int(word)

    def _pair(self, words: Words) -> tuple[int, int]:
        word = words.take("two servers, such as 1>2,")
        one, arrow, other = word.partition(">")
        if not arrow:
            raise words.error(f"two servers are written 1>2, not {word!r}")
        return self._id(words, one), self._id(words, other)

    def _arrive(self, at_us: int, words: Words) -> Deed:
        source, target = self._pair(words)
        kind = words.one_of("kind of message", (*KINDS, *FORMER_KINDS))
        kind = FORMER_KINDS.get(kind, kind)
        found = words.pairs((*KINDS[kind], "nth"), f"field of {kind}")
        nth = dict(found).get("nth", "1")
        if not nth.isascii() or not nth.isdigit() or nth == "0":
            raise words.error(f"nth must be a whole number from 1 on, not {nth!r}")
        copy = words.drop_last("copy")
        return Arrive(at_us, source, target, kind, tuple(p for p in found if p[0] != "nth"), int(nth), copy)

    def _link(self, at_us: int, words: Words) -> Deed:
        id, peer = self._pair(words)
        state = words.one_of("state of a link", ("up", "down"))
        return Link(at_us, id, peer, state == "up")

    def _ask(self, at_us: int, words: Words) -> Deed:
        id = self._server(words)
        return Ask(at_us, id, read_ask(words, self._names))

    def _crash(self, at_us: int, words: Words) -> Deed:
        return Crash(at_us, self._server(words), words.whole_pairs(("kept",), "field of a crash").get("kept", 0))

    def _persist(self, at_us: int, words: Words) -> Deed:
        id = self._server(words)
        return Persist(at_us, id, words.whole_pairs(("writes",), "field of a persist").get("writes", 0))

    def _configure(self, at_us: int, words: Words) -> Deed:
        id = self._server(words)
        if words.drop_last("right"):
            return Configure(at_us, id, ())
        members = []
        for word in words.rest().split() or [""]:
            member, colon, priority = word.partition(":")
            if not colon:
                raise words.error("a server's list is written 1:0 2:0 3:9 (server:priority), or right")
            members.append((self._id(words, member), words.integer("a priority", priority)))
        return Configure(at_us, id, tuple(members))

    def _clock(self, at_us: int, words: Words) -> Deed:
        id = self._server(words)
        found = dict(words.pairs(("rate", "jump"), "field of a clock"))
        try:
            rate, jump_ms = float(found.get("rate", "1.0")), int(found.get("jump", "+0ms").removesuffix("ms"))
        except ValueError:
            raise words.error("a clock is set like this: clock 2 rate=1.01 jump=+300ms") from None
        if not 0 < rate < 1000:
            raise words.error(f"a clock's rate lies between 0 and 1000, unlike {rate}")
        return Clock(at_us, id, rate, jump_ms)

    # -- what comes of it -------------------------------------------------------------------------------

    def _expect(self, words: Words) -> Expect:
        if "servers" not in self._header:
            raise words.error("the number of servers must be said before that: servers 3")
        what = words.take("an outcome")
        if what == "logs":
            what = f"{what} {words.take('equal')}"
        if what not in EXPECTS:
            known = ", ".join(form for form, _ in EXPECTS.values())
            raise words.error(f"{what!r} is no outcome; there are: {known}")
        expect = Expect(what)
        if what == "broken":
            name = words.rest()
            if name not in BREAKABLE:
                raise words.error(f"{name!r} is no invariant; there are: {', '.join(BREAKABLE)}")
            expect = Expect(what, invariant=name)
        elif what in ("leader", "passive", "knows", "last"):
            expect = Expect(what, server=self._server(words))
        if what == "leader":
            words.one_of("word here", ("term",))
        if what in ("leader", "knows", "last", "guaranteed"):
            expect = expect._replace(number=words.whole("the number"))
        words.end()
        return expect


_HEADER: dict[str, tuple[str, Callable[[_Reader, Words], Any]]] = {
    "servers": ("servers", _Reader._servers),
    "seed": ("seed", lambda reader, words: words.whole("the seed")),
    "mutation": ("mutation", lambda reader, words: words.take("the mutation's name")),
    "timers": ("times", _Reader._times),
    "priorities": ("priorities", _Reader._priorities),
    "settings": ("settings", _Reader._settings),
    "limits": ("limits", lambda reader, words: tuple(words.whole_pairs(LIMITS, "limit").items())),
    "no-auto-init": ("auto_init", lambda reader, words: False),
    "founded": ("founded", lambda reader, words: True),
    "prompt": ("prompt", lambda reader, words: True),
    "spares": ("spares", _Reader._spares),
}

_READ: dict[type, Callable[[_Reader, int, Words], Deed]] = {
    Crash: _Reader._crash, Configure: _Reader._configure, Arrive: _Reader._arrive, Persist: _Reader._persist,
    Link: _Reader._link, Ask: _Reader._ask, Clock: _Reader._clock,
}
