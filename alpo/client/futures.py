"""Appends on their way from threads into the loop, and the futures that their callers hold."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from .batches import Parcel
from .handle import Handle
from .servers import Servers


class Request:
    """An append on its way into the loop."""

    __slots__ = ("future", "parcel", "serial", "sparse", "timeout_s")

    def __init__(
        self, parcel: Parcel, serial: int | None, sparse: bool, timeout_s: float | None, future: Future[Handle[Any]]
    ) -> None:
        self.parcel = parcel
        self.serial = serial
        self.sparse = sparse
        self.timeout_s = timeout_s
        self.future = future


class AppendFuture(Future[Handle[Any]]):
    """The future of a finished handle. In a forked child it raises `Closed`: who would finish it is not there."""

    def __init__(self, servers: Servers) -> None:
        super().__init__()
        self._servers = servers

    def result(self, timeout: float | None = None) -> Handle[Any]:
        self._servers.require_here()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._servers.require_here()
        return super().exception(timeout)


def finish(future: Future[Handle[Any]], handle: Handle[Any]) -> None:
    error = handle.error
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(handle)
