"""The HTTP protocol without I/O."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest

from lockstep import Ack, Batch, NewMessage, PopRequest, QueueOptions, Subscription
from lockstep.client import _protocol as protocol
from lockstep.client._protocol import ConnectionFailed, HttpAnswer
from lockstep.client._retry import retryable
from lockstep.core.wire import delivery as wire
from lockstep.core.wire.verbs import VERBS
from lockstep.errors import (
    Forbidden,
    InvalidPayload,
    LockstepError,
    Overloaded,
    QueueFull,
    QueueNotFound,
    TooLarge,
    TransactionRolledBack,
    Unauthorized,
    Unavailable,
)

LEASE = "01970000-0000-7000-8000-000000000000"


def answer(status: int, content: Any, retry_after: str | None = None) -> HttpAnswer:
    return HttpAnswer(status, json.dumps(content).encode(), retry_after)


def outgoing(*messages: Any, exactly_once: bool = False, packed: bool = False) -> protocol.OutgoingPush:
    if packed:  # few are sent as JSON
        messages += (Batch.of("q", [b"1"] * 64),) if isinstance(messages[0], Batch) else messages[:1] * 64
    return protocol.outgoing_push(messages, exactly_once=exactly_once, packed=packed)


def body_of(request: protocol.HttpRequest) -> Any:
    assert request.body is not None
    return json.loads(request.body)


# --- Errors


def test_every_error_is_found_by_its_code() -> None:
    def classes(kind: type[LockstepError]) -> list[type[LockstepError]]:
        return [kind, *[found for child in kind.__subclasses__() for found in classes(child)]]

    for kind in classes(LockstepError):
        failure = protocol.failure_of(answer(kind.status, {"error": "why", "code": kind.code, "details": {"n": 1}}))
        assert failure is not None
        assert (type(failure.error), failure.error.message, failure.error.details["n"]) == (kind, "why", 1)


def test_unknown_code_is_kept() -> None:
    failure = protocol.failure_of(answer(418, {"error": "short and stout", "code": "teapot"}))
    assert failure is not None
    assert type(failure.error) is LockstepError
    assert failure.error.details == {"code": "teapot", "status": 418}
    assert str(failure.error) == "short and stout"


@pytest.mark.parametrize(
    ("reply", "kind", "maybe_applied", "unreachable"),
    [
        (HttpAnswer(502, b"<html>"), Unavailable, True, True),
        (HttpAnswer(503, b""), Unavailable, True, True),
        (answer(503, {"error": "x", "code": "unavailable"}), Unavailable, False, True),
        (answer(500, {"error": "x", "code": "internal_error"}), LockstepError, False, False),
        (HttpAnswer(500, b"\xff"), LockstepError, True, False),
        (answer(429, {"error": "x", "code": "overloaded"}), Overloaded, False, False),
        (answer(404, {"error": "x", "code": "queue_not_found"}), QueueNotFound, False, False),
        (answer(404, []), LockstepError, False, False),
        (HttpAnswer(401, b"<html>"), Unauthorized, False, False),
        (HttpAnswer(403, b"<html>"), Forbidden, False, False),
        (HttpAnswer(413, b"<html>"), TooLarge, False, False),
        (HttpAnswer(429, b"<html>"), Overloaded, False, False),
    ],
)
def test_failures(reply: HttpAnswer, kind: type, maybe_applied: bool, unreachable: bool) -> None:
    failure = protocol.failure_of(reply)
    assert failure is not None
    assert (type(failure.error), failure.maybe_applied, failure.unreachable) == (kind, maybe_applied, unreachable)


@pytest.mark.parametrize(
    ("reply", "again"),
    [
        (HttpAnswer(302, b""), False),
        (HttpAnswer(400, b"<html>"), False),
        (HttpAnswer(404, b"<html>"), False),
        (HttpAnswer(413, b"<html>"), False),
        (answer(418, {"error": "short and stout", "code": "teapot"}), False),
        (HttpAnswer(429, b"<html>"), True),
        (HttpAnswer(500, b"<html>"), True),
        (HttpAnswer(502, b"<html>"), True),
        (answer(500, {"error": "x", "code": "internal_error"}), True),
    ],
)
def test_refusal_of_what_stands_in_between_is_final(reply: HttpAnswer, again: bool) -> None:
    failure = protocol.failure_of(reply)
    assert failure is not None
    assert retryable(failure.error) is again


@pytest.mark.parametrize(("text", "seconds"), [("7", 7.0), (None, None), ("Wed, 21 Oct 2026 07:28:00 GMT", None)])
def test_retry_after(text: str | None, seconds: float | None) -> None:
    failure = protocol.failure_of(answer(429, {"error": "x", "code": "overloaded"}, text))
    assert failure is not None
    assert failure.retry_after_seconds == seconds


def test_connection_that_failed_says_whether_the_request_was_sent() -> None:
    for sent in (False, True):
        failure = protocol.connection_failure(ConnectionFailed("refused", sent=sent))
        assert isinstance(failure.error, Unavailable)
        assert (failure.maybe_applied, failure.unreachable) == (sent, True)


@pytest.mark.parametrize("packed", [False, True])
def test_answer_that_cannot_be_read_is_an_error(packed: bool) -> None:
    with pytest.raises(LockstepError, match="cannot be read"):
        outgoing(NewMessage(queue="q", payload=b"1"), packed=packed).receipts(HttpAnswer(201, b"{"))


# --- Push


def test_push_sends_what_is_there_and_nothing_else() -> None:
    request = outgoing(NewMessage(queue="q", payload=b' {"a": 1} ')).request()
    assert body_of(request) == {"items": [{"queue": "q", "partition": "Default", "payload": {"a": 1}}]}
    assert (request.method, request.target, request.repeatable) == ("POST", "/api/v1/push?queued=true", False)


def test_exactly_once_gives_transaction_ids_where_there_are_none() -> None:
    batch = Batch.of("q", [b"1", b"2", b"3"], transaction_ids=["mine", None, None])
    request = outgoing(batch, exactly_once=True).request()
    again = outgoing(batch, exactly_once=True).request()
    assert request.repeatable
    ids = [item["transactionId"] for item in body_of(request)["items"] + body_of(again)["items"]]
    assert (ids[0], ids[3], len(set(ids))) == ("mine", "mine", 5)
    assert {UUID(text).version for text in ids if text != "mine"} == {7}


@pytest.mark.parametrize("packed", [False, True])
def test_producers_are_not_named_and_empty_ids_are_kept(packed: bool) -> None:
    """The server refuses an empty id, and names producers itself."""
    columns = {"producer_subs": ["me"] * 64, "transaction_ids": [""] * 64}
    request = outgoing(Batch.of("q", [b"1"] * 64, **columns), exactly_once=True, packed=packed).request()
    assert request.body is not None
    if packed:
        [batch] = [one for one in wire.PackedPush(request.body, items_max=1000).batches() if len(one.columns) == 64][:1]
        assert (batch.columns.producer_subs, set(batch.columns.transaction_ids or ())) == (None, {""})
    else:
        assert {item["transactionId"] for item in body_of(request)["items"]} == {""}


def test_opaque_payload_travels_as_base64() -> None:
    message = NewMessage(queue="q", payload=b"\x00\xff", encoding="raw", headers={"a": "b"})
    [item] = body_of(outgoing(message).request())["items"]
    assert (item["payloadBase64"], item["encoding"], item["headers"]) == ("AP8=", "raw", {"a": "b"})
    assert "payload" not in item


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("payload", [b"", b"{", b'1,"queue":"other"', b"1 2", b"nonsense"])
def test_payload_that_is_no_json_cannot_break_out(payload: bytes, packed: bool) -> None:
    messages = [NewMessage(queue="q", payload=b"1"), NewMessage(queue="q", payload=payload)]
    with pytest.raises(InvalidPayload, match="message 1"):
        outgoing(*messages, exactly_once=True, packed=packed)


# --- Pop


@pytest.mark.parametrize(
    ("request_", "wait", "target"),
    [
        (PopRequest(queue="q"), 0, "/api/v1/pop/queue/q?batch=1&partitions=1"),
        (
            PopRequest(queue="a/b", partition="..", group="g&h", lease_seconds=1.5, auto_ack=True),
            2.5,
            "/api/v1/pop?batch=1&partitions=1&wait=true&timeout=2500"
            "&consumerGroup=g%26h&autoAck=true&leaseSeconds=1.5&queue=a%2Fb&partition=..",
        ),
        (
            PopRequest(namespace="n", task="", subscription=Subscription("new")),
            0,
            "/api/v1/pop?batch=1&partitions=1&namespace=n&task=&subscriptionMode=new",
        ),
        (
            PopRequest(queue="q", subscription=Subscription("from", datetime(2026, 1, 2, tzinfo=UTC))),
            0,
            "/api/v1/pop/queue/q?batch=1&partitions=1&subscriptionFrom=2026-01-02T00%3A00%3A00.000000Z",
        ),
    ],
)
def test_pop_targets(request_: PopRequest, wait: float, target: str) -> None:
    assert protocol.pop(request_, wait).target == target


def test_nothing_popped() -> None:
    delivered = protocol.delivered_of(HttpAnswer(204, b""), "g")
    assert (delivered.group, delivered.messages, delivered.lease_id) == ("g", [], None)


# --- Ack and transactions


def test_acks_as_they_are_sent() -> None:
    request = protocol.ack_batch(
        [
            Ack(lease_id=LEASE, partition_id=7, seq=3, status="failed", error="why"),
            Ack(partition_id=8, transaction_id="t", group="g"),
        ]
    )
    assert body_of(request)["acknowledgments"] == [
        {"leaseId": LEASE, "partitionId": "7", "seq": 3, "status": "failed", "error": "why"},
        {"partitionId": "8", "transactionId": "t", "consumerGroup": "g"},
    ]
    whole = protocol.ack_by_lease(Ack(lease_id=LEASE))
    assert (whole.target, body_of(whole)) == (f"/api/v1/lease/{LEASE}/ack", {})


@pytest.mark.parametrize(
    ("extra", "kind"), [({}, TransactionRolledBack), ({"code": "QUEUE_FULL"}, QueueFull), ({"code": "?"}, None)]
)
def test_rolled_back_transaction(extra: dict[str, str], kind: type[Exception] | None) -> None:
    step = {"index": 0, "type": "ack", "success": False, "transactionId": None, "error": "rolled back"}
    reply = answer(200, {"success": False, "results": [step], "error": "transaction rolled back: why", **extra})
    with pytest.raises(kind or TransactionRolledBack, match="why"):
        protocol.committed_of(reply, [Ack(lease_id=LEASE)], [])


# --- Verbs


def test_verb_sends_what_is_given() -> None:
    request = protocol.call("configure", {"queue": "q", "options": QueueOptions(lease_seconds=7), "task": None})
    body = body_of(request)
    assert (request.target, body["queue"], "task" in body) == ("/api/v1/engine/configure", "q", False)
    assert msgspec.convert(body["options"], QueueOptions) == QueueOptions(lease_seconds=7)


def test_verbs_that_must_not_be_applied_twice() -> None:
    once = {name for name, verb in VERBS.items() if not verb.repeatable}
    assert once == {
        "bury_message",
        "cancel_schedule",
        "clear",
        "create_key",
        "delete_group",
        "delete_queue",
        "forget_spark_stream",
        "purge",
        "record_trace",
        "redrive",
        "redrive_queue",
        "remove_cron",
        "remove_message",
        "repair",
        "retry_message",
        "retry_operation",
        "retry_rejected",
        "revoke_key",
        "accept_buffer_loss",
    }


def test_result_of_a_verb_is_its_record() -> None:
    assert protocol.result_of(answer(200, {"result": 3}), "clear") == 3
    with pytest.raises(LockstepError, match="cannot be read"):
        protocol.result_of(answer(200, {"result": "three"}), "clear")
