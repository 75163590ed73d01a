"""Every error that Lockstep raises on purpose, on both sides of the wire.

    LockstepError
    ├── InvalidRequest 400         the caller's input is wrong; nothing was changed
    │   ├── InvalidName            a queue, partition or group name
    │   ├── InvalidOption          a queue option or a setting
    │   ├── UnknownName            a field, query parameter or argument that does not exist
    │   ├── InvalidPayload         a payload that cannot be encoded, or is not of the type that was asked for
    │   └── EncryptionUnavailable  the queue is encrypted and there is no key
    ├── Unauthorized 401
    ├── Forbidden 403
    ├── NotFound 404
    │   ├── NoSuchRoute            the path of the request
    │   ├── QueueNotFound, PartitionNotFound, GroupNotFound
    │   ├── MessageNotFound, DeadLetterNotFound
    │   ├── ScheduleNotFound, CronNotFound
    │   ├── OperationNotFound, StreamQueryNotFound
    │   ├── SparkStreamNotFound    the published position of a Spark stream
    │   └── ArchiveNotFound        an archive of messages
    ├── MethodNotAllowed 405       the route is there, but not for this method
    ├── RequestTimeout 408         the client sent its request too slowly
    ├── Conflict 409
    │   ├── LeaseLost              the lease is not, or no longer, the live one
    │   ├── TransactionRolledBack  one step of a transaction failed, so none was applied
    │   ├── GroupModeMismatch      the group is ordered and was asked for as shared, or the other way round
    │   ├── StreamConfigMismatch   the stream query is known with another configuration
    │   ├── CheckpointMismatch     the checkpoint of a Spark stream belongs to another database, or to other queues
    │   │   └── CheckpointAhead    the database has lost what a Spark stream counts as read
    │   └── DataLost               messages were removed before a Spark stream had read them
    ├── TooLarge 413
    ├── QueueFull 429              the queue's own limit (max_size)
    ├── Overloaded 429             the server's limit
    │   └── OperationPending       earlier pushes to the same partition wait to be applied
    ├── CorruptSegment 500         stored data cannot be decoded
    ├── Unavailable 503            the database cannot be reached, or not in time
    │   ├── LockTimeout            others held what the call needs for too long
    │   ├── Buffering              pushes are buffered, and what was asked cannot be
    │   │   └── SpoolAhead         the database has lost what had been buffered and pushed
    │   ├── SpoolFull              pushes are buffered, and there is no room for more
    │   ├── SpoolUnusable          pushes cannot be buffered on this machine
    │   ├── StillQueued            the request was accepted, and is not applied yet
    │   └── SchemaTooNew           the database belongs to a newer Lockstep
    ├── SparkUnavailable 500       PySpark or Java is missing, or too old
    ├── JobFailed 500              a Spark job failed
    │   └── StepFailed             a step of a pipeline failed
    └── EmbeddedError 500          the embedded PostgreSQL cannot run
        ├── DataDirectoryInUse, DataDirectoryVersion, DataDirectoryUnusable
        └── ServerStartFailed

A class's `code` is stable and machine-readable, its `status` is the HTTP status, and its docstring is the
message that a user sees when the raiser has nothing more precise to say.
"""

from __future__ import annotations

from typing import Any, ClassVar


class LockstepError(Exception):
    """Lockstep failed."""

    code: ClassVar[str] = "lockstep_error"
    status: ClassVar[int] = 500

    def __init__(self, message: str | None = None, **details: Any) -> None:
        self.message = message or (type(self).__doc__ or "").strip()
        self.details = details
        super().__init__(self.message)


class InvalidRequest(LockstepError):
    """The request is not valid."""

    code = "invalid_request"
    status = 400


class InvalidName(InvalidRequest):
    """The name is not valid."""

    code = "invalid_name"


class InvalidOption(InvalidRequest):
    """The option is not valid."""

    code = "invalid_option"


class UnknownName(InvalidRequest):
    """The request contains a name that does not exist."""

    code = "unknown_name"


class InvalidPayload(InvalidRequest):
    """The payload is not what it should be."""

    code = "invalid_payload"


class EncryptionUnavailable(InvalidRequest):
    """The queue is encrypted, but no encryption key is configured."""

    code = "encryption_unavailable"


class Unauthorized(LockstepError):
    """Authentication required."""

    code = "unauthorized"
    status = 401


class Forbidden(LockstepError):
    """Insufficient permissions."""

    code = "forbidden"
    status = 403


class NotFound(LockstepError):
    """There is no such thing."""

    code = "not_found"
    status = 404


class NoSuchRoute(NotFound):
    """There is no such route."""

    code = "no_such_route"


class QueueNotFound(NotFound):
    """There is no such queue."""

    code = "queue_not_found"


