"""API keys: what is taken, what is refused, and how soon a revocation is heard of."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asking import HOST, OWN, Asker, asking, fill

from lockstep.core.access import parse_key
from lockstep.core.messages import Batch
from lockstep.core.records import PopRequest
from lockstep.errors import Forbidden, Unavailable
from lockstep.server.auth import authentication
from lockstep.server.auth.guard import Guard
from lockstep.server.exchange import EventStream
from lockstep.storage.memory import MemoryStore
from support.until import until

WHOAMI = ("GET", "/api/v1/whoami")


async def test_key_is_recognised_with_its_rights() -> None:
    async with asking() as ask:
        token = await ask.key("push,pop orders.*", role="read-only", name="billing")
        said = (await ask(*WHOAMI, token=token)).json()
        assert (said["name"], said["kind"], said["role"], said["rights"]) == ("billing", "key", "read-only", ["browse"])
        assert said["authRequired"] is True


async def test_what_is_no_valid_key_is_refused_alike() -> None:
    async with asking() as ask:
        token = await ask.key(role="admin")
        key_id, secret = parse_key(token) or ("", "")
        other = parse_key(await ask.key(role="admin")) or ("", "")
        expired = await ask.key(role="admin", expires_at=datetime.now(UTC) - timedelta(seconds=1))
        bad = [token + "x", token[:-1], f"lsk_{key_id}_", f"lsk_{key_id}", "lsk_", f"lsk_{other[0]}_{secret}"]
        said = {(await ask(*WHOAMI, token=one)).body for one in bad}
        assert said == {b'{"error":"the API key is not valid","code":"unauthorized"}'}
        assert (await ask(*WHOAMI, token=token)).status == 200
        assert {(await ask(*WHOAMI, token=one)).body for one in bad} == said, "also once the key is known"
        assert (await ask(*WHOAMI, token=expired)).json()["error"] == "the API key has expired"


@pytest.mark.parametrize(
    "header", [b"", b"Basic abc", b"Bearer", b"Bearer ", b"Bearer \xff", b"lsk_0123456789abcdef_x"]
)
async def test_header_that_is_no_bearer_token_is_refused(header: bytes) -> None:
    async with asking() as ask:
        request = ask.application.request("GET", b"/api/v1/whoami", b"", {**HOST, b"authorization": header})
        response = ask.application.refuse(request)
        assert response is not None
        assert response.status == 401
        assert (b"www-authenticate", b"Bearer") in response.headers


async def test_request_without_a_key_is_refused_before_its_body_is_read() -> None:
    async with asking() as ask:
        request = ask.application.request("POST", b"/api/v1/push", b"", dict(HOST))
        response = ask.application.refuse(request)
        assert response is not None
        assert response.status == 401


async def test_server_that_does_not_ask_takes_everything() -> None:
    async with asking(auth="none") as ask:
        for token in (None, "garbage", "lsk_0123456789abcdef_x"):
            said = (await ask(*WHOAMI, token=token)).json()
            assert (said["authRequired"], said["kind"], said["rights"][-1]) == (False, "anonymous", "admin")


async def test_only_the_hash_of_a_key_is_stored() -> None:
    store = MemoryStore()
    async with asking(store) as ask:
        token = await ask.key(role="admin")
        _, secret = parse_key(token) or ("", "")
        assert len(secret) >= 43
        assert secret not in repr(await store.find_keys([(await store.keys())[0].id]))
        assert token not in str(await ask.engine.audit())


# --- Revocation -------------------------------------------------------------------------------------------------


def _let_time_pass(ask: Asker, seconds: float) -> None:
    ask.node.guards.authentication._compared_at -= seconds


async def test_revocation_reaches_another_server() -> None:
    store = MemoryStore()
    async with asking(store) as one, asking(store) as other:
        token = await one.key(role="admin")
        assert [(await ask(*WHOAMI, token=token)).status for ask in (one, other)] == [200, 200]
        key_id, _ = parse_key(token) or ("", "")
        answer = await one("POST", "/api/v1/engine/revoke_key", {"key_id": key_id}, token=token)
        assert answer.json() == {"result": True}
        for ask in (one, other):
            _let_time_pass(ask, authentication.KEYS_SECONDS_MAX + 0.1)
            assert (await ask(*WHOAMI, token=token)).status == 401


async def test_keys_are_compared_beside_the_requests() -> None:
    async with asking() as ask:
        token = await ask.key(role="admin")
        await ask(*WHOAMI, token=token)
        await ask.engine.revoke_key((await ask.engine.keys())[0].id)
        _let_time_pass(ask, authentication.KEYS_SECONDS + 0.1)
        assert (await ask(*WHOAMI, token=token)).status == 200, "nobody waits for the comparison that begins now"
        await asyncio.sleep(0)
        comparing = ask.node.guards.authentication._comparing
        if comparing is not None:
            await comparing
        assert (await ask(*WHOAMI, token=token)).status == 401


async def test_poll_of_a_revoked_key_gets_nothing() -> None:
    async with asking() as ask:
        await ask.engine.configure("q")
        token = await ask.key(role="read-write")
        await ask(*WHOAMI, token=token)
        poll = asyncio.create_task(ask("GET", "/api/v1/pop/queue/q?wait=true&timeout=30000", token=token))
        await until(lambda: ask.engine.counts.waiting.polls)
        await ask.engine.revoke_key((await ask.engine.keys())[0].id)
        _let_time_pass(ask, authentication.KEYS_SECONDS_MAX + 0.1)
        await ask.engine.push([Batch.of("q", [b"1"])])
        assert (await poll).status == 401
        [popped] = await ask.engine.pop([PopRequest(queue="q")])
        while not popped.runs:  # the lease is given back in the background
            await asyncio.sleep(0)
            [popped] = await ask.engine.pop([PopRequest(queue="q")])
        assert len(popped) == 1


async def test_event_stream_of_a_revoked_key_ends() -> None:
    async with asking() as ask:
        token = await ask.key(role="read-only")
        answer = await ask("GET", "/api/v1/events?watch=/api/v1/resources/queues", token=token)
        assert isinstance(answer.response, EventStream)
        events = answer.response.events
        assert await anext(events) == b"retry: 1000\n\n"
        await ask.engine.revoke_key((await ask.engine.keys())[0].id)
        _let_time_pass(ask, authentication.KEYS_SECONDS_MAX + 0.1)
        assert [event async for event in events] == []


async def test_known_keys_stay_valid_while_the_database_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asking() as ask:
        known, unknown = await ask.key(role="admin"), await ask.key(role="admin")
        assert (await ask(*WHOAMI, token=known)).status == 200

        async def away(_: Any) -> Any:
            raise Unavailable

        monkeypatch.setattr(ask.engine, "find_keys", away)
        _let_time_pass(ask, authentication.KEYS_SECONDS_MAX + 0.1)
        assert (await ask(*WHOAMI, token=known)).status == 200
        assert (await ask(*WHOAMI, token=unknown)).status == 503


# --- What is not in the matrix -----------------------------------------------------------------------------------


async def test_producer_is_who_the_server_says() -> None:
    async with asking() as ask:
        token = await ask.key("push,pop q", name="billing")
        items = [{"queue": "q", "payload": 1, "producerSub": "boss"}, {"queue": "q", "payload": 2}]
        assert (await ask("POST", "/api/v1/push", {"items": items}, token=token)).status == 201
        popped = (await ask("GET", "/api/v1/pop/queue/q?batch=2", token=token)).json()
        assert [message["producerSub"] for message in popped["messages"]] == ["billing", "billing"]


async def test_push_to_several_queues_is_all_or_nothing() -> None:
    async with asking() as ask:
        token = await ask.key("push own.*")
        items = [{"queue": queue, "payload": 1} for queue in ("own.a", "foreign", "own.b")]
        assert (await ask("POST", "/api/v1/push", {"items": items}, token=token)).status == 403
        assert await ask.engine.queues() == []


async def test_acks_of_several_queues_are_all_or_nothing() -> None:
    async with asking() as ask:
        own, foreign = [await fill(ask.engine, queue) for queue in (OWN, "foreign.q")]
        token = await ask.key("pop own.*")
        acks = [{"transactionId": t.transaction_id, "partitionId": str(t.partition_id)} for t in (own, foreign)]
        body = {"acknowledgments": acks, "consumerGroup": "g"}
        assert (await ask("POST", "/api/v1/ack/batch", body, token=token)).status == 403
        assert [group.lag for group in await ask.engine.groups(group="g")] == [4, 4]
        body = {"acknowledgments": [acks[0], {"transactionId": "x", "partitionId": "99"}], "consumerGroup": "g"}
        answer = await ask("POST", "/api/v1/ack/batch", body, token=token)
        assert [one["success"] for one in answer.json()] == [True, False], "what does not exist is nobody's"


async def test_foreign_lease_in_another_spelling_is_foreign() -> None:
    async with asking() as ask:
        foreign = await fill(ask.engine, "foreign.q")
        token = await ask.key("pop own.*")
        for lease_id in (foreign.lease_id, foreign.lease_id.upper()):
            for tail in ("ack", "extend"):
                assert (await ask("POST", f"/api/v1/lease/{lease_id}/{tail}", token=token)).status == 403
            for queue in ("own.q", "foreign.q"):
                path = f"/api/v1/lease/{lease_id}/next"
                assert (await ask("POST", path, {"queue": queue, "consumerGroup": "g"}, token=token)).status == 403
        for lease_id in (foreign.lease_id.replace("-", ""), f"{{{foreign.lease_id}}}"):
            answer = await ask("POST", "/api/v1/engine/ack", {"acks": [{"lease_id": lease_id}]}, token=token)
            assert answer.status == 403
        body = {"operations": [{"type": "push", "items": []}], "requiredLeases": [foreign.lease_id]}
        assert (await ask("POST", "/api/v1/transaction", body, token=token)).status == 403
        assert [group.lag for group in await ask.engine.groups(group="g")] == [4]


async def test_dead_queue_and_sink_need_push() -> None:
    async with asking() as ask:
        for queue in ("own.q", "own.dead", "foreign.dead"):
            await ask.engine.configure(queue)
        token = await ask.key("manage,pop own.*", "push own.dead")
        update = "/api/v1/engine/update_queue"
        for dead_queue, status in (("foreign.dead", 403), ("own.dead", 200)):
            changes = {"queue": "own.q", "changes": {"dead_queue": dead_queue}}
            assert (await ask("POST", update, changes, token=token)).status == status
        configure = {"queue": "own.q", "options": {"dead_queue": "foreign.dead"}}
        assert (await ask("POST", "/api/v1/engine/configure", configure, token=token)).status == 403
        query = {"name": "s", "source_queue": "own.q", "config_hash": "h", "sink_queue": "foreign.q"}
        assert (await ask("POST", "/streams/v1/queries", query, token=token)).status == 403


async def test_dead_messages_go_back_only_where_one_may_push() -> None:
    async with asking() as ask:
        await ask.engine.configure("own.dead")
        await ask.engine.update_queue("own.dead", {})
        for queue in ("own.q", "foreign.q"):
            await ask.engine.configure(queue)
            await ask.engine.update_queue(queue, {"dead_queue": "own.dead"})
        token = await ask.key("push,pop own.*")
        await _die(ask, "own.q")
        assert (await ask("POST", "/api/v1/queues/own.dead/redrive", token=token)).json()["redriven"] == 1
        await _die(ask, "foreign.q")
        assert (await ask("POST", "/api/v1/queues/own.dead/redrive", token=token)).status == 403


async def _die(ask: Asker, queue: str) -> None:
    from lockstep.core.records import Ack

    await ask.engine.push([Batch.of(queue, [b"1"])])
    [popped] = await ask.engine.pop([PopRequest(queue=queue)])
    await ask.engine.ack([Ack(lease_id=popped.lease_id, status="dlq")])


async def test_cron_and_stream_query_of_others_cannot_be_taken_over() -> None:
    async with asking() as ask:
        await fill(ask.engine, "foreign.q")
        token = await ask.key("push,pop own.*")
        cron = {"name": "cron-foreign.q", "queue": "own.q", "expression": "0 0 1 1 *"}
        assert (await ask("POST", "/api/v1/crons", cron, token=token)).status == 403
        query = {"name": "stream-foreign.q", "source_queue": "own.q", "config_hash": "h", "reset": True}
        assert (await ask("POST", "/streams/v1/queries", query, token=token)).status == 403


async def test_verb_without_a_rule_is_denied() -> None:
    async with asking() as ask:
        guard: Any = Guard(ask.node.guards, authentication.ANYBODY)
        with pytest.raises(Forbidden):
            guard.close  # noqa: B018


async def test_pages_are_as_long_as_if_there_were_nothing_else() -> None:
    async with asking() as ask:
        for number in range(30):
            await ask.engine.configure(f"{'own' if number % 3 == 0 else 'foreign'}-{number:02}")
        token = await ask.key("browse own*")
        verb = "/api/v1/engine/queues"
        first = (await ask("POST", verb, {"limit": 4}, token=token)).json()["result"]
        assert [info["name"] for info in first] == ["own-00", "own-03", "own-06", "own-09"]
        rest = (await ask("POST", verb, {"limit": 10, "after": "own-09"}, token=token)).json()["result"]
        assert [info["name"] for info in rest] == [f"own-{number}" for number in (12, 15, 18, 21, 24, 27)]


# --- The audit log -------------------------------------------------------------------------------------------------


async def test_acts_are_in_the_audit_log() -> None:
    async with asking() as ask:
        token = await ask.key("configure own.*", name="ann")
        root = await ask.key(role="admin", name="root")
        configure = {"queue": "own.q", "options": {}}
        assert (await ask("POST", "/api/v1/configure", configure, token=token)).status == 200
        await ask("DELETE", "/api/v1/queues/own.none/clear", token=token)
        for _ in range(3):
            await ask("DELETE", "/api/v1/queues/foreign/clear", token=token)
            await ask("POST", "/api/v1/engine/keys", token=token)
        await ask.node.guards.audit.close()
        entries = (await ask("POST", "/api/v1/engine/audit", {"who": "ann"}, token=root)).json()["result"]
        said = {(entry["act"], tuple(entry["queues"]), entry["outcome"]) for entry in entries}
        assert said == {
            ("configure", ("own.q",), "done"),
            ("clear", ("own.none",), "failed"),
            ("clear", ("foreign",), "denied"),
            ("POST /api/v1/engine/keys", (), "denied"),
        }
        assert len(entries) == 4, "what is denied again and again is written once"


async def test_payloads_are_not_in_the_audit_log() -> None:
    async with asking() as ask:
        token = await ask.key(role="admin")
        cron = {"name": "c", "queue": "q", "expression": "0 0 1 1 *", "payload": "open sesame"}
        assert (await ask("POST", "/api/v1/crons", cron, token=token)).status == 200
        [entry] = await ask.engine.audit()
        assert "expression" in str(entry.detail)
        assert "sesame" not in str(entry.detail)


async def test_queue_is_put_under_a_foreign_namespace_only_by_those_who_manage_all() -> None:
    async with asking() as ask:
        token = await ask.key("manage own.*")
        for labels, status in (
            ({"namespace": "own", "task": "q"}, 200),
            ({}, 200),
            ({"namespace": "foreign"}, 403),
            ({"task": "foreign"}, 403),
        ):
            body = {"queue": "own.q", "options": {}, **labels}
            assert (await ask("POST", "/api/v1/configure", body, token=token)).status == status
        everything = await ask.key(role="read-write")
        body = {"queue": "own.q", "namespace": "foreign", "options": {}}
        assert (await ask("POST", "/api/v1/configure", body, token=everything)).status == 200


async def test_who_one_is_cannot_be_watched() -> None:
    async with asking() as ask:
        token = await ask.key(role="read-only")
        assert (await ask("GET", "/api/v1/events?watch=/api/v1/whoami", token=token)).status == 400
        assert (await ask("GET", "/api/v1/events?watch=/api/v1/system/maintenance", token=token)).status == 403
