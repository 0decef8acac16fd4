"""`back_up`: a copy of one server's log in a file, for `Log.backup`.

Laws:

* The file appears by a rename, whole and synced; until then there is only ``FILE.partial``, which is no backup.
* A copy that cleaning or another leader overtakes is made anew, `TRIES` times in all.
* The module is of its own: only the first backup loads it, and a client without one needs nothing of a store.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import aclosing, suppress
from pathlib import Path

from alpo.client.operator.files import BackupInfo, Overtaken, copy_log
from alpo.client.servers import Servers
from alpo.core.settings import size_text
from alpo.errors import BackupFailed
from alpo.storage.backup import BackupWriter
from alpo.storage.interface import StoreError
from alpo.threads import in_thread
from alpo.wire.requests import BackupHead, BackupRows

#: Attempts at a copy that is overtaken.
TRIES = 5


async def back_up(
    servers: Servers, file: Path, server: int | None, timeout_s: float, progress: Callable[[int, int], object] | None
) -> BackupInfo:
    """Copy the log of a server into ``file``. Arguments, result and errors as of `Log.backup`."""
    try:
        for _ in range(TRIES - 1):
            with suppress(Overtaken):
                return await _copy(servers, file, server, timeout_s, progress)
        return await _copy(servers, file, server, timeout_s, progress)
    except StoreError as error:
        raise BackupFailed(str(error)) from error


async def _copy(
    servers: Servers, file: Path, server: int | None, timeout_s: float, progress: Callable[[int, int], object] | None
) -> BackupInfo:
    """Make one copy. Raises `Overtaken`, `StoreError`, and as `back_up`."""
    writer: BackupWriter | None = None
    about = 0
    try:
        async with aclosing(copy_log(servers, server, timeout_s)) as messages:  # type: ignore[type-var]
            async for message in messages:
                if isinstance(message, BackupHead):
                    about = message.bytes_about
                    _check_space(file, about)
                    writer = BackupWriter(file, message.schema)
                elif writer is None:
                    break
                elif isinstance(message, BackupRows):
                    await in_thread(writer.add, message.table, message.rows)
                    if progress is not None:
                        progress(writer.bodies_bytes, about)
                else:
                    made = await in_thread(writer.finish, message.number)
                    writer = None
                    return BackupInfo(*made)
        raise BackupFailed("the server sent no whole copy")
    finally:
        if writer is not None:
            writer.give_up()


def _check_space(file: Path, about: int) -> None:
    """Raise `BackupFailed` if the disk has no room for so many bytes, or is not there."""
    try:
        free = shutil.disk_usage(file.absolute().parent).free
    except OSError as error:
        raise BackupFailed(f"{file}: {error.strerror}") from error
    if free < about:
        raise BackupFailed(f"{file}: {size_text(free)} are free, and the backup will take about {size_text(about)}")
