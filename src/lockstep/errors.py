"""Every error that Lockstep raises on purpose, on both sides of the wire.

    LockstepError
    ├── InvalidRequest 400         the caller's input is wrong; nothing was changed
    │   ├── InvalidName            a queue, partition or group name
    │   ├── InvalidOption          a queue option or a setting
    │   ├── UnknownName            a field, query parameter or argument that does not exist
    │   └── InvalidPayload         a payload that cannot be encoded, or does not have the requested type
    ├── Unauthorized 401
    ├── Forbidden 403
    │   ├── HostNotAllowed         the request names a host that is not allowed
    │   └── CrossSite              a web page of another site sent the request
    ├── NotFound 404
    │   ├── NoSuchRoute            the path of the request
    │   ├── QueueNotFound, PartitionNotFound, GroupNotFound
    │   ├── MessageNotFound, DeadLetterNotFound
    │   ├── ScheduleNotFound, CronNotFound
    │   ├── OperationNotFound, StreamQueryNotFound
    │   ├── SparkStreamNotFound    the published position of a Spark stream
    │   ├── ArchiveNotFound        an archive of messages
    │   └── ApiKeyNotFound
    ├── MethodNotAllowed 405       the route exists, but not for this method
    ├── RequestTimeout 408         the client sent its request too slowly
    ├── Conflict 409
    │   ├── LeaseLost              the lease is not, or no longer, the live one
    │   ├── TransactionRolledBack  one step of a transaction failed, so none was applied
    │   ├── TooManyGroups          the queue has the maximum number of groups
    │   ├── TooManyPartitions      the queue has the maximum number of partitions
    │   ├── GroupModeMismatch      the group is ordered and was requested as shared, or vice versa
    │   ├── StreamConfigMismatch   the stream query is registered with another configuration
    │   ├── CheckpointMismatch     the checkpoint of a Spark stream belongs to another database, or to other queues
    │   │   ├── CheckpointAhead    the database has lost messages that a Spark stream has read
    │   │   └── CheckpointElsewhere  the step of a pipeline last ran with another checkpoint
    │   └── DataLost               messages were removed before a Spark stream had read them
    ├── TooLarge 413
    │   └── TooManyItems           the body has too many values
    ├── UnsupportedEncoding 415    the body is compressed
    ├── QueueFull 429              the queue's own limit (max_size)
    ├── Overloaded 429             the server's limit
    │   ├── OperationPending       earlier pushes to the same partition wait to be applied
    │   ├── TooManyConnections     from all clients, or from one address
    │   ├── TooManyBytes           of request bodies in transit
    │   ├── TooManyPolls           pops that wait for messages
    │   └── TooManyRequests        from one caller per second
    ├── EncryptionUnavailable 500  the queue is encrypted, and its key is not configured
    ├── CorruptSegment 500         stored data cannot be decoded
    │   └── SealBroken             stored data was changed, moved or replaced
    ├── Unavailable 503            the database cannot be reached, or not in time
    │   ├── LockTimeout            other sessions held a lock for too long
    │   ├── TimelineBehind         the only primary that answers was replaced
    │   ├── Buffering              pushes are buffered, and this request cannot be
    │   │   └── SpoolAhead         the database has lost pushes from the buffer
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
    """The payload is not valid."""

    code = "invalid_payload"


class Unauthorized(LockstepError):
    """Authentication required."""

    code = "unauthorized"
    status = 401


class Forbidden(LockstepError):
    """Insufficient permissions."""

    code = "forbidden"
    status = 403


class HostNotAllowed(Forbidden):
    """The request names a host that is not among the server's allowed hosts."""

    code = "host_not_allowed"


class CrossSite(Forbidden):
    """A web page of another site sent the request."""

    code = "cross_site"


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


class ApiKeyNotFound(NotFound):
    """There is no such API key."""

    code = "api_key_not_found"


class MethodNotAllowed(LockstepError):
    """The route does not take this method."""

    code = "method_not_allowed"
    status = 405


class RequestTimeout(LockstepError):
    """The request did not arrive in time."""

    code = "request_timeout"
    status = 408


class Conflict(LockstepError):
    """The request conflicts with the current state."""

    code = "conflict"
    status = 409


class LeaseLost(Conflict):
    """The lease is not, or no longer, the live lease."""

    code = "lease_lost"


class TransactionRolledBack(Conflict):
    """The transaction was rolled back."""

    code = "transaction_rolled_back"


class TooManyGroups(Conflict):
    """The queue has the maximum number of consumer groups."""

    code = "too_many_groups"


class TooManyPartitions(Conflict):
    """The queue has the maximum number of partitions."""

    code = "too_many_partitions"


class GroupModeMismatch(Conflict):
    """The consumer group exists in another mode."""

    code = "group_mode_mismatch"


class StreamConfigMismatch(Conflict):
    """The stream query is registered with another configuration."""

    code = "stream_config_mismatch"


class CheckpointMismatch(Conflict):
    """The checkpoint does not fit the database."""

    code = "checkpoint_mismatch"


class CheckpointAhead(CheckpointMismatch):
    """The checkpoint is ahead of the database."""

    code = "checkpoint_ahead"


class CheckpointElsewhere(CheckpointMismatch):
    """The step last ran with another checkpoint."""

    code = "checkpoint_elsewhere"


class DataLost(Conflict):
    """Messages were removed before they were read."""

    code = "data_lost"


class TooLarge(LockstepError):
    """The request is too large."""

    code = "too_large"
    status = 413


class TooManyItems(TooLarge):
    """The body has too many values."""

    code = "too_many_items"


class UnsupportedEncoding(LockstepError):
    """Request bodies must be sent uncompressed, without a Content-Encoding."""

    code = "unsupported_encoding"
    status = 415


class QueueFull(LockstepError):
    """The queue holds its maximum number of pending messages."""

    code = "QUEUE_FULL"
    status = 429


class Overloaded(LockstepError):
    """The server is busy; try again later."""

    code = "overloaded"
    status = 429


class OperationPending(Overloaded):
    """Earlier pushes to the partition wait to be applied; try again later."""

    code = "operation_pending"


class TooManyConnections(Overloaded):
    """There are too many connections; try again later."""

    code = "too_many_connections"


class TooManyBytes(Overloaded):
    """The request bodies in transit exceed the limit; try again later."""

    code = "too_many_bytes"


class TooManyPolls(Overloaded):
    """Too many pops wait for messages; try again later."""

    code = "too_many_polls"


class TooManyRequests(Overloaded):
    """Too many requests come from one caller; try again later."""

    code = "too_many_requests"


class EncryptionUnavailable(LockstepError):
    """The queue is encrypted, but its encryption key is not configured."""

    code = "encryption_unavailable"


class CorruptSegment(LockstepError):
    """A stored segment cannot be decoded."""

    code = "corrupt_segment"


class SealBroken(CorruptSegment):
    """A stored message was changed, replaced, or moved from the place that it was encrypted for."""

    code = "seal_broken"


class Unavailable(LockstepError):
    """The database cannot be reached."""

    code = "unavailable"
    status = 503


class LockTimeout(Unavailable):
    """A lock could not be acquired in time."""

    code = "lock_timeout"


class TimelineBehind(Unavailable):
    """The only primary that answers was replaced by another server."""

    code = "timeline_behind"


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
