"""The pause between tries is bounded, however long an outage is."""

from __future__ import annotations

import pytest
from fake_cluster import fake_cluster

import alpo
from alpo.client import retry
from alpo.core.requests import Code

pytestmark = pytest.mark.anyio

TRIES = 20


@pytest.mark.parametrize("how", ["refused for now", "cut off"])
async def test_the_pause_between_tries_grows_to_its_bound(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses are far shorter than real ones; the test looks at the pauses that the client asks for."""
    monkeypatch.setattr(retry, "PAUSE_FIRST_S", 0.00001)
    monkeypatch.setattr(retry, "PAUSE_MAX_S", 0.0005)
    pauses: list[float] = []
    async with fake_cluster(1) as c, alpo.connect(c.addresses, timeout_s=60) as log:
        def script(server: object, append: object) -> str | Code:
            pauses.append(log._appender._pauses.next_s)
            if len(pauses) > TRIES:
                return "take"
            return Code.OVERLOADED if how == "refused for now" else "cut"

        c.script = script
        assert await log.append(b"x") == 1
    assert max(pauses) == retry.PAUSE_MAX_S and pauses == sorted(pauses)
