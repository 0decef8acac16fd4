"""What a log is not for, said in plain words."""

from __future__ import annotations

from typing import NoReturn


class Unpickled:
    """It has connections, which no other process could use."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a Log cannot be pickled: connect in the other process")


class AsyncOnly(Unpickled):
    """It is no plain context manager."""

    def __enter__(self) -> NoReturn:
        raise TypeError("a Log of connect() is entered by async with; for a plain with there is connect_sync()")

    def __exit__(self, *error: object) -> NoReturn:  # a with statement asks for both
        raise NotImplementedError
