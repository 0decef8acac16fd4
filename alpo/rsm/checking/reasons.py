"""Reasons for what `alpo.rsm.check` finds, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .children import Died
from .ways import Fault

#: Things that can differ between two processes besides their hash seed.
KNOBS = ("clock", "chance", "place", "memory")
LEFT = (
    "state outside the machine: a class attribute, a variable of the module or a mutable default argument, which an "
    "earlier machine of the same process has changed"
)
UNTAMED = (
    "what differs from run to run though hash seed, clock and chance are the same: an address (id(), the order or repr "
    "of plain objects), a process id, chance or a clock from outside Python's time, random and os"
)
_OF_KNOBS = {
    "hash_seed": "only the processes' hash seeds differ: a set is gone through, or hash() is used. Sort it",
    "clock": "only the processes' clocks differ: take the time from at.time, which is the same everywhere",
    "chance": "only chance differs (random, os.urandom, uuid4, secrets): take it from the command, or seed with at.lsn",
    "place": "only the working directory and the time zone differ",
    "memory": "only addresses and the moments of garbage collection differ: id(), plain objects' hash(), weakref",
}
_SEVERAL = "several things differ that do not matter alone: hash seed, clock, chance, working directory, memory"
_FLOATS = "; floats are added up in another order: add integers, or use math.fsum"
_FROZEN = (
    "freeze() shares a list, dict or object with the original: copy what apply changes, as deep as it changes it"
)
_LOADED = {
    "answer": "load() does not bring back all that answers depend on, or brings it in another order (of a dict, say)",
    "items": "load() forgets or changes something, or the order of items() depends on how content came about: sort it",
    "digest": "digest() depends on more than the content, such as what load() makes anew",
}
_LOAD_RAISES = "load() has to take what items() gives, as an iterator that is read once"
_RAISES = "of the machine's methods only apply() may raise, and items() gives bytes"
_OF_WAYS = {
    "again": LEFT,
    "looked": "items() or digest() changes the machine, or its second call gives another thing: it uses it up",
    "beside": LEFT.replace("an earlier machine", "another machine"),
    "frozen": _FROZEN,
    "original": _FROZEN,
    "written": "freeze() forgets something, or shares it with the original",
}
_OF_WHAT = {
    "changed": "apply() changes before it has checked: check first, write after",
    "later": "apply() returns something that it goes on changing (its own list or dict): return a copy",
    "blind": "digest() does not depend on all of the content",
    "no data": "an answer has to be data that can be compared; apply() has to do its work before it returns",
}
#: Faults that need no comparison of processes to be explained.
PLAIN = ("lost", *_OF_WHAT)
#: Words for how the machine was folded, by the way.
_FOLDED = {
    "alone": "command by command", "again": "by a second machine of the same process",
    "looked": "with items() twice after each command", "beside": "in turns with another machine of the same process",
    "loaded": "by a copy that was loaded {at}", "frozen": "frozen {at}, while the original went on",
    "written": "by a copy that was frozen {at}", "original": "left alone {at}, while a frozen copy went on",
}
_WHAT = {
    "answer": "answers differ", "items": "items() differ", "digest": "digest() differs",
    "raised": "{one} raised {other}", "later": "the answer has changed",
    "changed": "apply() raised, and changed the machine", "lost": "{one}",
    "blind": "items() have changed, digest() has not", "no data": "{one}",
}


class Setting(NamedTuple):
    """A process, and what differs there: see `child.World`."""

    hash_seed: int
    clock: int
    chance: int
    place: int
    memory: int


class Difference(NamedTuple):
    """A difference between two settings, or within one."""

    one: Setting
    other: Setting
    fault: Fault
    died: Died | None = None

    @property
    def within(self) -> bool:
        """True if one process is enough to see it."""
        return self.fault.way != "processes"

    @property
    def kind(self) -> tuple[str, str]:
        """Differences of a kind have the same reason."""
        if self.fault.what in ("lost", "changed", "later", "blind", "no data"):
            return self.fault.what, ""
        return "differs", {"original": "written"}.get(self.fault.way, self.fault.way)


def between(one: dict[str, Any], other: dict[str, Any]) -> Fault | None:
    """The first difference of two processes' folds: answers, pieces, the digest offered."""
    answers = list(zip(one["answers"], other["answers"], strict=False))
    seen = list(zip(one["trace"], other["trace"], strict=False))
    for index in range(-1, max(len(answers), len(seen) - 1)):
        if 0 <= index < len(answers) and answers[index][0][0] != answers[index][1][0]:
            return Fault(index, "processes", "answer", -1, answers[index][0][1], answers[index][1][1])
        if index + 1 < len(seen) and seen[index + 1][0][:2] != seen[index + 1][1][:2]:
            (pieces, own, heads), (other_pieces, other_own, other_heads) = seen[index + 1]
            if pieces != other_pieces:
                return Fault(index, "processes", "items", -1, *_first_unlike(heads, other_heads))
            return Fault(index, "processes", "digest", -1, own.hex(), other_own.hex())
    return None


