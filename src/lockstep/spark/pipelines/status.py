"""How the steps of pipelines are doing, as the database knows it: whoever runs them, and wherever."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from lockstep.errors import Conflict, InvalidOption, LockstepError
from lockstep.spark.database import Access, explained
from lockstep.spark.pipelines.pipeline import Step
from lockstep.spark.transactions import cursor_of, row_of
from lockstep.storage.postgres import sql

SEEN_SECONDS = 5.0
"""How often a step that runs tells of itself."""
GONE_SECONDS = 30.0
"""A step that has told nothing for so long is gone."""
CHECKPOINTS = ".lockstep/pipelines"

_LOCK = "select lockstep.pipeline_lock($1, $2)"
_BEGIN = "select lockstep.pipeline_begin($1, $2, $3::text[], $4::text[], $5, $6, null)"
_SEEN = "select lockstep.pipeline_seen($1, $2, $3::float8, null)"
_END = "select lockstep.pipeline_end($1, $2, $3, null)"
_FORGET = "select lockstep.pipeline_forget($1, $2)"


class StepStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A step, as it was last heard of."""

    pipeline: str
    step: str
    sources: list[str]
    sinks: list[str]
    state: str
    """running, stopped, failed, or gone: it ended without a word."""
    started_at: datetime
    seen_at: datetime
    batch: int | None
    """The last one that was committed."""
    committed_at: datetime | None
    batch_pushed: int
    batch_rejected: int
    pushed: int
    rejected: int
    rows_per_second: float | None
    error: str | None
    dead_letters: int
    """Of those that it has rejected, how many are dead letters still."""
    lag: int
    """Messages that it has still to read."""
    oldest_at: datetime | None
    position: str | None


def list_steps(connection: psycopg.Connection[Any], pipeline: str | None = None) -> list[StepStatus]:
    """The steps that have run, of one pipeline or of all."""
    rows = cursor_of(connection).execute(sql.query("pipeline_step_list"), [pipeline, GONE_SECONDS]).fetchall()
    return [StepStatus(**dict(zip(StepStatus.__struct_fields__, row, strict=True))) for row in rows]


class Record:
    """What the database is told of a step while it runs. Its connection holds the step, so that nobody else runs it."""

    def __init__(self, step: Step, access: Access) -> None:
        self._step = step
        self._access = access
        self._open = ExitStack()
        self._connection: psycopg.Connection[Any] | None = None

    def lock(self) -> None:
        """Raises Conflict if the step is being run."""
        self._connection = self._open.enter_context(self._access.connect())
        if not self._ask(_LOCK)[0]:
            self.close()
            raise Conflict(
                f"step {self._step.name!r} of pipeline {self._step.pipeline!r} is being run by another process",
                step=self._step.name,
            )

    def begin(self, query_id: str) -> None:
        step = self._step
        self._ask(_BEGIN, list(step.sources), list(step.sinks), step.group, query_id)

    def seen(self, rows_per_second: float | None) -> None:
        # A database that is away for a moment ends the query itself, or it does not.
        with suppress(LockstepError):
            self._ask(_SEEN, rows_per_second)

    def end(self, error: str | None) -> None:
        with suppress(LockstepError):
            self._ask(_END, error)

    def status(self) -> StepStatus | None:
        assert self._connection is not None
        with suppress(LockstepError), explained():
            found = list_steps(self._connection, self._step.pipeline)
            return next((one for one in found if one.step == self._step.name), None)
        return None

    def forget(self) -> bool:
        return bool(self._ask(_FORGET)[0])

    def close(self) -> None:
        self._open.close()
        self._connection = None

    def _ask(self, statement: str, *arguments: Any) -> Any:
        assert self._connection is not None
        with explained():
            return row_of(cursor_of(self._connection), statement, [self._step.pipeline, self._step.name, *arguments])


def checkpoint_of(step: Step, checkpoints: str | None) -> str:
    """Where Spark keeps what it knows of a step: a folder of this machine, or a place of a file system that has a
    scheme."""
    root = checkpoints or CHECKPOINTS
    if "://" not in root:
        root = str(Path(root).expanduser().resolve())
    return f"{root.rstrip('/')}/{step.pipeline}/{step.name}"


def reset(steps: Sequence[Step], access: Access, checkpoints: str | None) -> list[str]:
    """Forget how far steps are, so that they begin anew; the names of those that had begun. Raises Conflict if one is
    being run, and forgets nothing then."""
    folders = {step.name: _local_folder(step, checkpoints) for step in steps}
    with ExitStack() as locked:
        records = {step.name: Record(step, access) for step in steps}
        for record in records.values():
            locked.callback(record.close)
            record.lock()
        return [name for name, record in records.items() if _forget(record, folders[name])]


def _local_folder(step: Step, checkpoints: str | None) -> Path:
    folder = checkpoint_of(step, checkpoints)
    if "://" in folder:
        raise InvalidOption(
            f"the checkpoints are not on this machine: remove {folder} there, and reset without --checkpoints"
        )
    return Path(folder)


def _forget(record: Record, folder: Path) -> bool:
    """Forget a step; whether it had begun. First what nobody can run without: a checkpoint alone would go on where it
    is, and would write a batch again that it does not know to be written."""
    known = folder.exists()
    try:
        if known:
            shutil.rmtree(folder)
    except OSError as error:
        raise InvalidOption(
            f"the checkpoint {folder} cannot be removed, so nothing of the step was forgotten: {error}"
        ) from error
    return record.forget() or known
