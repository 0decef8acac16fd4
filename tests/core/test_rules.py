"""Single rules, on one replica, at the level of its `Ready`: when messages may leave, and the answers."""

from __future__ import annotations

import random

import pytest

from alpo.core.config import ReplicaConfig
from alpo.core.disk import Boot, StartState
from alpo.core.election import Round
from alpo.core.entries import Entry, Kind, json_body, seal
from alpo.core.members import Configured, Identity, Member, MemberList, Role, StartStatus
from alpo.core.messages import (
    AppendAnswer,
    AppendRequest,
    Canvass,
    CanvassAnswer,
    CanvassRequest,
    Defer,
    DeferAnswer,
    DeferRequest,
    Envelope,
    Message,
    Vote,
    VoteAnswer,
    VoteRequest,
    WrongIncarnation,
)
from alpo.core.ranks import Rank, State
from alpo.core.ready import Connected, DamageFound, Persisted, Ready, Received, Tick
from alpo.core.replica import Replica
from alpo.core.settings import Settings

WALL_MS = 1_700_000_000_000
FIRST = MemberList.of(Member(i, f"h{i}:1", 0, bytes([i]) * 16, Role.VOTER) for i in (1, 2, 3, 4, 5))
CLUSTER = FIRST.digest()


def who(id: int) -> Identity:
    return Identity(id, bytes([id]) * 16)


class One:
    """Server 3 of five, started, at ``term``, its log one entry for each of ``terms``."""

    def __init__(self, term: int = 0, terms: tuple[int, ...] = (), guaranteed_id: int = 0, id: int = 3) -> None:
        runs: list[tuple[int, int]] = []
        for at, each in enumerate(terms, 1):
            if not runs or runs[-1][0] != each:
                runs.append((each, at))
        start = StartState(
            StartStatus.STARTED, (), b"d" * 16, CLUSTER, FIRST.to_plain(), Settings().to_plain()
        )
        boot = Boot(who(id), term, 0, start, guaranteed_id, 0, len(terms), terms[-1] if terms else 0, 1, runs)
        configured = tuple(Configured(m.id, m.address) for m in FIRST.members)
        self.replica = Replica(ReplicaConfig(who(id), f"h{id}:1", configured), boot, random.Random(1))
        self.replica.replay(entry(i, t) for i, t in enumerate(terms, 1))
        self.now_s = 10.0
        self.replica.start(self.now_s, WALL_MS)

    def state(self) -> State:
        return self.replica.state

    def hear(self, sender: int, message: Message, target: Identity | None = None) -> Ready:
        envelope = Envelope(CLUSTER, who(sender), target or self.replica.me, message)
        return self.step(Received(envelope))

    def step(self, *inputs: object) -> Ready:
        return self.replica.step(inputs, self.now_s, WALL_MS)  # type: ignore[arg-type]

    def persist(self, ready: Ready) -> Ready:
        assert ready.write is not None
        return self.step(Persisted(ready.write.number))

    def wait(self, seconds: float) -> Ready:
        self.now_s += seconds
        return self.step(Tick())

    def stand(self) -> Ready:
        """Make the server a candidate, with its vote on disk; return the last Ready."""
        self.wait(5.0)
        round = self.replica.election.round
        assert round is not None
        for voter in (1, 2):
            ready = self.hear(voter, CanvassAnswer(self.replica.term, round.number, Canvass.YES))
        assert self.replica.state is State.CANDIDATE
        self.persist(ready)
        return ready

    def lead(self) -> Ready:
        self.step(*[Connected(i) for i in (1, 2, 4, 5)])
        self.stand()
        for voter in (1, 2):
            ready = self.hear(voter, VoteAnswer(self.replica.term, self.replica.term, Vote.GRANTED, 0, None, WALL_MS))
        assert self.replica.state is State.LEADER
        return ready


