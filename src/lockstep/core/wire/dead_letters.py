"""Dead letters on the wire."""

from __future__ import annotations

from msgspec import Raw, Struct, field

from lockstep.core.records import DeadLetter, DeadLetterFilter, DeadLetterPage
from lockstep.core.wire.delivery import raw_data
from lockstep.core.wire.numbers import number_of
from lockstep.core.wire.pages import Limit, Pagination
from lockstep.core.wire.times import Time, parse_time_or_none, timestamp
from lockstep.errors import InvalidRequest


class DeadLetterRow(Struct, rename="camel"):
    id: str
    message_id: str
    transaction_id: str
    partition_id: str
    queue: str
    partition: str
    consumer_group: str
    error_message: str | None
    retry_count: int
    """Number of failed deliveries."""
    data: Raw
    producer_sub: str | None
    created_at: str
    failed_at: str
    trace_id: str | None
    encoding: str | None
    """If not null, the data is a base64 string."""


class DeadLettersAnswer(Struct):
    messages: list[DeadLetterRow]
    total: int
    pagination: Pagination


class DeadLetterSelection(Struct, rename="camel", kw_only=True):
    """Selects dead letters. To prevent mistakes, an empty selection selects nothing unless `all` is set."""

    all: bool = False
    ids: list[str] | None = None
    queue: str | None = None
    partition: str | None = None
    consumer_group: str | None = None
    from_: Time | None = field(default=None, name="from")
    """Failed at or after."""
    to: Time | None = None
    """Failed before."""


class RedriveBody(DeadLetterSelection, rename="camel", kw_only=True):
    limit: Limit = 1000


class RedriveAnswer(Struct):
    success: bool
    redriven: int


class PurgeAnswer(Struct):
    success: bool
    purged: int


def dead_letter_row(letter: DeadLetter) -> DeadLetterRow:
    message = letter.message
    return DeadLetterRow(
        id=str(letter.id),
        message_id=message.id,
        transaction_id=message.transaction_id,
        partition_id=str(message.partition_id),
        queue=message.queue,
        partition=message.partition,
        consumer_group=letter.group,
        error_message=letter.error,
        retry_count=letter.attempts,
        data=raw_data(message.payload, message.encoding),
        producer_sub=message.producer_sub,
        created_at=timestamp(message.created_at),
        failed_at=timestamp(letter.failed_at),
        trace_id=message.trace_id,
        encoding=message.encoding,
    )


def dead_letters_answer(page: DeadLetterPage, *, limit: int, offset: int) -> DeadLettersAnswer:
    return DeadLettersAnswer([dead_letter_row(letter) for letter in page.items], page.total, Pagination(limit, offset))


def selected(selection: DeadLetterSelection) -> DeadLetterFilter:
    """The filter for a selection. Raises InvalidRequest for an empty one."""
    where = DeadLetterFilter(
        ids=None if selection.ids is None else tuple([number_of(text, what="id") for text in selection.ids]),
        queue=selection.queue,
        partition=selection.partition,
        group=selection.consumer_group,
        from_at=parse_time_or_none(selection.from_, what="from"),
        to_at=parse_time_or_none(selection.to, what="to"),
    )
    if where == DeadLetterFilter() and not selection.all:
        raise InvalidRequest("name the dead letters by ids, queue, partition, consumerGroup, from or to; or say all")
    return where
