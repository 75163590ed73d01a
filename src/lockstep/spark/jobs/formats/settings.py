"""What every run of an archive keeps: its table format, the schema of its payloads, and the location of the table."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lockstep.errors import Conflict, InvalidOption, SparkUnavailable
from lockstep.spark.database import Access
from lockstep.spark.jobs.formats import FORMATS, Format
from lockstep.spark.read.schema import DATA, struct_ddl

if TYPE_CHECKING:
    from lockstep.spark.jobs.formats.publishing import ArchiveTable

PARTITIONED_BY = ("queue", "day")

_PACKAGES = {"delta": "deltalake", "iceberg": "pyiceberg"}
_TABLE_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)+")


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """The settings of an archive; None keeps the previous value, or the default."""

    format: Format | None = None
    payload_schema: str | None = None
    """The column `data`: DDL, or the JSON of Spark's schema."""
    table_name: str | None = None
    """Name of an Iceberg table in its catalog."""
    catalog: str | None = None
    """Catalog of an Iceberg table: a SQLAlchemy address. None is our own database."""

    def check(self) -> None:
        """Raises InvalidOption, and SparkUnavailable if a package is missing."""
        if self.format is not None and self.format not in FORMATS:
            raise InvalidOption(f"an archive is {', '.join(FORMATS)}, not {self.format!r}")
        package = _PACKAGES.get(self.format or "")
        if package is not None and find_spec(package) is None:
            raise SparkUnavailable(f"{package} is not installed: pip install 'lockstep[{self.format}]'")
        if self.table_name is not None and not _TABLE_NAME.fullmatch(self.table_name):
            raise InvalidOption(f"the name of a table is like lockstep.orders, not {self.table_name!r}")
        if (self.table_name or self.catalog) and self.format not in (None, "iceberg"):
            raise InvalidOption(f"a table name and a catalog are for iceberg, not for {self.format}")
        if self.catalog is not None:
            from lockstep.spark.jobs.formats.iceberg import check_catalog

            check_catalog(self.catalog)


def settled(asked: ArchiveSettings, kept: ArchiveSettings | None, location: str) -> ArchiveSettings:
    """The settings from now on. Raises Conflict: plain files may become a table, but a table cannot change its
    format.
    """
    schema = None if asked.payload_schema is None else canonical_schema(asked.payload_schema)
    before = kept or ArchiveSettings()
    if before.format in (None, "parquet"):
        found = replace(
            asked, format=asked.format or "parquet", payload_schema=_same(before.payload_schema, schema, location)
        )
        found.check()
        return _named(found, location)
    for what, was, asks in (
        ("a format", before.format, asked.format),
        ("a payload schema", before.payload_schema, schema),
        ("a table", before.table_name, asked.table_name),
        ("a catalog", before.catalog, asked.catalog),
    ):
        if asks is not None and asks != was:
            raise Conflict(f"{location} has {what} already, {was or 'none'}, and keeps it: archive to another location")
    before.check()
    return before


def _same(was: str | None, asked: str | None, location: str) -> str | None:
    if was is not None and asked is not None and was != asked:
        raise Conflict(f"{location} has a payload schema already, {was}, and keeps it: archive to another location")
    return asked or was


def _named(settings: ArchiveSettings, location: str) -> ArchiveSettings:
    if settings.format != "iceberg" or settings.table_name is not None:
        return settings
    name = re.sub(r"[^A-Za-z0-9_]", "_", location.rstrip("/").rpartition("/")[2])
    return replace(settings, table_name=f"lockstep.{name or 'archive'}")


def canonical_schema(payload_schema: str) -> str:
    """The canonical form of a payload schema: Spark's JSON. Raises InvalidOption."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import DataType

    try:
        return DataType.fromDDL(struct_ddl(payload_schema)).json()
    except PySparkException as error:
        line = str(error).strip().partition("\n")[0]
        raise InvalidOption(f"the payload schema is not DDL such as 'id BIGINT, total DOUBLE': {line}") from error


def open_table(settings: ArchiveSettings, location: str, columns: str, access: Access) -> ArchiveTable | None:
    """The table of an archive; None for plain files. `columns` is the DDL of its files."""
    if settings.format in (None, "parquet"):
        return None
    uri, schema = table_uri(location), _arrow_schema(columns, settings.payload_schema)
    if settings.format == "delta":
        from lockstep.spark.jobs.formats.delta import DeltaArchive

        return DeltaArchive(uri, schema)
    from lockstep.spark.jobs.formats.iceberg import IcebergArchive, open_catalog

    assert settings.table_name is not None, "settled"
    return IcebergArchive(open_catalog(access, settings.catalog), settings.table_name, uri, schema)


def table_uri(location: str) -> str:
    """A Hadoop location in the form that the libraries expect."""
    scheme, _, path = location.partition(":")
    if scheme == "file":
        return f"file:///{path.lstrip('/')}"
    return f"s3:{path}" if scheme == "s3a" else location


def _arrow_schema(columns: str, payload_schema: str | None) -> Any:
    """The columns of a table, with the partition columns first."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    data = "" if payload_schema is None else f", `{DATA}` {struct_ddl(payload_schema)}"
    row = StructType.fromDDL(columns + data)
    assert isinstance(row, StructType), "columns are a struct"
    found = to_arrow_schema(row, timezone="UTC")
    first = [found.field(name) for name in PARTITIONED_BY]
    return pa.schema([*first, *(field for field in found if field.name not in PARTITIONED_BY)])
