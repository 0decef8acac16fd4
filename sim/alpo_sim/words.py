"""Lines of a scenario file as words: quoting, comments, numbers, times."""

from __future__ import annotations

import re

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
