"""Client ids and sessions (R22): random client ids, and the opening of a named session. No I/O.

Laws: a nonce is fresh for each epoch that the request names, and kept over lost connections, so that an open that was
taken is answered again instead of fencing itself; only the answer to the latest request is heeded.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from functools import partial

from alpo.core.entries import random_client
from alpo.core.requests import OpenSession


def random_id(
    time_ms: int, horizon_ms: int, random_bytes: Callable[[int], bytes] = secrets.token_bytes
) -> str:
    """A new random client id: ``~`` and a UUIDv7 (RFC 9562) of max(time, horizon + 1), ms, as a server's hello told
    them."""
    return random_client(max(time_ms, horizon_ms + 1), int.from_bytes(random_bytes(10), "big"))


NONCE_BYTES = 16


def nonces(rng: random.Random) -> Callable[[], bytes]:
    """A maker of fresh nonces, drawn from ``rng``."""
    return partial(rng.randbytes, NONCE_BYTES)


class Opening:
    """The requests that open one named session, until it has its epoch."""

    def __init__(self, name: str, make_nonce: Callable[[], bytes]) -> None:
        self._name = name
        self._make_nonce = make_nonce
        self._nonce = make_nonce()
        self._replaces = 0
        #: The number of the latest request, on the connection that it was sent on; 0 for none.
        self.request = 0

    def ask(self, request: int) -> OpenSession:
        """The open request, under this number."""
        self.request = request
        return OpenSession(request, self._name, self._replaces, self._nonce)

    def outdated(self, epoch: int) -> None:
        """Note that the session's present epoch is another (0: it is not open): the next request names that one."""
        self._replaces = epoch
        self._nonce = self._make_nonce()
        self.request = 0

    def lost(self) -> None:
        """Note that the connection is gone: the same request is to be sent again."""
        self.request = 0
