"""Whoever asks something of the cluster from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpo.core.ready import Refused, Reply

if TYPE_CHECKING:
    from .clients import Clients


class Party:
    """Has a place, ``index``, by which replies find it."""

    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        self.index = clients.join(self)
        self._asked = 0
        self.server = clients.some_server()

    def origin(self) -> tuple[int, int]:
        self._asked += 1
        return self.index, self._asked

    def heard(self, server: int, reply: Reply) -> None:
        raise NotImplementedError

    @property
    def settled(self) -> bool:
        return True

    def follow(self, refused: Refused) -> None:
        """NOT_LEADER and the like: the leader that was named, else somebody else."""
        self.server = refused.leader or self.clients.some_server()
