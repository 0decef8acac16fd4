"""Makes ``spark.read.format("alpo")`` work without a register(): Spark looks for modules of this prefix."""

from alpo.spark.source import AlpoDataSource as DefaultSource

__all__ = ["DefaultSource"]
