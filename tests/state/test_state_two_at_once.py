"""Two programs at once: both found the state, and one takes away what the other keeps."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest
from snapshot_rig import with_states

from alpo.errors import ProtocolError, Unavailable
from alpo.rsm.folder import Sent
from alpo.rsm.machine import Result
from alpo.state import Changed, State, codec
from alpo.state.folder import KIND
from alpo.testing import Cluster


def test_the_founding_of_two_is_one_and_the_cursor_keeps_it_from_being_trimmed() -> None:
    """Both find nothing, and both found: the payload of the later one is none, and moves no cursor."""
    foundings: list[Any] = []

    async def work(states: list[State]) -> None:
        for state in states:
            enter = state._folder.enter

            def noted(payloads: list[bytes], *given: Any, _enter: Any = enter, **named: Any) -> Any:
                sent = _enter(payloads, *given, **named)
                foundings.append(sent.handle)
                return sent

            state._folder.enter = noted  # type: ignore[method-assign, assignment]
        async with anyio.create_task_group() as tasks:
            for state in states:
                tasks.start_soon(partial(state._need_founded, [], state._folder.until_s()))
        first, second = sorted(handle.lsn for handle in foundings)
        cursors = {cursor.name: cursor.lsn for cursor in await states[0].log.cursors()}
        assert cursors[KIND.cursor] == first < second
        await states[0].put("a", "1")
        assert (await states[1].fetch("a")).text == "1"

    with Cluster(seed=1, servers=1) as cluster:
        with_states(cluster, 2, work)
        assert [record.payload[:2] for record in cluster.log()[:2]] == [codec.found(b"x" * 16, codec.Limits())[:2]] * 2


def test_what_another_took_away_at_once_was_kept_and_is_told_the_next_time() -> None:
    async def work(states: list[State]) -> None:
        one, other = states
        kept = await one.put("a", "1", lease_s=1000)
        result_of = one._folder.result_of

        async def beyond(sent: Sent) -> Result | None:
            """Folded farther than asked, as a page does that holds more: by then the variable is gone."""
            one._folder.result_of = result_of  # type: ignore[method-assign]
            result = await result_of(sent)
            gone = await other.expunge(await other.fetch("a"))
            assert gone.version == 0
            assert (await one.fetch("a")).version == 0
            return result

        one._folder.result_of = beyond  # type: ignore[method-assign]
        again = await one.keep(kept)
        assert (again.version, again.lease_s, again.text) == (kept.version, 1000, "1")
        assert (await one.fetch("a")).version == 0
        with pytest.raises(Changed):
            await one.keep(again)

    with Cluster(seed=1, servers=1) as cluster:
        with_states(cluster, 2, work)


@pytest.mark.parametrize("how", ["taken away", "made anew", "lapsed"])
def test_keep_raises_changed_for_what_is_not_ours_any_more(how: str) -> None:
    async def work(states: list[State]) -> None:
        one, other = states
        ours = await one.put("a", "1", lease_s=2)
        if how == "lapsed":
            await other.log.clock.sleep(10)
            await other.put("b", "time goes on")
        else:
            await other.expunge(await other.fetch("a"))
        if how == "made anew":
            await other.put("a", "theirs", lease_s=1000)
        with pytest.raises(Changed) as caught:
            await one.keep(ours)
        assert caught.value.name == "a"
        now = await one.fetch("a")
        assert (now.version > ours.version, now.lease_s) == ((True, 1000) if how == "made anew" else (False, None))

    with Cluster(seed=1, servers=1) as cluster:
        with_states(cluster, 2, work)


def test_a_state_whose_servers_are_another_cluster_s_ends_with_that() -> None:
    async def work(states: list[State]) -> None:
        (state,) = states
        await state.put("a", "1")
        follow = state.log.follow_batches
        asked: list[int | str | None] = []

        def other(start: int, **named: Any) -> Any:
            asked.append(start)
            if len(asked) == 1:  # what passes is asked again
                raise Unavailable("no server answered a read within 10 s")
            raise ProtocolError("127.0.0.1:7100 belongs to another cluster")

        state.log.follow_batches = other  # type: ignore[method-assign, assignment]
        machine = state._folder.machine
        assert machine is not None
        with pytest.raises(ProtocolError, match="belongs to another cluster"):
            await state._folder._follow(machine)
        with pytest.raises(ProtocolError):
            await state._folder.patiently(partial(state._folder._follow, machine))
        assert len(asked) == 3
        state.log.follow_batches = follow  # type: ignore[method-assign]

    with Cluster(seed=1, servers=1) as cluster:
        with_states(cluster, 1, work)