def entry(id: int, term: int, body: bytes = b"") -> Entry:
    return seal(id, term, Kind.LEADER, WALL_MS, 1, body or json_body(leader=1))


def answers(ready: Ready, kind: type) -> list[Message]:
    return [e.message for e in [*ready.send, *ready.send_after_write] if type(e.message) is kind]


def test_a_vote_leaves_only_after_the_write_that_holds_it() -> None:
    """R4, R14; M4: the answer waits for the write that holds the vote, also if the request is repeated."""
    one = One(term=3)
    one.now_s += 5
    ready = one.hear(1, VoteRequest(4, Rank(0, 0, 0, 1), False))
    assert ready.send == [] and ready.write is not None and (ready.write.term, ready.write.vote) == (4, 1)
    (answer,) = answers(ready, VoteAnswer)
    assert isinstance(answer, VoteAnswer) and answer.answer is Vote.GRANTED
    # The request comes again before that write is done: still nothing may leave at once.
    again = one.hear(1, VoteRequest(4, Rank(0, 0, 0, 1), False))
    assert again.send == [] and again.write is not None and len(again.send_after_write) == 1


def test_a_vote_is_given_once_a_term() -> None:
    """R4: HELD names the holder."""
    one = One(term=3)
    one.now_s += 5
    one.hear(1, VoteRequest(4, Rank(0, 0, 0, 1), False))
    (answer,) = answers(one.hear(2, VoteRequest(4, Rank(0, 0, 0, 2), False)), VoteAnswer)
    assert isinstance(answer, VoteAnswer)
    assert (answer.answer, answer.holder, answer.holder_rank) == (Vote.HELD, 1, Rank(0, 0, 0, 1))


def test_a_longer_log_of_an_older_term_is_outranked() -> None:
    """R4, rules.md#ranks; M1: the term of the last entry is compared before its id."""
    one = One(term=5, terms=(1, 5))
    one.now_s += 5
    (answer,) = answers(one.hear(1, VoteRequest(6, Rank(4, 100, 9, 1), False)), VoteAnswer)
    assert isinstance(answer, VoteAnswer) and answer.answer is Vote.OUTRANKED and one.replica.vote == 0


def test_a_live_leader_shields_the_term() -> None:
    """R4: a vote request is refused, and its term not adopted, unless the leader itself handed over (R28)."""
    one = One(term=3)
    one.hear(1, AppendRequest(3, 0, 0, 0, 0, 1, []))
    (answer,) = answers(one.hear(2, VoteRequest(9, Rank(3, 9, 0, 2), False)), VoteAnswer)
    assert isinstance(answer, VoteAnswer) and answer.answer is Vote.LEADER and one.replica.term == 3
    (answer,) = answers(one.hear(2, VoteRequest(9, Rank(3, 9, 0, 2), True)), VoteAnswer)
    assert isinstance(answer, VoteAnswer) and answer.answer is Vote.GRANTED and one.replica.term == 9


def test_an_entry_of_an_earlier_term_is_guaranteed_only_by_one_of_our_own() -> None:
    """R13; M2: entries of earlier terms on a majority are guaranteed with the first entry of the leader's own term."""
    one = One(term=2, terms=(1, 2, 2))
    ready = one.lead()
    term = one.replica.term
    one.persist(ready)
    for peer in (1, 2):
        one.hear(peer, AppendAnswer(term, True, 3, 3, 3, 0, 0, 0, WALL_MS, False))
    assert one.replica.guaranteed_id == 0
    for peer in (1, 2):
        one.hear(peer, AppendAnswer(term, True, 4, 3, 4, 0, 0, 0, WALL_MS, False))
    assert one.replica.guaranteed_id == 4


