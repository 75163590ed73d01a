"""Where Spark looks for data sources that nobody registered."""

from lockstep.spark.source import LockstepSource as DefaultSource

__all__ = ["DefaultSource"]
