"""Telemetry of devices: the mean of each minute, kept as state by device and pushed when the minute is over.

python examples/devices/devices.py [url]       memory:// (the default), or postgresql://…
"""

import asyncio
import json
import sys
from collections.abc import Iterable

import lockstep
from lockstep import Engine, Message, NewMessage, PopRequest
from lockstep.core.streams import NewStreamQuery, StateFilter, StateOp, StreamAck, StreamCycle

READINGS, MINUTES = "example.readings", "example.minutes"
MINUTE_MS = 60_000
# Seconds since the start and degrees, by device. The gap of the second device closes its minute late.
MEASURED = {
    "boiler": [(0, 60), (30, 64), (70, 70), (130, 80)],
    "fridge": [(10, 4), (20, 6), (200, 5)],
}


def readings() -> list[NewMessage]:
    return [
        NewMessage(queue=READINGS, partition=device, payload=json.dumps({"at": seconds, "degrees": degrees}).encode())
        for device, values in MEASURED.items()
        for seconds, degrees in values
    ]


def summed(state: dict[str, dict[str, int]], messages: Iterable[Message]) -> int:
    """Add readings to the windows in `state`; returns up to when the device has measured."""
    upto_ms = 0
    for message in messages:
        reading = message.json()
        begin = reading["at"] * 1000 // MINUTE_MS
        window = state.setdefault(f"{begin:08}", {"sum": 0, "count": 0, "windowEnd": (begin + 1) * MINUTE_MS})
        window["sum"] += reading["degrees"]
        window["count"] += 1
        upto_ms = max(upto_ms, reading["at"] * 1000)
    return upto_ms


async def cycle(engine: Engine, query_id: int, lease_id: str | None, messages: list[Message]) -> None:
    """One step for one device: its state, what it pushes and its acknowledgement change together, or not at all."""
    device = messages[0]
    rows = await engine.stream_state(StateFilter(query_id=query_id, partition_id=device.partition_id))
    state = {row.key: json.loads(row.value) for row in rows}
    upto_ms = summed(state, messages)
    over = [key for key in sorted(state) if state[key]["windowEnd"] <= upto_ms]
    ops = [StateOp(type="delete", key=key) for key in over]
    ops += [
        StateOp(type="upsert", key=key, value=json.dumps(window).encode())
        for key, window in state.items()
        if key not in over
    ]
    means = [{"minute": int(key), "mean": state[key]["sum"] / state[key]["count"]} for key in over]
    await engine.stream_cycle(
        StreamCycle(
            query_id=query_id,
            partition_id=device.partition_id,
            state_ops=tuple(ops),
            ack=StreamAck(transaction_id=messages[-1].transaction_id, lease_id=lease_id),
        ),
        [NewMessage(queue=MINUTES, partition=device.partition, payload=json.dumps(mean).encode()) for mean in means],
    )


async def aggregate(engine: Engine) -> None:
    query = await engine.register_stream_query(
        NewStreamQuery(name="example.minutes", source_queue=READINGS, config_hash="v1", sink_queue=MINUTES, reset=True)
    )
    request = PopRequest(queue=READINGS, batch=2)  # two at a time, so that state lives on between cycles
    while popped := (await engine.pop([request]))[0]:
        await cycle(engine, query.id, popped.lease_id, list(popped.messages()))


async def main(url: str) -> None:
    async with lockstep.open_engine(url) as engine:
        for queue in (READINGS, MINUTES):
            await engine.delete_queue(queue)  # what an earlier run left
        await engine.push(readings())
        await aggregate(engine)
        [popped] = await engine.pop([PopRequest(queue=MINUTES, batch=100, partitions=10, auto_ack=True)])
        for message in sorted(popped.messages(), key=lambda one: (one.partition, one.seq)):
            mean = message.json()
            print(f"{message.partition}: minute {mean['minute']}, {mean['mean']:.1f} degrees")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "memory://"))