def test_the_leaders_own_copy_counts_once_it_is_on_disk() -> None:
    """R13, R14: of three copies that make the majority, the leader's own counts only when its write is done."""
    one = One()
    ready = one.lead()
    term = one.replica.term
    assert any(type(e.message) is AppendRequest and e.message.entries for e in ready.send)
    one.hear(1, AppendAnswer(term, True, 1, 0, 1, 0, 0, 0, WALL_MS, False))
    assert one.replica.guaranteed_id == 0
    assert ready.write is not None
    one.hear(2, AppendAnswer(term, True, 1, 0, 1, 0, 0, 0, WALL_MS, False))
    assert one.replica.guaranteed_id == 0
    one.persist(ready)
    assert one.replica.guaranteed_id == 1


def test_an_acceptance_leaves_only_after_its_write() -> None:
    """R14; M5: the acceptance waits for the write, and a heartbeat's answer vouches only for entries on disk."""
    one = One(term=1)
    ready = one.hear(1, AppendRequest(1, 0, 0, 0, 0, 1, [entry(1, 1)]))
    assert answers(ready, AppendAnswer) and not [e for e in ready.send if type(e.message) is AppendAnswer]
    # The answer to a heartbeat before that vouches only for entries on disk.
    (beat,) = answers(one.hear(1, AppendRequest(1, 1, 1, 0, 0, 1, [])), AppendAnswer)
    assert isinstance(beat, AppendAnswer) and beat.ok and beat.match_id == 0
    one.persist(ready)
    (beat,) = answers(one.hear(1, AppendRequest(1, 1, 1, 0, 0, 1, [])), AppendAnswer)
    assert isinstance(beat, AppendAnswer) and beat.match_id == 1


def test_a_late_completion_does_not_vouch_for_what_replaced_it() -> None:
    """R14: the A-B-A case."""
    one = One(term=1)
    first = one.hear(1, AppendRequest(1, 0, 0, 0, 0, 1, [entry(1, 1), entry(2, 1), entry(3, 1)]))
    second = one.hear(2, AppendRequest(2, 0, 0, 0, 0, 1, [entry(1, 2), entry(2, 2)]))
    assert second.write is not None and second.write.expunge_from == 1
    one.persist(first)
    assert one.replica.log.stable_id == 0
    one.persist(second)
    assert one.replica.log.stable_id == 2


def test_the_carried_mark_is_clipped_to_what_matched_in_this_term() -> None:
    """R16; M6: a guaranteed mark of 3 is lowered to 1, the last entry that was matched in this term."""
    one = One(term=1, terms=(1, 1, 1))
    one.hear(2, AppendRequest(2, 1, 1, 3, 3, 1, []))
    assert one.replica.guaranteed_id == 1


def test_the_fully_replicated_mark_is_clipped_to_the_guaranteed_one() -> None:
    """R16: without this, a server whose guaranteed mark is lower would stop itself when it wins an election (R18)."""
    one = One(term=1, terms=(1, 1, 1))
    ready = one.hear(2, AppendRequest(2, 1, 1, 3, 3, 1, []))
    assert ready.alarm is None and one.replica.fully_replicated_id == one.replica.guaranteed_id == 1
    one.persist(ready)
    one.lead()
    one.hear(1, AppendAnswer(one.replica.term, True, 1, 1, 1, 0, 0, 0, WALL_MS, False))
    assert one.replica.fully_replicated_id == 1


def test_a_refusal_names_the_conflicting_run() -> None:
    """R12: the refusal names the term and the first id of the run of entries that conflicts."""
    one = One(term=4, terms=(1, 2, 2, 2))
    (answer,) = answers(one.hear(1, AppendRequest(5, 3, 3, 0, 0, 1, [])), AppendAnswer)
    assert isinstance(answer, AppendAnswer)
    assert (answer.ok, answer.last_id, answer.conflict_term, answer.conflict_id) == (False, 4, 2, 2)


def test_expunging_what_is_guaranteed_raises_the_alarm() -> None:
    """R12: a server that is asked to expunge a guaranteed entry stops with an alarm, and writes nothing."""
    one = One(term=4, terms=(1, 2), guaranteed_id=2)
    ready = one.hear(1, AppendRequest(5, 1, 1, 2, 0, 1, [entry(2, 5)]))
    assert ready.alarm is not None and "guaranteed" in ready.alarm and ready.write is None