class PartitionNotFound(NotFound):
    """There is no such partition."""

    code = "partition_not_found"


class GroupNotFound(NotFound):
    """There is no such consumer group."""

    code = "group_not_found"


class MessageNotFound(NotFound):
    """There is no such message."""

    code = "message_not_found"


class DeadLetterNotFound(NotFound):
    """There is no such dead letter."""

    code = "dead_letter_not_found"


class ScheduleNotFound(NotFound):
    """There is no such scheduled message."""

    code = "schedule_not_found"


class CronNotFound(NotFound):
    """There is no such recurring message."""

    code = "cron_not_found"


class OperationNotFound(NotFound):
    """There is no such operation."""

    code = "operation_not_found"


class StreamQueryNotFound(NotFound):
    """There is no such stream query."""

    code = "stream_query_not_found"


class SparkStreamNotFound(NotFound):
    """There is no such Spark stream."""

    code = "spark_stream_not_found"


class ArchiveNotFound(NotFound):
    """There is no such archive."""

    code = "archive_not_found"


class MethodNotAllowed(LockstepError):
    """The route does not take this method."""

    code = "method_not_allowed"
    status = 405


class RequestTimeout(LockstepError):
    """The request did not arrive in time."""

    code = "request_timeout"
    status = 408


class Conflict(LockstepError):
    """The request conflicts with the present state."""

    code = "conflict"
    status = 409


class LeaseLost(Conflict):
    """The lease is not, or no longer, the live lease."""

    code = "lease_lost"


class TransactionRolledBack(Conflict):
    """The transaction was rolled back."""

    code = "transaction_rolled_back"


class GroupModeMismatch(Conflict):
    """The consumer group is there in another mode."""

    code = "group_mode_mismatch"


class StreamConfigMismatch(Conflict):
    """The stream query is known with another configuration."""

    code = "stream_config_mismatch"


class CheckpointMismatch(Conflict):
    """The checkpoint does not fit the database."""

    code = "checkpoint_mismatch"


class CheckpointAhead(CheckpointMismatch):
    """The checkpoint is ahead of the database."""

    code = "checkpoint_ahead"


class DataLost(Conflict):
    """Messages were removed before they were read."""

    code = "data_lost"


class TooLarge(LockstepError):
    """The request is too large."""

    code = "too_large"
    status = 413


class QueueFull(LockstepError):
    """The queue holds as many pending messages as it may."""

    code = "QUEUE_FULL"
    status = 429


class Overloaded(LockstepError):
    """The server is busy; try again later."""

    code = "overloaded"
    status = 429


class OperationPending(Overloaded):
    """Earlier pushes to the partition wait to be applied; try again later."""

    code = "operation_pending"


class CorruptSegment(LockstepError):
    """A stored segment cannot be decoded."""

    code = "corrupt_segment"


class Unavailable(LockstepError):
    """The database cannot be reached."""

    code = "unavailable"
    status = 503


class LockTimeout(Unavailable):
    """A lock could not be had in time."""

    code = "lock_timeout"


class StillQueued(Unavailable):
    """The request was accepted and will be applied, but not within the time of this call."""

    code = "still_queued"


class Buffering(Unavailable):
    """Pushes are buffered at the moment, and this one must be applied at once."""

    code = "buffering"


class SpoolAhead(Buffering):
    """The database has lost what this server had buffered and pushed: pushes are buffered until that is accepted."""

    code = "spool_ahead"


class SpoolFull(Unavailable):
    """The server buffers pushes, and has no room for more."""

    code = "spool_full"


class SpoolUnusable(Unavailable):
    """The server cannot buffer pushes."""

    code = "spool_unusable"


class SchemaTooNew(Unavailable):
    """The database was migrated by a newer version of Lockstep."""

    code = "schema_too_new"


class SparkUnavailable(LockstepError):
    """Spark cannot run here."""

    code = "spark_unavailable"


class JobFailed(LockstepError):
    """The Spark job failed."""

    code = "job_failed"


class StepFailed(JobFailed):
    """A step of the pipeline failed."""

    code = "step_failed"


class EmbeddedError(LockstepError):
    """The embedded PostgreSQL failed."""

    code = "embedded_error"


class DataDirectoryInUse(EmbeddedError):
    """Another process uses this data directory."""

    code = "data_directory_in_use"


class DataDirectoryVersion(EmbeddedError):
    """The data directory belongs to another major version of PostgreSQL."""

    code = "data_directory_version"


class DataDirectoryUnusable(EmbeddedError):
    """The data directory cannot be used."""

    code = "data_directory_unusable"


class ServerStartFailed(EmbeddedError):
    """The embedded PostgreSQL did not start."""

    code = "server_start_failed"
