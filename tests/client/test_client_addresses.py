"""Addresses that nobody can have: given by a user, or told by a server."""

from __future__ import annotations

import pytest
from fake_cluster import fake_cluster

import alpo

pytestmark = pytest.mark.anyio

BAD = ["a..b:7100", "\u00fc..:7100", "x" * 64 + ":7100", "a\0b:7100"]


@pytest.mark.parametrize("address", BAD)
async def test_a_user_is_told_at_once(address: str) -> None:
    with pytest.raises(ValueError, match="must be HOST or HOST:PORT"):
        alpo.connect(address)


@pytest.mark.parametrize("address", [*BAD, "nowhere", ":0"])
async def test_a_leader_told_to_be_there_is_looked_for_elsewhere(address: str) -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        assert await log.append(b"a") == 1
        for server in c.servers.values():
            server._address = lambda id: address  # type: ignore[method-assign]
        c.lead(2)
        assert await log.append(b"b") == 2
