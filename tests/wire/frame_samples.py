"""A message of every type, and its frame, for tests of frames."""

from __future__ import annotations

from typing import Any

from alpo.core import messages as m
from alpo.core import requests as q
from alpo.core.directory import DeletedLog, Listing, LogOptions, NamedLog
from alpo.core.disk import SessionRow
from alpo.core.entries import Kind, join_payloads, seal, seal_appends
from alpo.core.hosting.words import Deleted, Follow, HostMessage, LogHello, Standing, StoreState, ToldLog
from alpo.core.members import Identity, Member, MemberList, Role, StartStatus
from alpo.core.ranks import Rank
from alpo.core.requests import Code, Fate, MemberStep
from alpo.core.settings import Settings
from alpo.wire import codec
from alpo.wire import requests as r
from alpo.wire.framing import frame
from alpo.wire.lanes import PIECE_BYTES_MAX, LaneReader, Long, block_frame, forget_frame, with_blocks
from alpo.wire.requests import PageColumns, pack_page

PAGE = PageColumns((8,), (3,), (1_001,), ("client",), (1,), (5,), (1,), (b"payload",), (0,))
ME, OTHER = Identity(1, b"a" * 16), Identity(2, b"b" * 16)
RUN = [
    seal(7, 3, int(Kind.LEADER), 1_000, 5, b"{}"),
    seal(8, 3, int(Kind.DATA), 1_001, 5, b"payload", "client", 1, 0, 1),
    seal(9, 3, int(Kind.DATA), 1_002, 6, join_payloads([b"x", b"yy"]), "client", 2, 0, 2),
]
MEMBERS = [[1, "h:1", 0, "6161", 2, []], [4, "h:4", -1, "", 1, ["6262"]]]
ROWS = [
    SessionRow("client", 0, b"", 0, 2, 9, 1_002, []), SessionRow("name", 8, b"n" * 16, 3, 0, 8, 1_001, [], 8),
]
RANK = Rank(3, 9, 0, 1)
LISTED = MemberList((
    Member(1, "h:1", 0, b"a" * 16, Role.VOTER, ()), Member(2, "h:2", 0, b"b" * 16, Role.VOTER, ()),
))
SETTINGS = Settings().to_plain()
LOG = NamedLog(2, "billing", b"n" * 16, LogOptions(lead=2), SETTINGS, LISTED.to_plain(), LISTED.digest())
GONE = DeletedLog(3, "audit", b"m" * 16, b"d" * 16)
#: A message of every type between servers.
PEERS: list[m.Message] = [
    m.CanvassRequest(4, 1, RANK, False), m.CanvassAnswer(4, 1, m.Canvass.YES), m.VoteRequest(4, RANK, True),
    m.VoteAnswer(4, 4, m.Vote.HELD, 2, RANK, 1_003), m.DeferRequest(4, RANK), m.DeferAnswer(4, 4, m.Defer.DEFERRED),
    m.AppendRequest(3, 6, 2, 6, 5, 11, RUN), m.AppendAnswer(3, True, 9, 0, 0, 0, 0, 11, 1_004, False),
    m.HandOver(3), m.WrongIncarnation(b"c" * 16), m.StartQuestion(1, b"d" * 16),
    m.StartAnswer(1, StartStatus.STARTED, b"d" * 16, (ME, OTHER), b"e" * 16, "[]", "{}"),
    m.SnapshotPart(3, 1, 0, 2, "{}", (SessionRow("client", 0, b"", 0, 2, 9, 1_002, [(2, 9, 6, 0, b"d" * 16)], 7),)),
    m.SnapshotAnswer(3, 1, 1, 0), m.Retired(), m.WentBack(3, 9),
    m.CopyRequest(7, 2), m.CopyAnswer(7, 3, RUN[:1]),
]
#: Hellos as version 4 has them.
HELLOS_4: list[Any] = [
    r.ClientHello(4, b"", "alpo-python 1"),
    r.ServerHello(4, b"e" * 16, 1, 1_000, 0, 1 << 20, 8 << 20, 1024, 2, ((1, "h:1"), (2, "h:2"))),
]
#: Samples of all other messages: requests, answers.
OTHERS: list[Any] = [
    r.Problem(Code.INVALID, "why"), r.Append("client", 0, 1, False, False, [b"one", (2, RUN[2].body)]),
    q.OpenSession(1, "name", 0, b"n" * 16), q.DropSession(1, "name", 3), q.ListSessions(1), q.Initialise(1),
    r.Read(1, 1, 0, 0, 0, 1 << 20, True, 0, ""), r.Status(1), q.Appended(None, "client", 1, [5, 6], False),
    r.Backup(1), r.GiveBack(1), r.BackupHead(1, 4, 2, 9, 4096), r.BackupRows(1, "runs", [(1, 2, 3)]),
    r.RangeDigest(1, 5, 9), r.DigestIs(1, 5, 9, 4, 7, b"d" * 16),
    r.ReadColumns(1, 5, 9, 0, 0, 1_000, False, 0, ""), pack_page(1, PAGE, 6, 7, 1),
    q.Trim(1, 7, False), q.Trimmed(1, 7), q.Outcome(1, "client", 3, 9), q.Told(1, Fate.APPENDED, 5, 7),
    r.AwaitReplicated(1, 5, 100), r.Replicated(1, False, (2, 3)),
    q.SetCursor(1, "nightly", 7), q.DropCursor(1, "nightly"), q.ListCursors(1),
    r.CursorTable(1, [("nightly", 7, 100, 5)]),
    q.ShowSettings(1), q.ChangeSettings(1, (("window", 1024, 2048),)),
    q.SettingsAre(1, {"window": 2048, "names_max": 7}),
    q.ChangeMember(1, MemberStep.ADD, 4, "h:4", -1), q.MembersChanged(1, MEMBERS), q.Transfer(1, 2),
    q.HandedOver(1, 2, 4),
    r.AppendRefused("client", 1, 2, Code.NOT_LEADER, 0, 2, "h:2", ""), q.Opened(1, 8, 0),
    q.Sessions(1, ROWS, 5), q.Initialised(1),
    q.Dropped(1, 7),
    r.Page(1, [(8, 3, 1_001, "client", 1, 5, 1, b"payload")], 6, 7, 1),
    r.ListEvents(1, 0, 5), r.EventList(1, 2, 1_001, [(7, 1_000, "leader", "{}")]),
    r.StatusAnswer(1, {"id": 1, "members": [{"id": 1, "lag": None}]}),
    r.RequestRefused(1, Code.OUT_OF_RANGE, 0, 0, "", "1,7"),
]
#: Samples that version 5 has besides: hellos that name a log, requests about logs and their answers.
OTHERS_5: list[Any] = [
    r.ClientHello(5, b"", "alpo-python 1", "billing"),
    r.ServerHello(5, b"e" * 16, 1, 1_000, 0, 1 << 20, 8 << 20, 1024, 2, ((1, "h:1"), (2, "h:2")), 2, "billing"),
    q.CreateLog(1, "billing", b"n" * 16, LogOptions(keep_ms=1_000), {"window": 2048}),
    q.SetLog(1, "billing", (("lead", 2),)), q.RenameLog(1, "billing", "bills"), q.DeleteLog(1, "bills", b"n" * 16),
    q.ListLogs(1), q.LogIs(1, LOG), q.LogDeleted(1, GONE), q.LogsAre(1, Listing((LOG,), (GONE,), 4)),
]
#: The messages between the hostings of two servers.
HOSTS: list[HostMessage] = [
    LogHello((
        ToldLog(2, b"a" * 16, StoreState.STARTED, 1, Standing(7, (ME, OTHER), (1, 2, 3))),
        ToldLog(3, b"b" * 16, StoreState.EMPTY),
    )),
    Follow(2, 7, LISTED),
    Deleted(b"c" * 16, (2, 5)),
]

