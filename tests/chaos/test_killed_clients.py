"""kill -9 of producers and consumers while others go on."""

from __future__ import annotations

import random

import psycopg

from support.chaos_fleet import PATIENCE_SECONDS, Fleet, Scale
from support.chaos_load import AUDIT, GROUPS, QUEUES, RELAY
from support.embedded_tools import query, wait_until
from support.history import Delivery, Push, load

LOCK_WAITERS = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
LOCK_PARTITIONS = "select 1 from lockstep.partition for no key update"


def test_killed_producers_lose_and_repeat_nothing_acknowledged(fleet: Fleet, scale: Scale) -> None:
    fleet.launch()
    for _ in scale.kills():
        victims = random.sample(fleet.producers, k=2)
        for victim in victims:
            victim.kill()
            victim.start()
        fleet.wait_for_progress(victims)
    assert fleet.finish() == []


def test_push_that_its_killed_producer_never_saw_answered_is_stored_once(fleet: Fleet) -> None:
    """The push waits for a lock when its producer dies, and is committed when nobody is there to be told."""
    fleet.prepare()
    producer = fleet.add_producer("uuid", transaction_ids="uuid", queues=QUEUES[:1], partitions_max=1)
    fleet.wait_for_progress()
    with psycopg.connect(fleet.server.dsn) as lock:
        lock.execute(LOCK_PARTITIONS)
        wait_until(lambda: query(fleet.server.dsn, LOCK_WAITERS) == [(1,)], timeout=PATIENCE_SECONDS)
        producer.kill()
        assert query(fleet.server.dsn, LOCK_WAITERS) == [(1,)]
    wait_until(lambda: query(fleet.server.dsn, LOCK_WAITERS) == [(0,)], timeout=PATIENCE_SECONDS)

    producer.start()
    fleet.wait_for_progress()
    [first_push] = [event for event in load([producer.plan.log])[:1] if isinstance(event, Push)]
    assert first_push.duplicate
    for group in GROUPS:
        fleet.add_consumer(group, group=group)
    assert fleet.finish() == []


def test_killed_consumers_that_go_on_lose_and_skip_nothing(fleet: Fleet, scale: Scale) -> None:
    """They hold on to their partitions; who comes after them must not miss what they had, and keeps the order."""
    fleet.prepare()
    fleet.add_producer("uuid", transaction_ids="uuid")
    fleet.add_producer("plain")
    going_on = [fleet.add_consumer(f"audit-{number}", group=AUDIT, goes_on=True) for number in (1, 2, 3)]
    fleet.add_consumer("relay", group=RELAY)
    fleet.wait_for_progress()
    for _ in scale.kills():
        victims = random.sample(going_on, k=2)
        for victim in victims:
            victim.kill()
            victim.start()
        fleet.wait_for_progress(victims)
    assert fleet.finish() == []


def test_killed_consumers_are_replaced_without_loss(fleet: Fleet, scale: Scale) -> None:
    fleet.launch()
    for _ in scale.kills():
        victims = random.sample(fleet.consumers, k=2)
        for victim in victims:
            victim.kill()
            victim.start()
        fleet.wait_for_progress(victims)
    assert fleet.finish() == []


def test_killed_consumer_loses_only_its_lease(fleet: Fleet, scale: Scale) -> None:
    """Its messages come again when the lease is over, from the first of them, and go to another consumer."""
    fleet.launch()
    held: list[Delivery] = []
    for number in scale.kills():
        holder = fleet.add_consumer(f"holder-{number}", group=AUDIT, holds=True)
        fleet.wait_for_progress([holder])
        fleet.kill_for_good(holder)
        held += [event for event in load([holder.plan.log]) if isinstance(event, Delivery)]
    assert fleet.finish() == []

    deliveries = [event for event in load(fleet.logs()) if isinstance(event, Delivery)]
    assert held
    for lost in held:
        assert any(_is_redelivery(delivery, lost) for delivery in deliveries)


def _is_redelivery(delivery: Delivery, lost: Delivery) -> bool:
    return (
        (delivery.queue, delivery.partition, delivery.group) == (lost.queue, lost.partition, lost.group)
        and delivery.lease_id != lost.lease_id
        and delivery.seqs[0] == lost.seqs[0]
        and delivery.at >= lost.sent_at + lost.lease_seconds
    )
