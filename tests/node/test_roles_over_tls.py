"""Every request over TLS with every role: the certificate decides, and a refusal ends no connection."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from frame_samples import OTHERS, OTHERS_5, OTHERS_TOO
from node_rig import Client, append, create, led, random_id, read, rig
from test_security import REQUESTS
from tls_kit import Open, certificates, greeted, leaf, security_of, tls_of

from alpo.core import requests as q
from alpo.core.requests import Code
from alpo.node.security import missing_role
from alpo.secure import Contexts
from alpo.tls import Rights, Tls
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


@pytest.mark.trio
async def test_a_role_in_some_logs_is_judged_by_the_name_in_the_hello(tmp_path: Path) -> None:
    certs = certificates(tmp_path / "certs")
    writes, reads = leaf(certs, "w", "append/billing"), leaf(certs, "r", "read/audit-*")
    async with rig(security=lambda id: security_of(certs, id), shelves=tmp_path) as servers, AsyncExitStack() as stack:
        async def come(tls: Tls, log: str = "") -> Client:
            opened = Open(servers.addresses[0], Contexts.load(tls).client)
            return await greeted((await stack.enter_async_context(opened))[1], log)

        ops = await come(tls_of(certs, "ops"))
        assert await ops.ask(q.Initialise(1)) == w.Done(1, 0)
        await servers.leader()
        for number, name in enumerate(("billing", "audit-eu"), 2):
            assert isinstance(await ops.ask(create(name, bytes([number]) * 16)), q.LogIs)
            await led(servers, number)
        billing = await come(writes, "billing")
        assert isinstance(await billing.ask(append(random_id(), 1, b"one")), q.Appended)
        for request, needed in ((read(start=1), "read or admin"), (q.Trim(1, 1), "admin")):
            refused = await billing.ask(request)
            assert refused.code == Code.NO_RIGHT and refused.detail == (
                f"CN=w (append/billing) may not do this: it takes the role {needed} in the log billing"
            )
        assert isinstance(await ops.ask(q.RenameLog(1, "billing", "invoices")), q.LogIs)
        assert await billing.receive() is None, "its right was one in the log of the former name"
        for name, log in (("invoices", "invoices"), ("audit-eu", "audit-eu"), ("", "default")):
            refused = await (await come(writes, name)).ask(append(random_id(), 1, b"no"))
            assert isinstance(refused, w.AppendRefused) and refused.code == Code.NO_RIGHT
            assert refused.detail.endswith(f"it takes the role append or admin in the log {log}")
        first = await come(writes)
        assert isinstance(await first.ask(q.ListLogs(2)), q.LogsAre)
        refused = await first.ask(create("more"))
        assert refused.code == Code.NO_RIGHT and refused.detail.endswith("the role admin in all logs")
        for name, code in (("audit-eu", None), ("invoices", Code.NO_RIGHT), ("", Code.NO_RIGHT)):
            answer = await (await come(reads, name)).ask(read(start=1))
            assert getattr(answer, "code", None) == code, (name, answer)
