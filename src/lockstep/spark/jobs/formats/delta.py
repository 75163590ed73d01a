"""An archive as a Delta table, through delta-rs, without a jar. The log is in `_delta_log`, beside the Parquet
files.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError
from deltalake.transaction import AddAction, RemoveAction

from lockstep.errors import JobFailed
from lockstep.spark.jobs.formats import Overtaken
from lockstep.spark.jobs.formats.settings import PARTITIONED_BY
from lockstep.spark.jobs.manifest import NewFile

_APP = "lockstep"
"""Each commit carries a unique id, so that one of two commits on the same version fails."""
_NO_RETRIES = 0
"""Publishing reloads the table before it retries."""


class DeltaArchive:
    """The Delta table at a location."""

    def __init__(self, uri: str, schema: pa.Schema) -> None:
        self._uri = uri
        self._schema = schema

    def load(self) -> DeltaVersion:
        with _explained():
            if not DeltaTable.is_deltatable(self._uri):
                DeltaTable.create(self._uri, self._schema, mode="ignore", partition_by=list(PARTITIONED_BY))
            return DeltaVersion(DeltaTable(self._uri))


class DeltaVersion:
    """One version of the table."""

    def __init__(self, table: DeltaTable) -> None:
        self._table = table

    def held(self) -> Collection[str]:
        return self._files.keys()

    @cached_property
    def _files(self) -> dict[str, dict[str, Any]]:
        rows: list[dict[str, Any]] = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        # The log contains URIs, in which a percent sign of a folder's name is escaped once more.
        return {unquote(row["path"]): row for row in rows}

    def commit(self, added: Sequence[NewFile], removed: Sequence[str]) -> bool:
        actions: list[AddAction | RemoveAction] = [_added(file) for file in added]
        actions += [self._removed(path) for path in removed]
        ours = Transaction(_APP, (self._table.transaction_version(_APP) or 0) + 1)
        properties = CommitProperties(max_commit_retries=_NO_RETRIES, app_transactions=[ours])
        try:
            with _explained():
                self._table.create_write_transaction(
                    actions, "append", self._table.schema(), list(PARTITIONED_BY), commit_properties=properties
                )
        except Overtaken:
            return False
        return True

    def _removed(self, path: str) -> RemoveAction:
        row = self._files[path]
        values = {name: row[f"partition.{name}"] for name in PARTITIONED_BY}
        return RemoveAction(path, True, time.time_ns() // 1_000_000, row["size_bytes"], values)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except CommitFailedError as error:
        raise Overtaken from error
    except (DeltaError, DeltaProtocolError, OSError) as error:
        raise JobFailed(f"the Delta table could not be written: {error}") from error


def _added(file: NewFile) -> AddAction:
    values = {"queue": file.queue, "day": file.day.isoformat()}
    stats = {
        "numRecords": file.messages,
        "minValues": {"created_at": _milliseconds(file.first_at)},
        # Times in the log have milliseconds, and a bound must not be too low.
        "maxValues": {"created_at": _milliseconds(file.last_at + timedelta(milliseconds=1))},
        "nullCount": {"created_at": 0},
    }
    modified = int(file.last_at.timestamp() * 1000)
    return AddAction(file.path, file.bytes, values, modified, True, json.dumps(stats))


def _milliseconds(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")