#: The messages that a run makes different, conditional appends, and a hello with a process.
RUNS = seal_appends([(1, b"one"), (1, b"two"), (2, RUN[2].body)], "client", 1, 0, 7, 3, 1_001, 5, together=True)
PEERS_TOO: list[m.Message] = [
    m.AppendRequest(3, 6, 2, 6, 5, 11, RUNS), m.CopyAnswer(7, 3, RUNS),
    m.SnapshotPart(
        3, 1, 0, 2, "{}", (SessionRow("client", 0, b"", 0, 3, 7, 1_001, [(1, 7, 5, 0, RUNS[0].digest)], 0),)
    ),
]
OTHERS_TOO: list[Any] = [
    q.Appended(None, "client", 1, range(5, 7), False),
    pack_page(1, PageColumns((7,), (3,), (1_001,), ("client",), (1,), (5,), (2,), (RUN[2].body,), (1,)), 7, 7, 1),
    r.AppendAfter("client", 0, 1, False, 7, b"one"), r.AppendAfter("name", 8, 2, True, 0, (2, RUN[2].body)),
    r.AcceptClocks(1),
    r.PeerHello(4, b"e" * 16, 1, b"a" * 16, "h:1", 2, b"b" * 16, 1_000, 0, (50, 500, 25), b"p" * 16),
]


def frames(version: int = r.VERSION) -> list[bytes]:
    """Each of them as it travels in this version."""
    others = [*OTHERS, *OTHERS_TOO, *OTHERS_5] if version >= r.LOGS_VERSION else [*HELLOS_4, *OTHERS, *OTHERS_TOO]
    return [
        *(codec.encode(message, version) for message in others),
        *(
            codec.encode_envelope(m.Envelope(b"e" * 16, ME, OTHER, message), version=version)
            for message in (*PEERS, *PEERS_TOO)
        ),
        *(map(codec.encode_host, HOSTS) if version >= r.LOGS_VERSION else ()),
    ]


def marks() -> list[bytes]:
    """Frames between servers alone: frames in a piece, a block and its answer, a message that refers to
    it, and the end of both."""
    long, other, told = Long(), LaneReader(1 << 20), list[bytes]()
    other.open(told.append, lambda number: None)
    long.add(frame(b"\x93a long frame"), ordered=False)
    long.add(*block_frame(7, b"block"), ordered=False)
    piece = b"".join(long.piece())
    other.feed(piece)
    long.add(frame(bytes(PIECE_BYTES_MAX)), ordered=True)
    long.piece()
    message = with_blocks(frame(b"\x93before block after"), [(7, b"block")])
    return [piece, *told, message, forget_frame(7), long.abandon()]
