"""Package through which ``spark.read.format("alpo")`` works without a register(): Spark imports modules of this
prefix."""

from alpo.spark.source import AlpoDataSource as DefaultSource

__all__ = ["DefaultSource"]
