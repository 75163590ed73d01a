"""Packed bodies over HTTP beside JSON and the plain INSERT: what our own clients send and receive."""

from __future__ import annotations

from itertools import cycle

from benchmarks.harness import CALLERS, Bar, Outcome, Side, Table
from benchmarks.http_client import request
from benchmarks.scenarios.http import POP_QUEUE, Consumers, Target, http_push, served
from benchmarks.scenarios.setting import PREPARED_CALLS, QUEUE, Setting
from lockstep import Batch
from lockstep.core.wire import delivery as wire

BATCHES = (10, 100, 1000)
CONNECTIONS = 10
BARS = {100: 2.5, 1000: 5.0}
"""By batch: how many times the plain INSERT a packed push is to be."""


def packed_push(target: Target, setting: Setting, size: int, connections: int) -> Side:
    """Every connection pushes to a partition of its own."""
    calls = [
        cycle([_push_request(setting.messages.batch(size), f"p{caller}") for _ in range(PREPARED_CALLS // 8 or 1)])
        for caller in range(connections)
    ]

    async def push(caller: int) -> int:
        status, body = await target.connections[caller].ask(next(calls[caller]))
        if status != 201:
            raise RuntimeError(f"the server answered {status}: {body[:200]!r}")
        return size

    return Side(f"packed push, batch {size}, {connections} connections", push, callers=connections)


def _push_request(payloads: list[bytes], partition: str) -> bytes:
    body = wire.write_push([Batch.of(QUEUE, payloads, partition=partition)])
    return request("POST", "/api/v1/push", body, media=wire.PACKED)


class PackedConsumers(Consumers):
    """Pop packed answers of up to 10 partitions a call, and ack by lease."""

    async def pop_and_ack(self, caller: int) -> int:
        asking = self.target.connections[caller]
        path = f"/api/v1/pop/queue/{POP_QUEUE}?batch={self.size}&partitions=10"
        status, body = await asking.ask(request("GET", path, accept=wire.PACKED))
        if status == 204:  # nothing there
            return 0
        start = body.index(b'"leaseId":"') + 11
        lease = body[start : start + 36].decode()
        status, answer = await asking.ask(request("POST", f"/api/v1/lease/{lease}/ack", b"{}"))
        count = int(answer.partition(b'"messages":')[2].partition(b",")[0])
        if status != 200 or not count:
            raise RuntimeError(f"the ack was answered {status}: {answer!r}")
        return count

    def side(self) -> Side:
        name = f"packed pop + ack, batch {self.size}, {self.connections} connections"
        return Side(name, self.pop_and_ack, self.prepare, callers=self.connections)


async def packed_scenario(setting: Setting) -> Outcome:
    tables, bars = [], []
    async with served(setting) as target:
        await target.engine.configure(POP_QUEUE)
        for size in BATCHES:
            base = target.plain.side(setting.messages, size, CALLERS)
            sides = [
                packed_push(target, setting, size, CONNECTIONS),
                http_push(target, setting, size, CONNECTIONS),
                PackedConsumers(target, setting, size, CONNECTIONS).side(),
                Consumers(target, setting, size, CONNECTIONS).side(),
            ]
            measured = await setting.compare(base, sides)
            tables.append(Table(f"Packed and JSON, batch {size}", [each.row() for each in measured]))
            if size in BARS:
                name = f"{measured[1].name}: times the plain INSERT"
                bars.append(Bar.at_least(name, measured[1].ratio, BARS[size]))
    return Outcome(tables, bars)
