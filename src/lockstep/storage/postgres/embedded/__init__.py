"""A PostgreSQL server that Lockstep starts, watches and stops itself, on a data directory of its own."""

from __future__ import annotations

from lockstep.storage.postgres.embedded.directory import default_data_dir
from lockstep.storage.postgres.embedded.supervisor import EmbeddedPostgres, has_database, running_dsn

__all__ = ["EmbeddedPostgres", "default_data_dir", "has_database", "running_dsn"]
