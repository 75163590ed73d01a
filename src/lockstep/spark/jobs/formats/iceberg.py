"""An archive as an Iceberg table, through pyiceberg, without a jar.

Its metadata is in `_iceberg`, beside the Parquet files. A SQL catalog says which metadata is current, in our own
PostgreSQL unless another catalog is named.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import pyarrow as pa
import pyarrow.parquet as pq
from psycopg.conninfo import conninfo_to_dict
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table, TableProperties
from pyiceberg.typedef import Record
from sqlalchemy import create_engine
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from lockstep.errors import Conflict, InvalidOption, JobFailed
from lockstep.spark.database import Access
from lockstep.spark.jobs.formats import Overtaken
from lockstep.spark.jobs.formats.settings import PARTITIONED_BY
from lockstep.spark.jobs.manifest import NewFile

CATALOG = "lockstep"
SCHEMA = "lockstep_iceberg"
"""The schema in our own database with the tables of the catalog."""
_METADATA = "_iceberg"
"""Spark ignores folders with this prefix when it reads Parquet files."""
_METADATA_FILES = "20"
_NO_RETRIES = {TableProperties.COMMIT_NUM_RETRIES: "0"}
"""Publishing reloads the table before it retries. Only for this process: others may retry."""


def open_catalog(access: Access, uri: str | None) -> SqlCatalog:
    """The catalog at a SQLAlchemy address, or the one in our own database."""
    address = uri or own_catalog(access)
    with _explained():
        catalog = SqlCatalog(CATALOG, uri=address)
        catalog.engine.dispose()
        # No connection stays open between two commits, or after the last.
        catalog.engine = create_engine(address, poolclass=NullPool)
    return catalog


def own_catalog(access: Access) -> str:
    """The address of the catalog in the database of the access. Creates its schema if it is missing."""
    with access.connect() as connection:
        connection.execute(f"create schema if not exists {SCHEMA}")
    dsn = access.config().dsn
    assert dsn is not None, "connected above"
    given = {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
    options = f"{given.pop('options', '')} -csearch_path={SCHEMA}".strip()
    url = URL.create(
        "postgresql+psycopg",
        username=given.pop("user", None),
        password=given.pop("password", None),
        database=given.pop("dbname", None),
        query={**given, "options": options},
    )
    return url.render_as_string(hide_password=False)


class IcebergArchive:
    """The Iceberg table of an archive."""

    def __init__(self, catalog: SqlCatalog, name: str, uri: str, schema: pa.Schema) -> None:
        self._catalog = catalog
        self._name = name
        self._uri = uri
        self._schema = schema

    def load(self) -> IcebergVersion:
        with _explained():
            self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
            table = self._table()
        if table.location() != self._uri:
            raise Conflict(f"the catalog has a table {self._name} already, at {table.location()}: name another one")
        return IcebergVersion(table, self._uri)

    def _table(self) -> Table:
        try:
            return self._catalog.load_table(self._name)
        except NoSuchTableError:
            return self._created()

    def _created(self) -> Table:
        properties = {
            TableProperties.WRITE_METADATA_PATH: posixpath.join(self._uri, _METADATA),
            TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: _METADATA_FILES,
            TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
            TableProperties.MANIFEST_MERGE_ENABLED: "true",
        }
        try:
            # In one commit, so that there is never a table without its partitioning.
            with self._catalog.create_table_transaction(
                self._name, self._schema, location=self._uri, properties=properties
            ) as creation:
                with creation.update_spec() as spec:
                    for column in PARTITIONED_BY:
                        spec.add_identity(column)
                # The files of the archive have column names, but no column ids.
                mapping = creation.table_metadata.schema().name_mapping.model_dump_json()
                creation.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
        except TableAlreadyExistsError as error:
            raise Overtaken from error
        return self._catalog.load_table(self._name)


class IcebergVersion:
    """One version of the table."""

    def __init__(self, table: Table, uri: str) -> None:
        self._table = table
        self._uri = uri

    def held(self) -> Collection[str]:
        return self._files.keys()

    @cached_property
    def _files(self) -> dict[str, DataFile]:
        with _explained():
            files = [task.file for task in self._table.scan().plan_files()]
        return {file.file_path.removeprefix(f"{self._uri}/"): file for file in files}

    def commit(self, added: Sequence[NewFile], removed: Sequence[str]) -> bool:
        self._table.metadata.properties.update(_NO_RETRIES)
        try:
            with _explained():
                self._commit([self._described(file) for file in added], [self._files[path] for path in removed])
        except Overtaken:
            return False
        return True

    def _commit(self, added: Sequence[DataFile], removed: Sequence[DataFile]) -> None:
        with self._table.transaction() as transaction:
            update = transaction.update_snapshot()
            with update.overwrite() if removed else update.merge_append() as snapshot:
                for file in removed:
                    snapshot.delete_data_file(file)
                for file in added:
                    snapshot.append_data_file(file)

    def _described(self, file: NewFile) -> DataFile:
        """A file with the statistics that let readers skip it. Reads its footer."""
        path = f"{self._uri}/{file.path}"
        metadata, schema = self._table.metadata, self._table.schema()
        with self._table.io.new_input(path).open() as opened:
            footer = pq.read_metadata(opened)
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=footer,
            stats_columns=compute_statistics_plan(schema, metadata.properties),
            parquet_column_mapping=parquet_path_to_id_mapping(schema),
        )
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record(file.queue, file.day.isoformat()),
            file_size_in_bytes=file.bytes,
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except CommitFailedException as error:
        raise Overtaken from error
    except SQLAlchemyError as error:
        # Its text may contain the address.
        raise JobFailed(f"the Iceberg catalog cannot be used: {type(error).__name__}") from error
    except (OSError, ValueError) as error:
        raise JobFailed(f"the Iceberg table could not be written: {error}") from error


def check_catalog(uri: str) -> str:
    """Raises InvalidOption for an address that SQLAlchemy does not understand, or that contains a password."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(uri)
    except ArgumentError:
        raise InvalidOption("the catalog is not an address such as sqlite:////srv/catalog.db") from None
    if url.password is not None or "password" in url.query:
        raise InvalidOption("the address of a catalog has no password: give it in PGPASSWORD, or in a .pgpass file")
    return uri
