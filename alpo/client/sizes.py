"""How much a cluster takes: as a server's hello says. Before the first one only what no cluster takes is too much."""

from __future__ import annotations

from alpo.core.settings import BOUNDS
from alpo.errors import TooLarge
from alpo.wire.requests import ServerHello

from .batches import Parcel

#: Until a hello says.
WINDOW = 1024
PAYLOAD_BYTES_MAX = BOUNDS["payload_bytes_max"][1]
BATCH_BYTES_MAX = BOUNDS["batch_bytes_max"][1]


class Sizes:
    """Limits on one append, and on how many of one client may be in flight."""

    __slots__ = ("batch_bytes_max", "payload_bytes_max", "sure_bytes", "window")

    def __init__(self, window: int, payload_bytes_max: int, batch_bytes_max: int) -> None:
        self.window = window
        self.payload_bytes_max = payload_bytes_max
        self.batch_bytes_max = batch_bytes_max
        #: Up to this size nothing can be too large.
        self.sure_bytes = min(payload_bytes_max, batch_bytes_max)

    @staticmethod
    def of(hello: ServerHello) -> Sizes:
        return Sizes(max(1, hello.window), hello.payload_bytes_max, hello.batch_bytes_max)

    def check(self, parcel: Parcel) -> None:
        """Raises `TooLarge`."""
        if parcel.largest > self.payload_bytes_max:
            raise TooLarge(f"a payload of {parcel.largest} bytes, where {self.payload_bytes_max} is the most")
        if parcel.number > 1 and parcel.size > self.batch_bytes_max:
            raise TooLarge(f"a batch of {parcel.size} bytes, where {self.batch_bytes_max} is the most")
