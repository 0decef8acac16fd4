"""The log in Spark: ``format("alpo")`` to read and to write, in batches and as a stream. See docs/spark.md.

Needs ``pip install 'alpo[spark]'``. `configure` makes a session that also works without an installed Java;
`append_batch` is for ``writeStream.foreachBatch``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .foreach import append_batch

if TYPE_CHECKING:
    from .java import configure

__all__ = ["append_batch", "configure"]


def __getattr__(name: str) -> Any:
    """Import `configure` when first used: Spark itself imports this package in every worker."""
    if name == "configure":
        from .java import configure

        return configure
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
