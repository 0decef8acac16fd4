"""Opening a named session (R22). No I/O.

Laws: a nonce is fresh for each epoch that it names, and kept over lost connections, so that an open that was taken is
answered again instead of fencing itself; only the answer to the latest request is heeded.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from alpo.wire.requests import Open

NONCE_BYTES = 16


def nonces(rng: random.Random) -> Callable[[], bytes]:
    """What makes fresh ones, of this generator."""
    return partial(rng.randbytes, NONCE_BYTES)


class Opening:
    """One session's way to its epoch."""

    def __init__(self, name: str, make_nonce: Callable[[], bytes]) -> None:
        self._name = name
        self._make_nonce = make_nonce
        self._nonce = make_nonce()
        self._replaces = 0
        #: Number of the latest request, on the connection that it went out on; 0 for none.
        self.request = 0

    def ask(self, request: int) -> Open:
        """The request to send under this number."""
        self.request = request
        return Open(request, self._name, self._replaces, self._nonce)

    def outdated(self, epoch: int) -> None:
        """The verdict EPOCH: the session's epoch is this one (0: it is not open); name that next."""
        self._replaces = epoch
        self._nonce = self._make_nonce()
        self.request = 0

    def lost(self) -> None:
        """The connection is gone; the same is to be asked again."""
        self.request = 0
