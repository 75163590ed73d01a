"""Archive: the messages of queues as Parquet files, by queue and day, each exactly once; optionally as a table.

One streaming query per queue reads what was pushed since the last run. Its position is published under the name of the
archive, so that retention keeps messages that are not archived yet.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from lockstep.errors import Conflict, LockstepError, Unavailable
from lockstep.spark.database import Access
from lockstep.spark.failures import explain, explained_by_spark
from lockstep.spark.gate import Gate
from lockstep.spark.jobs.archives import CHECKPOINTS, ArchiveWriter, Written, write_times_as_such
from lockstep.spark.jobs.files import ArchiveFolder
from lockstep.spark.jobs.formats.settings import ArchiveSettings
from lockstep.spark.jobs.manifest import Manifest
from lockstep.spark.jobs.options import check_location, check_positive, check_queues, source_options
from lockstep.spark.read.positions import find_queues
from lockstep.spark.restarting import Restarts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)

BATCH_MESSAGES = 500_000
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class ArchiveOptions:
    """What to archive, and where."""

    location: str
    queues: tuple[str, ...]
    access: Access = field(default_factory=Access)
    follow: bool = False
    """Continue with new messages until stopped; otherwise end after the existing messages."""
    interval_seconds: float = 30.0
    """With follow: how often new messages are written to files."""
    batch_messages_max: int = BATCH_MESSAGES
    """Approximate maximum number of messages written at a time."""
    settings: ArchiveSettings = field(default_factory=ArchiveSettings)
    """The properties of the archive; missing ones keep their values."""

    def __post_init__(self) -> None:
        check_location(self.location)
        check_queues(self.queues)
        check_positive("interval_seconds", self.interval_seconds)
        check_positive("batch_messages_max", self.batch_messages_max)
        self.settings.check()


class QueueArchived(msgspec.Struct, frozen=True, kw_only=True):
    """What this run archived of one queue."""

    queue: str
    batches: int = 0
    messages: int = 0
    files: int = 0
    bytes: int = 0


Progress = Callable[[QueueArchived], None]
"""Called after every batch with what this run has archived of its queue so far."""


def job(
    spark: SparkSession,
    options: ArchiveOptions,
    *,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> list[QueueArchived]:
    """Archive the existing messages or, with follow, continue until `stop` is set; batches in progress are finished.
    With follow, a run that fails for a reason that may go away is restarted, like a step of a pipeline. Raises
    QueueNotFound, and Conflict if another run writes to the archive."""
    stop = stop or threading.Event()
    tally = _Tally(options.queues, progress)
    config = options.access.config()
    seconds_max = config.pipeline_restart_seconds_max if options.follow else 0
    restarts = Restarts(seconds_max, config.pipeline_restart_pause_seconds_max)
    while not _is_done(spark, options, tally, restarts, stop):
        pass
    return list(tally.archived.values())


def _is_done(
    spark: SparkSession, options: ArchiveOptions, tally: _Tally, restarts: Restarts, stop: threading.Event
) -> bool:
    """Archive until done, or until a failure that may go away."""
    before = tally.batches
    try:
        _archive(spark, options, tally, stop)
        return True
    except LockstepError as error:
        if tally.batches > before:
            restarts.has_worked()
        # After a lost connection the database may count it as alive for a while, and the archive as locked by it.
        is_held = type(error) is Conflict and restarts.count > 0
        seconds = restarts.pause(Unavailable(error.message) if is_held else error)
        if seconds is None:
            raise
        _log.warning("the archive %s is started again in %.1f s: %s", options.location, seconds, error.message)
    return stop.wait(seconds)


def _archive(spark: SparkSession, options: ArchiveOptions, tally: _Tally, stop: threading.Event) -> None:
    # The connection holds the lock of the archive: only its holder can commit a batch.
    with explained_by_spark(), options.access.connect() as connection:
        files = ArchiveFolder(spark, options.location)
        manifest = Manifest(connection, files.location)
        queues = find_queues(connection, list(tally.archived))
        writer = ArchiveWriter(spark, files, manifest, options.access)
        options = replace(options, settings=writer.open(options.settings))
        streams = [_Stream(spark, options, name, id_, files, writer, tally) for name, id_ in queues.items()]
        _run(streams, options, stop)
        writer.close()


class _Tally:
    """What was archived of each queue."""

    def __init__(self, queues: Sequence[str], progress: Progress | None) -> None:
        self.archived = {queue: QueueArchived(queue=queue) for queue in queues}
        self._progress = progress

    @property
    def batches(self) -> int:
        return sum(one.batches for one in self.archived.values())

    def add(self, queue: str, written: Written) -> None:
        before = self.archived[queue]
        self.archived[queue] = QueueArchived(
            queue=queue,
            batches=before.batches + 1,
            messages=before.messages + written.messages,
            files=before.files + written.files,
            bytes=before.bytes + written.bytes,
        )
        if self._progress is not None:
            self._progress(self.archived[queue])


def _run(streams: list[_Stream], options: ArchiveOptions, stop: threading.Event) -> None:
    """With follow, all queues at once; otherwise one after the other."""
    seconds = options.access.config().pipeline_stop_timeout_seconds
    if options.follow:
        with _running(streams, seconds) as queries:
            while not stop.wait(POLL_SECONDS) and all(query.isActive for query in queries):
                pass
            _check(queries)
        return
    for stream in streams:
        with _running([stream], seconds) as queries:
            while queries[0].isActive and not stop.wait(POLL_SECONDS):
                pass
            _check(queries)
        if stop.is_set():
            return


def _check(queries: list[StreamingQuery]) -> None:
    for query in queries:
        error = query.exception()
        if error is not None:
            raise explain(error) from error


@contextmanager
def _running(streams: list[_Stream], stop_seconds: float) -> Iterator[list[StreamingQuery]]:
    try:
        yield [stream.start() for stream in streams]
    finally:
        until = time.monotonic() + stop_seconds
        for stream in streams:
            stream.close_gate()
        for stream in streams:
            stream.stop(max(until - time.monotonic(), 0.0))


class _Stream:
    """The query that archives one queue."""

    def __init__(
        self,
        spark: SparkSession,
        options: ArchiveOptions,
        queue: str,
        queue_id: int,
        files: ArchiveFolder,
        writer: ArchiveWriter,
        tally: _Tally,
    ) -> None:
        self._spark = spark
        self._options = options
        self._queue = queue
        self._queue_id = queue_id
        self._files = files
        self._writer = writer
        self._tally = tally
        self._query: StreamingQuery | None = None
        self._gate = Gate()
        self._started = threading.Event()

    def start(self) -> StreamingQuery:
        trigger: Mapping[str, Any] = {"availableNow": True}
        if self._options.follow:
            trigger = {"processingTime": f"{self._options.interval_seconds} seconds"}
        reader = self._spark.readStream.format("lockstep").options(**self._source())
        writer = reader.load().writeStream.foreachBatch(self._write).trigger(**trigger)
        self._query = writer.option("checkpointLocation", self._checkpoint()).start()
        self._started.set()
        return self._query

    def close_gate(self) -> None:
        """Lets no new batch begin."""
        self._gate.close()

    def stop(self, seconds: float) -> None:
        """Stop the query, after its batch if that ends in time."""
        if self._query is not None:
            with self._gate.emptied(seconds):
                self._query.stop()

    def _checkpoint(self) -> str:
        # A queue that was deleted and created again is another queue, and is archived from its beginning.
        return self._files.full(f"{CHECKPOINTS}/{quote(self._queue, safe='')}-{self._queue_id}")

    def _source(self) -> dict[str, str]:
        return {
            **source_options(self._options.access),
            **self._typed(),
            "queue": msgspec.json.encode([self._queue]).decode(),
            "payloadType": "binary",
            "startingPosition": "earliest",
            "maxMessagesPerTrigger": str(self._options.batch_messages_max),
            "streamName": stream_name(self._files.location, self._queue),
        }

    def _typed(self) -> dict[str, str]:
        """A payload that does not fit its schema is archived as well: its data is null."""
        schema = self._options.settings.payload_schema
        return {} if schema is None else {"payloadSchema": schema, "payloadMode": "permissive"}

    def _write(self, messages: DataFrame, batch: int) -> None:
        # The first batch may come before start() has returned; the id, which is that of the checkpoint, is known after
        # that.
        self._gate.await_opening(self._started)
        assert self._query is not None
        with self._gate.passing():
            write_times_as_such(messages.sparkSession)
            self._tally.add(self._queue, self._writer.write(messages, str(self._query.id), batch))


def stream_name(location: str, queue: str) -> str:
    """The name under which the position of an archive in a queue is shown. A name has at most 255 characters."""
    return f"archive of {queue} in {location}"[:255]
