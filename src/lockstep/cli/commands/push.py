"""`lockstep push`: pushes one message, or many from standard input."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Any, cast

import click
import msgspec

from lockstep.cli.arguments import at_terminal, header, later
from lockstep.cli.connection import Session, on_session
from lockstep.cli.exits import end_with
from lockstep.cli.output import Output, ProgressBar, counted
from lockstep.client import Client
from lockstep.core.messages import Described, NewMessage, NewSchedule, Receipt
from lockstep.core.names import DEFAULT_PARTITION
from lockstep.core.payloads import check_utf8, decode_raw
from lockstep.errors import InvalidPayload, InvalidRequest, LockstepError
from lockstep.exit_codes import FAILED

_BATCH_BYTES_MAX = 4 * 1024**2
_READ_BYTES = 1024**2


class Envelope(Described, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of `--envelope`. The options supply missing fields."""

    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    payload_base64: bytes | None = None
    """Instead of a JSON payload; needs an encoding."""
    queue: str | None = None
    partition: str | None = None
    expires_at: datetime | None = None
    expire_seconds: float | None = None
    deliver_at: datetime | None = None
    delay_seconds: float | None = None
    schedule_key: str | None = None


_envelope = msgspec.json.Decoder(Envelope)


@click.command()
@click.argument("queue")
@click.argument("payload", required=False)
@on_session()
@click.option("--partition", "-p", default=DEFAULT_PARTITION, show_default=True, help="The partition.")
@click.option("--transaction-id", help="A second push of the same id to the partition stores nothing.")
@click.option("--trace-id", help="A UUID; `lockstep trace` finds the message by it.")
@click.option("--kind", help="What kind of message it is.")
@click.option("--reference", help="The thing that the message is about, such as an order id.")
@click.option(
    "--header", "headers", type=header, metavar="NAME=VALUE", multiple=True, help="May be given several times."
)
@click.option(
    "--expire-seconds",
    type=click.FloatRange(min=0),
    help="Seconds after which the message is no longer delivered; overrides the option of the queue.",
)
@click.option("--at", "when", type=later, metavar="TIME", help="Deliver it then, or in how long: 90s, 15m, 2h, 7d.")
@click.option("--key", "schedule_key", help="By which `lockstep schedule` finds it while it waits; needs --at.")
@click.option("--text", is_flag=True, help="The payload, or each line, is a string and not JSON.")
@click.option("--encoding", help="The payload, or each line, is opaque: bytes of this encoding, such as text/plain.")
@click.option("--envelope", is_flag=True, help="Each line is an object with payload, partition, transaction_id, …")
@click.option(
    "--batch", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Most lines that go together."
)
def push(
    session: Session,
    queue: str,
    payload: str | None,
    text: bool,
    envelope: bool,
    batch: int,
    headers: Sequence[tuple[str, str]],
    when: NewSchedule | None,
    **fields: Any,
) -> None:
    """Push PAYLOAD, which is JSON, to QUEUE.

    With - as PAYLOAD, or without one, each line of standard input is a payload. With --envelope a line is an object
    that may name its own queue, partition, transaction_id, trace_id, kind, reference, headers, encoding, expires_at or
    expire_seconds, deliver_at or delay_seconds, schedule_key, and contains payload or payload_base64; the options
    supply what it leaves out. Empty lines are skipped. A line that is not valid ends the command; the batches before it
    are stored then, and the error says how many messages that are.
    """
    if when is not None:
        fields |= {"deliver_at": when.deliver_at, "delay_seconds": when.delay_seconds}
    defaults = NewMessage(queue=queue, payload=b"", headers=dict(headers) or None, **fields)
    if text and (envelope or defaults.encoding):
        raise click.UsageError("--text excludes --envelope and --encoding.")
    reader = Reader(defaults, text=text, envelope=envelope)
    if defaults.schedule_key is not None and when is None:
        raise click.UsageError("--key needs --at.")
    if payload is not None and payload != "-":
        message = reader.message(payload.encode(errors="surrogateescape"))
        with session.client(begins=True) as client:
            [receipt] = client.push_many([message])
        session.output.record(receipt)
        return
    if sys.stdin is None or (payload is None and at_terminal()):
        raise click.UsageError("Give a PAYLOAD, or - and lines on standard input.")
    if defaults.transaction_id is not None:
        raise click.UsageError("--transaction-id is for one message; lines have theirs with --envelope.")
    if defaults.schedule_key is not None:
        raise click.UsageError("--key is for one message; lines have theirs with --envelope.")
    with session.client(begins=True) as client:
        _push_lines(client, _batches(reader, cast(io.BufferedReader, sys.stdin.buffer), batch), session.output)


