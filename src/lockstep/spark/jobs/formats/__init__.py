"""Archives as tables of other systems: Delta Lake and Apache Iceberg."""

from __future__ import annotations

from typing import Literal, get_args

Format = Literal["parquet", "delta", "iceberg"]
FORMATS: tuple[Format, ...] = get_args(Format)


class Overtaken(Exception):
    """Another writer has committed a version of the table in the meantime."""
