"""API keys, the audit log, and the queues that things belong to."""

from __future__ import annotations

from datetime import timedelta

from lockstep.core.access import NewApiKey, NewAuditEntry, OwnedKind
from lockstep.core.messages import Batch
from lockstep.core.records import DeadLetterFilter
from lockstep.core.streams import NewStreamQuery
from lockstep.storage.base import Store
from support.builders import ack, configure, pop, push_n
from support.clock import SetClock

DIGEST = b"0" * 32


async def test_key_is_found_listed_and_revoked(store: Store, clock: SetClock) -> None:
    expires_at = clock.now + timedelta(days=1)
    given = NewApiKey(name="ann", role="admin", rules=("push a.*",), expires_at=expires_at)
    made = await store.create_key(given, key_id="b", digest=DIGEST)
    await store.create_key(NewApiKey(name="bob", rules=("pop b",)), key_id="a", digest=DIGEST)
    assert (made.id, made.name, made.role, made.rules, made.expires_at) == (
        "b",
        "ann",
        "admin",
        ("push a.*",),
        expires_at,
    )
    assert (made.created_at, made.revoked_at) == (clock.now, None)
    assert [key.id for key in await store.keys()] == ["a", "b"]
    assert await store.keys(after="a", limit=1) == [made]
    [found] = await store.find_keys(["b", "none"])
    assert (found.id, found.digest, found.revoked_at) == ("b", DIGEST, None)
    clock.advance(1)
    assert await store.revoke_key("b")
    assert [await store.revoke_key(key_id) for key_id in ("b", "none")] == [False, False]
    assert (await store.find_keys(["b"]))[0].revoked_at == clock.now


async def test_audit_log_is_listed_newest_first_and_pruned(store: Store, clock: SetClock) -> None:
    for act, queues in (("clear", ("q",)), ("seek", ("q", "r")), ("create_key", ())):
        await store.record_audit(NewAuditEntry(who="ann", act=act, queues=queues, outcome="done", detail="{}"))
        clock.advance(10)
    entries = await store.audit()
    assert [entry.act for entry in entries] == ["create_key", "seek", "clear"]
    assert entries[1].queues == ("q", "r")
    assert (entries[2].who, entries[2].outcome, entries[2].detail) == ("ann", "done", "{}")
    assert await store.audit(limit=1) == entries[:1]
    assert await store.audit(before=entries[0].id) == entries[1:]
    assert await store.audit(queue="r") == entries[1:2]
    assert await store.audit(act="clear", who="ann") == entries[2:]
    assert await store.audit(who="bob") == []
    assert await store.prune_audit(25, limit=10) == 1
    assert await store.prune_audit(5, limit=1) == 1
    assert await store.audit() == entries[:1]


async def _owners(store: Store, kind: OwnedKind, *ids: object) -> dict[str, list[str]]:
    found = await store.queues_of(kind, [str(one) for one in ids])
    return {one: sorted(queues) for one, queues in found.items()}


async def test_things_belong_to_queues(store: Store) -> None:
    await configure(store, "dead")
    await configure(store, "a", dead_queue="dead")
    first = (await store.push([Batch.of("a", [b"1", b"2"])]))[0]
    other = (await store.push([Batch.of("b", [b"1"])]))[0]
    partitions = await _owners(store, "partition", first.partition_id, other.partition_id, 10**15)
    assert partitions == {str(first.partition_id): ["a"], str(other.partition_id): ["b"]}
    popped = await pop(store, "a", group="g")
    assert popped.lease_id is not None
    assert await _owners(store, "lease", popped.lease_id) == {popped.lease_id: ["a"]}
    await ack(store, lease_id=popped.lease_id, status="dlq")
    letter = (await store.dead_letters(DeadLetterFilter())).items[0]
    assert await _owners(store, "dead_letter", letter.id, 10**15) == {str(letter.id): ["a"]}
    assert await _owners(store, "dead_queue", "dead", "a") == {"dead": ["a"]}
    query = await store.register_stream_query(NewStreamQuery(name="s", source_queue="b", config_hash="h"))
    assert await _owners(store, "stream_query", query.id) == {str(query.id): ["b"]}
    assert await _owners(store, "stream_query_name", "s", "t") == {"s": ["b"]}


async def test_lease_on_single_messages_belongs_to_its_queue(store: Store) -> None:
    await configure(store, "work", group_mode="shared")
    await push_n(store, "work", 2)
    popped = await pop(store, "work", group="g")
    assert popped.lease_id is not None
    assert await _owners(store, "lease", popped.lease_id) == {popped.lease_id: ["work"]}
