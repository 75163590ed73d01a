"""The status of the steps of pipelines as the database knows it, whoever runs them and wherever."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psycopg

from lockstep.core.pipelines import GONE_SECONDS, PipelineStep
from lockstep.errors import Conflict, InvalidOption, LockstepError, Unavailable
from lockstep.spark.database import Access, cursor_of, explained, result_of, rows_of
from lockstep.spark.pipelines.changes import definition_of
from lockstep.spark.pipelines.checkpoints import LastRun, StepPosition, folder_here
from lockstep.spark.pipelines.pipeline import Step
from lockstep.spark.pipelines.sources import source_queues
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.calls import Call

SEEN_SECONDS = 5.0
"""How often a running step reports that it is alive."""
CHECKPOINTS = ".lockstep/pipelines"

_LOCK: sql.Procedure[bool] = sql.procedure("pipeline_lock")
_BEGIN: sql.Procedure[None] = sql.procedure("pipeline_begin")
_SEEN: sql.Procedure[None] = sql.procedure("pipeline_seen")
_FAILED: sql.Procedure[None] = sql.procedure("pipeline_failed")
_END: sql.Procedure[None] = sql.procedure("pipeline_end")
_FORGET: sql.Procedure[bool] = sql.procedure("pipeline_forget")

R = TypeVar("R")

_LOCK_TRIES = 20
_LOCK_PAUSE_SECONDS = 0.05
"""A run that has just ended holds its step until PostgreSQL notices the closed connection."""


def list_steps(connection: psycopg.Connection[Any], pipeline: str | None = None) -> list[PipelineStep]:
    """The steps that have run, of one pipeline or all."""
    rows = cursor_of(connection).execute(sql.query("pipeline_step_list"), [pipeline, GONE_SECONDS]).fetchall()
    return [PipelineStep(**dict(zip(PipelineStep.__struct_fields__, row, strict=True))) for row in rows]


class StepRecord:
    """The record of a running step in the database. Its connection locks the step, so that nobody else runs it."""

    def __init__(self, step: Step, access: Access) -> None:
        self._step = step
        self._access = access
        self._open = ExitStack()
        self._connection: psycopg.Connection[Any] | None = None

    def lock(self) -> None:
        """Raises Conflict if the step is running."""
        self._connection = self._open.enter_context(self._access.connect())
        for _ in range(_LOCK_TRIES):
            if self._ask(_LOCK(pipeline=self._step.pipeline, step=self._step.name)):
                return
            time.sleep(_LOCK_PAUSE_SECONDS)
        self.close()
        raise Conflict(
            f"step {self._step.name!r} of pipeline {self._step.pipeline!r} is being run by another process",
            step=self._step.name,
        )

    def last_run(self) -> LastRun | None:
        found = self._rows("pipeline_last_run", self._step.pipeline, self._step.name)
        return LastRun(*found[0]) if found else None

    def last_folder(self) -> Path | None:
        """The checkpoint of the last run, if it is on this machine."""
        last = self.last_run()
        return None if last is None or last.checkpoint is None else folder_here(last.checkpoint)

    def former(self, names: Sequence[str]) -> str | None:
        """A step that the pipeline, whose current steps have these names, no longer has, and that read and wrote the
        same queues.
        """
        step = self._step
        found = self._rows("pipeline_former", step.pipeline, list(names), self._sources(), list(step.sinks))
        return str(found[0][0]) if found else None

    def forget_former(self, name: str) -> None:
        """Raises Conflict if that step is running."""
        former = StepRecord(replace(self._step, name=name), self._access)
        former.lock()
        former.forget()
        former.close()

    def position(self, name: str | None = None) -> StepPosition | None:
        """Of this step, or of another step of the pipeline."""
        stream = self._step.full_name if name is None else f"{self._step.pipeline}.{name}"
        found = self._rows("pipeline_position", stream)
        return StepPosition(*found[0]) if found else None

    def begin(self, query_id: str, checkpoint: str, *, restarts: int = 0) -> None:
        step = self._step
        self._ask(
            _BEGIN(
                pipeline=step.pipeline,
                step=step.name,
                sources=self._sources(),
                sinks=list(step.sinks),
                group=step.group,
                query_id=query_id,
                checkpoint=checkpoint,
                restarts=restarts,
                definition=msgspec.json.encode(definition_of(step)).decode(),
                at=None,
            )
        )

    def _sources(self) -> list[str]:
        if not self._step.by_pattern:
            return list(self._step.sources)
        assert self._connection is not None
        with explained():
            return list(source_queues(self._step, self._connection, self._access.config()))

    def seen(self, rows_per_second: float | None) -> None:
        """Raises Unavailable; and Conflict if the connection was lost and another process has run the step since."""
        step = self._step
        try:
            if self._connection is None:
                self.lock()
            self._ask(_SEEN(pipeline=step.pipeline, step=step.name, rows_per_second=rows_per_second, at=None))
        except Unavailable:
            self.close()
            raise

    def failed(self, error: str) -> None:
        """The step waits to be started again."""
        with suppress(LockstepError):
            self._ask(_FAILED(pipeline=self._step.pipeline, step=self._step.name, error=error, at=None))

    def end(self, error: str | None) -> None:
        with suppress(LockstepError):
            self._ask(_END(pipeline=self._step.pipeline, step=self._step.name, error=error, at=None))

    def status(self) -> PipelineStep | None:
        if self._connection is None:
            return None
        with suppress(LockstepError), explained():
            found = list_steps(self._connection, self._step.pipeline)
            return next((one for one in found if one.step == self._step.name), None)
        return None

    def forget(self) -> bool:
        return self._ask(_FORGET(pipeline=self._step.pipeline, step=self._step.name))

    def close(self) -> None:
        self._open.close()
        self._connection = None

    def _rows(self, query: str, *arguments: Any) -> list[Any]:
        assert self._connection is not None
        with explained():
            return rows_of(self._connection, query, *arguments)

    def _ask(self, call: Call[R]) -> R:
        if self._connection is None:
            raise Unavailable("the connection that holds the step was lost")
        with explained():
            return result_of(cursor_of(self._connection), call)


def checkpoint_of(step: Step, checkpoints: str | None) -> str:
    """Where Spark stores the progress of a step: a folder of this machine, or a location in a file system with a
    scheme."""
    root = checkpoints or CHECKPOINTS
    if "://" not in root:
        root = str(Path(root).expanduser().resolve())
    return f"{root.rstrip('/')}/{step.pipeline}/{step.name}"


def reset(steps: Sequence[Step], access: Access, checkpoints: str | None) -> list[str]:
    """Forget the progress of steps, so that they start over; returns the names of those that had started. If one is
    running, raises Conflict and forgets nothing."""
    folders = {step.name: _local_folder(step, checkpoints) for step in steps}
    with ExitStack() as locked:
        records = {step.name: StepRecord(step, access) for step in steps}
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


def _forget(record: StepRecord, folder: Path) -> bool:
    """Forget a step; returns whether it had started. The checkpoint goes first: left alone, it would make the step
    continue, and write a batch again that the database no longer knows."""
    known = [one for one in {folder, record.last_folder() or folder} if one.exists()]
    try:
        for one in known:
            shutil.rmtree(one)
    except OSError as error:
        raise InvalidOption(
            f"the checkpoint {error.filename} cannot be removed, so nothing of the step was forgotten: {error}"
        ) from error
    return record.forget() or bool(known)
