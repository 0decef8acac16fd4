"""`Watching`: what all async iterators over what is folded have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from copy import copy
from types import TracebackType
from typing import Generic, Self, TypeVar

from alpo.client.arguments import AsyncIterated
from alpo.client.tasks import News
from alpo.errors import AlpoError, Closed

T = TypeVar("T")


class Watching(AsyncIterated, Generic[T]):
    """An async iterator over what changes as the log is folded, from `enter` until `close` or until the folding ends.

    ``need_home`` raises RuntimeError in another event loop than that of the fold. Subclasses tell ``_news`` of each
    change.
    """

    def __init__(self, need_home: Callable[[], None]) -> None:
        self._need_home = need_home
        self._entered = False
        self._closed = False
        self._error: AlpoError | None = None
        self._news = News()

    async def __aenter__(self) -> Self:
        await self.enter()
        return self

    @abstractmethod
    async def enter(self, until_s: float | None = None) -> None:
        """Enter by this time of the log's clock. For the library."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the watch: a task that waits for its next value stops iterating. Raises RuntimeError in another loop."""
        self._need_home()
        self._closed = True
        self._leave()
        self._news.tell()

    @abstractmethod
    def _leave(self) -> None:
        """Be told of no more changes."""

    @abstractmethod
    def _take(self) -> T | None:
        """The next value that waits, if there is one."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        self._need_home()
        if not self._entered:
            raise RuntimeError("enter a watch with async with before iterating over it")
        while not self._closed:
            found = self._take()
            if found is not None:
                return found
            if isinstance(self._error, Closed):
                break
            if self._error is not None:
                raise copy(self._error)
            await self._news.wait()
        raise StopAsyncIteration

    def ended(self, error: AlpoError) -> None:
        """Take note that the folding has ended, and why: it ends the iteration."""
        self._error = error
        self._news.tell()