def test_another_incarnation_counts_for_nothing() -> None:
    """R27; M12: votes from other incarnations do not count, and a request to another incarnation is turned away."""
    one = One()
    one.stand()
    term = one.replica.term
    for voter in (1, 2):
        envelope = Envelope(
            CLUSTER, Identity(voter, b"x" * 16), one.replica.me, VoteAnswer(term, term, Vote.GRANTED, 0, None, WALL_MS)
        )
        one.step(Received(envelope))
    assert one.replica.state is State.CANDIDATE
    ready = one.hear(1, CanvassRequest(99, 1, Rank(9, 9, 9, 1), False), target=Identity(3, b"y" * 16))
    (answer,) = [*ready.send, *ready.send_after_write]
    assert answer.message == WrongIncarnation(b"y" * 16) and answer.sender == one.replica.me


@pytest.mark.parametrize("stranger", [Identity(1, b"x" * 16), Identity(6, b"x" * 16)], ids=["another disk", "unlisted"])
def test_not_even_the_term_of_a_strangers_answer_counts(stranger: Identity) -> None:
    """R1, R27: else a disk that was put back could depose a leader; a member's answer does count."""
    refusal = AppendAnswer(99, False, 0, 0, 0, 0, 0, 0, WALL_MS, False)
    for answer in (
        CanvassAnswer(99, 1, Canvass.TERM), VoteAnswer(99, 1, Vote.STALE, 0, None, WALL_MS),
        DeferAnswer(99, 1, Defer.STALE), refusal,
    ):
        one = One()
        one.lead()
        term = one.replica.term
        one.step(Received(Envelope(CLUSTER, stranger, one.replica.me, answer)))
        assert (one.replica.term, one.replica.state) == (term, State.LEADER), answer
        one.hear(1, answer)
        assert (one.replica.term, one.replica.state) == (99, State.PASSIVE), answer


def test_a_leader_that_our_list_does_not_know_is_followed() -> None:
    """R27: a server's list may be out of date, and only this leader's log can bring the newer list."""
    one = One(term=1)
    newcomer = Identity(1, b"x" * 16)
    ready = one.step(Received(Envelope(CLUSTER, newcomer, one.replica.me, AppendRequest(2, 0, 0, 0, 0, 1, []))))
    assert (one.replica.term, one.replica.leader) == (2, newcomer)
    (answer,) = answers(ready, AppendAnswer)
    assert isinstance(answer, AppendAnswer) and answer.ok


def test_only_an_electable_candidate_asks_to_defer() -> None:
    """R5, R6; M14: a candidate asks to defer once a majority has answered, and not after the first HELD."""
    one = One(id=5)
    one.stand()
    term = one.replica.term
    held = VoteAnswer(term, term, Vote.HELD, 1, Rank(0, 0, 0, 1), WALL_MS)
    assert not answers(one.hear(1, held), DeferRequest)
    assert answers(one.hear(2, held), DeferRequest)


@pytest.mark.parametrize("last", ["the deferral", "the vote that is held", "the vote that is granted"])
def test_a_second_cycle_begins_whichever_answer_is_the_last_that_it_needs(last: str) -> None:
    """R7: its own vote, that of 4 (which deferred), and that of 3 (held by 4, or granted) are three of five votes."""
    one = One(id=5)
    one.stand()
    term = one.replica.term
    for voter in (4, 1):
        ready = one.hear(voter, VoteAnswer(term, term, Vote.HELD, voter, Rank(0, 0, 0, voter), WALL_MS))
    assert len(answers(ready, DeferRequest)) == 2, "it is electable, and asks both that hold votes"
    deferred = DeferAnswer(term, term, Defer.DEFERRED)
    vote = VoteAnswer(term, term, Vote.HELD, 4, Rank(0, 0, 0, 4), WALL_MS)
    if last == "the vote that is granted":
        vote = VoteAnswer(term, term, Vote.GRANTED, 0, None, WALL_MS)
    pair = ((3, vote), (4, deferred)) if last == "the deferral" else ((4, deferred), (3, vote))
    for sender, answer in pair:
        assert one.replica.term == term
        one.hear(sender, answer)
    assert (one.state(), one.replica.term) == (State.CANDIDATE, term + 1)


