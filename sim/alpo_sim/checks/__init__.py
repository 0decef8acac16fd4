"""Checks of every simulation: invariants that must hold whatever happens. A check raises `Broken` with a name of
`INVARIANTS`.

`safety`, `sends`, `members`, `marks`, `leadership` and `session_tables` watch servers; `history` and `operators`
compare the answers that clients and operators got with the log; `all` puts the checks together.
"""

from __future__ import annotations


class Broken(Exception):
    """Failure of a check. ``invariant``: its name, one of `checks.INVARIANTS`; ``detail``: what was seen."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
        self.detail = detail


INVARIANTS = {
    "alarm": "no server stops itself: its own invariants hold",
    "ready": "a server never asks for the impossible",
    "one leader a term": "no two servers lead in one term (R4, R10)",
    "rank": "a vote goes to no candidate whose log is behind the voter's (R4)",
    "own term": "a leader guarantees by entries of its own term alone (R13)",
    "leader completeness": "a new leader holds everything that was guaranteed before (R4, R13)",
    "log matching": "entries of equal id and term are equal, and so is all before them (R12)",
    "one log": "no two servers ever hold different entries guaranteed at one id (R13, R16)",
    "guaranteed on a majority": "what is called guaranteed is on the disks of a majority of the voters (R13, R14)",
    "nothing guaranteed expunged": "no disk gives up an entry that was guaranteed (R12)",
    "nothing acknowledged given up": (
        "what a server told its leader as accepted gives way to no snapshot that its disk holds already (R14)"
    ),
    "first start": "all that start do so with one and the same list, and nobody votes before (R29)",
    "steps down": "a leader that no majority has answered within T leads no longer (R15)",
    "reign": "every reign begins with its leadership-change entry (R11)",
    "cleaned too early": "no server cleans what some member does not hold (R19)",
    "trimmed": "the trim mark is what the guaranteed log says, on every server; nothing below is served (R20)",
    "no space": "a server whose disk is low takes no appends, and no entries at all when its disk is all but full; nor"
    " does a leader without a majority that answers and has space",
    "damage": "a server whose disk is damaged gives no votes, cleans nothing, accepts nothing from there on (R31)",
    "gapless": "ids and LSNs have no gaps, entry time never decreases",
    "durable before sent": "terms, votes and acceptances are on disk before they leave (R14)",
    "electable": "only an electable candidate asks others to defer (R5), and stands anew once they did (R7)",
    "prompt mark": "a passive server is at most a message behind what its leader guaranteed and sent (R16)",
    "fully replicated": "what is called fully replicated is on every member's disk (R18)",
    "members": "no member list before the last one, and an entry of its leader's term, are guaranteed (R27)",
    "entry time": "no single wrong clock carries entry time away",
    "bounds": (
        "a leader bounds what is in flight from its clients, counted in bytes and in serials (R21), and to a peer "
        "(R17); no run is larger than it may be (R32)"
    ),
    "sent once": "entries that are still on their way to a server are not sent to it again (R17)",
    "equal tables": "session tables and member lists are equal at equal ids (R21, R22, R27, R32)",
    "exactly once": (
        "no append is in the log twice, however runs group them, and each client's are in the order of its serials "
        "(R21, R23, R32)"
    ),
    "nothing invented": "the log holds what clients sent, a conditional append where it was to be, nothing else",
    "acknowledged": (
        "what was acknowledged is at the LSN that was told, serial by serial (R24, R32); all verdicts rest on what is "
        "guaranteed"
    ),
    "refused for good": "what was refused for good never enters the log afterwards (R21)",
    "outcome": "what was told of an append's outcome is what the log says (R21, R25)",
    "settings": "settings told were in force, and a change is made on what its asker believed to be there",
    "cursors": "cursors are what the log says, equal on all servers; no server cleans what one of its own needs",
    "never taken": "what was only ever refused as never taken is not in the log (R21)",
    "sessions": "an epoch begins by an open that named the one before it, once a nonce (R22)",
    "linearizable": "appends and reads fit one order of the log, and that order fits real time (R25)",
    "no progress": "once the network allows it there is a leader and all is settled, within a stated bound",
    "answered": "nobody waits for a server that leads no more (R24, R25)",
    "referral": "a server that does not lead sends no client back to itself (R24)",
    "hung disk": "a server whose disk hangs neither canvasses nor answers those that ask for votes (R34)",
    "directory": "the directory of logs is what the first log says, equal on all servers at equal ids, and told so",
    "founding": "a log is founded once, by a majority of the first log's voters, under a number and an id of its own",
    "files": "no store is moved away whose log is not deleted",
    "own log": "no message of one log reaches another log's replica",
    "follows": "the members of a log are changed by no older list of the first log than its leader has followed",
    "deleted": "no append to a log is acknowledged that came once its deletion was done",
    "disturbed": (
        "a server that comes back from a partition deposes no healthy leader (R2), nor do late requests (R4), nor one "
        "to defer (R6); no candidate makes way for a lesser one"
    ),
}
