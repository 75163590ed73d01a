"""The checker of histories accepts what may happen, and catches every kind of violation."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

from lockstep.core.messages import Message
from lockstep.storage.base import Store
from support.builders import ack, batch, listed, pop
from support.clock import START
from support.history import (
    AnyEvent,
    Buffered,
    Delivery,
    Extension,
    Lane,
    Push,
    Recorder,
    Settled,
    Settling,
    check,
    check_ids,
    load,
    without_lost,
)

LANE = Lane("q", "p", "g")


def message(seq: int, **changes: Any) -> Message:
    fields: dict[str, Any] = {
        "id": f"m{seq}",
        "queue": "q",
        "partition": "p",
        "partition_id": 1,
        "seq": seq,
        "created_at": START,
        "payload": b"%d" % seq,
        "transaction_id": f"m{seq}",
    }
    return Message(**{**fields, **changes})


def stored(count: int) -> list[Message]:
    return [message(seq) for seq in range(1, count + 1)]


def push(seq: int, at: float, **changes: Any) -> Push:
    fields: dict[str, Any] = {
        "sent_at": at - 0.1,
        "at": at,
        "queue": "q",
        "partition": "p",
        "seq": seq,
        "message_id": f"m{seq}",
        "payload": b"%d" % seq,
    }
    return Push(**{**fields, **changes})


def buffered(number: int) -> Buffered:
    return Buffered(sent_at=0, at=1, queue="q", partition="p", payloads=[b"%d" % number])


def delivery(first: int, last: int, at: float, lease_id: str | None = "L1", **changes: Any) -> Delivery:
    fields: dict[str, Any] = {
        "sent_at": at - 0.1,
        "at": at,
        "group": "g",
        "queue": "q",
        "partition": "p",
        "seqs": list(range(first, last + 1)),
        "message_ids": [f"m{seq}" for seq in range(first, last + 1)],
        "lease_id": lease_id,
        "lease_seconds": 10.0,
    }
    return Delivery(**{**fields, **changes})


def acked(
    seq: int,
    at: float,
    *,
    lease_id: str | None = "L1",
    status: Any = "completed",
    success: bool = True,
    dead: bool = False,
    answered: bool = True,
) -> list[AnyEvent]:
    """An ack sent at `at` and answered a little later."""
    identity = f"ack-{seq}-{at}"
    sent = Settling(
        sent_at=at,
        at=at,
        id=identity,
        group="g",
        queue="q",
        partition="p",
        seq=seq,
        status=status,
        lease_id=lease_id,
    )
    answer = Settled(sent_at=at + 0.1, at=at + 0.1, id=identity, success=success, dead=dead)
    return [sent, answer] if answered else [sent]


# --- What may happen

ACCEPTED: dict[str, tuple[list[AnyEvent], int]] = {
    "nothing": ([], 0),
    "unacknowledged-push-is-stored": ([push(1, 1)], 2),
    "consumed-in-order": (
        [
            push(1, 1),
            push(2, 2),
            delivery(1, 1, 3),
            *acked(1, 4),
            delivery(2, 2, 5, "L2"),
            *acked(2, 6, lease_id="L2"),
        ],
        2,
    ),
    "redelivered-after-expiry": ([delivery(1, 2, 1), delivery(1, 2, 12, "L2")], 2),
    "redelivered-after-failure": (
        [delivery(1, 2, 1), *acked(1, 2, status="failed"), delivery(1, 2, 3, "L2")],
        2,
    ),
    "rest-redelivered-after-partial-ack": (
        [delivery(1, 3, 1), *acked(1, 2), delivery(2, 3, 12, "L2")],
        3,
    ),
    "unanswered-ack-was-applied": (
        [delivery(1, 1, 1), *acked(1, 2, answered=False), delivery(2, 2, 3, "L2")],
        2,
    ),
    "unanswered-ack-was-not-applied": (
        [delivery(1, 1, 1), *acked(1, 2, answered=False), delivery(1, 1, 12, "L2")],
        2,
    ),
    "refused-ack-of-a-stale-lease": (
        [delivery(1, 1, 1), delivery(1, 1, 12, "L2"), *acked(1, 13, success=False)],
        1,
    ),
    "duplicate-names-the-first": ([push(1, 1), push(1, 2, duplicate=True, payload=b"other")], 1),
    "concurrent-pushes-in-either-order": ([push(2, 1, sent_at=0.0), push(1, 1.5, sent_at=0.5)], 2),
    "buffered-and-stored": ([buffered(1)], 1),
    "acked-at-once": ([delivery(1, 2, 1, None), delivery(3, 3, 2, None)], 3),
    "renewed-lease": (
        [delivery(1, 1, 1), Extension(sent_at=9, at=9.1, lease_id="L1", seconds=60), *acked(1, 50)],
        1,
    ),
}


@pytest.mark.parametrize("name", sorted(ACCEPTED))
def test_history_that_may_happen_is_accepted(name: str) -> None:
    events, count = ACCEPTED[name]
    assert check(events, stored(count)) == []


def test_dead_letter_may_be_passed_without_an_ack() -> None:
    events = [delivery(1, 2, 1), delivery(2, 2, 12, "L2")]
    assert [violation.kind for violation in check(events, stored(2))] == ["skipped"]
    assert check(events, stored(2), dead=[(LANE, 1)]) == []


def test_dead_letter_of_another_group_does_not_count() -> None:
    events = [delivery(1, 2, 1), delivery(2, 2, 12, "L2")]
    found = check(events, stored(2), dead=[(LANE._replace(group="h"), 1)])
    assert [violation.kind for violation in found] == ["skipped"]


# --- What may not

VIOLATIONS: dict[str, tuple[str, list[AnyEvent], list[Message]]] = {
    "acknowledged-push-is-gone": ("lost", [push(1, 1), push(2, 2)], stored(1)),
    "payload-is-another": ("changed", [push(1, 1, payload=b"other")], stored(1)),
    "message-id-is-another": ("changed", [push(1, 1, message_id="m9")], stored(1)),
    "transaction-id-is-another": ("changed", [push(1, 1, transaction_id="t")], stored(1)),
    "duplicate-names-another": ("changed", [push(1, 1, duplicate=True, message_id="m9")], stored(1)),
    "hole-in-the-middle": ("gap", [], [message(1), message(3)]),
    "beginning-is-missing": ("gap", [], [message(2), message(3)]),
    "seq-stored-twice": ("gap", [], [message(1), message(1, id="m1b", transaction_id="m1b")]),
    "transaction-id-stored-twice": (
        "stored_twice",
        [],
        [message(1, transaction_id="t"), message(2, transaction_id="t")],
    ),
    "message-id-stored-twice": (
        "stored_twice",
        [],
        [message(1), message(1, partition="other", partition_id=2)],
    ),
    "seq-acknowledged-twice": ("stored_twice", [push(1, 1), push(1, 2)], stored(1)),
    "later-push-comes-first": ("reordered", [push(2, 1), push(1, 2)], stored(2)),
    "delivered-out-of-order": (
        "reordered",
        [delivery(1, 3, 1, seqs=[1, 3, 2], message_ids=["m1", "m3", "m2"])],
        stored(3),
    ),
    "delivered-what-is-not-there": ("phantom", [delivery(1, 2, 1)], stored(1)),
    "delivered-another-message": ("phantom", [delivery(1, 1, 1, message_ids=["m7"])], stored(1)),
    "began-behind-the-head": ("skipped", [delivery(2, 2, 1)], stored(2)),
    "went-on-without-an-ack": ("skipped", [delivery(1, 1, 1), delivery(2, 2, 12, "L2")], stored(2)),
    "went-on-after-a-refused-ack": (
        "skipped",
        [delivery(1, 1, 1), *acked(1, 2, success=False), delivery(2, 2, 12, "L2")],
        stored(2),
    ),
    "went-on-after-a-retry": (
        "skipped",
        [delivery(1, 1, 1), *acked(1, 2, status="retry"), delivery(2, 2, 3, "L2")],
        stored(2),
    ),
    "delivered-below-the-cursor": (
        "below_cursor",
        [delivery(1, 2, 1), *acked(2, 2), delivery(2, 2, 3, "L2")],
        stored(2),
    ),
    "delivered-below-where-a-lease-began": (
        "below_cursor",
        [delivery(1, 1, 1), *acked(1, 2, answered=False), delivery(2, 2, 3, "L2"), delivery(1, 2, 14, "L3")],
        stored(2),
    ),
    "delivered-with-another-payload": ("changed", [delivery(1, 1, 1, checksums=[zlib.crc32(b"2")])], stored(1)),
    "buffered-push-is-gone": ("lost", [buffered(1), buffered(2)], stored(1)),
    "buffered-push-is-stored-twice": (
        "stored_twice",
        [buffered(1)],
        [message(1), message(2, payload=b"1")],
    ),
    "dead-letter-delivered-again": (
        "below_cursor",
        [delivery(1, 2, 1), *acked(1, 2, status="failed", dead=True), delivery(1, 2, 3, "L2")],
        stored(2),
    ),
    "acked-at-once-and-delivered-again": (
        "below_cursor",
        [delivery(1, 2, 1, None), delivery(2, 2, 2, None)],
        stored(2),
    ),
    "leased-while-leased": ("two_leases", [delivery(1, 1, 1), delivery(1, 1, 5, "L2")], stored(1)),
    "leased-while-partly-acked": (
        "two_leases",
        [delivery(1, 3, 1), *acked(1, 2), delivery(2, 3, 5, "L2")],
        stored(3),
    ),
    "leased-while-renewed": (
        "two_leases",
        [
            delivery(1, 1, 1),
            Extension(sent_at=9, at=9.1, lease_id="L1", seconds=60),
            delivery(1, 1, 30, "L2"),
        ],
        stored(1),
    ),
    "stale-lease-acked": (
        "stale_lease",
        [delivery(1, 1, 1), delivery(1, 1, 12, "L2"), *acked(1, 13)],
        stored(1),
    ),
}


@pytest.mark.parametrize("name", sorted(VIOLATIONS))
def test_violation_is_caught(name: str) -> None:
    kind, events, messages = VIOLATIONS[name]
    assert {violation.kind for violation in check(events, messages)} == {kind}


def test_message_that_a_drained_group_never_saw() -> None:
    events = [delivery(1, 1, 1), *acked(1, 2)]
    assert check(events, stored(2)) == []
    [violation] = check(events, stored(2), drained=["g"])
    assert violation.kind == "undelivered"
    assert check([delivery(1, 2, 1)], stored(2), drained=["g"]) == []


def test_delivery_that_a_failover_may_have_undone_proves_nothing() -> None:
    """Its ack may be lost, so the group may begin before it again."""
    events = [delivery(1, 1, 1), *acked(1, 2), delivery(2, 3, 3, "L2"), delivery(1, 1, 5, "L3")]
    kept = without_lost(events, {"m1", "m2"}, since=1.5, until=4)
    assert check(kept, stored(2)) == []
    assert [one.seqs for one in kept if isinstance(one, Delivery)] == [[1], [2], [1]]


def test_id_of_a_partition_that_was_given_out_twice() -> None:
    events = [delivery(1, 1, 1, partition_id=7), push(1, 2, partition_id=7)]
    assert list(check_ids(events)) == []
    [violation] = check_ids([*events, push(1, 3, partition="other", partition_id=7)])
    assert violation.kind == "id_reused"


def test_groups_and_partitions_are_judged_apart() -> None:
    events = [delivery(1, 1, 1), delivery(1, 1, 2, "L2", group="h")]
    assert check(events, stored(1)) == []


# --- Recording


async def test_recorded_run_survives_in_files(store: Store, tmp_path: Path) -> None:
    first, second = Recorder(tmp_path / "producer"), Recorder(tmp_path / "consumer")
    sent_at = first.now()
    made = batch("q", 3, partition="p", transaction_ids=["a", None, "a"])
    first.pushed(await store.push([made]), made.columns.payloads, sent_at=sent_at)

    sent_at = second.now()
    popped = await pop(store, "q", group="g", batch=2)
    second.delivered(popped, sent_at=sent_at, lease_seconds=300)
    settling = second.settling(LANE, 2, lease_id=popped.lease_id)
    second.settled(settling, await ack(store, lease_id=popped.lease_id))
    for recorder in (first, second):
        recorder.close()
        recorder.close()
    with (tmp_path / "consumer").open("ab") as file:
        file.write(b'{"type":"Push","sent_at":1')

    events = load([tmp_path / "producer", tmp_path / "consumer"])
    assert events == first.events + second.events
    assert [type(event).__name__ for event in events] == ["Push"] * 3 + ["Delivery", "Settling", "Settled"]
    views = await listed(store, "q")
    assert check(events, [view.message for view in views], drained=["g"]) == []
    assert {v.kind for v in check(events, [])} == {"lost", "phantom"}
