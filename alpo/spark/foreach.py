"""Writing from a function given to ``writeStream.foreachBatch``.

A file of its own: it is imported with `alpo.spark`, which must not load the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from alpo.tls import Tls


def append_batch(
    df: DataFrame, batch_id: int, *, servers: str | Sequence[str], query: str | None = None,
    checkpoint: str | None = None, timeout_s: float = 60.0, repeat: str = "same", tls: Tls | None = None,
    log: str = "",
) -> None:
    """Append the column ``payload`` of ``df`` once, as batch ``batch_id`` of ``query``: for `foreachBatch`.

    Called again with the same rows, in any order, under the last number, it appends nothing. Any other call under a
    number that the log has is an error (``ALPO_OTHER_BATCH``), so that no row is lost; ``repeat="last"`` takes the last
    number for a repetition whatever the rows, as rows need that come out differently each time (rand, uuid). A function
    that writes several frames gives each a ``query`` of its own.

    ``query``: name of the writer (default: the id of the streaming query that this runs in). ``checkpoint``: a
    directory of this writer's own, shared by the driver and all executors; needed for more than one entry of the log.
    ``tls``: certificates, as `alpo.connect` takes them, whose files the driver and the executors see at the same path
    (default: those that the environment of the driver names). ``log``: name of the log, "" for the first.

    Raises ValueError without a query and for ``verify_hostname``, and the sink's errors as Spark presents them.
    """
    if query is None:
        query = df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not query:
        raise ValueError("say who writes: query=NAME (only within foreachBatch it is known)")
    if tls is not None and tls.verify_hostname:
        raise ValueError("tls: Spark's tasks verify the cluster's name, and cannot verify a host's: no verify_hostname")
    writer = df.write.format("alpo").mode("append").option("txnAppId", query).option("txnVersion", batch_id)
    writer = writer.option("txnRepeat", repeat)
    if checkpoint is not None:
        writer = writer.option("checkpointLocation", checkpoint)
    if tls is not None:
        ca, cert, key = tls.files
        writer = writer.options(**{"tls.ca": ca, "tls.cert": cert, "tls.key": key, "tls.name": tls.name})
    writer.options(
        servers=servers if isinstance(servers, str) else ",".join(servers), timeout=f"{timeout_s:g}s", log=log
    ).save()