def test_no_second_cycle_begins_while_the_votes_that_are_free_are_no_majority() -> None:
    """R7; P34: a deferral begins a new term only if the votes granted and those that are free again are a majority."""
    one = One(id=5)
    one.stand()
    term = one.replica.term
    for voter in (4, 1):
        one.hear(voter, VoteAnswer(term, term, Vote.HELD, voter, Rank(0, 0, 0, voter), WALL_MS))
    one.hear(4, DeferAnswer(term, term, Defer.DEFERRED))
    one.hear(3, VoteAnswer(term, term, Vote.HELD, 1, Rank(0, 0, 0, 1), WALL_MS))
    assert (one.state(), one.replica.term) == (State.CANDIDATE, term)
    one.hear(1, DeferAnswer(term, term, Defer.DEFERRED))
    assert (one.state(), one.replica.term) == (State.CANDIDATE, term + 1)


def test_a_canvass_moves_no_term_and_is_answered_by_rank() -> None:
    """R1, R2: a canvass changes no term. A lower rank gets OUTRANKED or RIVAL, or YES in a round marked "again"."""
    one = One(term=3, terms=(1, 3))
    one.now_s += 0.45
    (answer,) = answers(one.hear(1, CanvassRequest(50, 7, Rank(3, 1, 0, 1), False)), CanvassAnswer)
    assert answer == CanvassAnswer(3, 7, Canvass.OUTRANKED) and one.replica.term == 3
    assert one.replica.election.round is not None, "R8: the fresher canvasses at once"
    (answer,) = answers(one.hear(1, CanvassRequest(4, 8, Rank(3, 2, 0, 1), False)), CanvassAnswer)
    assert answer == CanvassAnswer(3, 8, Canvass.RIVAL)
    (answer,) = answers(one.hear(1, CanvassRequest(4, 9, Rank(3, 2, 0, 1), True)), CanvassAnswer)
    assert answer == CanvassAnswer(3, 9, Canvass.YES)


def test_a_candidate_outranked_by_too_many_makes_way() -> None:
    """R8: a majority of five can still be reached after two answers OUTRANKED, and not after a third."""
    one = One()
    one.stand()
    term = one.replica.term
    for voter, state in ((1, State.CANDIDATE), (2, State.CANDIDATE), (2, State.CANDIDATE), (4, State.PASSIVE)):
        one.hear(voter, VoteAnswer(term, term, Vote.OUTRANKED, 0, None, WALL_MS))
        assert one.replica.state is state
    assert one.replica.term == term


def test_a_candidate_whose_damage_is_found_makes_way() -> None:
    """R31: it may not hold what its rank says that it holds, so votes that it asked for before count no more."""
    one = One(term=1, terms=(1, 1))
    one.stand()
    term = one.replica.term
    one.step(DamageFound((2,)))
    assert (one.state(), one.replica.term) == (State.PASSIVE, term)
    for voter in (1, 2):
        one.hear(voter, VoteAnswer(term, term, Vote.GRANTED, 0, None, WALL_MS))
    assert one.state() is State.PASSIVE
    assert not answers(one.wait(5.0), CanvassRequest) and not answers(one.wait(5.0), VoteRequest)
    one.step(DamageFound(()))
    assert answers(one.wait(5.0), CanvassRequest)


