"""Every request over TLS with every role: the certificate decides, and a refusal ends no connection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from frame_samples import OTHERS, OTHERS_5, OTHERS_TOO
from node_rig import rig
from test_security import REQUESTS
from tls_kit import Open, certificates, greeted, leaf, security_of

from alpo.core.requests import Code
from alpo.node.security import missing_role
from alpo.secure import Contexts
from alpo.tls import Rights
from alpo.wire import requests as w

SAMPLES: dict[type, Any] = {
    type(message): message for message in [*OTHERS, *OTHERS_TOO, *OTHERS_5] if type(message) in REQUESTS
}
RIGHTS = {
    "append": Rights("CN=x", frozenset({"append"})), "read": Rights("CN=x", frozenset({"read"})),
    "peer/2": Rights("CN=x", frozenset(), frozenset({2})), "admin": Rights("CN=x", frozenset({"admin"})),
}


@pytest.mark.trio
@pytest.mark.parametrize("role", RIGHTS)
async def test_what_a_role_does_not_allow_is_refused_and_the_connection_lives_on(role: str, tmp_path: Path) -> None:
    certs = certificates(tmp_path / "certs")
    tls = leaf(certs, "one", role)
    refused = [kind for kind in REQUESTS if missing_role(RIGHTS[role], kind)]
    assert set(SAMPLES) == set(REQUESTS) and bool(refused) == (role != "admin")
    async with rig(security=lambda id: security_of(certs, id)) as servers:
        async with Open(servers.addresses[0], Contexts.load(tls).client) as (_, stream):
            client = await greeted(stream)
            for kind in refused:
                answer = await client.ask(SAMPLES[kind])
                assert isinstance(answer, w.RequestRefused | w.AppendRefused), (kind, answer)
                assert answer.code == Code.NO_RIGHT and "CN=one" in answer.detail and "takes the role" in answer.detail
            status = await client.ask(w.Status(9))
            assert isinstance(status, w.StatusAnswer)
            node = servers.nodes[0]
            assert node.replica.last_id == 0 and not node.replica.first_start.started  # nothing of it was done
            assert node.driver.counters.events["no_right"] == len(refused)
