"""Which checkpoint a step uses: that of its last run, unless it is told to start elsewhere.

A checkpoint is identified by the id of its query, so that it can be moved. It is read in the way that Spark reads
files, so the check sees what Spark is going to use.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from lockstep.errors import CheckpointElsewhere, InvalidOption, NotFound
from lockstep.spark.pipelines.pipeline import Step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RestartFrom = Literal["earliest", "latest", "position"]
RESTARTS: tuple[RestartFrom, ...] = get_args(RestartFrom)

_WAYS = (
    "Name that checkpoint (--checkpoints), or say where the step is to begin: --restart-from position goes on where "
    "the database knows it to be, earliest does all messages again, latest leaves out those that are there"
)


@dataclass(frozen=True, slots=True)
class LastRun:
    """The last run of a step, according to the database."""

    query_id: str
    """Empty if a restart was requested and its query has not reported its id yet."""
    checkpoint: str | None
    batch_id: int | None
    """The last committed batch."""
    definition: str | None = None
    """The definition of the step at that time, as JSON."""


@dataclass(frozen=True, slots=True)
class StepPosition:
    """The position of a step, as an offset that the source accepts."""

    base: str
    upto: str
    segment: int
    system: str

    def as_option(self) -> str:
        given = {"base": self.base, "to": self.upto, "segment": self.segment, "system": self.system}
        return msgspec.json.encode(given).decode()


def _here() -> str:
    """Prefix of places on this machine."""
    return f"{socket.gethostname()}:"


def folder_here(place: str) -> Path | None:
    """The folder of a place on this machine."""
    return Path(place.removeprefix(_here())) if place.startswith(_here()) else None


class Checkpoint:
    """The folder in which Spark stores the progress of a step."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self.folder = folder
        self.place = folder if "://" in folder else f"{_here()}{folder}"
        """How people find it from any machine."""
        self._jvm: Any = spark._jvm
        configuration = spark._jsparkSession.sessionState().newHadoopConf()
        self._files = self._path().getFileSystem(configuration)

    def _path(self, *below: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path("/".join([self.folder, *below]))

    def query_id(self) -> str | None:
        """The id of its query; None if no query has started in it."""
        path = self._path("metadata")
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return str(json.loads(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))["id"])
        finally:
            stream.close()

    def batch_id(self) -> int | None:
        """The last batch planned by Spark."""
        path = self._path("offsets")
        if not self._files.exists(path):
            return None
        names = [one.getPath().getName() for one in self._files.listStatus(path)]
        return max((int(name) for name in names if name.isdecimal()), default=None)

    def remove(self) -> None:
        self._files.delete(self._path(), True)


def checked_restart(step: Step, restart_from: str | None) -> None:
    """Raises InvalidOption."""
    if restart_from is None:
        return
    if restart_from not in RESTARTS:
        raise InvalidOption(f"restart_from must be earliest, latest or position, not {restart_from!r}")
    if step.stateful and restart_from == "position":
        raise InvalidOption(
            f"step {step.name!r} is stateful, and its state is in the checkpoint that it would begin without: say "
            "earliest to make it anew of all messages, or latest"
        )
    if step.group is not None:
        raise InvalidOption(
            f"step {step.name!r} goes on where its group {step.group!r} is, whatever its checkpoint: move the group "
            "with lockstep seek"
        )


def check(step: Step, checkpoint: Checkpoint, last: LastRun | None, former: str | None) -> None:
    """Raises CheckpointElsewhere if the step would not continue where it is. `former` is a step that the pipeline no
    longer has and that read and wrote the same queues."""
    if step.group is not None:
        return
    if last is None and former is not None:
        why = f"it is new, and reads and writes what step {former!r} did, which the pipeline no longer has"
        _refuse(step, f"{why}; if that was renamed, position goes on where {former!r} was", None)
    query_id, batch_id = checkpoint.query_id(), checkpoint.batch_id()
    if last is None:
        # The first batch waits until the database knows the step: a run that was killed before that has done nothing.
        if batch_id:
            _refuse(step, f"the database knows nothing of the step, but the checkpoint {checkpoint.place} does", None)
        return
    if not last.query_id and last.checkpoint == checkpoint.place:
        return
    if last.query_id != query_id:
        known = last.checkpoint or "another one"
        what = "is of another query" if query_id else "is empty"
        _refuse(step, f"it last ran with the checkpoint {known}, and {checkpoint.place} {what}", known)
    if last.batch_id is not None and last.batch_id > (-1 if batch_id is None else batch_id):
        text = f"it ends with batch {batch_id}, and the step has written batch {last.batch_id}"
        _refuse(step, f"the checkpoint {checkpoint.place} was put back: {text}", last.checkpoint)


def _refuse(step: Step, why: str, known: str | None) -> None:
    raise CheckpointElsewhere(
        f"step {step.name!r} of pipeline {step.pipeline!r} does not go on: {why}. {_WAYS}", step=step.name, known=known
    )


def starting(step: Step, restart_from: str, position: StepPosition | None) -> Mapping[str, str]:
    """The source option for a new start of the step. Raises NotFound."""
    if restart_from != "position":
        return {"startingPosition": restart_from}
    if position is None:
        raise NotFound(
            f"the database knows no position of step {step.name!r} of pipeline {step.pipeline!r}: say earliest or "
            "latest",
            step=step.name,
        )
    return {"startingPosition": position.as_option()}