def _first_unlike(one: list[bytes], other: list[bytes]) -> tuple[str, str]:
    both = zip(one, other, strict=False)
    number = next((at for at, (x, y) in enumerate(both) if x != y), min(len(one), len(other)))
    texts = [f"piece no. {number}: {heads[number]!r}" if number < len(heads) else f"{len(heads)} pieces in all"
             for heads in (one, other)]
    if sorted(one) == sorted(other):
        texts[1] += " (the same pieces in another order)"
    return texts[0], texts[1]


def of_knobs(names: Sequence[str], found: Difference) -> str:
    """The cause where only these things need to differ."""
    cause = "; or ".join(_OF_KNOBS[name] for name in names) or _SEVERAL
    return cause + (_FLOATS if _close(found.fault) else "")


def of_fault(found: Difference) -> str:
    """The cause of a difference that one process shows with everything else the same."""
    fault = found.fault
    if fault.what == "lost":
        return "apply() has to survive every command, in little time, and to raise an Exception for what it cannot take"
    if fault.what in _OF_WHAT:
        return _OF_WHAT[fault.what]
    if fault.what == "raised" and fault.way != "frozen":
        return _LOAD_RAISES if fault.one == "load()" else _RAISES
    cause = _LOADED[fault.what] if fault.way == "loaded" else _OF_WAYS[fault.way]
    return cause + (_FLOATS if _close(fault) else "")


def gave(found: Difference | None) -> str:
    """The text of what the way of folding gave where it differs."""
    return found.fault.other if found is not None else ""


def _close(fault: Fault) -> bool:
    """True if both texts are floats that differ by little."""
    try:
        one, other = float(fault.one), float(fault.other)
    except ValueError:
        return False
    return one != other and abs(one - other) <= 1e-9 * max(abs(one), abs(other))


def text(name: str, whole: str, command: bytes | None, found: Difference, commands: list[bytes], cause: str) -> str:
    """The text of `Nondeterministic`. ``found``: how the fewest commands differ."""
    first = "before the first command" if command is None else f"at command {whole}: {_cut(command)}"
    fault = "does not survive a command" if found.fault.what == "lost" else "is not the same however it is folded"
    lines = [f"{name} {fault}, {first}", f"fewest commands: [{', '.join(map(repr, commands))}]", *_what(found)]
    return "\n".join([*lines, f"likely: {cause}"])


def _what(found: Difference) -> list[str]:
    """The difference in words: what it is, and the two sides."""
    fault = found.fault
    what = _WHAT[fault.what].format(one=fault.one, other=fault.other)
    if fault.what in ("lost", "no data"):
        return [what]
    what = f"{what}, {_after(fault.number, 'no. ')}"
    if fault.what == "raised":
        return [what, f"    folded {_folded(fault)}"]
    if not found.within:
        ones = f"folded by a process with {_setting(found.one)}", f"folded by a process with {_setting(found.other)}"
    elif fault.what in ("changed", "blind"):
        ones = "before", "after"
    elif fault.what == "later":
        ones = "when it was returned", "when all commands were folded"
    else:
        ones = "folded command by command", f"folded {_folded(fault)}"
    return [f"{what}:", f"    {fault.one}", f"        {ones[0]}", f"    {fault.other}", f"        {ones[1]}"]


def _after(index: int, number: str = "command ") -> str:
    return f"after {number}{index + 1}" if index >= 0 else "before the first command"


def _folded(fault: Fault) -> str:
    return _FOLDED[fault.way].format(at=_after(fault.start, "no. "))


def _setting(setting: Setting) -> str:
    return f"hash seed {setting.hash_seed}" + (", another clock, chance, place and memory" if setting.clock else "")


def _cut(command: bytes) -> str:
    return repr(command) if len(command) <= 200 else f"{command[:200]!r}… ({len(command)} bytes)"

