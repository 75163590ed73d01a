"""Values of a body are counted before it is decoded; payloads do not count, whatever is in them."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from typing import Any

import msgspec
import pytest

from lockstep.core.wire import delivery as wire
from lockstep.core.wire.counting import check_items
from lockstep.core.wire.dead_letters import RedriveBody
from lockstep.core.wire.streams import CycleBody
from lockstep.core.wire.transactions import TransactionBody
from lockstep.errors import InvalidRequest, TooManyItems
from lockstep.server.exchange import decode

LIMIT = 1_000
FULL = list(range(5 * LIMIT))
PAYLOAD = {"a": FULL, "b": {"c": FULL, "text": ",,,,"}}
ITEM = {"queue": "q", "partition": "p", "payload": PAYLOAD}


def _bomb(key: str, one: str) -> bytes:
    return b'{"%b":[%b]}' % (key.encode(), b",".join([one.encode()] * 5 * LIMIT))


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (wire.PushBody, {"items": [ITEM, ITEM]}),
        (TransactionBody, {"operations": [{"type": "push", "items": [ITEM]}, {"type": "ack", "transactionId": "t"}]}),
        (CycleBody, {"query_id": "1", "push_items": [ITEM], "stateOps": [{"type": "upsert", "value": PAYLOAD}]}),
    ],
)
def test_what_is_in_payloads_does_not_count(kind: Any, content: object) -> None:
    check_items(json.dumps(content, separators=(",", ":")).encode(), kind, LIMIT)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (wire.AckBatchBody, _bomb("acknowledgments", "{}")),
        (wire.AckBatchBody, _bomb("unknown", "{}")),
        (wire.PushBody, _bomb("items", "{}")),
        (wire.PushBody, _bomb("items", '{"queue":"q"}')),
        (wire.PushBody, b'{"items":[{"queue":"q","headers":{%b}}]}' % b",".join([b'"a":"b"'] * 5 * LIMIT)),
        (wire.PushBody, b'{"items":[{"queue":[%b]}]}' % b",".join([b"{}"] * 5 * LIMIT)),
        (TransactionBody, _bomb("requiredLeases", '""')),
        (TransactionBody, _bomb("operations", "{}")),
        (RedriveBody, _bomb("ids", "1")),
        (wire.PushBody, b"[%b]" % b",".join([b"{}"] * 5 * LIMIT)),
    ],
)
def test_everything_else_counts(kind: Any, body: bytes) -> None:
    with pytest.raises((TooManyItems, msgspec.ValidationError)):
        check_items(body, kind, LIMIT)


def test_as_many_values_as_allowed_are_taken() -> None:
    items = [{"queue": "q", "payload": PAYLOAD}] * (LIMIT // 5)
    check_items(json.dumps({"items": items}).encode(), wire.PushBody, LIMIT)
    with pytest.raises(TooManyItems, match="body_items_max"):
        check_items(json.dumps({"items": items * 2}).encode(), wire.PushBody, LIMIT)


def test_what_is_no_json_is_told_before_anything_is_made_of_it() -> None:
    with pytest.raises(msgspec.DecodeError):
        check_items(json.dumps({"items": [ITEM]}).encode()[:-1], wire.PushBody, LIMIT)


@pytest.mark.parametrize("kind", [wire.PushBody, wire.AckBatchBody, TransactionBody, CycleBody, RedriveBody])
@pytest.mark.parametrize(
    "piece", ["{}", "[]", '""', "1", "{}" + " " * 20, '{"queue":"q","payload":[1,2]}', '{"items":[{}]}']
)
@pytest.mark.parametrize("key", ["items", "operations", "acknowledgments", "ids", "unknown"])
def test_refusing_a_body_takes_no_more_memory_than_its_text(kind: Any, piece: str, key: str) -> None:
    """What is decoded of it is bounded by the limit, so that others do not wait for it."""
    body = b'{"%b":[%b]}' % (key.encode(), b",".join([piece.encode()] * 100_000))
    decoder = msgspec.json.Decoder(kind)
    with contextlib.suppress(TooManyItems, InvalidRequest):
        decode(b"{}", decoder, LIMIT)  # makes what is made once
    tracemalloc.start()
    try:
        with pytest.raises((TooManyItems, InvalidRequest)):
            decode(body, decoder, LIMIT)
        assert tracemalloc.get_traced_memory()[1] < len(body) + 1024 * 1024
    finally:
        tracemalloc.stop()