def test_who_outranks_a_candidate_canvasses_at_once() -> None:
    """R8: a server that answers a vote request with OUTRANKED begins a canvass."""
    one = One(term=3, terms=(1, 3))
    one.now_s += 0.45
    ready = one.hear(1, VoteRequest(4, Rank(3, 1, 0, 1), False))
    (answer,) = answers(ready, VoteAnswer)
    assert isinstance(answer, VoteAnswer) and answer.answer is Vote.OUTRANKED
    assert answers(ready, CanvassRequest)


def canvassing() -> tuple[One, Round]:
    """A server that canvasses, and its round."""
    one = One()
    one.wait(5.0)
    assert one.replica.election.round is not None
    return one, one.replica.election.round


def test_the_refused_leader_steps_back_by_whole_terms_once_a_refusal() -> None:
    """R12, R17: the leader probes at its last entry of the conflicting term; a duplicate refusal moves nothing."""
    one = One(term=3, terms=(1, 1, 2, 2, 2, 3))
    one.lead()
    term = one.replica.term
    refusal = AppendAnswer(term, False, 0, 6, 6, 2, 3, 0, WALL_MS, False)
    (probe,) = answers(one.hear(1, refusal), AppendRequest)
    assert isinstance(probe, AppendRequest) and probe.prev_id == 5 and probe.entries == []
    assert not [p for p in answers(one.hear(1, refusal), AppendRequest) if p.prev_id < 5], "a duplicate moved it"  # type: ignore[union-attr]

def test_a_late_answer_to_a_canvass_counts() -> None:
    """R2: a round trip may take longer than a round. (Without this: no leader for ever once it takes 0.3 T.)"""
    one, round = canvassing()
    one.wait(0.16)
    assert one.replica.election.round is not None and one.replica.election.round.number == round.number + 1
    for voter in (1, 2):
        one.hear(voter, CanvassAnswer(one.replica.term, round.number, Canvass.YES))
    assert one.replica.state is State.CANDIDATE


def test_an_answer_older_than_a_timeout_counts_no_more() -> None:
    one, round = canvassing()
    for _ in range(6):
        one.wait(0.16)
    for voter in (1, 2):
        one.hear(voter, CanvassAnswer(one.replica.term, round.number, Canvass.YES))
    assert one.replica.state is State.PASSIVE


def test_a_cycle_begins_when_the_vote_is_on_disk() -> None:
    """R9: an fsync may take longer than a cycle. (Without this: no leader for ever once it takes 0.6 T.)"""
    one, round = canvassing()
    for voter in (1, 2):
        ready = one.hear(voter, CanvassAnswer(one.replica.term, round.number, Canvass.YES))
    assert one.replica.state is State.CANDIDATE
    assert not answers(one.wait(0.6), VoteRequest), "what is asked waits for the disk once, not every h"
    assert one.replica.state is State.CANDIDATE
    one.persist(ready)
    one.wait(0.2)
    assert one.replica.state is State.CANDIDATE
    one.wait(0.31)
    assert one.state() is State.PASSIVE


def test_whom_we_thought_the_leader_may_have_our_vote() -> None:
    """R4: a leader that asks for votes leads no more. (Without this a leader deposed at once costs a whole T.)"""
    one = One(term=3, terms=(1, 3))
    one.hear(1, AppendRequest(3, 2, 3, 0, 0, 1, []))
    (answer,) = answers(one.hear(2, CanvassRequest(4, 1, Rank(3, 2, 0, 2), False)), CanvassAnswer)
    assert answer == CanvassAnswer(3, 1, Canvass.LEADER)
    (answer,) = answers(one.hear(1, CanvassRequest(5, 1, Rank(3, 2, 0, 1), False)), CanvassAnswer)
    assert answer == CanvassAnswer(3, 1, Canvass.YES)
    (vote,) = answers(one.hear(1, VoteRequest(5, Rank(3, 2, 0, 1), False)), VoteAnswer)
    assert isinstance(vote, VoteAnswer) and vote.answer is Vote.GRANTED
