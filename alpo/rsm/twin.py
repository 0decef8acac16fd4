"""`SyncReplica`: a machine of the user's own for programs without an event loop. A room of its own, because `Replica`,
which does the work, does without threads."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from os import PathLike
from typing import Any, Generic, Literal, TypeVar

from alpo.client.sync import SyncLog
from alpo.client.sync import connect_sync as connect_log
from alpo.tls import Tls

from .contract import At, Machine
from .replica import Replica, made_of
from .sync import SyncReplicated, blocking, owning_sync

M = TypeVar("M", bound=Machine)
T = TypeVar("T")


class SyncReplica(SyncReplicated[Replica[M]], Generic[M]):
    """The machine of the class ``made_by`` in ``log``, blocking; may be used from several threads. Arguments, results
    and errors are those of `Replica`."""

    def __init__(
        self, log: SyncLog, made_by: type[M], *, name: str, version: int = 1, create: bool = True,
        timeout_s: float | None = None, snapshots: Literal["auto", "off"] = "auto",
        cache: str | PathLike[str] | None = None,
    ) -> None:
        super().__init__(log, Replica(
            log.log, made_by, name=name, version=version, create=create, timeout_s=timeout_s, snapshots=snapshots,
            cache=cache,
        ))

    @property
    def machine(self) -> M:
        """The machine as this process has folded it. Another thread folds on meanwhile: what must fit together is read
        by `read`. Raises as `Replica.machine`."""
        return self._it.machine

    def read(self, function: Callable[[M], T]) -> T:
        """Call ``function`` with the machine, in the thread that folds it, and return what it returns: see
        `Replica.read`."""
        return self._log.run(partial(self._it.read, function))

    def answers(self, start: int | None = None) -> Generator[tuple[At, Any], None, None]:
        """Iterate over all commands from LSN ``start`` on, each with its answer: see `Replica.answers`."""
        answers = self._it.answers(start)
        try:
            while (answer := self._log.run(partial(anext, answers, None))) is not None:
                yield answer
        finally:
            if not self._log.closed:
                self._log.run(answers.aclose)

    run = blocking(Replica.run)
    status = blocking(Replica.status)
    snapshot = blocking(Replica.snapshot)
    settle = blocking(Replica.settle)


def connect_sync(
    made_by: type[M], servers: str | Sequence[str] | None = None, client: str | None = None, timeout_s: float = 10.0, *,
    name: str, version: int = 1, create: bool = True, snapshots: Literal["auto", "off"] = "auto",
    cache: str | PathLike[str] | None = None, tls: Tls | None = None, log: str | None = None,
) -> SyncReplica[M]:
    """The machine of the class ``made_by`` in the log of a cluster, blocking: for a ``with``. Arguments as of
    `alpo.rsm.connect`."""
    made_of(made_by, name, version)
    made = connect_log(servers, client, timeout_s, tls=tls, log=log)
    return owning_sync(SyncReplica(
        made, made_by, name=name, version=version, create=create, timeout_s=timeout_s, snapshots=snapshots, cache=cache
    ))