@dataclass(frozen=True)
class Reader:
    """Creates messages from the user's input."""

    defaults: NewMessage
    text: bool = False
    envelope: bool = False

    def message(self, line: bytes) -> NewMessage:
        if self.envelope:
            return self._enveloped(line)
        return msgspec.structs.replace(self.defaults, payload=self._payload(line))

    def _payload(self, line: bytes) -> bytes:
        if self.defaults.encoding is not None:
            return line
        if self.text:
            return msgspec.json.encode(_decoded(lambda: line.decode(), "text"))
        return bytes(_decoded(lambda: decode_raw(line), "JSON (--text pushes it as a string)"))

    def _enveloped(self, line: bytes) -> NewMessage:
        _decoded(lambda: check_utf8(line), "an envelope")
        envelope = _decoded(lambda: _envelope.decode(line), "an envelope")
        if (envelope.payload is msgspec.UNSET) == (envelope.payload_base64 is None):
            raise InvalidPayload("an envelope has either a payload or a payload_base64")
        given = {
            name: value
            for name, value in msgspec.structs.asdict(envelope).items()
            if value is not None and name not in ("payload", "payload_base64")
        }
        opaque = envelope.payload_base64
        message = msgspec.structs.replace(
            self.defaults, payload=bytes(envelope.payload) if opaque is None else opaque, **given
        )
        if (message.encoding is None) != (opaque is None):
            raise InvalidPayload("a payload_base64 needs an encoding, and only that may have one")
        return message


def _decoded(decode: Callable[[], Any], what: str) -> Any:
    try:
        return decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidPayload(f"not {what}: {error}") from error


# --- Many ---------------------------------------------------------------------------------------------------


def _batches(reader: Reader, stream: io.BufferedReader, size: int) -> Iterator[list[NewMessage]]:
    """The messages of the lines read so far, grouped into calls of the largest allowed size.

    More lines gather while a batch is in progress: fast input makes large batches, and slow input does not wait for a
    full batch.
    """
    numbers = count(1)
    for lines in _lines(stream):
        batch: list[NewMessage] = []
        bytes_of_batch = 0
        for line, number in zip(lines, numbers, strict=False):
            content = line.rstrip(b"\r")
            if not content.strip():
                continue
            if batch and (len(batch) == size or bytes_of_batch + len(content) > _BATCH_BYTES_MAX):
                yield batch
                batch, bytes_of_batch = [], 0
            batch.append(_message(reader, content, number))
            bytes_of_batch += len(content)
        if batch:
            yield batch


def _lines(stream: io.BufferedReader) -> Iterator[list[bytes]]:
    """All complete lines that a single read returns."""
    begun: list[bytes] = []
    while chunk := stream.read1(_READ_BYTES):
        if b"\n" not in chunk:
            begun.append(chunk)
            continue
        *lines, rest = b"".join([*begun, chunk]).split(b"\n")
        begun = [rest]
        yield lines
    yield [b"".join(begun)]


def _message(reader: Reader, line: bytes, number: int) -> NewMessage:
    try:
        return reader.message(line)
    except InvalidPayload as error:
        raise InvalidPayload(f"line {number}: {error.message}") from error


@dataclass(frozen=True)
class Count:
    """Number of messages pushed."""

    pushed: int = 0
    duplicates: int = 0
    deferred: int = 0
    """Messages that a busy server applies later."""

    def plus(self, receipts: Sequence[Receipt]) -> Count:
        duplicates = sum(receipt.status == "duplicate" for receipt in receipts)
        deferred = sum(receipt.status == "deferred" for receipt in receipts)
        return Count(self.pushed + len(receipts) - duplicates, self.duplicates + duplicates, self.deferred + deferred)

    def __str__(self) -> str:
        later = f" ({self.deferred} of them deferred)" if self.deferred else ""
        more = f", {self.duplicates} more were there already" if self.duplicates else ""
        return f"{counted(self.pushed, 'message')} pushed{later}{more}"


def _push_lines(client: Client, batches: Iterable[list[NewMessage]], output: Output) -> None:
    counted = Count()
    try:
        with ProgressBar("pushing") as shown:
            for batch in batches:
                receipts = client.push_many(batch)
                counted = counted.plus(receipts)
                shown.show(str(counted))
                if output.format == "ndjson":
                    for receipt in receipts:
                        output.line(receipt)
    except LockstepError as error:
        error.message = f"{error.message}; before that, {counted}"
        if isinstance(error, InvalidRequest) and counted.pushed:
            end_with(error, FAILED)  # the exit code for invalid input means that nothing was changed
        raise
    if output.format != "ndjson":
        deferred = {"deferred": counted.deferred} if counted.deferred else {}
        output.done(str(counted), pushed=counted.pushed, duplicates=counted.duplicates, **deferred)
