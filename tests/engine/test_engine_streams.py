"""Trace events, single messages and stream queries: bad input never reaches the store, good input gets through."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from lockstep.config import Config
from lockstep.core.messages import Batch, NewMessage
from lockstep.core.records import DeadLetterFilter, MessageFilter, PopRequest
from lockstep.core.streams import NewStreamQuery, StateFilter, StateOp, StreamAck, StreamCycle
from lockstep.core.traces import NewTraceEvent
from lockstep.engine.engine import Engine
from lockstep.errors import InvalidName, InvalidRequest, LockstepError, TooLarge
from lockstep.storage.memory import MemoryStore
from support.clock import SetClock

SMALL = Config(
    error_text_length_max=10,
    trace_data_bytes_max=20,
    trace_names_max=2,
    stream_keys_max=3,
    stream_rows_max=2,
    stream_ops_max=3,
    stream_key_bytes_max=8,
    stream_value_bytes_max=20,
    stream_cycle_bytes_max=30,
)
DEEP = b"[" * 60_000

Call = Callable[[Engine], Awaitable[Any]]


def call(verb: str, *args: Any, **named: Any) -> Call:
    return lambda engine: getattr(engine, verb)(*args, **named)


def trace(**fields: Any) -> Call:
    given = {"partition_id": 1, "transaction_id": "t", "data": b"1", **fields}
    return call("record_trace", NewTraceEvent(**given))


def query(**fields: Any) -> Call:
    given = {"name": "query", "source_queue": "in", "config_hash": "1", **fields}
    return call("register_stream_query", NewStreamQuery(**given))


def state(**fields: Any) -> Call:
    return call("stream_state", StateFilter(**{"query_id": 1, "partition_id": 1, **fields}))


def cycle(*ops: Any, messages: Any = (), **fields: Any) -> Call:
    given = {"query_id": 1, "partition_id": 1, "state_ops": ops, **fields}
    return call("stream_cycle", StreamCycle(**given), messages)


def ack(**fields: Any) -> Call:
    return cycle(ack=StreamAck(**{"transaction_id": "t", **fields}))


def upsert(key: Any = "k", value: Any = b"1") -> StateOp:
    return StateOp(type="upsert", key=key, value=value)


BAD: dict[str, tuple[Call, type[LockstepError], str]] = {
    "messages partition": (call("messages", MessageFilter(partition="p")), InvalidRequest, "must name its queue"),
    "messages namespace": (call("messages", MessageFilter(namespace="\n")), InvalidName, "namespace"),
    "namespaces after": (call("namespaces", after="\x00"), InvalidName, "after"),
    "tasks limit": (call("tasks", limit=0), InvalidRequest, "limit"),
    "remove partition": (call("remove_message", 0, "t"), InvalidRequest, "partition id must be between"),
    "remove transaction": (call("remove_message", 1, ""), InvalidRequest, "must not be empty"),
    "retry transaction": (call("retry_message", 1, "\x00"), InvalidRequest, "NUL"),
    "bury group": (call("bury_message", 1, "t", group=""), InvalidName, "group"),
    "bury error": (call("bury_message", 1, "t", error=5), InvalidRequest, "error must be a string"),
    "trace": (call("record_trace", {}), InvalidRequest, "expected NewTraceEvent, not dict"),
    "trace partition": (trace(partition_id="1"), InvalidRequest, "partition id must be a whole number"),
    "trace transaction": (trace(transaction_id="t" * 256), InvalidRequest, "256 characters"),
    "trace data": (trace(data="1"), InvalidRequest, "data must be encoded JSON, not str"),
    "trace no JSON": (trace(data=b"{"), InvalidRequest, "data is not JSON"),
    "trace no UTF-8": (trace(data=b'"\xff"'), InvalidRequest, "data is not JSON"),
    "trace large": (trace(data=b'"' + b"a" * 20 + b'"'), TooLarge, "22 bytes; at most 20"),
    "trace type": (trace(event_type=""), InvalidName, "event type"),
    "trace group": (trace(group="\n"), InvalidName, "group"),
    "trace worker": (trace(worker="w" * 256), InvalidRequest, "worker is 256"),
    "trace names": (trace(names="n"), InvalidRequest, "names must be a list, not str"),
    "trace name": (trace(names=("",)), InvalidName, "trace name must not be empty"),
    "trace many names": (trace(names=("a", "b", "c")), InvalidRequest, "3 trace names; at most 2"),
    "traces of": (call("traces_of_message", -1, "t"), InvalidRequest, "partition id"),
    "traces of limit": (call("traces_of_message", 1, "t", limit=1001), InvalidRequest, "limit"),
    "traces by": (call("traces_by_name", ""), InvalidName, "trace name"),
    "traces by offset": (call("traces_by_name", "n", offset=-1), InvalidRequest, "offset"),
    "names offset": (call("trace_names", offset="0"), InvalidRequest, "offset"),
    "query": (call("register_stream_query", "query"), InvalidRequest, "expected NewStreamQuery"),
    "query name": (query(name=""), InvalidName, "stream query"),
    "query source": (query(source_queue=None), InvalidName, "queue"),
    "query sink": (query(sink_queue="\n"), InvalidName, "sink queue"),
    "query hash": (query(config_hash=7), InvalidName, "config hash"),
    "query reset": (query(reset="yes"), InvalidRequest, "reset must be true or false"),
    "state query": (state(query_id=0), InvalidRequest, "query id must be between"),
    "state partition": (state(partition_id=True), InvalidRequest, "partition id must be a whole number"),
    "state keys": (state(keys="k"), InvalidRequest, "keys must be a list, not str"),
    "state key": (state(keys=("",)), InvalidRequest, "key must not be empty"),
    "state many keys": (state(keys=("a",) * 4), InvalidRequest, "4 keys; at most 3"),
    "state long key": (state(keys=("é" * 5,)), InvalidRequest, "key has 10 bytes; at most 8"),
    "state prefix": (state(key_prefix="\x00"), InvalidRequest, "key prefix"),
    "state ripe": (state(ripe_at_or_before_ms=1.5), InvalidRequest, "ripe_at_or_before_ms must be a whole number"),
    "cycle": (call("stream_cycle", {}), InvalidRequest, "expected StreamCycle"),
    "cycle group": (cycle(group=""), InvalidName, "group"),
    "cycle release": (cycle(release_lease=1), InvalidRequest, "release_lease"),
    "cycle ops": (cycle(upsert(), {}), InvalidRequest, "expected StateOp, not dict"),
    "cycle many ops": (cycle(*[upsert()] * 4), InvalidRequest, "4 state ops; at most 3"),
    "cycle type": (cycle(StateOp(type="add", key="k")), InvalidRequest, "must be one of upsert, delete"),  # type: ignore[arg-type]
    "cycle key": (cycle(upsert(key=5)), InvalidRequest, "key must be a string"),
    "cycle no value": (cycle(upsert(value=None)), InvalidRequest, "an upsert needs a value"),
    "cycle value": (cycle(upsert(value=b"NaN")), InvalidRequest, "value is not JSON"),
    "cycle large value": (cycle(upsert(value=b"1" * 21)), TooLarge, "value has 21 bytes"),
    "cycle large": (cycle(*[upsert(value=b"1" * 15)] * 3), TooLarge, "the cycle has 45 bytes"),
    "cycle ack": (cycle(ack="t"), InvalidRequest, "expected StreamAck, not str"),
    "cycle ack none": (ack(transaction_id=None), InvalidRequest, "transaction id must be a string"),
    "cycle ack empty": (ack(transaction_id=""), InvalidRequest, "transaction id must not be empty"),
    "cycle ack lease": (ack(lease_id="lease"), InvalidRequest, "lease id is not a UUID"),
    "cycle ack status": (ack(status="done"), InvalidRequest, "status must be one of"),
    "cycle ack error": (ack(status="failed", error=5), InvalidRequest, "error must be a string"),
    "cycle messages": (cycle(messages=[Batch.of("", [b"1"])]), InvalidName, "queue"),
}


@pytest.fixture
def guarded(guarded: Engine) -> Engine:
    """A store that must not be reached, and small limits for what is tested here."""
    return Engine(guarded._store, SMALL)


@pytest.fixture
def engine(clock: SetClock) -> Engine:
    return Engine(MemoryStore(clock=clock), SMALL)


@pytest.mark.parametrize(("bad", "error", "text"), BAD.values(), ids=BAD)
async def test_bad_input_is_refused(guarded: Engine, bad: Call, error: type[LockstepError], text: str) -> None:
    with pytest.raises(error, match=text):
        await bad(guarded)


async def test_json_that_is_nested_too_deep_is_refused(clock: SetClock) -> None:
    roomy = Engine(MemoryStore(clock=clock), Config())
    for bad in (trace(data=DEEP), cycle(upsert(value=DEEP))):
        with pytest.raises(InvalidRequest, match="is not JSON"):
            await bad(roomy)


async def test_trace_events_get_through(engine: Engine) -> None:
    [receipt] = await engine.push([Batch.of("q", [b"1"], transaction_ids=["t"])])
    event = NewTraceEvent(partition_id=receipt.partition_id, transaction_id="t", data=b"1", names=["a", "a"])  # type: ignore[arg-type]
    event_id = await engine.record_trace(event)
    [found] = await engine.traces_of_message(receipt.partition_id, "t")
    assert (found.id, found.names) == (event_id, ("a",))
    assert (await engine.traces_by_name("a")).total == 1
    assert [name.traces for name in (await engine.trace_names()).items] == [1]


async def test_single_messages_get_through(engine: Engine) -> None:
    receipts = await engine.push([Batch.of("a.b", [b"1", b"2", b"3"])])
    first, second, third = [(receipt.partition_id, receipt.message_id) for receipt in receipts]
    await engine.pop([PopRequest(queue="a.b", auto_ack=True)])
    await engine.bury_message(*second, error="0123456789abc")
    assert [letter.error for letter in (await engine.dead_letters(DeadLetterFilter())).items] == ["0123456789"]
    await engine.remove_message(*third)
    assert (await engine.retry_message(*first)).seq == 4
    assert [(one.name, one.messages) for one in await engine.namespaces()] == [("a", 3)]
    assert [(one.name, one.pending) for one in await engine.tasks()] == [("b", 1)]
    assert (await engine.overview()).dead_letters == 1
    page = await engine.messages(MessageFilter(task="b", status="pending"))
    assert [view.message.payload for view in page.items] == [b"1"]


async def test_cycles_get_through_and_wake_who_waits(engine: Engine) -> None:
    [receipt] = await engine.push([Batch.of("in", [b"1"], transaction_ids=["t"])])
    registered = await engine.register_stream_query(
        NewStreamQuery(name="query", source_queue="in", config_hash="1", sink_queue="out")
    )
    [popped] = await engine.pop([PopRequest(queue="in")])
    assert popped.lease_id is not None
    step = StreamCycle(
        query_id=registered.id,
        partition_id=receipt.partition_id,
        state_ops=(upsert("a"), upsert("b")),
        ack=StreamAck(transaction_id="t", lease_id=popped.lease_id.upper()),
    )
    messages = [NewMessage(queue=queue, payload=b"1") for queue in ("out", "log", "out")]
    done = await engine.stream_cycle(step, messages)
    assert [(one.queue, one.seq) for one in done.pushed] == [("out", 1), ("log", 1), ("out", 2)]
    assert done.ack is not None
    assert done.ack.released
    where = StateFilter(query_id=registered.id, partition_id=receipt.partition_id)
    assert [row.key for row in await engine.stream_state(where)] == ["a", "b"]
    await engine.stream_cycle(msgspec.structs.replace(step, state_ops=(upsert("c"),), ack=None))
    with pytest.raises(TooLarge, match="more than 2 rows"):
        await engine.stream_state(where)
    assert len(await engine.stream_state(msgspec.structs.replace(where, keys=("a", "c")))) == 2
