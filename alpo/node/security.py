"""This server's TLS: whom it speaks to, with which certificates, and which requests a certificate allows.

A mode is one step of a switch without downtime: ``accept`` takes TLS and plain connections and dials plain ones,
``dial`` takes both and dials TLS, ``require`` takes and dials TLS alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

import trio

from alpo.core import requests as q
from alpo.core.directory import FIRST_NAME
from alpo.dialling import Way
from alpo.secure import Contexts, TlsBroken
from alpo.tls import Rights, Tls
from alpo.wire import requests as w

from .link import KEEPALIVE_S, Link

Mode: TypeAlias = Literal["off", "accept", "dial", "require"]

#: Handshakes that may compute at a time: of connections taken, and of those to other servers, which must not wait for
#: strangers.
_ACCEPTED_AT_ONCE, _DIALLED_AT_ONCE = 2, 2

_EVERYBODY = {q.ShowSettings, q.ListLogs, w.Status, w.AwaitReplicated}
#: Requests that each role may make. ``admin`` may make all; a type that is not named here is for ``admin`` alone.
ALLOWED: dict[str, set[type]] = {
    "append": {*_EVERYBODY, q.OpenSession, w.Append, w.AppendAfter, q.Outcome},
    "read": {
        *_EVERYBODY, w.Read, w.ReadColumns, w.RangeDigest, q.SetCursor, q.ListCursors, w.ListEvents,
    },
    "peer": {w.Status, w.ListEvents, w.RangeDigest, q.ListCursors, q.ListSessions},
}
#: Requests about the cluster, which a role in some logs does not allow.
OF_CLUSTER = {q.Initialise, q.ChangeMember, q.CreateLog, q.SetLog, q.RenameLog, q.DeleteLog}


class TlsConfig(NamedTuple):
    """The ``[tls]`` table. ``roles``: see `alpo.tls.rights_of`."""

    mode: Mode
    tls: Tls
    roles: Mapping[str, str]


def missing_role(rights: Rights, request: type, log: str = FIRST_NAME) -> str:
    """The roles of which one is needed for ``request`` in the log of this name, "append or admin"; "" if the
    certificate has one. Who has a role in any log may list the logs."""
    if request is q.ListLogs:
        held = {role.partition("/")[0] for role in rights.roles}
    else:
        held = set(rights.roles) if request in OF_CLUSTER else rights.roles_in(log)
    held |= {"peer"} if rights.peers else set()
    needed = [role for role, requests in ALLOWED.items() if request in requests and role != "peer"]
    if "admin" in held or any(request in ALLOWED.get(role, ()) for role in held):
        return ""
    roles = " or ".join([*needed, "admin"])
    if log == FIRST_NAME and not any("/" in role for role in rights.roles):
        return roles  # names mean nothing to those who have one log
    return f"{roles} {'in all logs' if request in OF_CLUSTER else f'in the log {log}'}"


class Security:
    """The mode and certificates in force; `replace` changes them. ``config`` None: no TLS. Raises
    `alpo.errors.TlsError` if the files are wrong."""

    def __init__(self, config: TlsConfig | None = None) -> None:
        self._config = config
        self.contexts = Contexts.load(config.tls) if config is not None and config.mode != "off" else None
        #: Number that goes up when connections that are open, or being opened, no longer fit the mode or the
        #: certificates.
        self.generation = 0
        self.accepted_turns = trio.CapacityLimiter(_ACCEPTED_AT_ONCE)
        self.dialled_turns = trio.CapacityLimiter(_DIALLED_AT_ONCE)

    @property
    def mode(self) -> Mode:
        return self._config.mode if self._config is not None else "off"

    @property
    def roles(self) -> Mapping[str, str]:
        return self._config.roles if self._config is not None else {}

    @property
    def takes_plain(self) -> bool:
        return self.mode != "require"

    @property
    def dials_tls(self) -> bool:
        return self.mode in ("dial", "require")

    async def dial(
        self, id: int, way: Way, queue_bytes_max: int = 0, keepalive_s: tuple[int, int] = KEEPALIVE_S
    ) -> Link:
        """A connection to server ``id``, over TLS if this server dials it; nothing was sent over it yet.

        ``queue_bytes_max``: bytes that may wait to be sent (0: what does not leave at once ends the connection). Raises
        OSError, `LinkClosed`.
        """
        link = Link(await way.connect(), queue_bytes_max, keepalive_s)
        contexts = self.contexts
        if contexts is None or not self.dials_tls:
            return link
        try:
            with way.answering(tls=True):
                rights = await link.secure(contexts, self.dialled_turns, way.host, self.roles)
            if id not in rights.peers:
                raise TlsBroken(f"{way.address}: {rights} is not the certificate of server {id}")
        except BaseException:
            link.close("the handshake has failed")
            raise
        return link

    def replace(self, other: Security) -> bool:
        """Put ``other``'s files and mode into force for new connections; True if connections that are open rest on
        something else now: another CA, or plain where TLS is required."""
        before, was_plain = self.contexts, self.takes_plain
        self._config, self.contexts = other._config, other.contexts
        anew = (was_plain and not self.takes_plain) or (
            before is not None and (self.contexts is None or before.trusted != self.contexts.trusted)
        )
        self.generation += anew
        return anew

    def fresh(self) -> Security | None:
        """The files read again, if one has changed; else None. Raises `alpo.errors.TlsError`."""
        if self.contexts is None or self.contexts.tls.state() == self.contexts.state:
            return None
        return Security(self._config)


def refusal(rights: Rights, needed: str) -> str:
    """The words for a request that the certificate does not allow."""
    return f"{rights} may not do this: it takes the role {needed}"
