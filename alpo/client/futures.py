"""Appends on their way from threads into the loop, and the futures that their callers hold."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from .handle import Handle
from .payloads import Parcel
from .servers import Servers


class Request:
    """An append on its way into the loop."""

    __slots__ = ("future", "parcel", "serial", "sparse", "timeout_s")

    def __init__(
        self, parcel: Parcel, serial: int | None, sparse: bool, timeout_s: float | None, future: SeenFuture
    ) -> None:
        self.parcel = parcel
        self.serial = serial
        self.sparse = sparse
        self.timeout_s = timeout_s
        self.future = future


class SeenFuture(Future[Handle[Any]]):
    """The future of a finished handle, which knows whether somebody was told how it ended, or will be."""

    told = False
    _error: BaseException | None = None

    @property
    def unheard(self) -> Exception | None:
        """The error that it ended with, as long as nobody was told."""
        return self._error if isinstance(self._error, Exception) and not self.told else None

    def set_exception(self, exception: BaseException | None) -> None:
        self._error = exception
        super().set_exception(exception)

    def result(self, timeout: float | None = None) -> Handle[Any]:
        try:
            return super().result(timeout)
        except Exception as error:
            self.told = self.told or error is self._error  # not if it was waited for in vain
            raise

    def exception(self, timeout: float | None = None) -> BaseException | None:
        error = super().exception(timeout)
        self.told = True
        return error

    def add_done_callback(self, fn: Callable[[Future[Handle[Any]]], object]) -> None:
        self.told = True
        super().add_done_callback(fn)


class AppendFuture(SeenFuture):
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
